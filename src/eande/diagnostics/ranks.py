r"""Ranks: one idea behind every check of calibration.

Mix the true parameters φ_0 of a datum y among draws φ_1 … φ_N of the prior. Who sees only y can tell them apart by the ratio alone: the true
ones are φ_i with probability w_i = r(φ_i, y) / Σ_j r(φ_j, y). So for any statistic T that does not know which is which,

    u = Σ_{j: T_j < T_0} w_j + U Σ_{j: T_j = T_0} w_j,      U uniform on (0, 1),

is uniform on (0, 1) if r is the true ratio, for every N: few draws make a check blunt, not wrong. Scores need no normaliser. Data that share
their draws share the draws' unevenness, too, so these must outnumber the data by far, or the comparison must allow for it.

    T = φ_d                     simulation-based calibration, one rank per parameter
    T = −log p r                coverage of highest-density regions: the region of level c covers φ_0 if u < c
    T = ‖φ − reference‖         TARP, with a reference drawn from the prior for every datum

What none of them can see: a posterior that ignores the data. The prior's own ranks are uniform, so the held-out log ratio stands beside them.

References:
    Talts et al., *Validating Bayesian inference algorithms with simulation-based calibration*, 2018;
    Hermans et al., *A trust crisis in simulation-based inference?*, 2022 (expected coverage);
    Lemos et al., *Sampling-based accuracy testing of posterior estimators*, 2023 (TARP);
    Säilynoja, Bürkner and Vehtari, *Graphical test for discrete uniformity*, 2022 (the band).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from eande.inference.levels import mass_above, tied

# Where the distribution of ranks is compared with the uniform one, and by how many simulated sets of ranks the comparison is calibrated.
_PLACES, _SETS = 99, 4_000
_Equal = Callable[[Tensor, Tensor], Tensor]
# The p-value of ranks less uniform than all simulated ones.
SMALLEST = 1 / (_SETS + 1)


@dataclass(frozen=True)
class Weighed:
    """What the weights of prior draws say about data of known parameters, one row per datum.

    Args:
        log_ratio: log r of the true parameters in nats, never flattered by too few draws: at most log (N + 1).
        ranks: of each true parameter, (m, D).
        level: the smallest highest-density region that holds the true parameters, (m,).
        tarp: rank of their distance to a reference, (m,).
        mean: of the posterior, (m, D).
        deviation: its standard deviation, (m, D).
        effective_draws: how many draws carry the posterior, (m,).
        divergence: of each marginal posterior from its prior, in nats, (m, D), seen through 100 bins; not known where few draws carry the posterior.
    """

    log_ratio: Tensor
    ranks: Tensor
    level: Tensor
    tarp: Tensor
    mean: Tensor
    deviation: Tensor
    effective_draws: Tensor
    divergence: Tensor


def weigh(
    scores: Tensor,
    own: Tensor,
    draws: Tensor,
    phi: Tensor,
    references: Tensor,
    chance: Tensor,
    densities: tuple[Tensor, Tensor] | None = None,
) -> Weighed:
    """Weigh prior draws for some data.

    Args:
        scores: log r up to a constant per datum, of every datum and draw (m, N).
        own: of every datum and its true parameters (m,).
        draws: of the prior (N, D).
        phi: true parameters (m, D).
        references: for TARP (m, D).
        chance: uniform numbers (m,).
        densities: the prior's log density of the draws (N,) and of the true parameters (m,); None where it is constant, or there is none, and
            regions are then those of the highest ratio.
    """
    count = scores.shape[1]
    log_weights = torch.cat([own.unsqueeze(1), scores], dim=1).double().log_softmax(1)
    mixed = {"weights": log_weights[:, 1:].exp(), "own_weight": log_weights[:, 0].exp()}

    def rank(statistic: Tensor, truth: Tensor, equal: _Equal = torch.eq) -> Tensor:
        return mass_above(-statistic, -truth, ties=chance, equal=equal, **mixed)

    def distance(points: Tensor) -> Tensor:
        # By differences: a matrix product would lose the digits that tell draws from the truth.
        first, second = ((x - centre) / scale for x in (references.unsqueeze(1), points))
        return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")[:, 0]

    centre, scale = draws.mean(0), draws.std(0)
    scale = torch.where(scale > 0, scale, 1.0)
    log_prior, own_prior = (
        (0.0, 0.0) if densities is None else (densities[0].unsqueeze(0), densities[1])
    )
    # Of the draws alone: where none comes near the truth, their weights beside it are all zero.
    posterior = scores.double().softmax(1)
    mean = posterior @ draws.double()
    deviation = (posterior @ draws.double().square() - mean.square()).clamp(min=0).sqrt()
    return Weighed(
        log_ratio=log_weights[:, 0] + np.log(count + 1),
        ranks=torch.stack(
            [rank(draws[:, d].unsqueeze(0), phi[:, d]) for d in range(phi.shape[1])], dim=1
        ),
        level=rank(-(scores + log_prior), -(own + own_prior), tied),
        tarp=rank(distance(draws.unsqueeze(0)), distance(phi.unsqueeze(1))[:, 0]),
        mean=mean,
        deviation=deviation,
        effective_draws=1 / posterior.square().sum(1),
        divergence=_divergence(posterior, draws),
    )


def _divergence(posterior: Tensor, draws: Tensor, bins: int = 100) -> Tensor:
    """Return KL(marginal posterior ‖ marginal prior) per datum and parameter, over bins that hold about as many prior draws each."""
    found, effective = [], 1 / posterior.square().sum(1)
    for values in draws.T.contiguous():
        edges, prior = _bins(values, bins)
        bin_of = torch.searchsorted(edges, values, right=True)
        mass = torch.zeros(
            len(posterior), len(prior), dtype=posterior.dtype, device=posterior.device
        ).index_add_(1, bin_of, posterior)
        found.append(_information(mass, prior, effective))
    return torch.stack(found, dim=1)


def _bins(values: Tensor, bins: int = 100) -> tuple[Tensor, Tensor]:
    """Return the edges between bins that hold about as many prior draws (N,) each, and the share of each; draws of one value share a bin."""
    count = len(values)
    bins = min(bins, count)
    edges = values.sort().values[torch.arange(1, bins, device=values.device) * count // bins]
    return edges, torch.bincount(
        torch.searchsorted(edges, values, right=True), minlength=bins
    ).double() / count


def _information(mass: Tensor, prior: Tensor, effective: Tensor) -> Tensor:
    """Return the divergence of each row of shares (m, bins) from the prior's, given how many draws carry it (m,)."""
    # Shares of few draws are uneven by chance, which takes half a nat off their entropy for every bin in use over every such draw.
    entropy, by_chance = torch.special.entr(mass).sum(1), torch.zeros_like(effective)
    for _ in range(2):
        by_chance = ((entropy + by_chance).exp() - 1) / (2 * effective)
    return (torch.xlogy(mass, mass / prior.clamp(min=1e-300)).sum(1) - by_chance).clamp(min=0)


def rank_samples(
    samples: Tensor,
    densities: Tensor,
    own: Tensor,
    draws: Tensor,
    phi: Tensor,
    reference: Tensor,
    chance: Tensor,
    log_ratio: Tensor,
) -> Weighed:
    """Rank the true parameters of one datum among independent samples of its posterior: the same, where no prior draw comes near.

    Args:
        samples: of the posterior (n, D).
        densities: its log density at them, up to a constant, (n,).
        own: at the true parameters (1,).
        draws: of the prior, for scales and bins (N, D).
        phi: the true parameters (1, D).
        reference: for TARP (1, D).
        chance: a uniform number (1,).
        log_ratio: of the true parameters (1,).
    """
    count, scale = len(samples), draws.std(0)
    scale = torch.where(scale > 0, scale, 1.0)

    def rank(statistic: Tensor, truth: Tensor, equal: _Equal = torch.eq) -> Tensor:
        return mass_above(-statistic, -truth, own_weight=1.0, ties=chance, equal=equal)

    mass, effective = [], torch.full((1,), float(count), dtype=torch.float64, device=samples.device)
    for values, drawn in zip(samples.T.contiguous(), draws.T.contiguous(), strict=True):
        edges, prior = _bins(drawn)
        inside = (
            torch.bincount(
                torch.searchsorted(edges, values, right=True), minlength=len(prior)
            ).double()
            / count
        )
        mass.append(_information(inside.unsqueeze(0), prior, effective))
    return Weighed(
        log_ratio=log_ratio,
        ranks=torch.stack([rank(samples[:, d], phi[:, d]) for d in range(phi.shape[1])], dim=1),
        level=rank(-densities, -own, tied),
        tarp=rank(
            ((samples - reference) / scale).norm(dim=1), ((phi - reference) / scale).norm(dim=1)
        ),
        mean=samples.double().mean(0, keepdim=True),
        deviation=samples.double().std(0).unsqueeze(0),
        effective_draws=effective,
        divergence=torch.stack(mass, dim=1),
    )


@dataclass(frozen=True)
class Uniformity:
    """Whether ranks look uniform.

    Args:
        p_value: how often uniform ranks would look less so.
        places: numbers t in (0, 1).
        below: share of ranks up to t.
        band: between which shares, (places, 2), uniform ranks stay at all places at once 95 times in 100.
        mean: of the ranks; ½ if uniform.
        spread: their standard deviation over that of uniform ones: above 1 ranks gather at the ends, below in the middle.
    """

    p_value: float
    places: np.ndarray
    below: np.ndarray
    band: np.ndarray
    mean: float
    spread: float


def uniformity(ranks: Tensor | np.ndarray, draws: int | None = None) -> Uniformity:
    """Test ranks (m,) against the uniform law, and give the band their distribution should stay in.

    At every place the number of ranks below it is binomial; the statistic is the smallest of their two-sided p-values, compared with that of
    simulated uniform ranks. Beyond the most extreme of these, p is at most the number of places times the smallest.

    Args:
        ranks: numbers from 0 to 1.
        draws: how many prior draws all of them share, where these are not far more than the ranks: the test then allows for their unevenness,
            and p is at least ``SMALLEST``.

    Example:
        >>> found = uniformity(np.linspace(0.005, 0.995, 100))
        >>> found.p_value > 0.9, bool((found.below >= found.band[:, 0]).all())
        (True, True)
    """
    values = np.asarray(ranks, dtype=np.float64).clip(0, 1)
    places, table, null = _null(len(values), draws)
    counts = np.searchsorted(np.sort(values), places, side="right")
    smallest = table[np.arange(len(places)), counts].min()
    extreme, pointwise = int((null <= smallest).sum()), np.quantile(null, 0.05)
    band = np.stack(
        [stats.binom.ppf(edge, len(values), places) for edge in (pointwise / 2, 1 - pointwise / 2)],
        axis=1,
    ) / len(values)
    return Uniformity(
        p_value=float(
            min(
                (1 + extreme) / (1 + len(null)), 1.0 if extreme or draws else len(places) * smallest
            )
        ),
        places=places,
        below=counts / len(values),
        band=band,
        mean=float(values.mean()),
        spread=float(np.sqrt(12 * np.mean((values - 0.5) ** 2))),
    )


@lru_cache(maxsize=32)
def _null(count: int, draws: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the places, the two-sided p-value of every number of ranks below each, and the smallest of them for simulated uniform ranks."""
    places = np.arange(1, _PLACES + 1) / (_PLACES + 1)
    numbers = np.arange(count + 1)
    law = stats.binom(count, places[:, None])
    table = np.minimum(1, 2 * np.minimum(law.cdf(numbers), law.sf(numbers - 1)))
    rng, shares = np.random.default_rng(0), np.full((_SETS, _PLACES + 1), 1 / (_PLACES + 1))
    if draws is not None:
        # What lies between the order statistics of so many draws, of which every one has its equal chance.
        shares = rng.dirichlet(draws * shares[0], size=_SETS)
    sets = rng.multinomial(count, shares)[:, :-1].cumsum(1)
    return places, table, table[np.arange(_PLACES), sets].min(1)
