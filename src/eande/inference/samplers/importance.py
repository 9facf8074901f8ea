"""Importance weights of prior draws: resampling by them, and their Pareto k (by ArviZ).

References:
    Rubin, *Using the SIR algorithm to simulate posterior distributions*, 1988;
    Vehtari, Simpson, Gelman, Yao and Gabry, *Pareto smoothed importance sampling*, 2024.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    check_count,
    check_fits,
    check_seed,
    show,
)
from eande.foundations.seeds import generator
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.inference.samplers.known import sampler
from eande.inference.target import Target

# Weights of e^-700 and less are zero in float64.
_FAR_BELOW = 700.0
# Above this Pareto k, importance-sampling estimates are unreliable.
UNRELIABLE = 0.7
# ArviZ needs five weights in the tail, which is a fifth of all.
_FEWEST = 25


@dataclass(frozen=True)
class ResamplingInfo:
    """What sampling–importance–resampling reports.

    Args:
        effective_draws: effective sample size of the prior draws; there are hardly more different
            samples than that.
        pareto_k: of the weights; above 0.7 the samples are unreliable. None where arviz-stats is
            not installed.
        evaluations: of the emulator: 0, because the prior draws are evaluated already.
    """

    effective_draws: float
    pareto_k: float | None
    evaluations: int = 0


@sampler("importance")
def resample(posterior: Target, n: int, *, seed: int = 0) -> tuple[Tensor, ResamplingInfo]:
    """Draw ``n`` of the bank's prior draws by their weights, with replacement.

    Use it as ``posterior.sample(n, sampler=resample)``. Sampling–importance–resampling takes the
    same short time for any posterior and never fails, but repeats draws where the effective
    sample size is small, and then warns. ``model.posterior(y, draws=…)`` takes more prior draws.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.

    Example:
        >>> phi, info = posterior.sample(500, sampler=resample)
        >>> phi.shape, info.evaluations
        (torch.Size([500, 2]), 0)
    """
    if not hasattr(posterior, "bank_scores"):
        raise InputError(
            "posterior: expected a posterior (from a model: model.posterior(y)), "
            f"got {show(posterior)}"
        )
    check_count("n", n, 1)
    check_fits("n", n, 4 * posterior.bank.phi.shape[1])
    check_seed("seed", seed)
    scores = posterior.bank_scores().double()
    weights = scores.softmax(0)
    effective = (1 / weights.square().sum()).item()
    k = pareto_k(scores.unsqueeze(0))
    info = ResamplingInfo(effective, None if k is None else float(k[0]))
    if effective < ENOUGH_DRAWS or not (info.pareto_k or 0.0) <= UNRELIABLE:
        shape = "" if info.pareto_k is None else f", Pareto k {info.pareto_k:.2f}"
        warnings.warn(
            f"resampling: effective sample size {effective:.0f} of {len(scores)} prior draws"
            f"{shape}; ask for more draws, or leave the choice of the sampler to sample()",
            EandeWarning,
            stacklevel=3,
        )
    places = torch.rand(n, generator=generator(seed, "resampled"), dtype=torch.float64)
    chosen = torch.searchsorted(weights.cumsum(0), places.to(weights.device))
    chosen = chosen.clamp(max=len(weights) - 1)
    return posterior.bank.phi[chosen], info


def pareto_k(scores: Tensor) -> np.ndarray | None:
    """Return the Pareto shape k of the largest weights e^score of each row (m, N), shape (m,).

    Under 0.5 the weights have a finite variance, above 0.7 estimates from them are unreliable.
    Weights of a bounded ratio always have a finite variance; a large k then says that too few
    draws have reached the posterior. It is −∞ where all weights are equal, ∞ where a few stand out
    from many that are equal or zero, and NaN for fewer than 25 draws. The result is None where
    arviz-stats is not installed.
    """
    try:
        from arviz_stats.base.array import array_stats
    except ImportError:
        return None
    values = scores.double().cpu().numpy()
    values = np.maximum(values - values.max(1, keepdims=True), -_FAR_BELOW)
    if values.shape[1] < _FEWEST:
        return np.full(len(values), np.nan)
    # The tail that ArviZ fits. Equal weights have none, nor have those whose tail is mostly one
    # repeated smallest value.
    count = values.shape[1]
    tail = np.sort(values, axis=1)[:, -math.floor(min(count / 5, 3 * count**0.5)) :]
    even = tail[:, 0] == tail[:, -1]
    flat = tail[:, 0] == tail[:, tail.shape[1] // 4]
    k = np.where(even & (values.min(1) == values.max(1)), -np.inf, np.inf)
    fitted = ~even & ~flat
    if fitted.any():
        # The fit of a tail with hardly any weight left in it may overflow, or divide by nothing.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            # ArviZ takes log likelihoods of left-out data, whose weights are their inverses.
            psis = array_stats.psislw(-values[fitted], axis=-1)  # type: ignore[no-untyped-call]
            k[fitted] = np.nan_to_num(psis[1], nan=np.inf, posinf=np.inf, neginf=-np.inf)
    return k
