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

MODE_WEIGHT = 0.7
MODE_WIDTH = 0.1
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


def two_modes(phi, weight=MODE_WEIGHT, width=MODE_WIDTH):
    """Gaussians at ±½ in every coordinate."""
    squares = [((phi - centre) / width).square().sum(1) / -2 for centre in (0.5, -0.5)]
    return torch.logaddexp(squares[0] + math.log(weight), squares[1] + math.log(1 - weight))


def cube(dimension):
    return eande.BoxPrior([-1] * dimension, [1] * dimension)


class MovedModes(Dot):
    """The score of two modes, which the datum moves together."""

    name = "moved modes of a test"
    trainable = False

    def score(self, f, g):
        return torch.stack([two_modes(g - own) for own in f])

    def paired_score(self, f, g):
        return two_modes(g - f)

    def grouped_score(self, f, g):
        return torch.stack([two_modes(points - own) for own, points in zip(f, g, strict=True)])


def moved_modes(count, seed=0):
    """A model of two modes around ±½ in two parameters, moved by its datum, and simulations."""
    model = EmbedAndEmulate(
        Function(lambda y: y),
        Function(lambda phi: phi),
        MovedModes(2),
        cube(2),
        y_shape=(2,),
        embedding_dimension=2,
    )
    stream = torch.Generator().manual_seed(seed)
    moved = 0.2 * torch.rand(count, 2, generator=stream) - 0.1
    first = torch.rand(count, 1, generator=stream) < MODE_WEIGHT
    phi = moved + torch.where(first, 0.5, -0.5)
    phi = phi + MODE_WIDTH * torch.randn(count, 2, generator=stream)
    return model, eande.Simulations.from_arrays(phi.clamp(-0.99, 0.99), moved)
