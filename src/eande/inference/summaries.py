"""Summaries of many posteriors at once, by weights of draws that they share.

Prior draws weighted by e^s are every posterior at once: means, standard deviations and quantiles
follow from the weights, and nothing is sampled. Posteriors that few of them come near get draws of
their own, from proposals that do (:mod:`.nearby`), weighted likewise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.derived import Derived, add_derived
from eande.inference.guide import Emulating, Guide, batches_of
from eande.inference.nearby import data_at_once, draws_wanted, find_near
from eande.inference.normalizer import ENOUGH_DRAWS, PriorBank
from eande.inference.summary import Summary

# Weights computed at once: 16 MB in float64, of which a few copies are alive; on a GPU 160 MB.
_WEIGHTS_AT_ONCE = 2_000_000
_WEIGHTS_AT_ONCE_ON_GPU = 20_000_000
# Prior draws that summaries share: a GPU weighs many in the time in which it makes one proposal.
_SHARED_DRAWS = 10_000
_SHARED_DRAWS_ON_GPU = 200_000
# The effective sample size that prior draws must have: means are known to a sixteenth of a standard
# deviation, ends of intervals to an eighth.
_ENOUGH = 250


@dataclass(frozen=True)
class WeighedInfo:
    """What a summary by weighted draws rests on.

    Args:
        effective_draws: as many independent samples would tell as much.
        nearby: whether the draws came from near the posterior, not from the prior.
    """

    effective_draws: float
    nearby: bool


class _Numbers:
    """What is known of some posteriors: mean, deviation, ends and effective size, a row each."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.mean, self.std, self.lower, self.upper, effective = parts
        self.effective = effective[:, 0]

    @classmethod
    def none(cls, data: int, values: Tensor) -> "_Numbers":
        """Return what is known before anything was weighed: an effective size of nothing."""
        shape = (data, values.shape[1])
        columns = [values.new_zeros(shape, dtype=torch.float64) for _ in range(4)]
        return cls([*columns, columns[0].new_zeros(data, 1)])

    def of(self, chosen: Tensor) -> "_Numbers":
        """Return some rows."""
        columns = [self.mean, self.std, self.lower, self.upper, self.effective.unsqueeze(1)]
        return _Numbers([column[chosen] for column in columns])

    def put(self, rows: Tensor, others: "_Numbers") -> None:
        """Take those rows from others."""
        for name in ("mean", "std", "lower", "upper", "effective"):
            getattr(self, name)[rows] = getattr(others, name)


def shared_draws(device: torch.device) -> int:
    """Return how many prior draws summaries share."""
    return _SHARED_DRAWS_ON_GPU if device.type == "cuda" else _SHARED_DRAWS


@torch.no_grad()
def summarize_weighed(
    model: Emulating,
    f: Tensor,
    bank: PriorBank,
    near: Sequence[Guide | None],
    effective: Tensor,
    *,
    samples: int,
    level: float,
    derived: Derived | None,
    seed: int,
    progress: bool,
) -> list[Summary]:
    """Summarise the posteriors of embedded data, without their modes.

    Args:
        model: what embedded them.
        f: embedded data (m, n).
        bank: draws of the model's prior.
        near: proposals from near the posteriors, of those that have any already.
        effective: effective sample sizes of the bank's draws, (m,).
        samples: effective sample size of proposals, where these are weighted.
        level: probability of the intervals.
        derived: further quantities by name.
        seed: of the proposals.
        progress: whether to show progress bars.
    """
    # Here: a posterior alone needs no progress bar.
    from rich.progress import track

    names, values = add_derived(model.prior.names, bank.phi, derived)
    at_once = _WEIGHTS_AT_ONCE_ON_GPU if f.device.type == "cuda" else _WEIGHTS_AT_ONCE
    rows = max(1, at_once // len(values))
    found = _Numbers.none(len(f), values)
    # Those that are proposed for need no weights of prior draws.
    enough = 0.0 if not bank.proposable else min(samples, _ENOUGH)
    weighed = (effective.to(f.device) >= enough).nonzero()[:, 0].split(rows)
    for chosen in track(weighed, "weighting", disable=not progress, transient=True):
        scores = model.similarity.score(f[chosen], bank.emulated)
        found.put(chosen, _Numbers(_weigh(scores, values.unsqueeze(0), level)))
    nearby = torch.zeros(len(f), dtype=torch.bool, device=f.device)
    for closeness, enough in ((0, min(samples, _ENOUGH)), (2, min(samples, ENOUGH_DRAWS))):
        short = (found.effective < enough).nonzero()[:, 0]
        if not len(short) or not bank.proposable:
            break
        known = [None] * len(f) if closeness else near
        batches = batches_of(short, known, data_at_once(f.device))
        for batch in track(batches, "proposing", disable=not progress, transient=True):
            some = batch.rows.to(f.device)
            own_seed = derive_seed(seed, closeness, int(batch.rows[0]))
            proposals = find_near(
                model,
                f[some],
                bank,
                seed=own_seed,
                closeness=closeness,
                start=batch.start,
            )
            count = draws_wanted(proposals, samples)
            drawn = proposals.draw(count, derive_seed(own_seed, "drawn"))
            _, flat = add_derived(model.prior.names, drawn.phi.flatten(0, 1), derived)
            own = flat.unflatten(0, drawn.phi.shape[:2])
            again = _Numbers(_weigh(drawn.log_weight, own, level))
            better = again.effective > found.effective[some]
            found.put(some[better], again.of(better))
            nearby[some[better]] = True
    return _told(found, nearby, names, level)


def _told(found: "_Numbers", nearby: Tensor, names: tuple[str, ...], level: float) -> list[Summary]:
    """Return a summary of each datum, given its numbers and whether proposals gave them."""
    # All at once: every conversion is a call of its own to the device.
    mean, std = found.mean.float(), found.std.float()
    return [
        Summary(
            names=names,
            mean=mean[i],
            std=std[i],
            lower=found.lower[i],
            upper=found.upper[i],
            level=level,
            modes=(),
            info=WeighedInfo(effective, guided),
        )
        for i, (effective, guided) in enumerate(
            zip(found.effective.tolist(), nearby.tolist(), strict=True)
        )
    ]


def _weigh(log_weight: Tensor, values: Tensor, level: float) -> list[Tensor]:
    """Return mean, deviation and ends of the interval (m, D), and effective size (m, 1).

    Args:
        log_weight: of draws, (m, k).
        values: of them (m, k, D), or (1, k, D) where all posteriors share them.
        level: probability of the interval.
    """
    weights = log_weight.double().softmax(1)
    values = values.double()
    mean = torch.einsum("mk,mkd->md", weights, values.expand(len(weights), -1, -1))
    # Less a centre that all share: squares of large numbers would lose the digits.
    centre = values.mean((0, 1))
    square = torch.einsum(
        "mk,mkd->md", weights, (values - centre).square().expand(len(weights), -1, -1)
    )
    std = (square - (mean - centre).square()).clamp(min=0).sqrt()
    tail = (1 - level) / 2
    places = torch.tensor([tail, 1 - tail], dtype=torch.float64, device=weights.device)
    ends = torch.stack([_quantiles(weights, column, places) for column in values.unbind(2)], dim=2)
    effective = 1 / weights.square().sum(1, keepdim=True)
    return [mean, std, ends[:, 0], ends[:, 1], effective]


def _quantiles(weights: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """Return weighted quantiles of each row, (m, len(places)).

    Args:
        weights: of sum 1, (m, k).
        values: (m, k) or (1, k).
        places: levels.
    """
    ordered, order = values.sort(dim=1)
    mass = weights.gather(1, order.expand(len(weights), -1)).cumsum(1)
    wanted = places.expand(len(weights), -1).contiguous()
    at = torch.searchsorted(mass, wanted).clamp(max=values.shape[1] - 1)
    return ordered.expand(len(weights), -1).gather(1, at)
