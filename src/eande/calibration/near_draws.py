"""Draws from near the posteriors of those held-out data that few prior draws come near.

Weighted by p/q, with the true parameters among them, they serve as prior draws do: the true ones
are as likely as their weight says to be any of all of them, whatever the proposal q of the datum
is. Data that are looked at together share random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.model import EmbedAndEmulate
from eande.inference.nearby import data_at_once, draws_near
from eande.inference.normalizer import ENOUGH_DRAWS, PriorBank, estimate_normalizer

# For each datum, and of the prior beside them.
_DRAWS = 2_048
_CHECKED = 10_000


class NearDraws(NamedTuple):
    """Draws for one datum.

    Args:
        scores: s of them, (N,), in float64.
        prior_ratios: log p − log q of them, (N,); minus infinity outside of the prior's support.
        own_ratio: the same of the true parameters, (1,).
    """

    scores: Tensor
    prior_ratios: Tensor
    own_ratio: Tensor


@torch.no_grad()
def near_draws(
    model: EmbedAndEmulate, f: Tensor, phi: Tensor, bank: PriorBank
) -> Iterator[tuple[int, NearDraws]]:
    """Yield draws from near for those data that need them, each with its place, in their order.

    Args:
        model: as it was trained.
        f: embedded data (m, n).
        phi: their true parameters (m, D), which have no part in the proposals.
        bank: prior draws, by which it is told who needs them.
    """
    if not bank.proposable:
        return
    effective = estimate_normalizer(model.similarity, f, bank).effective_draws
    short = (effective < ENOUGH_DRAWS).nonzero()[:, 0]
    if not len(short):
        return
    # Where guides begin, and learned ones are checked.
    few = model.prior_bank(model.prior, min(len(bank.phi), _CHECKED))
    for rows in short.split(data_at_once(f.device)):
        seed = derive_seed(0, "calibration", int(rows[0]))
        guides, drawn = draws_near(model, f[rows], few, seed=seed, count=_DRAWS)
        x = model.prior.unconstrain(phi[rows]).unsqueeze(1)
        own = guides.guide.prior_ratio(x)
        for i, row in enumerate(rows.tolist()):
            yield row, NearDraws(drawn.score[i].double(), drawn.prior_ratio[i], own[i])
