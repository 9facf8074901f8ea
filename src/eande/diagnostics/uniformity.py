r"""Are ranks uniform? A test with an exact level, and the band their distribution should stay in.

At every place t in (0, 1) the number of uniform ranks up to t is binomial. The statistic is the
smallest of their two-sided p-values over all places, compared with that of simulated uniform
ranks. The same comparison gives the simultaneous band.

Reference:
    Säilynoja, Bürkner and Vehtari, *Graphical test for discrete uniformity and its applications
    in goodness-of-fit evaluation and multiple sample comparison*, 2022.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats
from torch import Tensor

# At how many places the distribution of ranks is compared with the uniform one.
_PLACES = 99
# How many simulated sets of uniform ranks the statistic is compared with.
_SETS = 4_000
# The p-value of ranks less uniform than all simulated ones.
SMALLEST = 1 / (_SETS + 1)


@dataclass(frozen=True)
class Uniformity:
    """Whether ranks look uniform.

    Args:
        p_value: how often uniform ranks would look less so.
        places: numbers t in (0, 1).
        below: share of ranks up to t.
        band: between which shares, (places, 2), uniform ranks stay at all places at once with
            probability 0.95.
        mean: of the ranks; ½ if uniform.
        spread: their standard deviation over that of uniform ones: above 1 ranks gather at the
            ends, below in the middle.
    """

    p_value: float
    places: np.ndarray
    below: np.ndarray
    band: np.ndarray
    mean: float
    spread: float

    @property
    def lacking(self) -> bool:
        """Whether the band is left, or nearly, on its lower side: large ranks are too many."""
        under = (self.band[:, 0] - self.below).max()
        over = (self.below - self.band[:, 1]).max()
        return bool(under > over)


def uniformity(ranks: Tensor | np.ndarray, draws: int | None = None) -> Uniformity:
    """Test ranks (m,) against the uniform distribution.

    Where the statistic is more extreme than all simulated ones, p is bounded by the number of
    places times the smallest binomial p-value.

    Args:
        ranks: numbers from 0 to 1.
        draws: how many prior draws all ranks share, where these do not outnumber the ranks by
            far: the test then allows for the unevenness of the draws, and p is at least
            ``SMALLEST``.

    Example:
        >>> found = uniformity(np.linspace(0.005, 0.995, 100))
        >>> found.p_value > 0.9, bool((found.below >= found.band[:, 0]).all())
        (True, True)
    """
    values = np.asarray(ranks, dtype=np.float64).clip(0, 1)
    places, table, null = _null(len(values), draws)
    counts = np.searchsorted(np.sort(values), places, side="right")
    smallest = table[np.arange(len(places)), counts].min()
    extreme = int((null <= smallest).sum())
    bound = 1.0 if extreme or draws else len(places) * smallest
    pointwise = np.quantile(null, 0.05)
    edges = (pointwise / 2, 1 - pointwise / 2)
    band = np.stack([stats.binom.ppf(edge, len(values), places) for edge in edges], axis=1)
    return Uniformity(
        p_value=float(min((1 + extreme) / (1 + len(null)), bound)),
        places=places,
        below=counts / len(values),
        band=band / len(values),
        mean=float(values.mean()),
        spread=float(np.sqrt(12 * np.mean((values - 0.5) ** 2))),
    )


@lru_cache(maxsize=32)
def _null(count: int, draws: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what ``count`` uniform ranks are compared with.

    These are the places, the two-sided p-value of every number of ranks up to each place, and
    the smallest of these p-values in each simulated set of uniform ranks.
    """
    places = np.arange(1, _PLACES + 1) / (_PLACES + 1)
    numbers = np.arange(count + 1)
    binomial = stats.binom(count, places[:, None])
    table = np.minimum(1, 2 * np.minimum(binomial.cdf(numbers), binomial.sf(numbers - 1)))
    rng = np.random.default_rng(0)
    shares = np.full((_SETS, _PLACES + 1), 1 / (_PLACES + 1))
    if draws is not None:
        # The mass between order statistics of that many draws has a Dirichlet distribution.
        shares = rng.dirichlet(draws * shares[0], size=_SETS)
    sets = rng.multinomial(count, shares)[:, :-1].cumsum(1)
    return places, table, table[np.arange(_PLACES), sets].min(1)
