"""Exact models on a line, made too sharp, too wide or shifted by a known amount."""

import math

import torch

import eande
from eande.inference.model import EmbedAndEmulate
from eande.similarities.cosine import Cosine
from eande.similarities.dot import Dot
from eande.similarities.prior_only import PriorOnly
from helpers.models import Function

LINE = eande.BoxPrior([-1.0], [1.0])
NOISE = 0.1
GRID = torch.linspace(-1, 1, 1_001).unsqueeze(1)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def gaussian(sharpness=1.0, *, shift=0.0, noise=NOISE, prior=LINE) -> EmbedAndEmulate:
    """A model of y = φ + noise whose ratio is the exact one to the power ``sharpness``, which may
    depend on y.
    """

    def encoder(y):
        power = sharpness(y) if callable(sharpness) else sharpness
        return 2**0.5 * power / noise**2 * torch.cat([y + shift, torch.ones_like(y)], 1)

    return EmbedAndEmulate(
        Function(encoder),
        Function(lambda phi: torch.cat([phi, -(phi**2) / 2], 1)),
        Dot(2),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )


def circle(temperature: float) -> EmbedAndEmulate:
    """Angles: the score is cos(φ − y)/τ, and the bound 1/τ is attained at φ = y."""

    def point(angle):
        return torch.cat([angle.cos(), angle.sin()], 1)

    prior = eande.BoxPrior([-math.pi], [math.pi])
    return EmbedAndEmulate(
        Function(point),
        Function(point),
        Cosine(temperature),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )


def pairs(n: int, seed: int, noise=NOISE) -> eande.Simulations:
    phi = LINE.sample(n, seed=seed)
    return eande.Simulations.from_arrays(
        phi, phi + noise * torch.randn(n, 1, generator=torch.Generator().manual_seed(seed))
    )


def log_mean_exp(values):
    return values.logsumexp(0) - math.log(len(values))


def mean_score(model, data) -> float:
    """Mean log ratio of pairs, over a fixed fine grid of the prior instead of draws."""
    embedded = model.embed_all(data.y)
    emulated = model.emulate_all(data.phi)
    grid = model.emulate_all(GRID)
    normalizer = log_mean_exp(model.similarity.score(embedded, grid).double().T)
    return (model.similarity.paired_score(embedded, emulated).double() - normalizer).mean().item()


def coverage(model, data, level=0.95) -> float:
    """How often the region of highest density of that level holds the true φ."""
    embedded = model.embed_all(data.y)
    emulated = model.emulate_all(data.phi)
    grid = model.emulate_all(GRID)
    scores = model.similarity.score(embedded, grid).double()
    above = scores > model.similarity.paired_score(embedded, emulated).double().unsqueeze(1)
    return ((scores.softmax(1) * above).sum(1) <= level).double().mean().item()


def fallen(model):
    """As fit leaves a model no better than the prior."""
    return model.with_similarity(PriorOnly(model.similarity))


QUICK = {"draws": 2_000, "progress": False}
