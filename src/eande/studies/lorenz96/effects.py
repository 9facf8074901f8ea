"""By how much one method is better than another, or how many simulations that is worth.

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


@dataclass(frozen=True)
class Needed:
    """How many simulations a method needs to be as good as another, with a 95 % interval.

    Args:
        simulations: where its curve reaches the goal; infinity for never, and the smallest number
            that it was run with where it is there from the beginning.
        low: end of the interval.
        high: its other end.
    """

    simulations: float
    low: float
    high: float


def simulations_needed(
    goal: Sequence[Run], theirs: Mapping[int, Sequence[Run]], *, resamples: int = 2_000
) -> Needed | None:
    """Return with how many simulations a method has the mean log ratio of another.

    The curve of the method is the mean over seeds, made monotone, linear in log N between the
    numbers. The interval is a bootstrap over seeds, those of goal and curve together. None without
    a seed that all runs share.

    Args:
        goal: runs of the other method, at its number of simulations.
        theirs: runs of the method, by their number of simulations.
        resamples: of the bootstrap.
    """
    columns = [goal, *(theirs[number] for number in sorted(theirs))]
    by_seed = [{run["seed"]: run["mean_log_ratio"] for run in runs} for runs in columns]
    seeds = sorted(set.intersection(*map(set, by_seed)))
    if not seeds or not theirs:
        return None
    scores = np.array([[column[seed] for column in by_seed] for seed in seeds], dtype=float)
    numbers = np.array(sorted(theirs), dtype=float)
    found = _reaches(scores.mean(0), numbers)
    rows = np.random.default_rng(0).integers(len(seeds), size=(resamples, len(seeds)))
    drawn = [_reaches(scores[row].mean(0), numbers) for row in rows]
    # Of values that may be infinite no mean can be taken: those in place, not between two.
    low, high = np.quantile(drawn, [0.025, 0.975], method="nearest")
    return Needed(found, float(low), float(high))


def _reaches(means: np.ndarray, numbers: np.ndarray) -> float:
    """Return where the curve of the means after the first reaches the first."""
    curve = np.maximum.accumulate(means[1:])
    if curve[-1] < means[0]:
        return math.inf
    after = int(np.argmax(curve >= means[0]))
    if after == 0:
        return float(numbers[0])
    below, above = curve[after - 1], curve[after]
    share = (means[0] - below) / (above - below)
    return float(numbers[after - 1] ** (1 - share) * numbers[after] ** share)
