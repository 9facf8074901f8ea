"""The same seed gives the same model, and the global generator is left alone."""

import torch

from helpers.linear_task import BOX, equal, weights
from helpers.models import quick_fit


def test_same_seed_same_model_another_seed_another(linear_simulations):
    first, again, other = (
        quick_fit(linear_simulations[:600], BOX, epochs=3, seed=seed) for seed in (0, 0, 1)
    )
    assert equal(weights(first), weights(again))
    assert not equal(weights(first), weights(other))


def test_fit_leaves_the_global_generator_alone(linear_simulations):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quick_fit(linear_simulations[:200], BOX, epochs=1)
    assert torch.equal(torch.rand(3), expected)
