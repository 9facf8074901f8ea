"""Importance resampling and its Pareto diagnostic."""

import math

import numpy as np
import pytest
import torch

import eande
from eande.inference.samplers.importance import pareto_k, resample
from helpers.exact_posteriors import cube, posterior_of, two_modes


def test_pareto_k_tells_heavy_tails():
    """Weights of a Pareto law with exponent a have k = 1/a.

    Those of a bounded ratio, near its flat top, a negative one.
    """
    random = np.random.default_rng(0)
    heavy = [np.log(1 + random.pareto(a, size=50_000)) for a in (0.8, 2.0, 10.0)]
    bounded = -(random.uniform(-1, 1, size=(50_000, 2)) ** 2).sum(1) / 0.02
    k = pareto_k(torch.tensor(np.stack([*heavy, bounded])))
    np.testing.assert_allclose(k[:3], [1 / 0.8, 0.5, 0.1], atol=0.2)
    assert k[3] < 0
    plateau = torch.where(torch.arange(1_000) < 3, 0.0, -50.0)
    k = pareto_k(torch.stack([plateau, torch.zeros(1_000)]))
    assert (k[0], k[1]) == (math.inf, -math.inf)
    assert np.isnan(pareto_k(torch.zeros(1, 10))).all()


def test_resampled_draws_follow_the_posterior():
    posterior = posterior_of(lambda phi: two_modes(phi, width=0.1), cube(2), draws=200_000)
    phi, info = posterior.sample(20_000, seed=0, sampler=resample)
    first = phi[phi.mean(1) > 0]
    # As many of each mode as the bank has, whose draws are an error of their own.
    assert len(first) / len(phi) == pytest.approx(
        0.7, abs=4 * math.sqrt(0.21 / info.effective_draws) + 0.013
    )
    assert torch.allclose(first.mean(0), torch.full((2,), 0.5), atol=0.01)
    assert torch.allclose(first.std(0), torch.full((2,), 0.1), atol=0.005)
    assert info.pareto_k < 0.5
    again, other = (posterior.sample(100, seed=seed, sampler=resample)[0] for seed in (0, 1))
    assert torch.equal(again, posterior.sample(100, seed=0, sampler=resample)[0])
    assert not torch.equal(again, other)


def test_resampling_says_when_too_few_draws_matter():
    posterior = posterior_of(lambda phi: two_modes(phi, width=0.05), cube(10), draws=5_000)
    with pytest.warns(
        eande.EandeWarning, match=r"effective sample size \d+ of 5000 prior draws, Pareto k"
    ):
        phi, info = posterior.sample(50, sampler=resample)
    assert phi.shape == (50, 10)
    assert info.effective_draws < 10
