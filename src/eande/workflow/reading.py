"""What the data of a study are taken for, and where that is likely not what was meant.

An encoder that does not suit the data learns less, without a sign: its posteriors are wide, and
pass every check. So what a shape does not tell is looked for in the numbers.
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


def taken_for(simulations: Simulations) -> str:
    """Say what data are taken for where nobody said, and what else they may be; else nothing.

    Args:
        simulations: some of them are looked at.
    """
    shape = simulations.y_shape
    if len(shape) == 2:
        channels = f"{shape[0]} channel{'s' if shape[0] > 1 else ''}"
        return (
            f", taken for series of {channels} (encoder = 'grid' for images, 'set' for rows in no "
            "order)"
        )
    if len(shape) != 1 or not _FEWEST_NUMBERS <= shape[0] <= _MOST_NUMBERS:
        return ""
    if len(simulations) < _FEWEST_SIMULATIONS:
        return ""
    chosen = torch.linspace(0, len(simulations) - 1, min(len(simulations), _LOOKED_AT))
    if not has_no_order(np.asarray(simulations.y[chosen.round().long()])):
        return ""
    return ", alike in any order (encoder = 'set' learns more where the order means nothing)"


def has_no_order(y: np.ndarray) -> bool:
    """Return whether the numbers of a datum could be shuffled without anybody seeing it.

    Three things that an order could show are looked for within each datum, by ranks, so that it
    does not matter how the numbers are distributed: some are larger than others, some lie farther
    from the middle (Friedman's test of both), neighbours are alike (serial correlation).

    Args:
        y: data (n, d).

    Example:
        >>> noise = np.random.default_rng(0).normal(size=(300, 20))
        >>> has_no_order(noise), has_no_order(noise + np.linspace(0, 1, 20))
        (True, False)
        >>> has_no_order(noise * np.linspace(1, 2, 20)), has_no_order(noise.cumsum(1))
        (False, False)
    """
    middle = np.median(y, axis=1, keepdims=True)
    smallest = min(_friedman(y), _friedman(np.abs(y - middle)), _serial(y))
    return bool(smallest > _LEVEL)


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
