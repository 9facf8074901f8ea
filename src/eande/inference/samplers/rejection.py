"""Acceptance–rejection sampling (Algorithm 3 of the paper), with a bound that corrects itself.

A proposal φ ~ π is accepted if u ≤ e^{w(φ) − B} with w = s(f, g(φ)) + log p(φ) − log π(φ). π is the
prior unless the user gives another; for the prior, w is the score alone. Written the other way
round, φ is accepted if its margin w − log u is at least B. Margins are kept: when a proposal
exceeds the bound, the bound rises to it and every earlier acceptance is tested again, with its own
u, against the new bound. The result is what the final bound would have given from the start, so a
poor first guess costs proposals and no bias.

For unit vectors s ≤ ‖f‖/τ, a rigorous bound (``bound="exact"``). It wastes a factor e^{(1 − max
cos)/τ} of proposals, so by default the bound is the largest score among the bank's prior draws,
refined by a local search. Line 6 of the printed algorithm runs the encoder for every proposal; once
is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_count
from eande.foundations.seeds import derive_seed, generator
from eande.inference.samplers.known import sampler
from eande.inference.search import CLIMBERS, climb
from eande.inference.target import Target
from eande.priors.convert import as_prior
from eande.priors.prior import Prior

_SMALLEST_BATCH, _LARGEST_BATCH = 1_000, 65_536
_PROPOSAL_MISSES_AT_MOST = 0.01


@dataclass(frozen=True)
class SampleInfo:
    """News about acceptance–rejection sampling.

    Args:
        acceptance_rate: accepted under the final bound, over candidates.
        log_bound: the final bound of log r (of log r + log p − log π with a proposal).
        exceedances: how many candidates exceeded the bound in force when they came; the samples
            obey the raised one.
        evaluations: candidates evaluated; the local search for the first bound, a few thousand
            more, is not counted.
    """

    acceptance_rate: float
    log_bound: float
    exceedances: int
    evaluations: int


class BudgetExceeded(RuntimeError):
    """Sampling ended before all samples were found; ``phi`` and ``info`` hold what there is."""

    def __init__(self, message: str, phi: Tensor, info: Any) -> None:
        super().__init__(message)
        self.phi, self.info = phi, info


@sampler("rejection")
def acceptance_rejection(
    posterior: Target,
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
        bound: ``"estimated"``, ``"exact"`` (the similarity's rigorous bound) or a number for log r
            (plus log p − log π with a proposal).
        proposal: π, a prior or torch Distribution to draw candidates from; the posterior's own
            prior by default.
        max_evaluations: the budget; beyond it :class:`BudgetExceeded` is raised, with what was
            found.
    """
    check_count("max_evaluations", max_evaluations, 1)
    source = posterior.prior if proposal is None else as_prior(proposal)
    if source.dimension != posterior.prior.dimension:
        raise InputError(
            f"proposal: expected one of dimension {posterior.prior.dimension}, got dimension {source.dimension}"
        )
    weight = _log_weight(posterior, proposal)
    accepted = _Accepted(posterior, _first_bound(posterior, weight, bound, proposal))
    return _accept(accepted, n, source, weight, seed, max_evaluations)


@sampler("bank rejection")
def bank_rejection(
    posterior: Target, n: int, *, seed: int = 0, max_evaluations: int = 20_000_000
) -> tuple[Tensor, SampleInfo]:
    """Draw ``n`` samples by acceptance–rejection among the bank's prior draws, which are emulated already: no network runs.

    Fast; but the bound is the bank's own maximum, so that its best draw is always accepted, and all
    posteriors of a bank share its draws, so that samples of different observations or seeds are not
    independent of each other. Use it where many draws carry the posterior. Where the bank has too
    few, the rest comes from draws of its own.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        max_evaluations: the budget of further draws; beyond it :class:`BudgetExceeded` is raised.
    """
    scores, stream = posterior.bank_scores().double(), generator(seed, "bank acceptance")
    accepted = _Accepted(posterior, scores.max().item())
    # In the bank's order: any part of it is as random as another.
    for part, phi in zip(
        scores.split(_LARGEST_BATCH), posterior.bank.phi.split(_LARGEST_BATCH), strict=True
    ):
        if len(accepted.phi) < n:
            accepted.add(
                phi,
                part,
                torch.rand(len(part), generator=stream, dtype=torch.float64).to(part.device),
            )
    return _accept(
        accepted, n, posterior.prior, posterior.score, seed, accepted.candidates + max_evaluations
    )


class _Accepted:
    """Candidates accepted so far, under a bound that rises where one exceeds it.

    Args:
        posterior: what is sampled.
        height: the first bound of the log weight.
    """

    def __init__(self, posterior: Target, height: float) -> None:
        self.height, self.log_normalizer = height, posterior.log_normalizer
        self.phi = torch.empty(0, posterior.prior.dimension, device=posterior.device)
        self.margin = torch.empty(0, dtype=torch.float64, device=self.phi.device)
        self.candidates, self.exceedances = 0, 0

    def add(self, phi: Tensor, weights: Tensor, uniform: Tensor) -> None:
        """Take the candidates that the bound lets pass, and test all others again where it rises."""
        if weights.max() > self.height:
            self.exceedances += int((weights > self.height).sum())
            self.height = weights.max().item()
        self.phi, self.margin = (
            torch.cat([self.phi, phi]),
            torch.cat([self.margin, weights - uniform.log()]),
        )
        kept = self.margin >= self.height
        self.phi, self.margin, self.candidates = (
            self.phi[kept],
            self.margin[kept],
            self.candidates + len(phi),
        )

    def info(self) -> SampleInfo:
        rate = len(self.phi) / max(self.candidates, 1)
        return SampleInfo(
            rate, self.height - self.log_normalizer, self.exceedances, self.candidates
        )


def _accept(
    accepted: _Accepted,
    n: int,
    source: Prior,
    weight: Callable[[Tensor], Tensor],
    seed: int,
    max_evaluations: int,
) -> tuple[Tensor, SampleInfo]:
    """Go on until ``n`` are accepted."""
    batch = 0
    while len(accepted.phi) < n:
        left = max_evaluations - accepted.candidates
        if left < 1:
            info = accepted.info()
            raise BudgetExceeded(
                f"sampling: expected {n} samples within {max_evaluations} evaluations, got {len(accepted.phi)} "
                f"(acceptance rate {info.acceptance_rate:.2g}); raise max_evaluations, use another sampler or a narrower proposal",
                accepted.phi, info,
            )  # fmt: skip
        size = _batch_size(n - len(accepted.phi), len(accepted.phi), accepted.candidates, left)
        phi = source.sample(size, seed=derive_seed(seed, "candidates", batch)).to(
            accepted.phi.device
        )
        uniform = torch.rand(
            size, generator=generator(seed, "acceptance", batch), dtype=torch.float64
        ).to(phi.device)
        accepted.add(phi, weight(phi).double(), uniform)
        batch += 1
    return accepted.phi[:n], accepted.info()


def _batch_size(missing: int, accepted: int, candidates: int, left: int) -> int:
    rate = (accepted + 1) / (candidates + 2)
    return min(max(_SMALLEST_BATCH, math.ceil(1.1 * missing / rate)), _LARGEST_BATCH, left)


def _log_weight(posterior: Target, proposal: Any) -> Callable[[Tensor], Tensor]:
    if proposal is None:
        return posterior.score
    density, prior = as_prior(proposal), posterior.prior
    missed = ~torch.isfinite(density.log_prob(posterior.bank.phi))
    share = posterior.bank_scores().double().softmax(0)[missed].sum().item()
    if share > _PROPOSAL_MISSES_AT_MOST:
        raise InputError(
            f"proposal: expected one that covers the posterior, got one without density on {share:.0%} of it"
        )

    def weight(phi: Tensor) -> Tensor:
        log_proposal = density.log_prob(phi)
        log_weight = posterior.score(phi) + prior.log_prob(phi) - log_proposal
        return log_weight.masked_fill(~torch.isfinite(log_proposal), -torch.inf)

    return weight


def _first_bound(
    posterior: Target, weight: Callable[[Tensor], Tensor], bound: str | float, proposal: Any
) -> float:
    """Return the bound of the log weight to start with."""
    if bound == "exact":
        if proposal is not None:
            raise InputError(
                "bound: expected a number or 'estimated' with a proposal, got 'exact': the rigorous bound is for the prior as proposal"
            )
        exact = posterior.bound()
        if exact is None:
            raise InputError(
                "bound: expected 'estimated' for a similarity without an upper bound, got 'exact'"
            )
        # Rounding in float32 must not pierce a rigorous bound.
        return exact * (1 + 1e-6) + 1e-6
    if isinstance(bound, str) and bound != "estimated":
        raise InputError(f"bound: expected 'estimated', 'exact' or a number, got {bound!r}")
    if not isinstance(bound, str):
        if not math.isfinite(bound):
            raise InputError(f"bound: expected a finite number, got {bound}")
        return bound + posterior.log_normalizer
    starts = posterior.best_draws(CLIMBERS)
    if posterior.prior.has_density:
        # Only there: without a density a gradient step would leave the surface the prior lives on.
        # Up the posterior, not up the weight: that may be largest where there are no candidates.
        starts = torch.cat(
            [starts, climb(posterior.unnormalized, starts, posterior.bank.phi.std(0))]
        )
    return weight(starts).max().item()
