"""How well prior draws carry a posterior: Pareto k of their importance weights, by ArviZ."""

import numpy as np
from torch import Tensor


def pareto_k(scores: Tensor) -> np.ndarray | None:
    """Return the Pareto shape k of the largest weights e^score of each row (m, N), shape (m,); None where arviz-stats is not installed.

    Under 0.5 the weights have a variance, above 0.7 their mean is no longer an estimate of anything. Weights of a bounded ratio always have one;
    a large k then says that too few draws have reached the posterior.

    Reference:
        Vehtari, Simpson, Gelman, Yao and Gabry, *Pareto smoothed importance sampling*, 2024.
    """
    try:
        from arviz_stats.base.array import array_stats
    except ImportError:
        return None
    values = scores.double().cpu().numpy()
    # Draws that weigh nothing are no part of a tail.
    k: np.ndarray = array_stats.psislw(np.maximum(values - values.max(1, keepdims=True), -700.0), axis=-1)[1]  # type: ignore[no-untyped-call]
    return np.atleast_1d(k)
