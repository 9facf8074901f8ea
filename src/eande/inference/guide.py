r"""Guides: proposals from near posteriors, found for many data at once, or for one.

Where data say much, few prior draws come near a posterior. So a proposal q is found for each datum,
in rounds, from prior draws on:

1. Points have the weights (p e^s / q)^β, with β as large as leaves an effective sample size of a
   quarter of them. By these they are resampled.
2. A Gaussian mixture is fitted to them, for several modes, and one Gaussian, for many parameters.
   The next q is made of both, of the same with wider components and of a tenth of the prior, and
   gives the next points.
3. From β = 1 on, rounds end when the weights become no more even; where a posterior lies in so
   sharp a corner of the prior that most points of any round miss it, after twenty of them.

Whatever q is, the mean of p e^s / q over its draws is C, with an error that their spread tells; a
poor one costs draws. A mode that no round has come near is as hard to find as one that no prior
draw is near.

References:
    Cappé, Guillin, Marin and Robert, *Population Monte Carlo*, 2004;
    Hesterberg, *Weighted average importance sampling and defensive mixture distributions*, 1995.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.normalizer import Normalizer, PriorBank, normalizer_of_weights
from eande.inference.samplers.gaussian_mixture import GaussianMixture, fit_gaussian_mixture
from eande.inference.samplers.resampling import largest_exponents, rows_of, systematic_resampling
from eande.priors.prior import Prior
from eande.similarities.similarity import Share, Similarity

_ROUNDS = 20
# Of expectation–maximisation, at the posteriors themselves and on the way there.
_ITERATIONS = 12
_FEW_ITERATIONS = 4
# What a proposal is made of, beside the fitted mixture.
_SHARE_OF_PRIOR = 0.1
_SHARE_OF_WHOLE = 0.4
_SHARE_OF_WIDE = 0.2
_TIMES_AS_WIDE = 2.0
# A learned guide is taken where such a share of its draws is effective: others take many rounds.
ENOUGH_OF_LEARNED = 0.1
# It is checked by so many of the best prior draws. It comes too seldom to where these
# lie if it takes e^2.5 = 12 draws for one of the posterior, by what they say.
_BEST = 256
_SELDOM = 2.5
# A round at the posterior itself that makes weights by less than this factor more even is the last.
_WORTHWHILE = 1.1


class Effort(NamedTuple):
    """How closely guides are looked for.

    Args:
        points: of a round.
        components: of the mixtures.
        share: the effective sample size that weights must leave, as a share of the points.
        enough: no further round is needed where the effective sample size is such a share of them.
    """

    points: int
    components: int
    share: float = 0.25
    enough: float = 1.0


class Scores(Protocol):
    """The scores of m data as functions of parameters of their own."""

    def __call__(self, phi: Tensor) -> Tensor:
        """Return s of parameters (m, k, D), (m, k)."""

    def of(self, rows: Tensor) -> Self:
        """Return those of some data."""


class Emulating(Protocol):
    """What is needed here of a model."""

    similarity: Similarity
    prior: Prior

    @property
    def rows(self) -> int:
        """Parameters per pass of the emulator."""

    def emulate_all(self, phi: Tensor) -> Tensor:
        """Emulate parameters, (m, D) → (m, n)."""

    def propose(self, f: Tensor) -> Guide | None:
        """Return proposals for embedded data (m, n); None where the model has learned no guide."""


@dataclass(frozen=True)
class DataScores:
    """The scores of embedded data.

    Args:
        model: what embedded them.
        f: f(y), (m, n).
    """

    model: Emulating
    f: Tensor

    def __call__(self, phi: Tensor) -> Tensor:
        """Return s of parameters (m, k, D), or (1, k, D) where all data share them, (m, k)."""
        similarity = self.model.similarity
        if len(phi) == 1:
            return similarity.score(self.f, self.model.emulate_all(phi[0]))
        # As many data at a time as the emulator takes rows.
        data = max(1, self.model.rows // phi.shape[1])
        parts = []
        for own, near in zip(self.f.split(data), phi.split(data), strict=True):
            g = self.model.emulate_all(near.flatten(0, 1)).unflatten(0, near.shape[:2])
            parts.append(similarity.grouped_score(own, g))
        return torch.cat(parts)

    def of(self, rows: Tensor) -> DataScores:
        """Return those of some data."""
        return DataScores(self.model, self.f[rows])


@dataclass(frozen=True)
class MemberScores:
    """The scores of embedded data by each member of an ensemble alone.

    The posterior of an ensemble is the mean of its members'. So it is sampled by pairs of a member
    and parameters, of density p e^{s_j + o_j}, and whatever is proposed is scored by one member
    only, not by all of them. Rows are these pairs: all members of a datum, then those of the next.

    Args:
        shares: the terms of the mean.
        rows: which of all pairs, (R,).
        support: outside of which the ratio is zero; None where nothing is proposed there.
    """

    shares: Sequence[Share]
    rows: Tensor
    support: Prior | None = None

    @classmethod
    def of_data(
        cls, similarity: Similarity, f: Tensor, support: Prior | None = None
    ) -> MemberScores | None:
        """Return those of all members for embedded data (m, n); None where the ratio is no mean."""
        shares = similarity.shares(f)
        if shares is None:
            return None
        return cls(shares, torch.arange(len(f) * len(shares), device=f.device), support)

    def __call__(self, phi: Tensor) -> Tensor:
        """Return s_j + o_j of parameters (R, k, D), (R, k)."""
        found = phi.new_empty(phi.shape[:2])
        for number, share in enumerate(self.shares):
            own, data = self._of_member(number)
            scores = DataScores(share.model, share.f[data])(phi[own])
            found[own] = scores + share.offset[data].unsqueeze(1)
        if self.support is not None:
            inside = self.support.contains(phi.flatten(0, 1)).view(phi.shape[:2])
            found = found.masked_fill(~inside, -torch.inf)
        return found

    def of(self, rows: Tensor) -> MemberScores:
        """Return some rows."""
        return replace(self, rows=self.rows[rows])

    def of_bank(self, bank: PriorBank) -> Tensor:
        """Return the scores of a bank's draws, (R, N'); minus infinity outside of the support."""
        found = bank.emulated.new_empty(len(self.rows), len(bank.phi))
        for number, share in enumerate(self.shares):
            own, data = self._of_member(number)
            g = bank.emulated[:, share.columns]
            scores = share.model.similarity.score(share.f[data], g)
            found[own] = scores + share.offset[data].unsqueeze(1)
        return found.masked_fill(~bank.inside, -torch.inf)

    def _of_member(self, number: int) -> tuple[Tensor, Tensor]:
        """Return which of these rows are a member's, and of which data."""
        own = (self.rows % len(self.shares) == number).nonzero()[:, 0]
        return own, self.rows[own] // len(self.shares)


class Weighted(NamedTuple):
    """Draws of proposals q, for each of m data its own.

    Args:
        phi: parameters (m, n, D).
        score: s of each (m, n).
        prior_ratio: log p − log q of each (m, n).
    """

    phi: Tensor
    score: Tensor
    prior_ratio: Tensor

    @property
    def log_weight(self) -> Tensor:
        """The log of p e^s / q, whose mean is C, (m, n)."""
        return self.score + self.prior_ratio

    def of(self, rows: Tensor | int) -> Weighted:
        """Return those for some data, or for one."""
        chosen = slice(rows, rows + 1) if isinstance(rows, int) else rows
        return Weighted(*(part[chosen] for part in self))

    def together(self, each: int) -> Weighted:
        """Return the draws of every so many rows as those of one: one of each row, and again."""

        def woven(part: Tensor) -> Tensor:
            return part.unflatten(0, (-1, each)).transpose(1, 2).flatten(1, 2)

        return Weighted(*map(woven, self))

    def joined(self, others: Weighted) -> Weighted:
        """Return these draws and others of the same data."""
        pairs = zip(self, others, strict=True)
        return Weighted(*(torch.cat(pair, dim=1) for pair in pairs))


class Guide(NamedTuple):
    """Proposals in unconstrained coordinates, for each of m data its own.

    Args:
        mixture: fitted to the last points.
        prior: of the parameters.
    """

    mixture: GaussianMixture
    prior: Prior

    def draw(self, n: int, seed: int) -> Tensor:
        """Draw ``n`` points for each datum, (m, n, D)."""
        device = self.mixture.location.device
        stream = torch.Generator(device).manual_seed(derive_seed(seed, "guide"))
        x, _ = self.mixture.sample(n, stream)
        free = torch.rand(x.shape[:2], generator=stream, device=device) < _SHARE_OF_PRIOR
        count = int(free.sum())
        phi = self.prior.sample(max(1, count), seed=derive_seed(seed, "free"))
        x[free] = self.prior.unconstrain(phi.to(device)).to(x)[:count]
        return x

    def prior_ratio(self, x: Tensor) -> Tensor:
        """Return log p − log q of points (m, n, D), (m, n); minus infinity where p is 0."""
        log_prior = self.prior.unconstrained_log_prob(x.flatten(0, 1)).view(x.shape[:2])
        parts = (
            self.mixture.log_prob(x) + math.log(1 - _SHARE_OF_PRIOR),
            log_prior + math.log(_SHARE_OF_PRIOR),
        )
        outside = log_prior == -torch.inf
        return (log_prior - torch.logaddexp(*parts)).masked_fill(outside, -torch.inf)

    def weigh(self, scores: Scores, x: Tensor) -> Weighted:
        """Return points (m, n, D) as parameters, with what their weights are made of."""
        phi = self.prior.constrain(x.flatten(0, 1)).float().view(x.shape)
        prior_ratio = self.prior_ratio(x).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        # NaN where parameters are so large that the emulator overflows: nothing lies there.
        score = scores(phi).double().nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        return Weighted(phi, score, prior_ratio)

    def of(self, rows: Tensor) -> Guide:
        """Return the proposals for some data."""
        return self._replace(mixture=self.mixture.of(rows))

    def replaced(self, rows: Tensor, others: Guide) -> Guide:
        """Return the proposals for all data, those for some rows taken from others."""
        return self._replace(mixture=self.mixture.replaced(rows, others.mixture))

    def for_rows(self, data: int, each: int) -> Guide:
        """Return the proposals for so many rows of each of so many data.

        For one row of each, those of all members of an ensemble are made one.
        """
        rows = len(self.mixture.location)
        if rows == data * each:
            return self
        if each == 1:
            return self._replace(mixture=self.mixture.merged(rows // data))
        return self.of(
            torch.arange(data, device=self.mixture.location.device).repeat_interleave(each)
        )

    def widened(self, times: Tensor) -> Guide:
        """Return proposals that are so many times as wide, for each datum its own (m,)."""
        rows = len(self.mixture.location)
        wide = self.mixture.widened(times.repeat_interleave(rows // len(times)))
        return self._replace(mixture=wide)

    @classmethod
    def woven(cls, guides: Sequence[Guide]) -> Guide:
        """Return the proposals of several members for the same data: all of a datum, then on."""
        rows = torch.arange(len(guides) * len(guides[0].mixture.location))
        return cls.stacked(guides).of(rows.view(len(guides), -1).T.flatten())

    @classmethod
    def stacked(cls, guides: Sequence[Guide]) -> Guide:
        """Return the proposals for the data of several guides of one prior, in their order."""
        return cls(GaussianMixture.stacked([guide.mixture for guide in guides]), guides[0].prior)


class Batch(NamedTuple):
    """Some data that are looked at together.

    Args:
        rows: which, on the CPU.
        start: their guides; None where they have none.
    """

    rows: Tensor
    start: Guide | None


def batches_of(rows: Tensor, guides: Sequence[Guide | None], together: int) -> list[Batch]:
    """Return data some at a time: those that have guides already, and those that have none.

    Args:
        rows: of all data, those to be looked at.
        guides: of all data.
        together: how many at a time.
    """
    chosen = rows.cpu()
    known = torch.tensor([guides[i] is not None for i in chosen.tolist()], dtype=torch.bool)
    batches = [Batch(some, None) for some in chosen[~known].split(together) if len(some)]
    for some in chosen[known].split(together):
        own = [guide for i in some.tolist() if (guide := guides[i]) is not None]
        if own:
            batches.append(Batch(some, Guide.stacked(own)))
    return batches


class Guides(NamedTuple):
    """Guides of m data, and what they are judged by.

    Args:
        guide: the proposals.
        log_weight: of points that they drew, (m, n).
        exponent: β of the points that each was fitted to, (m,).
        rounds: in which they were found.
        evaluations: scores computed for each datum at most.
    """

    guide: Guide
    log_weight: Tensor
    exponent: Tensor
    rounds: int
    evaluations: int

    def normalizer(self) -> Normalizer:
        """Return log C of each datum."""
        return normalizer_of_weights(self.log_weight)


def find_guides(
    scores: Scores,
    prior: Prior,
    pool: Tensor,
    pool_scores: Tensor | None,
    *,
    effort: Effort,
    seed: int,
    start: Guide | None = None,
) -> Guides:
    """Find proposals for m data at once.

    Args:
        scores: of the data.
        prior: with a density.
        pool: draws of it, where rounds begin, (N, D).
        pool_scores: their scores (m, N), finite for one at least; None with a start.
        effort: how closely to look.
        seed: same seed and data, same proposals.
        start: proposals from near the data's posteriors, where rounds begin instead.
    """
    stream = torch.Generator(pool.device).manual_seed(derive_seed(seed, "guided"))
    points, components = effort.points, effort.components
    best: Guides | None = None
    number = 0
    if start is None:
        assert pool_scores is not None
        x = prior.unconstrain(pool).unsqueeze(0)
        log_weight = pool_scores.double().nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        finite = torch.isfinite(log_weight).sum(1)
        least = (finite / 2).clamp(max=effort.share * points).double()
    else:
        x = start.draw(points, derive_seed(seed, "round", 0))
        log_weight = start.weigh(scores, x).log_weight
        exponent = torch.ones_like(log_weight[:, 0])
        best = Guides(start, log_weight, exponent, 0, points)
        better = best.normalizer().effective_draws < effort.enough * points
        x, log_weight, scores = x[better], log_weight[better], scores.of(better)
        least = torch.full_like(log_weight[:, 0], effort.share * points)
    # All data are looked at until their own weights become no more even.
    rows = torch.arange(len(log_weight), device=pool.device)
    if best is not None:
        rows = better.nonzero()[:, 0]
    while len(rows) and number < _ROUNDS:
        number += 1
        exponent = largest_exponents(log_weight, least)
        weights = (exponent.unsqueeze(1) * log_weight).softmax(1)
        centres = rows_of(x, systematic_resampling(weights, points, stream))
        # On the way few iterations do.
        iterations = _ITERATIONS if bool((exponent == 1).any()) else _FEW_ITERATIONS
        guide = Guide(_around(centres, components, stream, iterations), prior)
        x = guide.draw(points, derive_seed(seed, "round", number))
        log_weight = guide.weigh(scores, x).log_weight
        found = Guides(guide, log_weight, exponent, number, number * points)
        if best is None:
            best = found
            better = torch.ones_like(exponent, dtype=torch.bool)
        else:
            best, better = _better(best, rows, found)
        better &= found.normalizer().effective_draws < effort.enough * points
        # One datum needs no look at which.
        if not better.all():
            rows, x, log_weight = rows[better], x[better], log_weight[better]
            scores = scores.of(better)
        least = torch.full_like(log_weight[:, 0], effort.share * points)
    assert best is not None
    rounds = number + (start is not None)
    return best._replace(rounds=rounds, evaluations=rounds * points)


def follow_guide(
    learned: Guide,
    scores: Scores,
    pool: Tensor,
    pool_scores: Tensor,
    *,
    effort: Effort,
    seed: int,
    enough: float = ENOUGH_OF_LEARNED,
) -> Guides:
    """Return what a model has learned to propose, and others for those data that it fails for.

    It fails where few of its draws are effective, and where it comes too seldom to where draws of
    the prior say that the posterior is: of a mode that it has missed its own draws say nothing.

    Args:
        learned: the proposals.
        scores: of the data.
        pool: draws of the prior, by which proposals are checked, and where others begin, (N, D).
        pool_scores: their scores (m, N), finite for one at least.
        effort: how closely to look for others.
        seed: same seed and data, same proposals.
        enough: the share of learned draws that must be effective.
    """
    points = effort.points
    x = learned.draw(points, derive_seed(seed, "learned"))
    log_weight = learned.weigh(scores, x).log_weight
    kept = Guides(learned, log_weight, torch.ones_like(log_weight[:, 0]), 0, points)
    normalizer = kept.normalizer()
    effective = normalizer.effective_draws >= enough * points
    # No number, of a guide of damaged numbers, is neither more nor less.
    covers = _seldom(learned, pool, pool_scores) <= normalizer.log_value + _SELDOM
    rows = (~(effective & covers)).nonzero()[:, 0]
    if not len(rows):
        return kept
    prior = learned.prior
    found = find_guides(scores.of(rows), prior, pool, pool_scores[rows], effort=effort, seed=seed)
    return Guides(
        learned.replaced(rows, found.guide),
        log_weight.index_copy(0, rows, found.log_weight),
        kept.exponent.index_copy(0, rows, found.exponent),
        found.rounds,
        points + found.evaluations,
    )


def _seldom(guide: Guide, pool: Tensor, pool_scores: Tensor) -> Tensor:
    """Return the log of the posterior mean of p e^s / q, by the best of prior draws, (m,).

    Relative to C it is the number of draws of q that are worth one of the posterior.
    """
    best = pool_scores.double().nan_to_num(nan=-torch.inf).topk(min(_BEST, len(pool)))
    x = guide.prior.unconstrain(pool)[best.indices]
    log_weight = best.values + guide.prior_ratio(x)
    return (best.values.log_softmax(1) + log_weight).logsumexp(1)


def _better(known: Guides, rows: Tensor, found: Guides) -> tuple[Guides, Tensor]:
    """Return the better guides of all data, and for which rows another round is worth while."""
    share = found.normalizer().effective_draws
    known_share = known.normalizer().effective_draws[rows]
    kept = (found.exponent > known.exponent[rows]) | (share > known_share)
    chosen = rows[kept]
    best = known._replace(
        guide=known.guide.replaced(chosen, found.guide.of(kept)),
        log_weight=known.log_weight.index_copy(0, chosen, found.log_weight[kept]),
        exponent=known.exponent.index_copy(0, chosen, found.exponent[kept]),
    )
    return best, (found.exponent < 1) | (share >= _WORTHWHILE * known_share)


def _around(
    x: Tensor, components: int, stream: torch.Generator, iterations: int
) -> GaussianMixture:
    """Return mixtures around points: several Gaussians, one for all, and wider ones."""
    mixture = fit_gaussian_mixture(x, components, stream, iterations=iterations)
    mixture = mixture.joined(fit_gaussian_mixture(x, 1, stream), _SHARE_OF_WHOLE)
    return mixture.joined(mixture.widened(_TIMES_AS_WIDE), _SHARE_OF_WIDE)
