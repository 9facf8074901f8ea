"""By how much one method is better than another, with an interval over seeds and data.

Runs of one seed and system share their simulations and their test data, so methods are compared
datum by datum. The interval is of a bootstrap in two stages, seeds and then the data of each: with
few seeds their differences are most of its width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Run = Mapping[str, Any]

_RESAMPLES = 2_000
# Measures of which more is better; of the others, less is.
_MORE_IS_BETTER = ("log_ratio",)


@dataclass(frozen=True)
class Effect:
    """How much better, on average, with a 95 % interval.

    Args:
        mean: over seeds and data; positive where the first method is better.
        low: end of the interval.
        high: its other end.
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
    rng = np.random.default_rng(0)
    means = np.array([one.mean() for one in differences])
    # The mean of each seed's data, resampled; then of seeds, resampled.
    resampled = np.stack(
        [one[rng.integers(len(one), size=(_RESAMPLES, len(one)))].mean(1) for one in differences]
    )
    seeds = rng.integers(len(means), size=(_RESAMPLES, len(means)))
    draws = resampled[seeds, np.arange(_RESAMPLES)[:, None]].mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Effect(float(means.mean()), float(low), float(high), len(means), int((means > 0).sum()))


def _values(run: Run, measure: str) -> np.ndarray:
    return np.asarray(run["per_datum"][measure], dtype=float)
