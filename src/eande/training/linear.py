"""A linear start: the model of a fit begins as the best linear-Gaussian posterior of its data.

Ridge regression of the parameters on the data, its strength chosen by leaving one out, gives a
posterior mean m(y) = B y and, by the residuals, a covariance S. Where parameters have covariance Σ
under the prior, the log ratio of that posterior to the prior is, up to a constant in φ,

    −½ (φ − a)ᵀ Λ (φ − a),      Λ = S⁻¹ − Σ⁻¹,      a = Λ⁻¹ S⁻¹ m(y),

one Gaussian around f(y) = Λ^½ a at g(φ) = Λ^½ φ: what a mixture with one head computes when both
networks are linear. A residual MLP is linear at its beginning, so these are the weights of its
skip; of a set, a series or a grid the regression is on the statistics that such an MLP gets there.
Training starts from there, and where a problem is linear there is little left to learn: fifty
simulations suffice.
"""

import math
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.networks.convolutional import Convolutional
from eande.networks.deep_set import DeepSet
from eande.networks.mlp import ResidualMLP
from eande.similarities.mixture import Mixture
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take
from eande.simulation.read.views import View, fixed_views

# Strengths of the ridge that are compared, relative to the variance of the data.
_STRENGTHS = torch.logspace(-6, 3, 19, dtype=torch.float64)
# Of a residual no more than this is put down to the datum's own weight in the regression.
_LARGEST_LEVERAGE = 0.95
# A regression has no more degrees of freedom than this share of its data.
_MOST_FREEDOM = 0.5
# Directions of φ of which the data explain less than this share of the variance start at zero.
_SMALLEST_SHARE = 1e-3
_LARGEST_SHARE = 1 - 1e-6
# Data that are so many times as many as their numbers are decomposed by their covariance.
_TIMES_AS_MANY = 4
# Numbers of data that the regression takes in: more change it little, and cost minutes.
_MOST_NUMBERS = 10**7
# All heads begin near the linear posterior with one weight, some wider and some narrower.
_LOG_PRECISION_RANGE = 0.5
_DISTANCE = 0.3


@dataclass(frozen=True)
class LinearFit:
    """A linear guess of standardised parameters from standardised data, and its error.

    Args:
        weights: B, (D, d).
        x_mean: mean of the data, (d,).
        z_mean: mean of the parameters, (D,).
        covariance: Σ, that of the parameters, (D, D).
        residual: S, that of what the guess leaves, each datum left out in turn, (D, D).
    """

    weights: Tensor
    x_mean: Tensor
    z_mean: Tensor
    covariance: Tensor
    residual: Tensor

    @classmethod
    def of(cls, x: Tensor, z: Tensor) -> "LinearFit":
        """Regress parameters (N, D) on data (N, d)."""
        x = x.double()
        z = z.double()
        number = len(x)
        x_mean = x.mean(0)
        z_mean = z.mean(0)
        u, lengths, directions = _principal_axes(x - x_mean)
        targets = u.T @ (z - z_mean)
        best: tuple[float, Tensor, Tensor] | None = None
        for strength in _STRENGTHS:
            ridge = strength * lengths[0] ** 2 / max(1, len(lengths))
            kept = lengths**2 / (lengths**2 + ridge)
            if kept.sum() > _MOST_FREEDOM * number and strength < _STRENGTHS[-1]:
                # What it leaves is too little to judge it by.
                continue
            leverage = (u.square() * kept).sum(1) + 1 / number
            left = z - z_mean - u @ (kept.unsqueeze(1) * targets)
            left = left / (1 - leverage.clamp(max=_LARGEST_LEVERAGE)).unsqueeze(1)
            residual = _shrunk(left.T @ left / number, number)
            score = torch.logdet(residual).item()
            if best is None or score < best[0]:
                best = (score, ridge, residual)
        assert best is not None
        _, ridge, residual = best
        scaled = (lengths / (lengths**2 + ridge)).unsqueeze(1) * targets
        covariance = _shrunk(torch.cov(z.T).reshape(z.shape[1], -1), number)
        return cls(scaled.T @ directions, x_mean, z_mean, covariance, residual)


def _principal_axes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition of centred data (N, d), longest axes first.

    Of many data by the eigenvectors of xᵀx, in a fraction of the time; what that loses in small
    singular values no ridge lets through.
    """
    if len(x) < _TIMES_AS_MANY * x.shape[1]:
        return torch.linalg.svd(x, full_matrices=False)
    squares, axes = torch.linalg.eigh(x.T @ x)
    lengths = squares.flip(0).clamp(min=0).sqrt()
    directions = axes.flip(1).T
    shortest = torch.finfo(x.dtype).eps * lengths[0] + torch.finfo(x.dtype).tiny
    return x @ directions.T / lengths.clamp(min=shortest), lengths, directions


def _shrunk(covariance: Tensor, number: int) -> Tensor:
    """Return a covariance drawn towards its diagonal, the more the fewer data it rests on."""
    size = len(covariance)
    share = size / (number + size)
    diagonal = torch.diag(covariance.diagonal().clamp(min=1e-12))
    return (1 - share) * covariance + share * diagonal


@torch.no_grad()
def start_linear(model: EmbedAndEmulate, train: Simulations, views: View | None = None) -> None:
    """Give a model that was just made the weights of the linear-Gaussian posterior.

    Args:
        model: with networks of ours and a mixture.
        train: the simulations to train on.
        views: what the encoder sees of a datum.
    """
    emulator = model.emulator
    similarity = model.similarity
    head = _head_of(model.encoder)
    if not (_has_skip(head) and _has_skip(emulator) and isinstance(similarity, Mixture)):
        raise InputError(
            "start: expected 'random' but for networks of ours with linear_skip=True and a "
            "mixture, got 'linear'"
        )
    x, z = regressed(model, train, views)
    found = LinearFit.of(x, z)
    to_white = torch.linalg.inv(torch.linalg.cholesky(found.covariance))
    # In coordinates where Σ is the identity, S has these shares of the prior's variance left.
    left, axes = torch.linalg.eigh(to_white @ found.residual @ to_white.T)
    n = model.embedding_dimension
    left = left[:n]
    axes = axes[:, :n]
    explained = (1 - left).clamp(_SMALLEST_SHARE, _LARGEST_SHARE)
    left = 1 - explained
    precision = 1 / left - 1
    guess = axes.T @ to_white @ found.weights
    # What the guess varies by beyond what it explains is over-fitted.
    spread = ((x.double() - found.x_mean) @ guess.T).var(0)
    trusted = ((1 - left) / spread.clamp(min=1e-12)).clamp(max=1)
    trusted = torch.where(explained > _SMALLEST_SHARE, trusted, 0.0)
    from_y = (trusted / (left * precision.sqrt())).unsqueeze(1) * guess
    from_phi = precision.sqrt().unsqueeze(1) * (axes.T @ to_white)
    _set_linear(head, from_y, found.x_mean)
    _set_linear(emulator, from_phi, found.z_mean)
    _set_heads(similarity, n)


@torch.no_grad()
def regressed(
    model: EmbedAndEmulate, train: Simulations, views: View | None
) -> tuple[Tensor, Tensor]:
    """Return what parameters are regressed on, (N, d), and these, (N, D), both standardised.

    Args:
        model: with an encoder of ours.
        train: the simulations to train on; the first of very many.
        views: what the encoder sees of a datum.
    """
    encoder = model.encoder
    assert isinstance(encoder, Convolutional | DeepSet | ResidualMLP)
    rows = max(2, min(len(train), _MOST_NUMBERS // math.prod(model.y_shape)))
    y = torch.cat(list(fixed_views(views, take(train.y, slice(rows)))))
    parts = y.cpu().split(model.encoder_rows)
    x = torch.cat([encoder.features(model.y_standardizer(part)) for part in parts])
    return x, model.phi_standardizer(train.phi[:rows])


def can_start_linear(model: EmbedAndEmulate) -> bool:
    """Return whether a model has the parts that a linear start gives weights to."""
    skips = _has_skip(_head_of(model.encoder)) and _has_skip(model.emulator)
    return skips and isinstance(model.similarity, Mixture)


def _head_of(encoder: nn.Module) -> nn.Module:
    """Return the part of an encoder that is linear at first: the head after its statistics."""
    return encoder.head if isinstance(encoder, Convolutional | DeepSet) else encoder


def _has_skip(network: nn.Module) -> TypeGuard[ResidualMLP]:
    return isinstance(network, ResidualMLP) and network.skip is not None


def _set_linear(network: ResidualMLP, weights: Tensor, centre: Tensor) -> None:
    """Make a residual MLP the map x ↦ W (x − centre), in its first outputs."""
    assert network.skip is not None
    rows = len(weights)
    network.skip.weight.zero_()
    network.last.bias.zero_()
    network.skip.weight[:rows] = weights.float()
    network.last.bias[:rows] = -(weights @ centre).float()


def _set_heads(similarity: Mixture, n: int) -> None:
    """Let the first head lie at f, the others near it, with precisions near 1."""
    similarity.spread.weight.mul_(0.1)
    bias = similarity.spread.bias.view(similarity.heads, n + 2)
    bias[:, :n] = _DISTANCE * torch.randn(similarity.heads, n) / n**0.5
    bias[:, n] = 0
    ends = (-_LOG_PRECISION_RANGE / 2, _LOG_PRECISION_RANGE / 2)
    bias[:, n + 1] = torch.linspace(*ends, similarity.heads)
    bias[0, :n] = 0
