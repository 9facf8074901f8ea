"""How well prior draws carry a posterior: Pareto k of their importance weights, by ArviZ."""

import math

import numpy as np
from torch import Tensor

# Weights of e^-700 and less are zero in float64.
_FAR_BELOW = 700.0


def pareto_k(scores: Tensor) -> np.ndarray | None:
    """Return the Pareto shape k of the largest weights e^score of each row (m, N), shape (m,); None where arviz-stats is not installed.

    Under 0.5 the weights have a variance, above 0.7 their mean is no longer an estimate of anything. Weights of a bounded ratio always have one;
    a large k then says that too few draws have reached the posterior. Minus infinity: all weights are equal; infinity: hardly any is not zero.

    Reference:
        Vehtari, Simpson, Gelman, Yao and Gabry, *Pareto smoothed importance sampling*, 2024.
    """
    try:
        from arviz_stats.base.array import array_stats
    except ImportError:
        return None
    values = scores.double().cpu().numpy()
    values = np.maximum(values - values.max(1, keepdims=True), -_FAR_BELOW)
    # ArviZ fits a tail of so many; equal weights have none to fit.
    tail = np.sort(values, axis=1)[:, -math.ceil(min(values.shape[1] / 5, 3 * values.shape[1] ** 0.5)) :]
    even, lonely = tail[:, 0] == tail[:, -1], tail[:, 0] == -_FAR_BELOW
    k = np.where(even, -np.inf, np.inf)
    fitted = ~even & ~lonely
    if fitted.any():
        k[fitted] = array_stats.psislw(values[fitted], axis=-1)[1]  # type: ignore[no-untyped-call]
    return k
