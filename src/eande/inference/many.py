"""Samples of many posteriors at once: proposals for some data together, accepted for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.guide import Emulating, Guide, batches_of
from eande.inference.nearby import Near, data_at_once, find_near
from eande.inference.normalizer import PriorBank
from eande.inference.samplers.guided import Found, samples_among

# Proposals for a sample, and for each datum at least; as many more where these do not suffice.
_PROPOSALS = 4
_FEWEST = 512
_PARTS = 10
# For so many samples a guide is looked for more closely: proposals are saved.
_MANY = 500
# Proposals weighed together, which bounds memory.
_AT_ONCE = 100_000


class Sampled(Protocol):
    """A posterior that can be sampled alone."""

    near: Guide | None

    def sample(self, n: int, *, seed: int = 0) -> tuple[Tensor, Any]:
        """Draw ``n`` samples."""


@torch.no_grad()
def sample_many(
    model: Emulating,
    f: Tensor,
    bank: PriorBank,
    posteriors: Sequence[Sampled],
    n: int,
    *,
    seed: int,
    progress: bool,
) -> tuple[Tensor, list[Any]]:
    """Draw ``n`` samples of each posterior, (m, n, D), and return what samplers report of each.

    Those for which forty proposals a sample (5,120 at least) do not suffice are sampled one by one.

    Args:
        model: what embedded the data.
        f: embedded data (m, n).
        bank: draws of the model's prior.
        posteriors: of the data.
        n: how many samples of each.
        seed: same seed and data, same samples.
        progress: whether to show progress bars.
    """
    # Here: a posterior alone needs no progress bar.
    from rich.progress import track

    count = max(_FEWEST, _PROPOSALS * n)
    phi = f.new_empty(len(f), n, model.prior.dimension)
    infos: list[Any] = [None] * len(f)
    if bank.proposable:
        together = max(1, min(data_at_once(f.device), _AT_ONCE // count))
        guides = [posterior.near for posterior in posteriors]
        batches = batches_of(torch.arange(len(f)), guides, together)
        for rows, start in track(batches, "proposing", disable=not progress, transient=True):
            own = derive_seed(seed, "together", int(rows[0]))
            near = find_near(
                model,
                f[rows.to(f.device)],
                bank,
                seed=own,
                closeness=int(n >= _MANY),
                start=start,
            )
            drawn = near.draw(count, derive_seed(own, "drawn"))
            places = torch.arange(len(rows), device=f.device)
            for part in range(_PARTS):
                if part:
                    more = near.of(places).draw(count, derive_seed(own, "part", part))
                    drawn = drawn.joined(more)
                left = []
                for k, place in enumerate(places.tolist()):
                    i = int(rows[place])
                    samples = samples_among(drawn.of(k), _of(near, place), n, derive_seed(own, i))
                    if samples is None:
                        left.append(k)
                    else:
                        phi[i], infos[i] = samples
                if not left:
                    break
                kept = torch.tensor(left, device=f.device)
                places, drawn = places[kept], drawn.of(kept)
    alone = [i for i, info in enumerate(infos) if info is None]
    for i in track(alone, "sampling", disable=not progress, transient=True):
        phi[i], infos[i] = posteriors[i].sample(n, seed=derive_seed(seed, "alone", i))
    return phi, infos


def _of(near: Near, datum: int) -> Found:
    """Return the guide of one datum."""
    own = near.of(torch.tensor([datum], device=near.found.log_weight.device))
    spent = near.each * near.found.evaluations
    return Found(own.found.guide, own.log_weight[0], near.found.rounds, spent)
