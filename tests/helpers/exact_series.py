"""A mean seen in noise that remembers, and its exact models, of whole series and of windows."""

import math

import numpy as np
import torch

import eande
from eande.similarities.dot import Dot
from helpers.models import Function

PRIOR = eande.BoxPrior([-3], [3], names=["level"])
WINDOW = 20
WHOLE = 60


def noise_precision(length, memory):
    """The inverse covariance of autoregressive noise of variance 1, (length, length)."""
    steps = torch.arange(length, dtype=torch.float64)
    return torch.linalg.inv(memory ** (steps - steps.unsqueeze(1)).abs())


def exact(length, memory):
    """The model whose score is the log likelihood of a series of so many numbers."""
    weights = noise_precision(length, memory).sum(0)
    total = weights.sum().item()
    weights = weights.float()
    scale = math.sqrt(2) * total

    def encode(y):
        level = y @ weights / total
        return scale * torch.stack([level, torch.full_like(level, -0.5)], 1)

    emulator = Function(lambda phi: torch.cat([phi, phi.square()], 1))
    return eande.EmbedAndEmulate(
        Function(encode), emulator, Dot(2), PRIOR, y_shape=(length,), embedding_dimension=2
    )


def series(n, memory, seed):
    """Simulations of whole series, begun in equilibrium."""

    def simulator(phi, rng):
        steps = rng.standard_normal((len(phi), WHOLE)) * math.sqrt(1 - memory**2)
        noise = rng.standard_normal(len(phi))
        columns = []
        for i in range(WHOLE):
            noise = noise if i == 0 else memory * noise + steps[:, i]
            columns.append(noise)
        return phi + np.stack(columns, axis=1)

    return eande.simulate(simulator, PRIOR, n, seed=seed, progress=False)
