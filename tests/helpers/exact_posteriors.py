"""Models whose posterior is known, or whose score is given."""

import math

import torch
from torch.distributions import Independent, Normal

import eande
from eande.inference.model import EmbedAndEmulate
from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.similarities.cosine import Cosine
from eande.similarities.dot import Dot
from eande.simulation.simulate import simulate
from helpers.models import Function

ALPHA = 1e-3  # false-alarm rate of every two-sample test here; seeds are fixed


def observation(task, seed=3):
    return simulate(task, task.prior, 1, seed=seed).y[0]


def box_model(names=("a", "b"), similarity=None):
    """A model on a box with a smooth, bimodal, known score.

    Peaks at ±(1, 1) in a box of half-width 3.
    """

    def emulator(phi):
        bump = torch.exp(-((phi.abs() - 1) ** 2).sum(1) / 0.5) * torch.where(
            phi.prod(1) > 0, 1.0, 0.0
        )
        return torch.stack([bump, (1 - bump**2).clamp(min=0).sqrt()], 1)

    prior = BoxPrior([-3, -3], [3, 3], names=names)
    first = Function(lambda y: torch.stack([y[:, 0], 0 * y[:, 0]], 1))
    return EmbedAndEmulate(
        first,
        Function(emulator),
        similarity or Cosine(0.2),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )


def linear_gaussian_model(noise=0.5):
    """y = φ + noise, φ ~ N(0, 1): the score −(y − φ)²/2σ² as a free dot product, exactly."""
    f = Function(lambda y: torch.stack([y[:, 0] / noise**2, torch.ones_like(y[:, 0])], 1) * 2**0.5)
    g = Function(lambda phi: torch.stack([phi[:, 0], -(phi[:, 0] ** 2) / (2 * noise**2)], 1))
    prior = DistributionPrior(Independent(Normal(torch.zeros(1), torch.ones(1)), 1))
    return EmbedAndEmulate(f, g, Dot(2), prior, y_shape=(1,), embedding_dimension=2)


def gaussian_posterior(ys, noise=0.5, prior_mean=0.0, prior_std=1.0):
    precision = len(ys) / noise**2 + 1 / prior_std**2
    return (sum(ys) / noise**2 + prior_mean / prior_std**2) / precision, precision**-0.5


def peaked(prior, temperature=0.05):
    """One parameter on a half circle: sharp where φ equals y."""

    def embed(x):
        return torch.cat([torch.cos(x), torch.sin(x)], 1)

    return EmbedAndEmulate(
        Function(embed),
        Function(embed),
        Cosine(temperature),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )


def posterior_of(score, prior, draws=50_000):
    """A posterior with any score: the datum says nothing, the emulator everything."""
    encoder = Function(lambda y: torch.ones(len(y), 1))
    model = eande.EmbedAndEmulate(
        encoder,
        Function(lambda phi: score(phi).unsqueeze(1)),
        Dot(1),
        prior,
        y_shape=(1,),
        embedding_dimension=1,
    )
    return model.posterior(torch.zeros(1), draws=draws)


def two_modes(phi, weight=0.7, width=0.1):
    """Gaussians at ±½ in every coordinate."""
    squares = [((phi - centre) / width).square().sum(1) / -2 for centre in (0.5, -0.5)]
    return torch.logaddexp(squares[0] + math.log(weight), squares[1] + math.log(1 - weight))


def cube(dimension):
    return eande.BoxPrior([-1] * dimension, [1] * dimension)
