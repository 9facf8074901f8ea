"""The normaliser estimated with prior draws, and its error."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from eande.inference.normalizer import PriorBank, coefficient_of_variation, estimate_normalizer
from eande.priors.draws import SamplerPrior
from eande.similarities.cosine import Cosine
from helpers.exact_posteriors import box_model, observation
from helpers.models import quick_fit


def test_the_reported_error_of_the_normaliser_is_its_spread():
    model = box_model()
    values = []
    errors = []
    for repetition in range(200):
        prior = SamplerPrior(
            lambda n, seed, shift=repetition: model.prior.sample(n, seed=seed + shift)
        )
        posterior = model.posterior([1.0], prior=prior, draws=2_000)
        values.append(posterior.log_normalizer)
        errors.append(posterior.normalizer_error)
    assert np.std(values) == pytest.approx(np.mean(errors), rel=0.2)


def test_the_bank_follows_the_weights(task, simulations):
    model = quick_fit(simulations[:500], task.prior, epochs=30)
    y = observation(task)
    before = model.posterior(y).log_normalizer
    with torch.no_grad():
        model.emulator.last.weight.add_(1.0)
    assert model.posterior(y).log_normalizer != before


def test_normalisers_survive_tiny_temperatures():
    """e^{1/τ} overflows float32 and float64 at τ = 1e-4; the log-mean-exp must not."""
    similarity = Cosine(1e-4)
    emulated = nn.functional.normalize(
        torch.randn(1_000, 3, generator=torch.Generator().manual_seed(0)), dim=1
    )
    bank = PriorBank(torch.zeros(1_000, 1), emulated, torch.ones(1_000, dtype=torch.bool))
    estimate = estimate_normalizer(similarity, emulated[:7], bank)
    assert torch.allclose(
        estimate.log_value, torch.full((7,), 1e4 - math.log(1_000), dtype=torch.float64), atol=1.0
    )
    assert (estimate.effective_draws < 10).all()
    assert math.isfinite(coefficient_of_variation(estimate.log_value))
