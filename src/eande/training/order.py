"""Whether the order of a vector's numbers means anything.

An encoder that does not suit the data learns less, without a sign: its posteriors are wide, and
pass every check. Numbers in no order are a set, and no shape tells it: so they are looked at.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from eande.simulation.read.simulations import Simulations

# Of fewer numbers a vector is as good as a set, and of fewer simulations little can be said.
_FEWEST_NUMBERS = 10
_FEWEST_SIMULATIONS = 50
_LOOKED_AT = 500
_MOST_NUMBERS = 2_000
# Where the order means nothing, chance does less in one case of a thousand.
_LEVEL = 1e-3


def look_like_sets(simulations: Simulations) -> bool:
    """Return whether data are vectors whose numbers seem to be in no order.

    Args:
        simulations: some of them are looked at.
    """
    shape = simulations.y_shape
    if len(shape) != 1 or not _FEWEST_NUMBERS <= shape[0] <= _MOST_NUMBERS:
        return False
    if len(simulations) < _FEWEST_SIMULATIONS:
        return False
    places = torch.linspace(0, len(simulations) - 1, min(len(simulations), _LOOKED_AT))
    chosen = places.round().long()
    y = np.asarray(simulations.y[chosen], dtype=np.float64)
    return bool(np.isfinite(y).all()) and has_no_order(y, simulations.phi[chosen].numpy())


def has_no_order(y: np.ndarray, phi: np.ndarray) -> bool:
    """Return whether the numbers of a datum could be shuffled without anybody seeing it.

    Four things that an order could show are looked for within each datum, by ranks, so that it
    does not matter how the numbers are distributed: some are larger than others, some lie farther
    from the middle (Friedman's test of both), neighbours are alike (serial correlation), some
    follow a parameter more than others do.

    Args:
        y: data (n, d).
        phi: their parameters (n, D).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> noise = rng.normal(size=(300, 20))
        >>> phi = rng.normal(size=(300, 1))
        >>> has_no_order(noise + phi, phi), has_no_order(noise + np.linspace(0, 1, 20), phi)
        (True, False)
        >>> has_no_order(noise * np.linspace(1, 2, 20), phi), has_no_order(noise.cumsum(1), phi)
        (False, False)
        >>> has_no_order(noise + phi * np.linspace(0, 1, 20), phi)
        False
    """
    middle = np.median(y, axis=1, keepdims=True)
    distance = np.abs(y - middle)
    found = (_friedman(y), _friedman(distance), _serial(y), _follow(y, phi), _follow(distance, phi))
    return min(found) > _LEVEL


def _friedman(y: np.ndarray) -> float:
    """Return the p-value of all columns having the same law within rows."""
    if (y == y[:, :1]).all():
        return 0.0
    return float(stats.friedmanchisquare(*y.T).pvalue)


def _serial(y: np.ndarray) -> float:
    """Return the p-value of neighbours being no more alike than others."""
    ranks = stats.rankdata(y, axis=1)
    ranks = ranks - ranks.mean(1, keepdims=True)
    scale = (ranks**2).sum(1)
    products = (ranks[:, 1:] * ranks[:, :-1]).sum(1)
    found = products[scale > 0] / scale[scale > 0]
    if len(found) < _FEWEST_SIMULATIONS:
        return 0.0
    # Of a random order: the sum of products of neighbours is −1/d of the sum of squares.
    return float(stats.ttest_1samp(found, -1 / y.shape[1]).pvalue)


def _follow(y: np.ndarray, phi: np.ndarray) -> float:
    """Return the p-value of no number's rank within its datum going with any parameter."""
    ranks = stats.rankdata(y, axis=1)
    phi = stats.rankdata(phi, axis=0)
    ranks = ranks - ranks.mean(0)
    phi = phi - phi.mean(0)
    scales = np.sqrt((ranks**2).sum(0))[:, None] * np.sqrt((phi**2).sum(0))
    if not (scales > 0).any():
        return 1.0
    correlation = (ranks.T @ phi)[scales > 0] / scales[scales > 0]
    largest = min(float(np.abs(correlation).max()), 1 - 1e-12)
    t = largest * np.sqrt((len(y) - 2) / (1 - largest**2))
    # Of so many correlations the largest.
    return min(1.0, float(2 * stats.t.sf(t, len(y) - 2)) * correlation.size)
