"""Densities of samples on a grid, and the heights above which a share of their mass lies.

A histogram is smoothed by a Gaussian. Its width follows Silverman's rule, where the standard
deviation is replaced by that of a Gaussian whose smallest region of half the mass is as large: two
narrow peaks, a ring or a thin ridge are smoothed as narrow things are. Where samples end as at the
edge of a prior's support, the histogram is reflected, so that the density does not sag there. Where
they thin out, the grid goes on until the density has fallen to nothing.

Reference:
    Silverman, *Density estimation for statistics and data analysis*, 1986.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter

# Cells of a grid per axis, and what lies outside of it at either end.
_CELLS = {1: 400, 2: 120}
_LEFT_OUT = 0.0005
_HALF = 0.5
# Samples end at an edge if the last of them fill at most so many times the room of as many before
# them: of a constant density as much, of a Gaussian's tail four times. They are this share of all,
# and so many at least.
_ROOM_AT_EDGE = 1.8
_LAST = 0.01
_FEWEST_LAST = 30
# Beyond samples that thin out the grid goes on for so many widths of the smoothing.
_WIDTHS_BEYOND = 3.0
# A Gaussian of unit covariance has half of its mass in an interval of that length, or a disc of
# that area.
_REGION_OF_HALF = {1: 1.349, 2: 2 * np.pi * np.log(2)}


class Density(NamedTuple):
    """A density on a grid.

    Args:
        edges: of the cells, for each axis.
        values: the density in each cell.
    """

    edges: tuple[np.ndarray, ...]
    values: np.ndarray

    @property
    def centres(self) -> tuple[np.ndarray, ...]:
        """The centres of the cells, for each axis."""
        return tuple((edges[1:] + edges[:-1]) / 2 for edges in self.edges)

    def outlined(self) -> "Density":
        """Return the density with an empty cell around it, so that contours close at its edge."""
        around = tuple(
            np.concatenate([[2 * x[0] - x[1]], x, [2 * x[-1] - x[-2]]]) for x in self.edges
        )
        return Density(around, np.pad(self.values, 1))


def density(points: np.ndarray, within: np.ndarray | None = None) -> Density:
    """Return the density of samples (n, d) of one or two numbers.

    Args:
        points: the samples.
        within: ends (2, d) beyond which there can be none, such as those of the prior's draws.

    Example:
        >>> points = np.random.default_rng(0).normal(size=(10_000, 1))
        >>> found = density(points)
        >>> abs(found.values.max() - 0.4) < 0.02
        np.True_
    """
    points = points.astype(np.float64)
    count, axes = points.shape
    limits = [_limits(column) for column in points.T]
    width = _scale(points, limits) * (4 / (axes + 2) / count) ** (1 / (axes + 4))
    wide = [
        _beyond(column, ends, _WIDTHS_BEYOND * one)
        for column, ends, one in zip(points.T, limits, width, strict=True)
    ]
    if within is not None:
        known = zip(limits, wide, within.T, strict=True)
        wide = [
            (max(more[0], min(ends[0], low)), min(more[1], max(ends[1], high)))
            for ends, more, (low, high) in known
        ]
    limits = wide
    cells = [_CELLS[axes]] * axes
    counts, edges = np.histogramdd(points, bins=cells, range=limits)
    size = np.array([high - low for low, high in limits]) / cells
    smooth = gaussian_filter(counts, width / size, mode="reflect")
    return Density(tuple(edges), smooth / (count * size.prod()))


def height_of(values: np.ndarray, share: float) -> float:
    """Return the density above which that share of the mass lies, all cells being equally large.

    Example:
        >>> height_of(np.array([0.1, 0.5, 0.4]), 0.8)
        0.4
    """
    falling = np.sort(values.ravel())[::-1]
    mass = falling.cumsum()
    return float(falling[np.searchsorted(mass, share * mass[-1])])


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return between which numbers all but a few lie; never equal ones."""
    low, high = np.quantile(values, [_LEFT_OUT, 1 - _LEFT_OUT])
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-30):
        margin = 1e-3 * abs(low) or 1e-3
        return float(low - margin), float(high + margin)
    return float(low), float(high)


def _beyond(values: np.ndarray, ends: tuple[float, float], room: float) -> tuple[float, float]:
    """Return limits with room at those ends where samples thin out."""
    share = max(_LAST, _FEWEST_LAST / len(values))
    if 4 * share > 1:  # too few to tell
        return ends
    last, before = np.quantile(values, [share, 2 * share])
    low = ends[0] - room * (last - values.min() > _ROOM_AT_EDGE * (before - last))
    before, last = np.quantile(values, [1 - 2 * share, 1 - share])
    high = ends[1] + room * (values.max() - last > _ROOM_AT_EDGE * (last - before))
    return float(low), float(high)


def _scale(points: np.ndarray, limits: list[tuple[float, float]]) -> np.ndarray:
    """Return per axis how wide the samples are, by the region that holds half of them."""
    count, axes = points.shape
    # As many cells as the samples can fill.
    cells = int(np.clip(count ** (1 / (axes + 1)) * 2, 6, _CELLS[axes]))
    counts, _ = np.histogramdd(points, bins=[cells] * axes, range=limits)
    smooth = gaussian_filter(counts, 1.0, mode="reflect")
    half = (smooth >= height_of(smooth, _HALF)).sum() / smooth.size
    size = np.array([high - low for low, high in limits])
    # Samples may all be equal.
    spread = np.maximum(points.std(axis=0), 1e-3 * size)
    region = half * size.prod() / _REGION_OF_HALF[axes]
    shrunk = (region / spread.prod()) ** (1 / axes)
    return spread * min(1.0, shrunk)
