"""Gaussian mixtures fitted to particles: proposals of the tempered sampler and of guides.

There is one for each of m data; a single posterior is a datum alone.

References:
    Dempster, Laird and Rubin, *Maximum likelihood from incomplete data via the EM algorithm*, 1977;
    Arthur and Vassilvitskii, *k-means++: the advantages of careful seeding*, 2007.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Expectation–maximisation runs so many iterations on so many particles at most.
_ITERATIONS = 12
_FITTED_PARTICLES = 4_000
# Counts added to every component, so that none has the weight zero.
_PSEUDO_COUNT = 1e-2
# Numbers computed at once, of all particles, components and coordinates: 4 MB, which caches hold,
# or 200 MB on a GPU.
_NUMBERS_AT_ONCE = 1_000_000
_NUMBERS_AT_ONCE_ON_GPU = 50_000_000


class GaussianMixture(NamedTuple):
    """Mixtures of K Gaussians in D coordinates, one for each of m data.

    Args:
        location: mean of the particles (m, 1, D).
        scale: standard deviation of the particles (m, 1, D).
        components: the mixtures of the standardised particles.
    """

    location: Tensor
    scale: Tensor
    components: Components

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density, (m, n, D) → (m, n), in float64."""
        log_volume = self.scale.double().log().sum(2) + x.shape[2] / 2 * math.log(2 * math.pi)
        found = [
            self.components.log_joint(self._standardized(part)).logsumexp(2)
            for part in x.split(self._rows(), dim=1)
        ]
        return torch.cat(found, dim=1).double() - log_volume

    def of(self, rows: Tensor) -> GaussianMixture:
        """Return the mixtures of some data."""
        components = Components(*(part[rows] for part in self.components))
        return GaussianMixture(self.location[rows], self.scale[rows], components)

    @classmethod
    def stacked(cls, mixtures: Sequence[GaussianMixture]) -> GaussianMixture:
        """Return the mixtures of the data of several, which need not have as many components."""
        most = max(mixture.components.weights.shape[1] for mixture in mixtures)
        filled = [mixture._filled(most) for mixture in mixtures]
        return cls(
            torch.cat([mixture.location for mixture in filled]),
            torch.cat([mixture.scale for mixture in filled]),
            Components(
                *map(torch.cat, zip(*(mixture.components for mixture in filled), strict=True))
            ),
        )

    def _filled(self, count: int) -> GaussianMixture:
        """Return the same mixtures with so many components: copies of the first, of no weight."""
        missing = count - self.components.weights.shape[1]
        if not missing:
            return self
        first = [part[:, :1].expand(-1, missing, *part.shape[2:]) for part in self.components]
        first[0] = torch.zeros_like(first[0])
        pairs = zip(self.components, first, strict=True)
        return self._replace(components=Components(*(torch.cat(pair, dim=1) for pair in pairs)))

    def replaced(self, rows: Tensor, others: GaussianMixture) -> GaussianMixture:
        """Return the mixtures of all data, those of some rows taken from others."""
        most = max(mixture.components.weights.shape[1] for mixture in (self, others))
        mine, theirs = self._filled(most), others._filled(most)

        def merged(all_data: Tensor, some: Tensor) -> Tensor:
            return all_data.index_copy(0, rows, some)

        pairs = zip(mine.components, theirs.components, strict=True)
        return GaussianMixture(
            merged(mine.location, theirs.location),
            merged(mine.scale, theirs.scale),
            Components(*(merged(*pair) for pair in pairs)),
        )

    def merged(self, each: int) -> GaussianMixture:
        """Return the mixtures of every so many data as one, in which all have the same share."""

        def grouped(part: Tensor) -> Tensor:
            return part.unflatten(0, (-1, each))

        location = grouped(self.location).mean(1)
        apart = grouped(self.location) - location.unsqueeze(1)
        scale = (grouped(self.scale).square() + apart.square()).mean(1).sqrt()
        ratio = grouped(self.scale) / scale.unsqueeze(1)
        shift = apart / scale.unsqueeze(1)
        weights, means, factors, inverses = map(grouped, self.components)
        parts = (
            weights / each,
            means * ratio + shift,
            factors * ratio.unsqueeze(4),
            inverses / ratio.unsqueeze(3),
        )
        components = Components(*(part.flatten(1, 2).to(means.dtype) for part in parts))
        return GaussianMixture(location, scale, components)

    def widened(self, times: float | Tensor) -> GaussianMixture:
        """Return the mixtures with components so many times as wide; of each datum, if (m,)."""
        if isinstance(times, Tensor):
            times = times[:, None, None, None]
        factors = times * self.components.factors
        inverses = self.components.inverses / times
        return self._replace(
            components=self.components._replace(factors=factors, inverses=inverses)
        )

    def joined(self, other: GaussianMixture, share: float) -> GaussianMixture:
        """Return mixtures that have that share of others, of the same particles."""
        weights, *rest = zip(self.components, other.components, strict=True)
        mixed = torch.cat([(1 - share) * weights[0], share * weights[1]], dim=1)
        return self._replace(
            components=Components(mixed, *(torch.cat(part, dim=1) for part in rest))
        )

    def sample(self, n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw ``n`` points of each, (m, n, D), with their offsets from their components' means."""
        weights, means, factors, _ = self.components
        component = torch.multinomial(weights, n, replacement=True, generator=stream)
        shape = (len(weights), n, means.shape[2])
        noise = torch.randn(shape, generator=stream, device=means.device)
        datum = torch.arange(len(weights), device=means.device).unsqueeze(1)
        parts = zip(
            component.split(self._rows(), dim=1), noise.split(self._rows(), dim=1), strict=True
        )
        offsets = torch.cat(
            [(factors[datum, own] @ part.unsqueeze(3)).squeeze(3) for own, part in parts], dim=1
        )
        points = offsets + means[datum, component]
        return self.location + points * self.scale, offsets * self.scale

    def _standardized(self, x: Tensor) -> Tensor:
        return ((x - self.location) / self.scale).float()

    def _rows(self) -> int:
        """Return how many points of each to look at together."""
        means = self.components.means
        numbers = _NUMBERS_AT_ONCE_ON_GPU if means.is_cuda else _NUMBERS_AT_ONCE
        return max(1, numbers // means.numel())


class Components(NamedTuple):
    """The components of mixtures in standardised coordinates.

    Args:
        weights: (m, K).
        means: (m, K, D).
        factors: Cholesky factors of the covariances, (m, K, D, D).
        inverses: their inverses.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor
    inverses: Tensor

    def single(self) -> Components:
        """Return the same in float32."""
        return Components(*(part.float() for part in self))

    def log_joint_by(self, moments: Tensor) -> Tensor:
        """Return log weight plus log density (up to a constant) of each component, (m, n, K).

        Args:
            moments: of the points, in float64.
        """
        precision = self.inverses.transpose(2, 3) @ self.inverses
        towards = (precision @ self.means.unsqueeze(3)).squeeze(3)
        constant = self.weights.log() + self._log_determinants()
        constant = constant - (towards * self.means).sum(2) / 2
        coefficients = torch.cat([towards, -precision.flatten(2) / 2], dim=2)
        return torch.baddbmm(constant.unsqueeze(1), moments, coefficients.transpose(1, 2))

    def _log_determinants(self) -> Tensor:
        return self.inverses.diagonal(dim1=2, dim2=3).log().sum(2)

    def log_joint(self, z: Tensor) -> Tensor:
        """Return log weight plus log density (up to a constant) of each component, (m, n, K)."""
        count, dimension = self.means.shape[1:]
        # All components by one product: (z − μ) L⁻ᵀ.
        to_white = self.inverses.permute(0, 3, 1, 2).flatten(2)
        centres = (self.inverses @ self.means.unsqueeze(3)).flatten(1).unsqueeze(1)
        white = torch.baddbmm(centres, z, to_white, beta=-1)
        squares = white.unflatten(2, (count, dimension)).square().sum(3)
        constant = self.weights.log() + self._log_determinants()
        joint: Tensor = constant.unsqueeze(1) - squares / 2
        return joint


def fit_gaussian_mixture(
    x: Tensor, components: int, stream: torch.Generator, *, iterations: int = _ITERATIONS
) -> GaussianMixture:
    """Fit a mixture to the particles (m, n, D) of each datum by expectation–maximisation.

    The weights of the result are the square roots of the fitted ones, normalised: rare components
    are proposed more often than they occur, so that small modes exchange particles with large ones.

    Args:
        x: the particles.
        components: K.
        stream: chooses the particles to fit and the initial means.
        iterations: of expectation–maximisation.
    """
    location = x.mean(1, keepdim=True)
    scale = x.std(1, keepdim=True).clamp_min(1e-30)
    rows = torch.randperm(x.shape[1], generator=stream, device=x.device)[:_FITTED_PARTICLES]
    z = (x[:, rows] - location) / scale
    moments = _moments(z)
    if components == 1:
        fitted = _maximize(moments, torch.ones_like(moments[:, :, :1]))
        return GaussianMixture(location, scale, fitted.single())
    nearest = torch.cdist(z, _initial_means(z, components, stream)).argmin(2)
    fitted = _maximize(moments, functional.one_hot(nearest, components).double())
    for _ in range(iterations - 1):
        fitted = _maximize(moments, fitted.log_joint_by(moments).softmax(2))
    roots = fitted.weights.sqrt()
    weights = roots / roots.sum(1, keepdim=True)
    return GaussianMixture(location, scale, fitted._replace(weights=weights).single())


def _moments(z: Tensor) -> Tensor:
    """Return the coordinates and their products, (m, n, D) → (m, n, D + D²), in float64.

    Means, covariances and log densities are products of matrices with these. Float64, because a
    mode may be narrow beside the distances between modes.
    """
    z = z.double()
    return torch.cat([z, (z.unsqueeze(3) * z.unsqueeze(2)).flatten(2)], dim=2)


def _initial_means(z: Tensor, components: int, stream: torch.Generator) -> Tensor:
    """Choose particles to start from, (m, K, D): the farthest ones, then by k-means++.

    The farthest come first because a mode of few particles must get a component, too.
    """
    datum = torch.arange(len(z), device=z.device)
    means = [z[:, 0]]
    distance = z.new_full(z.shape[:2], torch.inf)
    for turn in range(components - 1):
        distance = torch.minimum(distance, (z - means[-1].unsqueeze(1)).square().sum(2))
        if 2 * turn < components:
            chosen = distance.argmax(1)
        else:
            chosen = torch.multinomial(distance.clamp_min(1e-30), 1, generator=stream)[:, 0]
        means.append(z[datum, chosen])
    return torch.stack(means, dim=1)


def _maximize(moments: Tensor, responsibilities: Tensor) -> Components:
    """Return the components of highest likelihood for given responsibilities (m, n, K)."""
    rows = moments.shape[1]
    dimension = math.isqrt(moments.shape[2])
    counts = responsibilities.sum(1)
    sums = responsibilities.transpose(1, 2) @ moments
    means = sums[:, :, :dimension] / counts.clamp_min(1e-6).unsqueeze(2)
    squares = counts[:, :, None, None] * means.unsqueeze(3) * means.unsqueeze(2)
    scatter = sums[:, :, dimension:].unflatten(2, (dimension, dimension)) - squares
    # Shrink towards the variances common to all components: some have few particles.
    pooled = torch.diag_embed(scatter.diagonal(dim1=2, dim2=3).sum(1) / rows + 1e-6).unsqueeze(1)
    covariances = (scatter + dimension * pooled) / (counts + dimension)[:, :, None, None]
    factors = torch.linalg.cholesky(covariances)
    weights = (counts + _PSEUDO_COUNT) / (counts + _PSEUDO_COUNT).sum(1, keepdim=True)
    identity = torch.eye(dimension, dtype=factors.dtype, device=factors.device)
    inverses = torch.linalg.solve_triangular(factors, identity.expand_as(factors), upper=False)
    return Components(weights, means, factors, inverses)
