"""The synthetic task: draws, inverse, exact ratio and information."""

import numpy as np
import pytest
import torch
from scipy import stats

from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import (
    VonMisesFisher,
    log_mean_exp_on_sphere,
    sample_von_mises_fisher,
)


@pytest.mark.parametrize(("kappa", "dimension"), [(0.5, 2), (2, 2), (30, 2), (5, 3), (5, 7)])
def test_von_mises_fisher_draws_match_scipy(kappa, dimension):
    centre = np.zeros((20_000, dimension))
    centre[:, 0] = 1
    ours = sample_von_mises_fisher(centre, kappa, np.random.default_rng(0))
    theirs = stats.vonmises_fisher(centre[0], kappa).rvs(20_000, random_state=1)
    assert np.allclose(np.linalg.norm(ours, axis=1), 1)
    for axis in (0, 1):
        assert stats.ks_2samp(ours[:, axis], theirs[:, axis]).pvalue > 1e-3
    wrong = stats.vonmises_fisher(centre[0], 1.3 * kappa).rvs(20_000, random_state=1)
    assert stats.ks_2samp(ours[:, 0], wrong[:, 0]).pvalue < 1e-3


@pytest.mark.parametrize("dimension", [2, 3, 5])
@pytest.mark.parametrize("redundant", [False, True])
def test_the_task_is_invertible_and_its_ratio_is_normalised(dimension, redundant):
    task = VonMisesFisher(4, dimension=dimension, redundant=redundant, seed=2)
    z = sample_von_mises_fisher(
        np.eye(dimension)[np.zeros(200, dtype=int)], 0.1, np.random.default_rng(0)
    )
    assert torch.allclose(
        task.true_encoder(torch.as_tensor(task.decode(z))), torch.as_tensor(z), atol=1e-9
    )
    phi = task.prior.sample(200_000, seed=0)
    y = simulate(task, task.prior, 5, seed=1).y
    assert task.log_ratio(phi, y).exp().mean(1).numpy() == pytest.approx(np.ones(5), abs=0.05)
    assert not task.prior.contains(2 * phi[:10]).any()
    exact = task.sample_posterior(y[0], 50_000, seed=0)
    weights = task.log_ratio(phi, y[:1])[0].softmax(0)
    assert torch.allclose(exact.double().mean(0), weights @ phi.double(), atol=0.05)


def test_information_agrees_with_a_monte_carlo_estimate():
    task = VonMisesFisher(3, dimension=4)
    data = simulate(task, task.prior, 20_000, seed=0, block_size=20_000)
    ratio = task.kappa * (task.true_encoder(data.y) * task.true_emulator(data.phi)).sum(
        1
    ) - log_mean_exp_on_sphere(3, 4)
    assert abs(ratio.mean() - task.information()) < 4 * ratio.std() / 20_000**0.5
