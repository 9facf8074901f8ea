"""Draws from near the posteriors of many data, by guides, where few prior draws come near them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.guide import (
    DataScores,
    Effort,
    Emulating,
    Guide,
    Guides,
    Weighted,
    find_guides,
)
from eande.inference.normalizer import (
    Normalizer,
    PriorBank,
    join_normalizers,
    normalizer_of_scores,
    normalizer_of_weights,
)

# So many data are looked at together, which bounds memory; on a GPU more, whose time is spent on
# calls, however little each of them has to do.
_DATA_AT_ONCE = 16
_DATA_AT_ONCE_ON_GPU = 128
# How closely to look for guides: points of a round, at least and for each parameter, and where
# these do not do, as many parameters need them.
_FEWEST_POINTS = 256
_POINTS_PER_PARAMETER = 64
_COMPONENTS = 4
_SHARE = 0.1
_ENOUGH = 0.4
_CLOSER = Effort(points=1_024, components=16, enough=0.7)
_THOROUGH = Effort(points=4_000, components=16)
# So many are drawn at least and at most, and a little more than promise to do, by the share of the
# guide's own points that is effective, of which this is the least that is reckoned with.
_FEWEST_DRAWN = 256
_MOST_DRAWN = 5_120
_MORE = 1.1
_LEAST_SHARE = 0.1
# Draws by which the members of an ensemble are weighed, and as many more where fewer of a member's
# own are effective than know its weight to an eighth; where that does not do, guides are looked for
# more closely.
_WEIGHING = 768
_WEIGHING_MORE = 1_280
_WELL_WEIGHED = 64


def data_at_once(device: torch.device) -> int:
    """Return how many data are looked at together."""
    return _DATA_AT_ONCE_ON_GPU if device.type == "cuda" else _DATA_AT_ONCE


def _efforts(dimension: int) -> tuple[Effort, ...]:
    """Return how closely to look for guides in so many dimensions, and where that does not do."""
    points = max(_FEWEST_POINTS, _POINTS_PER_PARAMETER * dimension)
    return Effort(points, _COMPONENTS, _SHARE, _ENOUGH), _CLOSER, _THOROUGH


@torch.no_grad()
def draws_near(
    model: Emulating,
    f: Tensor,
    bank: PriorBank,
    *,
    seed: int,
    closeness: int = 0,
    count: int | None = None,
    wanted: float = 0.0,
    start: Guide | None = None,
) -> tuple[Guides, Weighted]:
    """Draw from near the posteriors of a few data, and return the guides and their draws.

    Args:
        model: whose they are.
        f: embedded data (m, n).
        bank: draws of the model's prior, where guides begin.
        seed: same seed and data, same draws.
        closeness: how closely to look: 0, 1, or 2 as many parameters may need it.
        count: how many to draw for each; None for as many as is reckoned for what is wanted.
        wanted: an effective sample size, for which no more than 5,120 are drawn for each.
        start: proposals from near the posteriors, where guides begin instead.
    """
    scores = DataScores(model, f)
    found = find_guides(
        scores,
        model.prior,
        bank.phi,
        model.similarity.score(f, bank.emulated) if start is None else None,
        effort=_efforts(model.prior.dimension)[closeness],
        seed=seed,
        start=start,
    )
    if count is None:
        share = found.normalizer().effective_draws.min().item() / found.log_weight.shape[1]
        count = math.ceil(_MORE * wanted / max(share, _LEAST_SHARE))
        count = min(max(count, _FEWEST_DRAWN), _MOST_DRAWN)
    return found, found.guide.weigh(scores, found.guide.draw(count, derive_seed(seed, "drawn")))


class _JointScores(NamedTuple):
    """The scores of data by the mean of several models' ratios.

    Args:
        models: of one prior.
        data: as each of them embeds them, (m, n_j).
    """

    models: Sequence[Emulating]
    data: Sequence[Tensor]

    def each(self, phi: Tensor) -> Tensor:
        """Return every model's s of parameters (m, k, D), (M, m, k)."""
        pairs = zip(self.models, self.data, strict=True)
        return torch.stack([DataScores(model, f)(phi) for model, f in pairs]).double()

    def __call__(self, phi: Tensor, prior_ratio: Tensor) -> Tensor:
        """Return the log of the mean ratio, each less the log C that these very points tell."""
        each = self.each(phi)
        return _mean_ratio(each, (each + prior_ratio).nan_to_num(nan=-torch.inf))

    def of(self, rows: Tensor) -> _JointScores:
        """Return those of some data."""
        return _JointScores(self.models, [f[rows] for f in self.data])


def _mean_ratio(each: Tensor, log_weight: Tensor) -> Tensor:
    """Return the log mean over models of e^s / C, up to a constant, with C by weights, (m, k)."""
    log_c = log_weight.logsumexp(2, keepdim=True)
    return (each - log_c.clamp(min=torch.finfo(torch.float64).min)).logsumexp(0)


@dataclass(frozen=True)
class WeighedMembers:
    """What is known of the members of an ensemble for some data.

    Args:
        normalizers: of each member, with values for all of the data.
        guide: proposals for the mean of their posteriors, of those data that got any.
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
    seed: int = 0,
) -> WeighedMembers:
    """Estimate every member's log C: by prior draws, or near the posteriors that few come near.

    Proposals are for the mean of the members' posteriors, so that all members share them. Data that
    are asked for together share random numbers, so that values depend on their company, within the
    standard error.

    Args:
        models: of one prior.
        data: as each of them embeds them, (m, n_j).
        banks: the same draws of the prior, emulated by each.
        fewest: effective draws of the prior that are enough.
        seed: same seed and data, same values.
    """
    together = data_at_once(data[0].device)
    parts = [
        _weigh_some(models, some, banks, fewest, derive_seed(seed, "normaliser"))
        for some in zip(*(f.split(together) for f in data), strict=True)
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
    guide: Guide | None = None
    rows = guided
    for number, effort in enumerate(_efforts(models[0].prior.dimension)):
        each = torch.stack([score[rows] for score in scores]).double()
        each = each.nan_to_num(nan=-torch.inf).masked_fill(~banks[0].inside, -torch.inf)
        joint = _JointScores(models, [f[rows] for f in data])
        found = find_guides(
            joint,
            models[0].prior,
            banks[0].phi,
            _mean_ratio(each, each),
            effort=effort,
            seed=seed,
        ).guide
        guide = found if guide is None else guide.replaced(torch.searchsorted(guided, rows), found)
        near = _weighed_by(found, joint, derive_seed(seed, "weighing", number))
        known = [_better(one, rows, other) for one, other in zip(known, near, strict=True)]
        effective = torch.stack([normalizer.effective_draws for normalizer in known])
        rows = rows[(effective[:, rows] < _WELL_WEIGHED).any(0)]
        if not len(rows):
            break
    return WeighedMembers(known, guide, guided)


def _weighed_by(guide: Guide, joint: _JointScores, seed: int) -> list[Normalizer]:
    """Return every member's log C by draws of guides: by more of them where few of its own are."""
    weights = _joint_weights(guide, joint, _WEIGHING, seed)
    known = [normalizer_of_weights(weight) for weight in weights]
    effective = torch.stack([normalizer.effective_draws for normalizer in known])
    short = (effective < _WELL_WEIGHED).any(0).nonzero()[:, 0]
    if not len(short):
        return known
    more = _joint_weights(
        guide.of(short), joint.of(short), _WEIGHING_MORE, derive_seed(seed, "more")
    )
    near = [normalizer_of_weights(weight) for weight in torch.cat([weights[:, short], more], dim=2)]
    return [_better(one, short, other) for one, other in zip(known, near, strict=True)]


def _joint_weights(guide: Guide, joint: _JointScores, count: int, seed: int) -> Tensor:
    """Return the log of p e^s / q of every member for draws of guides, (M, m, count)."""
    x = guide.draw(count, seed)
    phi = guide.prior.constrain(x.flatten(0, 1)).float().view(x.shape)
    return (joint.each(phi) + guide.prior_ratio(x)).nan_to_num(nan=-torch.inf)


def _better(known: Normalizer, rows: Tensor, near: Normalizer) -> Normalizer:
    """Return the normalisers of all data, those of some rows as known anew where that is better."""
    better = near.effective_draws > known.effective_draws[rows]

    def merged(name: str) -> Tensor:
        values: Tensor = getattr(known, name).clone()
        values[rows[better]] = getattr(near, name)[better]
        return values

    return Normalizer(merged("log_value"), merged("error"), merged("effective_draws"))
