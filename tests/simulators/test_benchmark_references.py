"""The tasks of the public benchmark against what its package holds.

``tests/data/sbibm.npz`` has the first three observations of some tasks in sbibm 1.1.0, with the
first samples of their reference posteriors, and the numbers in the file of the distractors: their
centres, and their factors summed over the columns.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from eande.simulators.sbibm import TASKS, _design, _distractors
from eande.simulators.sbibm_dynamics import infected_shares, log_animals

NUMBERS = (1, 2, 3)


@pytest.fixture(scope="module")
def stored():
    with np.load(Path(__file__).parents[1] / "data" / "sbibm.npz") as file:
        return dict(file)


def test_the_linear_task_with_a_box_has_normal_posteriors_cut_off(stored):
    prior = TASKS["gaussian_linear_uniform"].prior
    assert prior.low.tolist() == [-1] * 10
    assert prior.high.tolist() == [1] * 10
    for number in NUMBERS:
        y = stored[f"gaussian_linear_uniform/{number}/observation"].astype(float)
        samples = stored[f"gaussian_linear_uniform/{number}/samples"]
        scale = np.sqrt(0.1)
        exact = stats.truncnorm((-1 - y) / scale, (1 - y) / scale, loc=y, scale=scale)
        error = exact.std() / np.sqrt(len(samples))
        # Of thirty means and standard deviations; 5σ.
        assert (np.abs(samples.mean(0) - exact.mean()) < 5 * error).all()
        assert (np.abs(samples.std(0) - exact.std()) < 5 * error).all()


def test_the_spikes_are_those_behind_the_sums(stored):
    for number in NUMBERS:
        spikes = stored[f"bernoulli_glm_raw/{number}/observation"]
        sums = stored[f"bernoulli_glm/{number}/observation"]
        np.testing.assert_allclose(spikes @ _design(), sums, atol=1e-4)


def test_distractors_surround_the_data_in_the_order_of_the_files(stored):
    centres, factors, order = _distractors()
    for number in NUMBERS:
        y = stored[f"slcp_distractors/{number}/observation"]
        unshuffled = np.empty(100)
        unshuffled[order] = y
        np.testing.assert_allclose(unshuffled[:8], stored[f"slcp/{number}/observation"], rtol=1e-6)
    np.testing.assert_allclose(centres, stored["distractors/centres"], rtol=1e-6)
    np.testing.assert_allclose(factors.sum(2), stored["distractors/sums_of_factors"], atol=1e-4)


def log_likelihood_of_epidemics(phi, y):
    return stats.binom.logpmf(y, 1000, infected_shares(phi)).sum(1)


def log_likelihood_of_animals(phi, y):
    return stats.norm.logpdf(np.log(y), log_animals(phi), 0.1).sum(1)


DYNAMICS = {"sir": log_likelihood_of_epidemics, "lotka_volterra": log_likelihood_of_animals}


@pytest.mark.parametrize("task", DYNAMICS)
def test_references_are_the_posteriors_of_our_likelihood(task, stored):
    """Proposals around the reference samples, weighted by prior and likelihood."""
    for number in NUMBERS:
        y = stored[f"{task}/{number}/observation"].astype(float)
        samples = np.log(stored[f"{task}/{number}/samples"].astype(float))
        mean = samples.mean(0)
        spread = samples.std(0)
        factor = np.linalg.cholesky(np.cov(samples.T))
        rng = np.random.default_rng(number)
        noise = rng.standard_t(5, (3_000, len(mean)))
        log_phi = mean + noise @ factor.T
        log_weights = (
            DYNAMICS[task](np.exp(log_phi), y)
            + TASKS[task].prior.log_prob(torch.from_numpy(np.exp(log_phi))).numpy()
            + log_phi.sum(1)
            - stats.t.logpdf(noise, 5).sum(1)
        )
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        assert 1 / (weights**2).sum() > 2_000
        found = weights @ log_phi
        # Errors of means of 1,000 and 2,000: 0.04 standard deviations together; 4σ.
        assert (np.abs(found - mean) / spread < 0.16).all()
        width = np.sqrt(weights @ (log_phi - found) ** 2)
        assert (np.abs(np.log(width / spread)) < 0.16).all()
