r"""Guided sampling: acceptance–rejection of proposals from near the posterior.

Proposals from a guide (:mod:`eande.inference.guide`) are accepted as those from a prior are
(:mod:`eande.inference.samplers.rejection`): whatever the guide is, the samples are exact, and a
poor one costs proposals.

The posterior of an ensemble is the mean of its members'. A proposal then is a member, each as often
as the others, and parameters from a guide of that member's posterior; it is scored and accepted by
that member alone, under one bound for all. So the members' shares are those of their weights, and
the samples as exact, at the cost of one emulator instead of all.

It costs many where a single weight stands out of even ones, far out in a tail or in the corner of a
box. Where five proposals a sample do not suffice, the bound τ is lower than the largest weights:
that with the n samples' priorities w/u (weight over a uniform number) above it. Among these a
sample whose weight is below τ counts once, another one w/τ times (priority sampling, whose sums are
unbiased for those over all proposals), so that some are copies. There are ever more proposals, and
ever higher bounds, until copies are few. What is then left of an error is that of importance
weights: a part in as many as is the effective sample size of all proposals, of which there are
thousands.

Reference:
    Duffield, Lund and Thorup, *Priority sampling for estimation of arbitrary subset sums*, 2007.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning, InputError, check_count
from eande.foundations.seeds import derive_seed, generator
from eande.inference.guide import (
    Effort,
    Guide,
    MemberScores,
    Scores,
    Weighted,
    find_guides,
    follow_guide,
)
from eande.inference.normalizer import ENOUGH_DRAWS, normalizer_of_weights
from eande.inference.samplers.known import sampler
from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo
from eande.inference.samplers.resampling import effective_sample_size, systematic_resampling
from eande.inference.target import Target

# How closely to look for a guide.
_EFFORT = Effort(points=4_000, components=16)
# For each of several members, but no fewer points than so many for a parameter: their posteriors
# are simpler than the mean of them.
_EFFORT_OF_MEMBERS = Effort(points=800, components=8)
_POINTS_EACH = 150
# The fewest proposals, and how many more than are expected to do.
_FEWEST = 4_000
_MORE = 1.1
# Samples are exact where they promise to take so many proposals each. Elsewhere there are so many,
# and more until copies are few, at most so many.
_MOST_FOR_EXACT = 5
_BEGINNING = 3.0
_GROWTH = 1.3
_MOST = 150
_FEW_COPIES = 0.01
# Such a share of copies is warned about.
_MANY_COPIES = 0.05
# Points that are weighed at once.
_AT_ONCE = 50_000


@dataclass(frozen=True)
class GuidedInfo(SampleInfo):
    """News about guided sampling.

    Args:
        rounds: in which the proposal was found, once for all samples of a posterior; 0 where what
            the model had learned did.
        effective_share: effective sample size of the proposals, over their number.
        log_normalizer: log C by their weights.
        normalizer_error: its standard error.
        copies: the share of samples that are further copies of others; 0 where all were accepted
            under a bound that no weight exceeds.
    """

    rounds: int
    effective_share: float
    log_normalizer: float
    normalizer_error: float
    copies: float = 0.0


class _ScoresOf(NamedTuple):
    """The scores of a posterior, as those of a single datum."""

    posterior: Target

    def __call__(self, phi: Tensor) -> Tensor:
        """Return s of parameters (1, k, D), (1, k)."""
        return self.posterior.score(phi[0]).unsqueeze(0)

    def of(self, rows: Tensor) -> _ScoresOf:
        """Return these: there is one datum."""
        return self


def _scores_of(posterior: Guided) -> tuple[Scores, int]:
    """Return the scores of a posterior and in how many rows: that of an ensemble by its members."""
    apart = posterior.apart
    return (_ScoresOf(posterior), 1) if apart is None else (apart, len(apart.rows))


class Found(NamedTuple):
    """A guide, and what it was judged by.

    Args:
        guide: the proposal; of an ensemble one for each member.
        log_weight: of points that it drew, (n,).
        rounds: in which it was found.
        evaluations: scores computed.
    """

    guide: Guide
    log_weight: Tensor
    rounds: int
    evaluations: int

    @property
    def reliable(self) -> bool:
        """Whether enough of its points lie where the posterior is."""
        return effective_sample_size(self.log_weight) >= ENOUGH_DRAWS

    @property
    def acceptance_rate(self) -> float:
        """The share of proposals that the largest weight so far lets through."""
        return (self.log_weight - self.log_weight.max()).exp().mean().item()

    @property
    def effective_share(self) -> float:
        """Effective sample size of the points, over their number."""
        return effective_sample_size(self.log_weight) / len(self.log_weight)

    def normalizer(self) -> tuple[float, float]:
        """Return log C and its standard error."""
        known = normalizer_of_weights(self.log_weight.unsqueeze(0))
        return known.log_value.item(), known.error.item()

    def judged(self, posterior: Guided, points: int, seed: int) -> Found:
        """Return the guide with new points to judge it by."""
        log_weight = _Pool.none(posterior, seed).grown(self.guide, points, points).log_weight
        return self._replace(log_weight=log_weight, evaluations=self.evaluations + points)


class Guided(Target, Protocol):
    """A posterior that keeps its guide."""

    @property
    def guide(self) -> Found:
        """The proposal, found once; only where the prior has a density."""

    @property
    def apart(self) -> MemberScores | None:
        """The scores of an ensemble's members alone; None where the ratio is not their mean."""


def find_guide(
    posterior: Guided,
    seed: int = 0,
    *,
    start: Guide | None = None,
    learned: Guide | None = None,
) -> Found:
    """Find a proposal for a posterior whose prior has a density.

    Args:
        posterior: what to propose for.
        seed: same seed, same proposal.
        start: a proposal from near it, where there is one.
        learned: what the model has learned to propose, where there is no start.
    """
    if not posterior.bank.proposable:
        raise InputError(
            "sampler: expected 'rejection' for a prior without a density that integrates to one, "
            "got 'guided'"
        )
    scores, rows = _scores_of(posterior)
    pool_scores = None
    if start is None:
        apart = posterior.apart
        pool_scores = (
            posterior.bank_scores().unsqueeze(0) if apart is None else apart.of_bank(posterior.bank)
        )
        if not torch.isfinite(pool_scores).any(1).all():
            raise InputError("prior: expected draws inside the training prior's support, got none")
    else:
        start = start.for_rows(1, rows)
    effort = _EFFORT
    if rows > 1:
        points = max(_EFFORT_OF_MEMBERS.points, _POINTS_EACH * posterior.prior.dimension)
        effort = _EFFORT_OF_MEMBERS._replace(points=min(points, _EFFORT.points))
    pool = posterior.bank.phi
    if learned is not None and pool_scores is not None:
        own = learned.for_rows(1, rows)
        found = follow_guide(own, scores, pool, pool_scores, effort=effort, seed=seed)
    else:
        found = find_guides(
            scores, posterior.prior, pool, pool_scores, effort=effort, seed=seed, start=start
        )
    return Found(found.guide, found.log_weight.flatten(), found.rounds, rows * found.evaluations)


@sampler("guided")
def guided(
    posterior: Guided, n: int, *, seed: int = 0, max_evaluations: int = 20_000_000
) -> tuple[Tensor, GuidedInfo]:
    """Draw ``n`` samples of a posterior, shape (n, D); the prior needs a density.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        max_evaluations: proposals at most, beside the rounds in which their distribution is found;
            beyond it :class:`BudgetExceeded` is raised, with what was found.
    """
    check_count("max_evaluations", max_evaluations, 1)
    found = posterior.guide
    pool = _Pool.none(posterior, seed)
    wanted = _BEGINNING * n
    if found.acceptance_rate * _MOST_FOR_EXACT >= 1:
        wanted = _MORE * n / found.acceptance_rate
    while True:
        pool = pool.grown(found.guide, max(_FEWEST, math.ceil(wanted)), max_evaluations)
        accepted, bound = pool.accepted(found)
        rate = len(accepted) / len(pool.margin)
        info = _info(pool, found, rate, bound)
        if len(accepted) >= n:
            return pool.phi[accepted[:n]], info
        spent = len(pool.margin) / n
        if spent < _MOST_FOR_EXACT and rate * _MOST_FOR_EXACT >= 1:
            wanted = _MORE * n / rate
        elif spent >= _BEGINNING:
            chosen = pool.by_priority(n)
            if chosen is None:
                # So few proposals lie in the prior's support.
                wanted = _GROWTH * spent * n
            elif chosen.copies <= _FEW_COPIES or spent >= _MOST:
                _warn_of_copies(chosen.copies)
                info = _info(pool, found, n / len(pool.margin), chosen.bound)
                return pool.phi[chosen.rows], replace(info, copies=chosen.copies)
            else:
                wanted = min(_GROWTH * spent, _MOST) * n
        else:
            wanted = _BEGINNING * n
        if len(pool.margin) >= max_evaluations:
            raise BudgetExceeded(
                f"sampling: expected {n} samples within {max_evaluations} evaluations, got "
                f"{len(accepted)}; raise max_evaluations",
                pool.phi[accepted],
                info,
            )


def samples_among(drawn: Weighted, found: Found, n: int, seed: int) -> tuple[Tensor, Any] | None:
    """Return ``n`` samples of a posterior among proposals; None where these do not suffice.

    They suffice where the effective sample size tells that they come near the posterior, and where
    ``n`` are accepted, or copies are few among ``n`` chosen by priority.

    Args:
        drawn: by the guide, of one datum.
        found: the guide.
        n: how many samples.
        seed: same seed, same samples.
    """
    log_weight = drawn.log_weight[0]
    # The largest weight is always accepted, however few samples are wanted.
    if not effective_sample_size(log_weight) >= ENOUGH_DRAWS:
        return None
    margin = log_weight - _log_uniform(len(log_weight), seed, 0).to(log_weight.device)
    pool = _Pool(None, drawn.phi[0], log_weight, margin, seed, 1)
    accepted, bound = pool.accepted(found)
    if len(accepted) >= n:
        info = _info(pool, found, len(accepted) / len(margin), bound)
        return pool.phi[accepted[:n]], info
    chosen = pool.by_priority(n) if len(margin) > n else None
    if chosen is None or chosen.copies > _FEW_COPIES:
        return None
    info = _info(pool, found, n / len(margin), chosen.bound)
    return pool.phi[chosen.rows], replace(info, copies=chosen.copies)


def _log_uniform(n: int, seed: int, batch: int) -> Tensor:
    """Return logarithms of uniform numbers, by which proposals are accepted."""
    stream = generator(seed, "acceptance", batch)
    return torch.rand(n, generator=stream, dtype=torch.float64).log()


class _Chosen(NamedTuple):
    """Samples by their priorities.

    Args:
        rows: of the pool, (n,).
        bound: τ, of the weights.
        copies: the share of rows that stand there already.
    """

    rows: Tensor
    bound: float
    copies: float


class _Pool(NamedTuple):
    """Proposals, with what decides which of them are samples.

    Args:
        posterior: that they are proposed for; None for no more of them.
        phi: parameters (N, D).
        log_weight: log w of each (N,).
        margin: log w/u, with a uniform number u of its own, (N,).
        seed: same seed, same proposals.
        batches: in which they were drawn.
    """

    posterior: Guided | None
    phi: Tensor
    log_weight: Tensor
    margin: Tensor
    seed: int
    batches: int

    @classmethod
    def none(cls, posterior: Guided, seed: int) -> _Pool:
        """Return what there is before the first proposal."""
        device = posterior.device
        phi = torch.empty(0, posterior.prior.dimension, device=device)
        nothing = torch.empty(0, dtype=torch.float64, device=device)
        return cls(posterior, phi, nothing, nothing, seed, 0)

    def grown(self, guide: Guide, size: int, most: int) -> _Pool:
        """Return so many proposals, or at most so many."""
        assert self.posterior is not None
        scores, rows = _scores_of(self.posterior)
        # Joined once, at the end: a pool of many batches would be copied for each of them.
        batches = [(self.phi, self.log_weight, self.margin)]
        left = min(size, most) - len(self.margin)
        while left > 0:
            count = min(left, _AT_ONCE)
            each = math.ceil(count / rows)
            number = self.batches + len(batches) - 1
            x = guide.draw(each, derive_seed(self.seed, "candidates", number))
            drawn = guide.weigh(scores, x).together(rows)
            log_weight = drawn.log_weight[0, :count]
            log_uniform = _log_uniform(count, self.seed, number).to(x.device)
            batches.append((drawn.phi[0, :count], log_weight, log_weight - log_uniform))
            left -= count
        phi, log_weight, margin = (torch.cat(part) for part in zip(*batches, strict=True))
        return self._replace(
            phi=phi,
            log_weight=log_weight,
            margin=margin,
            batches=self.batches + len(batches) - 1,
        )

    def accepted(self, found: Found) -> tuple[Tensor, float]:
        """Return the rows accepted under the bound of all weights so far, and that bound."""
        bound = max(found.log_weight.max().item(), self.log_weight.max().item())
        inside = self.margin > -torch.inf
        return ((self.margin >= bound) & inside).nonzero()[:, 0], bound

    def by_priority(self, n: int) -> _Chosen | None:
        """Return ``n`` samples; None where less than n + 1 proposals have a weight at all."""
        top = self.margin.topk(n + 1)
        threshold = top.values[-1]
        if threshold == -torch.inf:
            return None
        log_count = (self.log_weight[top.indices[:-1]] - threshold).clamp(min=0)
        stream = generator(self.seed, "copies")
        rows = systematic_resampling(log_count.softmax(0).cpu(), n, stream)
        # Copies would stand side by side.
        rows = rows[torch.randperm(n, generator=stream)]
        copies = 1 - len(rows.unique()) / n
        return _Chosen(top.indices[rows.to(top.indices.device)], threshold.item(), copies)


def _info(pool: _Pool, found: Found, rate: float, bound: float) -> GuidedInfo:
    """Return what there is to say of proposals and of the guide that made them.

    Not by the points that the guide was chosen by among those of other rounds: these flatter it.
    """
    known = normalizer_of_weights(pool.log_weight.unsqueeze(0))
    log_normalizer = known.log_value.item()
    return GuidedInfo(
        acceptance_rate=rate,
        log_bound=bound - log_normalizer,
        exceedances=int((pool.log_weight > found.log_weight.max()).sum()),
        evaluations=len(pool.margin) + found.evaluations,
        rounds=found.rounds,
        effective_share=known.effective_draws.item() / len(pool.log_weight),
        log_normalizer=log_normalizer,
        normalizer_error=known.error.item(),
    )


def _warn_of_copies(share: float) -> None:
    """Warn where proposals fit a posterior badly."""
    if share > _MANY_COPIES:
        warnings.warn(
            f"sampling: {share:.0%} of the samples are copies of others, for few proposals come "
            'near the posterior; sampler="tempered" takes longer and needs none',
            EandeWarning,
            # Of sample(), which draw() is called by, and this.
            stacklevel=5,
        )
