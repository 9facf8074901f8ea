"""By how much one method is better than another, with an interval.

Runs of one seed and system share their simulations and their test data, so methods are compared
datum by datum. Every seed has test data of its own: the mean differences of seeds are independent,
and Student's interval of their mean is one over seeds and data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

Run = Mapping[str, Any]

# Fewer seeds say little of how seeds differ.
_FEWEST_SEEDS = 3
# Measures of which more is better; of the others, less is.
_MORE_IS_BETTER = ("log_ratio",)


@dataclass(frozen=True)
class Effect:
    """How much better, on average, with a 95 % interval.

    Args:
        mean: over seeds and data; positive where the first method is better.
        low: end of the interval; minus infinity with fewer than three seeds.
        high: its other end; then infinity.
        seeds: how many both were run with.
        won: in how many of them the first is better.
    """

    mean: float
    low: float
    high: float
    seeds: int
    won: int

    @property
    def verdict(self) -> str:
        """``"better"``, ``"worse"``, or ``"undecided"`` where the interval holds 0."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "undecided"


def effect(mine: Sequence[Run], theirs: Sequence[Run], measure: str) -> Effect | None:
    """Compare runs of two methods on one system, None where they share no seed.

    Args:
        mine: of the first method, one per seed.
        theirs: of the second.
        measure: of every datum, as in ``per_datum``.
    """
    sign = 1 if measure in _MORE_IS_BETTER else -1
    other = {run["seed"]: run for run in theirs}
    differences = [
        sign * (_values(run, measure) - _values(other[run["seed"]], measure))
        for run in mine
        if run["seed"] in other
    ]
    if not differences:
        return None
    means = np.array([one.mean() for one in differences])
    mean = float(means.mean())
    half = math.inf
    if len(means) >= _FEWEST_SEEDS:
        error = means.std(ddof=1) / math.sqrt(len(means))
        half = float(stats.t.ppf(0.975, len(means) - 1) * error)
    return Effect(mean, mean - half, mean + half, len(means), int((means > 0).sum()))


def _values(run: Run, measure: str) -> np.ndarray:
    return np.asarray(run["per_datum"][measure], dtype=float)
