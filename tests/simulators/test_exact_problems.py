"""The problems whose posteriors are known: their ratios are those of posteriors to priors."""

import numpy as np
import pytest
import torch

from eande.simulators.exact_problems import PROBLEMS

DRAWS = 4_000


def simulated(problem, n, seed):
    phi = problem.prior.sample(n, seed=seed)
    return phi, torch.from_numpy(problem(phi.numpy(), np.random.default_rng(seed)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_ratio_averages_to_one_over_prior_draws(name):
    """Within five standard errors for each of four data; one in a million fails by chance."""
    problem = PROBLEMS[name]
    _, data = simulated(problem, 4, seed=3)
    phi = problem.prior.sample(DRAWS, seed=4)
    for datum in data:
        one = datum.unsqueeze(0)
        # The evidence of the datum once, and its likelihood under every draw.
        log_r = problem.log_likelihood(phi.double(), one.double())[0]
        own = problem.log_likelihood(phi[:1].double(), one.double())[0, 0]
        log_r = log_r - own + problem.log_ratio(phi[:1], one)[0]
        r = log_r.exp()
        assert abs(r.mean() - 1) < 5 * r.std() / DRAWS**0.5 + 1e-3


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "nothing"])
def test_pairs_are_likelier_under_the_posterior_than_strangers(name):
    problem = PROBLEMS[name]
    phi, y = simulated(problem, 60, seed=5)
    assert y.dtype == torch.float32
    own = problem.log_ratio(phi, y)
    assert own.isfinite().all()
    assert own.mean() > 1.5
    assert problem.log_ratio(phi.roll(1, 0), y).mean() < 0
