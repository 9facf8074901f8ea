"""The linear task of the training tests: its posterior is known, and a fit takes seconds."""

import numpy as np
import torch

from eande.priors.box import BoxPrior
from eande.simulation.simulate import simulate

NOISE = 0.3
BOX = BoxPrior([-1, -1], [1, 1], names=["a", "b"])


def linear(phi, rng):
    """y = φ + noise on a box: the posterior is a truncated normal, nearly."""
    return phi + NOISE * rng.standard_normal(phi.shape)


def total_variation(model, y, order=(0, 1), scale=1.0):
    """Total variation between the model's posterior and the exact one, on prior draws."""
    phi = BOX.sample(4_000, seed=77)
    exact = (-((phi - y) ** 2).sum(1) / (2 * NOISE**2)).double().softmax(0)
    ours = (
        model.posterior(y[list(order)])
        .score(phi[:, list(order)] * torch.tensor([scale, 1.0]))
        .double()
        .softmax(0)
    )
    return (ours - exact).abs().sum().item() / 2


def average_variation(model, **options):
    test = simulate(linear, BOX, 10, seed=5).y
    return np.mean([total_variation(model, y, **options) for y in test])


LINEAR_FIT = {
    "epochs": 30,
    "embedding_dimension": 8,
    "temperature": 0.1,
    "width": 48,
    "batch_size": 250,
    "validate_every": 5,
}


def weights(model):
    return model.state_dict()


def equal(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
