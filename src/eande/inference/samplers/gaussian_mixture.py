"""A Gaussian mixture fitted to particles, a proposal of the tempered and the guided sampler.

References:
    Dempster, Laird and Rubin, *Maximum likelihood from incomplete data via the EM algorithm*, 1977;
    Arthur and Vassilvitskii, *k-means++: the advantages of careful seeding*, 2007.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Expectation–maximisation runs so many iterations on so many particles at most.
_ITERATIONS = 12
_FITTED_PARTICLES = 4_000
# Counts added to every component, so that none has the weight zero.
_PSEUDO_COUNT = 1e-2


class GaussianMixture(NamedTuple):
    """A mixture of K Gaussians in D coordinates.

    Args:
        location: mean of the particles (D,).
        scale: standard deviation of the particles (D,).
        components: the mixture of the standardised particles.
    """

    location: Tensor
    scale: Tensor
    components: _Components

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density, (n, D) → (n,), in float64."""
        z = (x - self.location) / self.scale
        log_volume = self.scale.log().sum() + len(self.scale) / 2 * math.log(2 * math.pi)
        return self.components.log_joint(z).logsumexp(-1).double() - log_volume

    def widened(self, times: float) -> GaussianMixture:
        """Return the mixture with components so many times as wide."""
        factors = times * self.components.factors
        inverses = self.components.inverses / times
        return self._replace(
            components=self.components._replace(factors=factors, inverses=inverses)
        )

    def joined(self, other: GaussianMixture, share: float) -> GaussianMixture:
        """Return a mixture that has that share of another one of the same particles."""
        weights, *rest = zip(self.components, other.components, strict=True)
        mixed = torch.cat([(1 - share) * weights[0], share * weights[1]])
        return self._replace(components=_Components(mixed, *map(torch.cat, rest)))

    def sample(self, n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw ``n`` points, and return them with their offsets from their components' means."""
        weights, means, factors, _ = self.components
        component = torch.multinomial(weights, n, replacement=True, generator=stream)
        counts = component.bincount(minlength=len(weights))
        noise = torch.randn(n, len(self.location), generator=stream, device=means.device)
        # Sorted by component, for one matrix product each, then shuffled.
        parts = noise.split(counts.tolist())
        offsets = torch.cat([part @ factor.T for part, factor in zip(parts, factors, strict=True)])
        points = offsets + means.repeat_interleave(counts, 0)
        order = torch.randperm(n, generator=stream, device=means.device)
        return self.location + points[order] * self.scale, offsets[order] * self.scale


class _Components(NamedTuple):
    """The components of a mixture in standardised coordinates.

    Args:
        weights: (K,).
        means: (K, D).
        factors: Cholesky factors of the covariances, (K, D, D).
        inverses: their inverses.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor
    inverses: Tensor

    def log_joint(self, z: Tensor) -> Tensor:
        """Return log weight plus log density (up to a constant) of each component, (n, K)."""
        squares = [
            (((z - mean) @ inverse.T) ** 2).sum(-1)
            for mean, inverse in zip(self.means, self.inverses, strict=True)
        ]
        log_determinants = self.inverses.diagonal(dim1=1, dim2=2).log().sum(-1)
        joint: Tensor = self.weights.log() + log_determinants - torch.stack(squares, -1) / 2
        return joint


def fit_gaussian_mixture(x: Tensor, components: int, stream: torch.Generator) -> GaussianMixture:
    """Fit a mixture to particles (n, D) by expectation–maximisation.

    The weights of the result are the square roots of the fitted ones, normalised: rare components
    are proposed more often than they occur, so that small modes exchange particles with large ones.

    Args:
        x: the particles.
        components: K.
        stream: chooses the particles to fit and the initial means.
    """
    location = x.mean(0)
    scale = x.std(0).clamp_min(1e-30)
    rows = torch.randperm(len(x), generator=stream, device=x.device)[:_FITTED_PARTICLES]
    z = (x[rows] - location) / scale
    nearest = torch.cdist(z, _initial_means(z, components, stream)).argmin(1)
    fitted = _maximize(z, functional.one_hot(nearest, components).to(z.dtype))
    for _ in range(_ITERATIONS - 1):
        fitted = _maximize(z, fitted.log_joint(z).softmax(-1))
    roots = fitted.weights.sqrt()
    return GaussianMixture(location, scale, fitted._replace(weights=roots / roots.sum()))


def _initial_means(z: Tensor, components: int, stream: torch.Generator) -> Tensor:
    """Choose particles to start from, (K, D): the farthest ones, then by k-means++.

    The farthest come first because a mode of few particles must get a component, too.
    """
    means = z[:1]
    distance = z.new_full((len(z),), torch.inf)
    for turn in range(components - 1):
        distance = torch.minimum(distance, ((z - means[-1]) ** 2).sum(-1))
        if 2 * turn < components:
            chosen = distance.argmax().view(1)
        else:
            chosen = torch.multinomial(distance.clamp_min(1e-30), 1, generator=stream)
        means = torch.cat([means, z[chosen]])
    return means


def _maximize(z: Tensor, responsibilities: Tensor) -> _Components:
    """Return the components of highest likelihood for given responsibilities (n, K)."""
    rows, dimension = z.shape
    counts = responsibilities.sum(0)
    means = responsibilities.T @ z / counts.clamp_min(1e-6).unsqueeze(-1)
    scatter = torch.stack(
        [
            ((z - mean) * share.unsqueeze(-1)).T @ (z - mean)
            for mean, share in zip(means, responsibilities.T, strict=True)
        ]
    )
    # Shrink towards the variances common to all components: some have few particles.
    pooled = torch.diag(scatter.diagonal(dim1=1, dim2=2).sum(0) / rows + 1e-6)
    covariances = (scatter + dimension * pooled) / (counts + dimension).view(-1, 1, 1)
    factors = torch.linalg.cholesky(covariances)
    weights = (counts + _PSEUDO_COUNT) / (counts + _PSEUDO_COUNT).sum()
    return _Components(weights, means, factors, torch.linalg.inv(factors))
