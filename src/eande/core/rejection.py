"""Acceptance–rejection sampling (Algorithm 3 of the paper), with a bound that corrects itself.

A candidate φ ~ π is accepted if u ≤ e^{w(φ) − B} with w = s(f, g(φ)) + log p(φ) − log π(φ); π is the prior unless the
user gives another proposal, and then w is the score alone. Written the other way round, φ is accepted if its margin
w − log u is at least B. Margins are kept: when a candidate exceeds the bound, the bound rises to it and every earlier
acceptance is tested again, with its own u, against the new bound. The result is what the final bound would have given
from the start, so a poor first guess costs candidates and no bias.

For unit vectors s ≤ ‖f‖/τ, a rigorous bound (``bound="exact"``). It wastes a factor e^{(1 − max cos)/τ} of candidates,
so by default the bound is the largest score among the bank's prior draws, refined by a local search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eande.core.checks import InputError
from eande.core.prior import as_prior
from eande.core.search import climb
from eande.core.seeds import derive_seed, generator

if TYPE_CHECKING:
    from eande.core.posterior import Posterior

_SMALLEST_BATCH, _LARGEST_BATCH = 1_000, 65_536
_CLIMBERS = 32


@dataclass(frozen=True)
class SampleInfo:
    """News about acceptance–rejection sampling.

    Args:
        acceptance_rate: accepted under the final bound, over candidates.
        log_bound: the final bound of log r (of log r + log p − log π with a proposal).
        exceedances: how many candidates raised the bound; each later acceptance obeys the raised one.
        evaluations: candidates evaluated, those for the bound included.
    """

    acceptance_rate: float
    log_bound: float
    exceedances: int
    evaluations: int


class BudgetExceeded(RuntimeError):
    """Sampling ended before all samples were found; ``phi`` and ``info`` hold what there is."""

    def __init__(self, message: str, phi: Tensor, info: SampleInfo) -> None:
        super().__init__(message)
        self.phi, self.info = phi, info


def acceptance_rejection(
    posterior: Posterior,
    n: int,
    *,
    seed: int = 0,
    bound: str | float = "estimated",
    proposal: Any = None,
    max_evaluations: int = 20_000_000,
) -> tuple[Tensor, SampleInfo]:
    """Draw ``n`` exact samples of a posterior, shape (n, D).

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        bound: ``"estimated"``, ``"exact"`` (the similarity's rigorous bound) or a number for log r (plus log p − log π with a proposal).
        proposal: π, a prior or torch Distribution to draw candidates from; the posterior's own prior by default.
        max_evaluations: the budget; beyond it :class:`BudgetExceeded` is raised, with what was found.
    """
    source = posterior.prior if proposal is None else as_prior(proposal)
    weight = _log_weight(posterior, proposal)
    height, evaluations = _first_bound(posterior, weight, bound, proposal)
    phi = torch.empty(0, posterior.prior.dimension, device=posterior.model.device)
    margin = torch.empty(0, dtype=torch.float64, device=phi.device)
    candidates, exceedances, batch = 0, 0, 0
    while len(phi) < n:
        if evaluations + _SMALLEST_BATCH > max_evaluations:
            info = SampleInfo(len(phi) / max(candidates, 1), height - posterior.log_normalizer, exceedances, evaluations)
            raise BudgetExceeded(
                f"sampling: expected {n} samples within {max_evaluations} evaluations, got {len(phi)} (acceptance rate {info.acceptance_rate:.2g}); "
                "raise max_evaluations, use another sampler or a narrower proposal",
                phi, info,
            )  # fmt: skip
        size = _batch_size(n - len(phi), len(phi), candidates, max_evaluations - evaluations)
        new = source.sample(size, seed=derive_seed(seed, "candidates", batch)).to(phi.device)
        uniform = torch.rand(size, generator=generator(seed, "acceptance", batch), dtype=torch.float64).to(phi.device)
        weights = weight(new).double()
        if weights.max() > height:
            exceedances += int((weights > height).sum())
            height = weights.max().item()
        phi, margin = torch.cat([phi, new]), torch.cat([margin, weights - uniform.log()])
        kept = margin >= height
        phi, margin = phi[kept], margin[kept]
        candidates, evaluations, batch = candidates + size, evaluations + size, batch + 1
    return phi[:n], SampleInfo(len(phi) / candidates, height - posterior.log_normalizer, exceedances, evaluations)


def _batch_size(missing: int, accepted: int, candidates: int, left: int) -> int:
    rate = (accepted + 1) / (candidates + 2)
    return max(_SMALLEST_BATCH, min(math.ceil(1.1 * missing / rate), _LARGEST_BATCH, left))


def _log_weight(posterior: Posterior, proposal: Any) -> Callable[[Tensor], Tensor]:
    if proposal is None:
        return posterior.score
    density, prior = as_prior(proposal), posterior.prior
    return lambda phi: posterior.score(phi) + prior.log_prob(phi) - density.log_prob(phi)


def _first_bound(posterior: Posterior, weight: Callable[[Tensor], Tensor], bound: str | float, proposal: Any) -> tuple[float, int]:
    """Return the bound of the log weight to start with, and how many evaluations it took."""
    if bound == "exact":
        if proposal is not None:
            raise InputError("bound: expected a number or 'estimated' with a proposal, got 'exact': the rigorous bound is for the prior as proposal")
        exact = posterior.model.similarity.bound(posterior.embedded.unsqueeze(0))
        if exact is None:
            raise InputError(f"bound: expected 'estimated' for the {type(posterior.model.similarity).__name__} similarity, got 'exact': it has none")
        return exact.item() * (1 + 1e-6) + 1e-6, 0  # rounding in float32 must not pierce a rigorous bound
    if isinstance(bound, str) and bound != "estimated":
        raise InputError(f"bound: expected 'estimated', 'exact' or a number, got {bound!r}")
    if not isinstance(bound, str):
        return bound + posterior.log_normalizer, 0
    starts = posterior.best_draws(_CLIMBERS)
    if not posterior.prior.has_density:
        return weight(starts).max().item(), len(starts)
    # Where the prior has no density a gradient step would leave the surface it lives on; elsewhere refine.
    ends = climb(weight, starts, posterior.bank.phi.std(0))
    return weight(ends).max().item(), 120 * len(starts)
