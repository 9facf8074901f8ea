"""Acceptance–rejection sampling (Algorithm 3 of the paper), with a bound that corrects itself.

The embedding f of the observation is computed once (line 6 of the printed algorithm runs the
encoder for every proposal). Then, until there are n samples:

1. Propose φ ~ π. The proposal distribution π is the prior unless the user gives another.
2. Emulate it and compute its log weight w(φ) = s(f, g(φ)) + log p(φ) − log π(φ); for the prior as
   proposal distribution, w is the score alone.
3. Draw u ~ U(0, 1) and accept φ if u ≤ e^{w(φ) − B}, where B is an upper bound of w.

Written the other way round, φ is accepted if w − log u, its margin, is at least B. Margins are
kept: when a proposal exceeds the bound, the bound rises to it and every earlier acceptance is
tested again, with its own u, against the new bound. The result is what the final bound would have
given from the start, so that a poor first guess costs proposals and no bias.

For unit vectors s ≤ ‖f‖/τ, a rigorous bound (``bound="exact"``). It wastes a factor
e^{(1 − max cos)/τ} of the proposals, so by default the bound is the largest score among the bank's
prior draws, refined by a local search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_count, check_number, show
from eande.foundations.seeds import derive_seed, generator
from eande.inference.samplers.known import sampler
from eande.inference.search import CLIMBERS, climb
from eande.inference.target import Target
from eande.priors.convert import as_prior
from eande.priors.prior import Prior

_SMALLEST_BATCH = 1_000
_LARGEST_BATCH = 65_536
# The share of the posterior that may lie outside the support of a proposal distribution.
_LARGEST_MISSED_SHARE = 0.01
# (size, seed) to that many proposals, and their log weights.
Propose = Callable[[int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SampleInfo:
    """News about acceptance–rejection sampling.

    Args:
        acceptance_rate: proposals accepted under the final bound, over all proposals.
        log_bound: the final bound of log r (of log r + log p − log π with a proposal distribution).
        exceedances: how many proposals exceeded the bound in force when they came; the samples
            obey the raised one.
        evaluations: proposals evaluated; the local search for the first bound, a few thousand
            evaluations more, is not counted.

    Example:
        >>> phi, info = posterior.sample(100, sampler="rejection")
        >>> info.evaluations >= 100
        True
    """

    acceptance_rate: float
    log_bound: float
    exceedances: int
    evaluations: int


class BudgetExceeded(RuntimeError):
    """Sampling ended before all samples were found; ``phi`` and ``info`` hold what there is.

    Example:
        >>> try:
        ...     phi, info = posterior.sample(5_000, sampler="rejection", max_evaluations=2_000)
        ... except eande.BudgetExceeded as found:
        ...     len(found.phi) < 5_000
        True
    """

    def __init__(self, message: str, phi: Tensor, info: Any) -> None:
        super().__init__(message)
        self.phi = phi
        self.info = info


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
            (plus log p − log π with a proposal distribution).
        proposal: π, a prior or torch Distribution to draw proposals from; the posterior's own
            prior by default.
        max_evaluations: the budget; beyond it :class:`BudgetExceeded` is raised, with what was
            found.
    """
    check_count("max_evaluations", max_evaluations, 1)
    source = posterior.prior if proposal is None else as_prior(proposal, "proposal")
    if source.dimension != posterior.prior.dimension:
        raise InputError(
            f"proposal: expected one of dimension {posterior.prior.dimension}, got dimension "
            f"{source.dimension}"
        )
    log_weight = posterior.score if proposal is None else _log_weight(posterior, source)
    if isinstance(bound, str):
        first = _first_bound(posterior, log_weight, bound, from_prior=proposal is None)
    else:
        check_number("bound", bound)
        first = bound + posterior.log_normalizer
    accepted = Accepted.none(posterior, first, posterior.log_normalizer)
    return accept_until(accepted, n, _proposing(source, log_weight), seed, max_evaluations)


@sampler("bank")
def bank_rejection(
    posterior: Target, n: int, *, seed: int = 0, max_evaluations: int = 20_000_000
) -> tuple[Tensor, SampleInfo]:
    """Draw ``n`` samples by acceptance–rejection among the bank's prior draws.

    Fast, for these are emulated already; but the bound is the bank's own maximum, so that its best
    draw is always accepted, and all posteriors of a bank share its draws, so that samples of
    different observations or seeds are not independent of each other. Use it where the effective
    sample size of the bank's draws is large. Where the bank has too few, the rest comes from
    further draws of the prior.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        max_evaluations: the budget of further draws; beyond it :class:`BudgetExceeded` is raised.
    """
    check_count("max_evaluations", max_evaluations, 1)
    scores = posterior.bank_scores().double()
    stream = generator(seed, "bank acceptance")
    accepted = Accepted.none(posterior, scores.max().item(), posterior.log_normalizer)
    score_batches = scores.split(_LARGEST_BATCH)
    phi_batches = posterior.bank.phi.split(_LARGEST_BATCH)
    # In the bank's order: any part of it is as random as another.
    for batch, phi in zip(score_batches, phi_batches, strict=True):
        if len(accepted.phi) >= n:
            break
        uniform = torch.rand(len(batch), generator=stream, dtype=torch.float64)
        accepted = accepted.add(phi, batch, uniform.to(batch.device))
    budget = accepted.proposals + max_evaluations
    return accept_until(accepted, n, _proposing(posterior.prior, posterior.score), seed, budget)


class Accepted(NamedTuple):
    """Proposals accepted so far, under a bound that rises where one exceeds it.

    Args:
        phi: the accepted proposals (k, D).
        margin: their log weights minus log u, (k,), in float64.
        bound: B, the bound of the log weight.
        proposals: how many there were in all.
        exceedances: how many of them exceeded the bound in force.
        log_normalizer: of the posterior, to state the bound for log r.
    """

    phi: Tensor
    margin: Tensor
    bound: float
    proposals: int
    exceedances: int
    log_normalizer: float

    @classmethod
    def none(cls, posterior: Target, bound: float, log_normalizer: float) -> Accepted:
        """Return what there is before the first proposal."""
        device = posterior.device
        return cls(
            phi=torch.empty(0, posterior.prior.dimension, device=device),
            margin=torch.empty(0, dtype=torch.float64, device=device),
            bound=bound,
            proposals=0,
            exceedances=0,
            log_normalizer=log_normalizer,
        )

    def add(self, phi: Tensor, log_weight: Tensor, uniform: Tensor) -> Accepted:
        """Test proposals against the bound; where they raise it, test earlier ones again."""
        exceedances = int((log_weight > self.bound).sum())
        bound = max(self.bound, log_weight.max().item())
        margin = torch.cat([self.margin, log_weight - uniform.log()])
        kept = margin >= bound
        return self._replace(
            phi=torch.cat([self.phi, phi])[kept],
            margin=margin[kept],
            bound=bound,
            proposals=self.proposals + len(phi),
            exceedances=self.exceedances + exceedances,
        )

    def info(self) -> SampleInfo:
        """Return what there is to say of them."""
        return SampleInfo(
            acceptance_rate=len(self.phi) / max(self.proposals, 1),
            log_bound=self.bound - self.log_normalizer,
            exceedances=self.exceedances,
            evaluations=self.proposals,
        )


def _proposing(source: Prior, log_weight: Callable[[Tensor], Tensor]) -> Propose:
    """Return what proposes draws of a prior, and weighs them."""

    def propose(size: int, seed: int) -> tuple[Tensor, Tensor]:
        phi = source.sample(size, seed=seed)
        return phi, log_weight(phi)

    return propose


def accept_until(
    accepted: Accepted, n: int, propose: Propose, seed: int, max_evaluations: int
) -> tuple[Tensor, SampleInfo]:
    """Propose, weigh and accept in batches until ``n`` proposals are accepted.

    Args:
        accepted: before the first proposal.
        n: how many samples.
        propose: proposals and their log weights.
        seed: same seed, same samples.
        max_evaluations: the budget.
    """
    device = accepted.phi.device
    batch = 0
    while len(accepted.phi) < n:
        left = max_evaluations - accepted.proposals
        if left < 1:
            info = accepted.info()
            raise BudgetExceeded(
                f"sampling: expected {n} samples within {max_evaluations} evaluations, got "
                f"{len(accepted.phi)} (acceptance rate {info.acceptance_rate:.2g}); raise "
                "max_evaluations, use another sampler or a narrower proposal",
                accepted.phi,
                info,
            )
        size = _batch_size(n - len(accepted.phi), len(accepted.phi), accepted.proposals, left)
        phi, log_weight = propose(size, derive_seed(seed, "candidates", batch))
        stream = generator(seed, "acceptance", batch)
        uniform = torch.rand(size, generator=stream, dtype=torch.float64).to(device)
        accepted = accepted.add(phi.to(device), log_weight.double(), uniform)
        batch += 1
    return accepted.phi[:n], accepted.info()


def _batch_size(missing: int, accepted: int, proposals: int, left: int) -> int:
    """Return how many proposals to draw next, for a tenth more samples than are missing."""
    rate = (accepted + 1) / (proposals + 2)
    wanted = math.ceil(1.1 * missing / rate)
    return min(max(_SMALLEST_BATCH, wanted), _LARGEST_BATCH, left)


def _log_weight(posterior: Target, proposal: Prior) -> Callable[[Tensor], Tensor]:
    """Return the log weight of draws of a proposal distribution other than the prior."""
    missed = ~torch.isfinite(proposal.log_prob(posterior.bank.phi))
    share = posterior.bank_scores().double().softmax(0)[missed].sum().item()
    if share > _LARGEST_MISSED_SHARE:
        raise InputError(
            "proposal: expected one that covers the posterior, got one without density on "
            f"{share:.0%} of it"
        )

    def log_weight(phi: Tensor) -> Tensor:
        log_proposal = proposal.log_prob(phi)
        weight = posterior.score(phi) + posterior.prior.log_prob(phi) - log_proposal
        return weight.masked_fill(~torch.isfinite(log_proposal), -torch.inf)

    return log_weight


def _first_bound(
    posterior: Target, log_weight: Callable[[Tensor], Tensor], kind: str, *, from_prior: bool
) -> float:
    """Return the bound of the log weight to start with, rigorous or estimated."""
    if kind == "exact":
        return _exact_bound(posterior, from_prior=from_prior)
    if kind != "estimated":
        raise InputError(f"bound: expected 'estimated', 'exact' or a number, got {show(kind)}")
    points = posterior.best_draws(CLIMBERS)
    if posterior.prior.has_density:
        # Only there: without a density a gradient step would leave the surface the prior lives on.
        # Up the posterior, not the weight, which may be largest where nothing is proposed.
        summits = climb(posterior.unnormalized, points, posterior.bank.phi.std(0))
        points = torch.cat([points, summits])
    return log_weight(points).max().item()


def _exact_bound(posterior: Target, *, from_prior: bool) -> float:
    if not from_prior:
        raise InputError(
            "bound: expected a number or 'estimated' with a proposal, got 'exact': the rigorous "
            "bound is for the prior as proposal"
        )
    exact = posterior.bound()
    if exact is None:
        raise InputError(
            "bound: expected 'estimated' for a similarity without an upper bound, got 'exact'"
        )
    # Rounding in float32 must not exceed a rigorous bound.
    return exact + 1e-6 * abs(exact) + 1e-6
