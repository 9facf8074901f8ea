"""Posterior predictive simulations are kept whole: parameters, data, names and failures."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

import eande
from helpers.exact_posteriors import ALPHA, linear_gaussian_model

NOISE = 0.5


def simulator(phi, rng):
    return phi + NOISE * rng.standard_normal(phi.shape)


def test_data_have_the_law_that_a_posterior_predicts():
    """By a Gaussian posterior: its mean, and the noise's variance on top of its own."""
    predicted = eande.predict(
        linear_gaussian_model(NOISE).posterior([1.0]), simulator, 2_000, progress=False
    )
    variance = 1 / (1 + NOISE**-2)
    expected = stats.norm(variance / NOISE**2, (variance + NOISE**2) ** 0.5)
    assert len(predicted) == 2_000
    assert stats.kstest(predicted.y[:, 0].numpy(), expected.cdf).pvalue > ALPHA
    assert stats.kstest(predicted.phi[:, 0].numpy(), expected.cdf).pvalue < ALPHA


def test_every_sample_is_simulated_once_whoever_runs_it():
    posterior = linear_gaussian_model(NOISE).posterior([1.0])
    alone = eande.predict(posterior, simulator, 130, progress=False)
    with ThreadPoolExecutor(2) as pool:
        shared = eande.predict(posterior, simulator, 130, executor=pool, progress=False)
    assert len(alone.phi.unique(dim=0)) == 130
    assert torch.equal(alone.phi, shared.phi)
    assert torch.equal(alone.y, shared.y)


def test_failures_are_kept_with_their_parameters():
    def failing(phi, rng):
        return np.where(phi > 1, np.nan, simulator(phi, rng))

    with pytest.warns(eande.EandeWarning, match="failed"):
        predicted = eande.predict(
            linear_gaussian_model(NOISE).posterior([1.0]), failing, 200, progress=False
        )
    assert (predicted.failures.phi > 1).all()
    assert (predicted.phi <= 1).all()
    assert len(predicted) + len(predicted.failures) == 200


def test_noise_is_not_that_of_simulations_of_the_same_seed():
    """A model that learned its training noise by heart would meet it again."""
    prior = eande.BoxPrior([0.0], [1.0])
    posterior = linear_gaussian_model(NOISE).posterior([1.0])
    before = eande.simulate(simulator, prior, 100, seed=0, progress=False)
    predicted = eande.predict(posterior, simulator, 100, seed=0, progress=False)
    first, second = (one.y[:, 0] - one.phi[:, 0] for one in (before, predicted))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.4
