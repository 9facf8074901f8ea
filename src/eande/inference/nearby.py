"""Draws from near the posteriors of many data, by guides, where few prior draws come near them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.guide import (
    ENOUGH_OF_LEARNED,
    DataScores,
    Effort,
    Emulating,
    Guide,
    Guides,
    MemberScores,
    Scores,
    Weighted,
    find_guides,
    follow_guide,
)
from eande.inference.normalizer import (
    Normalizer,
    PriorBank,
    join_normalizers,
    normalizer_of_scores,
    normalizer_of_weights,
)
from eande.priors.prior import Prior
from eande.similarities.similarity import Share

# What models have learned to propose for data, given as each of them embeds these; or None.
Propose = Callable[[Sequence[Tensor]], Guide | None]
# So many data are looked at together, which bounds memory; on a GPU more, whose time is spent on
# calls, however little each of them has to do.
_DATA_AT_ONCE = 16
_DATA_AT_ONCE_ON_GPU = 128
# How closely to look for guides: points of a round, at least and for each parameter, and where
# these do not do, as many parameters need them.
_FEWEST_POINTS = 256
_FEWEST_OF_MEMBERS = 64
_POINTS_PER_PARAMETER = 64
_COMPONENTS = 4
_SHARE = 0.1
_ENOUGH = 0.4
# More draws cost less than another round, where there is a guide to begin with.
_ENOUGH_OF_START = 0.15
# Prior draws that check it, and where guides of those data begin that it fails for.
_CHECKED = 4_096
# The closest look begins anew.
_CLOSEST = 2
_CLOSER = Effort(points=1_024, components=16, enough=0.7)
_THOROUGH = Effort(points=4_000, components=16)
# So many are drawn at least and at most, and a little more than promise to do, by the share of the
# guide's own points that is effective, of which this is the least that is reckoned with.
_FEWEST_DRAWN = 256
_MOST_DRAWN = 5_120
_MORE = 1.1
_LEAST_SHARE = 0.1
# Draws by which a member of an ensemble is weighed: as many for all, for those that stop where they
# look effective have missed large weights. Where fewer of them are effective than know its weight
# to a tenth, its guide is looked for more closely.
_WEIGHING = 1_792
_WELL_WEIGHED = 100
_ENOUGH_TO_WEIGH = 0.05
# The closest look takes longest. It is for members of which a closer one made so much more draws
# effective.
_LEAST_GAIN = 1.5


def data_at_once(device: torch.device) -> int:
    """Return how many data are looked at together."""
    return _DATA_AT_ONCE_ON_GPU if device.type == "cuda" else _DATA_AT_ONCE


def _efforts(dimension: int) -> tuple[Effort, ...]:
    """Return how closely to look for guides in so many dimensions, and where that does not do."""
    points = max(_FEWEST_POINTS, _POINTS_PER_PARAMETER * dimension)
    return Effort(points, _COMPONENTS, _SHARE, _ENOUGH), _CLOSER, _THOROUGH


def _efforts_of_members(dimension: int) -> tuple[Effort, ...]:
    """Return the same for each member of an ensemble: for fewer points, of simpler posteriors."""
    least = _FEWEST_OF_MEMBERS + _POINTS_PER_PARAMETER // 2 * dimension
    return tuple(
        effort._replace(
            points=max(least, effort.points * 2 // 5), components=max(2, effort.components // 2)
        )
        for effort in _efforts(dimension)
    )


@dataclass(frozen=True)
class Near:
    """Proposals from near the posteriors of m data; those of an ensemble by members.

    Args:
        found: the guides, for each datum in as many rows as there are members.
        scores: of the same rows.
        each: the rows of a datum.
    """

    found: Guides
    scores: Scores
    each: int

    @property
    def log_weight(self) -> Tensor:
        """Log weights of the points that the guides were judged by, (m, n)."""
        return self.found.log_weight.unflatten(0, (-1, self.each)).flatten(1)

    def draw(self, count: int, seed: int) -> Weighted:
        """Return so many draws for each datum, or a few more."""
        guide = self.found.guide
        x = guide.draw(math.ceil(count / self.each), seed)
        return guide.weigh(self.scores, x).together(self.each)

    def of(self, data: Tensor) -> Near:
        """Return the proposals for some data."""
        rows = (
            self.each * data.unsqueeze(1) + torch.arange(self.each, device=data.device)
        ).flatten()
        found = self.found._replace(
            guide=self.found.guide.of(rows),
            log_weight=self.found.log_weight[rows],
            exponent=self.found.exponent[rows],
        )
        return Near(found, self.scores.of(rows), self.each)


@torch.no_grad()
def find_near(
    model: Emulating,
    f: Tensor,
    bank: PriorBank,
    *,
    seed: int,
    closeness: int = 0,
    start: Guide | None = None,
) -> Near:
    """Find proposals for samples of the posteriors of a few data.

    Args:
        model: whose they are.
        f: embedded data (m, n).
        bank: draws of the model's prior, where guides begin.
        seed: same seed and data, same proposals.
        closeness: how closely to look: 0, 1, or 2 as many parameters may need it.
        start: proposals from near the posteriors, where guides begin instead.
    """
    scores: Scores = DataScores(model, f)
    each = 1
    dimension = model.prior.dimension
    effort = _efforts(dimension)[closeness]
    apart = MemberScores.of_data(model.similarity, f)
    if apart is not None:
        scores, each = apart, len(apart.rows) // len(f)
        effort = _efforts_of_members(dimension)[closeness]
    if start is not None:
        start = start.for_rows(len(f), each)
        if not closeness:
            effort = effort._replace(enough=_ENOUGH_OF_START)
        found = find_guides(
            scores, model.prior, bank.phi, None, effort=effort, seed=seed, start=start
        )
        return Near(found, scores, each)
    learned = None
    if closeness < _CLOSEST:
        learned = _for_rows(model.propose(f), len(f), each)
    if learned is not None:
        # By as many it is checked well enough.
        bank = bank.first(_CHECKED)
    if apart is not None:
        pool_scores = apart.of_bank(bank)
    else:
        pool_scores = model.similarity.score(f, bank.emulated)
    found = _find(learned, scores, model.prior, bank.phi, pool_scores, effort, seed)
    return Near(found, scores, each)


def _find(
    learned: Guide | None,
    scores: Scores,
    prior: Prior,
    pool: Tensor,
    pool_scores: Tensor,
    effort: Effort,
    seed: int,
    enough: float = ENOUGH_OF_LEARNED,
) -> Guides:
    """Find proposals: those that were learned where these do, else others."""
    if learned is None:
        return find_guides(scores, prior, pool, pool_scores, effort=effort, seed=seed)
    return follow_guide(learned, scores, pool, pool_scores, effort=effort, seed=seed, enough=enough)


def _for_rows(learned: Guide | None, data: int, each: int) -> Guide | None:
    """Return learned proposals for so many rows of each datum, None where there are none."""
    return None if learned is None else learned.for_rows(data, each)


def draws_wanted(near: Near, wanted: float) -> int:
    """Return how many draws for each datum promise an effective sample size, at most 5,120.

    Args:
        near: the proposals.
        wanted: by the datum for which they are worst.
    """
    log_weight = near.log_weight
    effective = normalizer_of_weights(log_weight).effective_draws
    share = effective.min().item() / log_weight.shape[1]
    count = math.ceil(_MORE * wanted / max(share, _LEAST_SHARE))
    return min(max(count, _FEWEST_DRAWN), _MOST_DRAWN)


@torch.no_grad()
def draws_near(
    model: Emulating,
    f: Tensor,
    bank: PriorBank,
    *,
    seed: int,
    closeness: int = 0,
    count: int,
) -> tuple[Guides, Weighted]:
    """Draw from near the posteriors of a few data, and return the guides and their draws.

    All members of an ensemble score them, which ranks need.

    Args:
        model: whose they are.
        f: embedded data (m, n).
        bank: draws of the model's prior, where guides begin.
        seed: same seed and data, same draws.
        closeness: how closely to look: 0, 1, or 2 as many parameters may need it.
        count: how many to draw for each.
    """
    scores = DataScores(model, f)
    learned = None
    if closeness < _CLOSEST:
        learned = _for_rows(model.propose(f), len(f), 1)
    found = _find(
        learned,
        scores,
        model.prior,
        bank.phi,
        model.similarity.score(f, bank.emulated),
        _efforts(model.prior.dimension)[closeness],
        seed,
    )
    return found, found.guide.weigh(scores, found.guide.draw(count, derive_seed(seed, "drawn")))


@dataclass(frozen=True)
class WeighedMembers:
    """What is known of the members of an ensemble for some data.

    Args:
        normalizers: of each member, with values for all of the data.
        guide: proposals for their posteriors, of those data that got any: all members of a datum,
            then those of the next.
        guided: which data these are, (k,).
    """

    normalizers: list[Normalizer]
    guide: Guide | None
    guided: Tensor


@torch.no_grad()
def weigh_members(
    models: Sequence[Emulating],
    data: Sequence[Tensor],
    banks: Sequence[PriorBank],
    *,
    fewest: float,
    propose: Propose | None = None,
    seed: int = 0,
) -> WeighedMembers:
    """Estimate every member's log C: by prior draws, or near the posteriors that few come near.

    Each member has proposals of its own. Data that are asked for together share random numbers, so
    that values depend on their company, within the standard error.

    Args:
        models: of one prior.
        data: as each of them embeds them, (m, n_j).
        banks: the same draws of the prior, emulated by each.
        fewest: effective draws of the prior that are enough.
        propose: what the models have learned to propose for data as they embed them; None for
            nothing.
        seed: same seed and data, same values.
    """
    together = data_at_once(data[0].device)
    parts = [
        _weigh_some(models, some, banks, fewest, propose, derive_seed(seed, "normaliser", number))
        for number, some in enumerate(zip(*(f.split(together) for f in data), strict=True))
    ]
    guides = [part.guide for part in parts if part.guide is not None]
    return WeighedMembers(
        [join_normalizers([part.normalizers[j] for part in parts]) for j in range(len(models))],
        Guide.stacked(guides) if guides else None,
        torch.cat([part.guided + i * together for i, part in enumerate(parts)]),
    )


def _weigh_some(
    models: Sequence[Emulating],
    data: Sequence[Tensor],
    banks: Sequence[PriorBank],
    fewest: float,
    propose: Propose | None,
    seed: int,
) -> WeighedMembers:
    """Do so for a few data."""
    scores = [
        model.similarity.score(f, bank.emulated)
        for model, f, bank in zip(models, data, banks, strict=True)
    ]
    known = [
        normalizer_of_scores(score, bank.inside) for score, bank in zip(scores, banks, strict=True)
    ]
    effective = torch.stack([normalizer.effective_draws for normalizer in known])
    guided = (effective < fewest).any(0).nonzero()[:, 0]
    if not len(guided) or not all(bank.proposable for bank in banks):
        return WeighedMembers(known, None, guided[:0])
    # Rows: all members of a datum, then those of the next.
    pool = torch.stack([score[guided] for score in scores], dim=1).flatten(0, 1)
    pool = pool.masked_fill(~banks[0].inside, -torch.inf)
    near = _stacked([_of(normalizer, guided) for normalizer in known])
    shares = [
        Share(model, f[guided], f.new_zeros(len(guided)), slice(0, f.shape[1]))
        for model, f in zip(models, data, strict=True)
    ]
    rows = torch.arange(len(pool), device=pool.device)
    prior = models[0].prior
    learned = None
    if propose is not None:
        learned = _for_rows(propose([f[guided] for f in data]), len(guided), len(models))
    guide: Guide | None = None
    for number, effort in enumerate(_efforts_of_members(prior.dimension)):
        own = MemberScores(shares, rows)
        found = _find(
            learned, own, prior, banks[0].phi, pool[rows], effort, seed, _ENOUGH_TO_WEIGH
        ).guide
        learned = None
        guide = found if guide is None else guide.replaced(rows, found)
        before = near.effective_draws[rows]
        near = _better(near, rows, _weighed_by(found, own, derive_seed(seed, "weighing", number)))
        now = near.effective_draws[rows]
        worthwhile = (now >= _LEAST_GAIN * before) | (number == 0)
        rows = rows[(now < _WELL_WEIGHED) & worthwhile]
        if not len(rows):
            break
    each = len(models)
    normalizers = [
        _better(one, guided, _of(near, torch.arange(j, len(pool), each, device=pool.device)))
        for j, one in enumerate(known)
    ]
    return WeighedMembers(normalizers, guide, guided)


def _weighed_by(guide: Guide, scores: MemberScores, seed: int) -> Normalizer:
    """Return log C of rows by new draws of guides."""
    return normalizer_of_weights(guide.weigh(scores, guide.draw(_WEIGHING, seed)).log_weight)


def _of(normalizer: Normalizer, rows: Tensor) -> Normalizer:
    """Return the normalisers of some rows."""
    return Normalizer(*(getattr(normalizer, field.name)[rows] for field in fields(Normalizer)))


def _stacked(normalizers: Sequence[Normalizer]) -> Normalizer:
    """Return the normalisers of several members as those of all members of each datum."""
    columns = [[getattr(one, field.name) for one in normalizers] for field in fields(Normalizer)]
    return Normalizer(*(torch.stack(column, dim=1).flatten() for column in columns))


def _better(known: Normalizer, rows: Tensor, near: Normalizer) -> Normalizer:
    """Return the normalisers of all data, those of some rows as known anew where that is better."""
    better = near.effective_draws > known.effective_draws[rows]

    def merged(name: str) -> Tensor:
        values: Tensor = getattr(known, name).clone()
        values[rows[better]] = getattr(near, name)[better]
        return values

    return Normalizer(merged("log_value"), merged("error"), merged("effective_draws"))
