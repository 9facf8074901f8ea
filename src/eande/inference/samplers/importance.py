"""Prior draws weighed by a posterior: how well they carry it (Pareto k of their weights, by ArviZ), and samples from among them."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning, check_count
from eande.foundations.seeds import generator
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.inference.posterior import Posterior

# Weights of e^-700 and less are zero in float64.
_FAR_BELOW = 700.0
# Above this k, weights carry no estimate.
UNRELIABLE = 0.7
# ArviZ wants five weights in the tail, a fifth of all.
_FEWEST = 25


@dataclass(frozen=True)
class ResamplingInfo:
    """News about sampling–importance–resampling.

    Args:
        effective_draws: how many of the bank's draws carry the posterior; there are hardly more
            different samples than that.
        pareto_k: of the weights; above 0.7 the samples stand for little. None where arviz-stats is
            not installed.
        evaluations: 0, for the bank is evaluated already.
    """

    effective_draws: float
    pareto_k: float | None
    evaluations: int = 0


def resample(posterior: Posterior, n: int, *, seed: int = 0) -> tuple[Tensor, ResamplingInfo]:
    """Draw ``n`` of the bank's prior draws by their weights, with replacement: ``posterior.sample(n, sampler=resample)``.

    Sampling–importance–resampling takes the same short time for any posterior and never fails, but
    repeats draws where the bank has few that matter, and says so. More of them:
    ``model.posterior(y, draws=…)``.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
    """
    check_count("n", n, 1)
    scores = posterior.bank_scores().double()
    weights = scores.softmax(0)
    effective, k = (1 / weights.square().sum()).item(), pareto_k(scores.unsqueeze(0))
    info = ResamplingInfo(effective, None if k is None else float(k[0]))
    if effective < ENOUGH_DRAWS or not (info.pareto_k or 0.0) <= UNRELIABLE:
        shape = "" if info.pareto_k is None else f", Pareto k {info.pareto_k:.2f}"
        warnings.warn(
            f"resampling: only {effective:.0f} of {len(scores)} prior draws carry the posterior{shape}; ask for more draws, or leave the "
            "choice of the sampler to sample()", EandeWarning, stacklevel=3,
        )  # fmt: skip
    places = torch.rand(n, generator=generator(seed, "resampled"), dtype=torch.float64).to(
        weights.device
    )
    chosen = torch.searchsorted(weights.cumsum(0), places).clamp(max=len(weights) - 1)
    return posterior.bank.phi[chosen], info


def pareto_k(scores: Tensor) -> np.ndarray | None:
    """Return the Pareto shape k of the largest weights e^score of each row (m, N), shape (m,); None where arviz-stats is not installed.

    Under 0.5 the weights have a variance, above 0.7 their mean is no longer an estimate of
    anything. Weights of a bounded ratio always have one; a large k then says that too few draws
    have reached the posterior. Minus infinity: all weights are equal; infinity: a few stand out of
    many that are equal, or zero. NaN: fewer than 25 draws.

    Reference:
        Vehtari, Simpson, Gelman, Yao and Gabry, *Pareto smoothed importance sampling*, 2024.
    """
    try:
        from arviz_stats.base.array import array_stats
    except ImportError:
        return None
    values = scores.double().cpu().numpy()
    values = np.maximum(values - values.max(1, keepdims=True), -_FAR_BELOW)
    if values.shape[1] < _FEWEST:
        return np.full(len(values), np.nan)
    # ArviZ fits a tail of so many; equal weights have none to fit, and neither has one that is
    # mostly its own lower end.
    tail = np.sort(values, axis=1)[
        :, -math.floor(min(values.shape[1] / 5, 3 * values.shape[1] ** 0.5)) :
    ]
    even, flat = tail[:, 0] == tail[:, -1], tail[:, 0] == tail[:, tail.shape[1] // 4]
    k = np.where(even & (values.min(1) == values.max(1)), -np.inf, np.inf)
    fitted = ~even & ~flat
    if fitted.any():
        with np.errstate(over="ignore"):  # of a tail of which nothing is left
            # ArviZ takes log likelihoods left out, whose weights are their inverses.
            k[fitted] = array_stats.psislw(-values[fitted], axis=-1)[1]  # type: ignore[no-untyped-call]
    return k
