"""Draws from near the posteriors of many data, by guides, where few prior draws come near them."""

from __future__ import annotations

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.guide import DataScores, Emulating, Guide, Weighted, find_guides
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    Normalizer,
    PriorBank,
    join_normalizers,
    normalizer_of_weights,
)

# So many data are looked at together, which bounds memory.
DATA_AT_ONCE = 16
# Points of a round of guides, and components of their mixtures; and where these do not do, as many
# parameters need them.
_POINTS = 1_024
_COMPONENTS = 8
_THOROUGH_POINTS = 4_000
_THOROUGH_COMPONENTS = 16
# So many are drawn at a time, at most so often.
_DRAWN = 1_024
_MOST_PARTS = 5
# The effective sample size for which a normaliser is known well enough not to be looked for anew.
_WELL_KNOWN = 600


@torch.no_grad()
def draws_near(
    model: Emulating, f: Tensor, bank: PriorBank, wanted: float, *, seed: int, thorough: bool
) -> tuple[Guide, Weighted]:
    """Draw from near the posteriors of a few data, and return the guides and their draws.

    Args:
        model: whose they are.
        f: embedded data (m, n).
        bank: draws of the model's prior, where guides begin.
        wanted: an effective sample size, for which no more than 5,120 are drawn.
        seed: same seed and data, same draws.
        thorough: whether to look longer, as many parameters need it.
    """
    scores = DataScores(model, f)
    guide = find_guides(
        scores,
        model.prior,
        bank.phi,
        model.similarity.score(f, bank.emulated),
        points=_THOROUGH_POINTS if thorough else _POINTS,
        components=_THOROUGH_COMPONENTS if thorough else _COMPONENTS,
        seed=seed,
    ).guide
    found: Weighted | None = None
    for part in range(_MOST_PARTS):
        drawn = guide.weigh(scores, guide.draw(_DRAWN, derive_seed(seed, "drawn", part)))
        found = drawn if found is None else found.joined(drawn)
        if normalizer_of_weights(found.log_weight).effective_draws.min() >= wanted:
            break
    assert found is not None
    return guide, found


@torch.no_grad()
def closer_normalizer(
    model: Emulating,
    f: Tensor,
    bank: PriorBank,
    by_draws: Normalizer,
    *,
    fewest: float = ENOUGH_DRAWS,
    seed: int = 0,
) -> Normalizer:
    """Estimate log C by draws from near the posterior, where few prior draws come near it.

    It is known as before where the prior has no density, and where guides fail. Data that are asked
    for together share random numbers, so that values depend on their company, within the standard
    error.

    Args:
        model: whose score it is.
        f: embedded data (m, n).
        bank: draws of the model's prior.
        by_draws: what they tell of log C.
        fewest: effective draws that are enough.
        seed: same seed and data, same values.
    """
    short = by_draws.effective_draws < fewest
    found = by_draws
    for thorough in (False, True):
        rows = (short & (found.effective_draws < _WELL_KNOWN)).nonzero()[:, 0]
        if not len(rows) or not bank.proposable:
            break
        parts = [
            draws_near(
                model,
                f[some],
                bank,
                _WELL_KNOWN,
                seed=derive_seed(seed, "normaliser"),
                thorough=thorough,
            )
            for some in rows.split(DATA_AT_ONCE)
        ]
        known = [normalizer_of_weights(drawn.log_weight) for _, drawn in parts]
        found = _better(found, rows, join_normalizers(known))
    return found


def _better(known: Normalizer, rows: Tensor, near: Normalizer) -> Normalizer:
    """Return the normalisers of all data, those of some rows as known anew where that is better."""
    better = near.effective_draws > known.effective_draws[rows]

    def merged(name: str) -> Tensor:
        values: Tensor = getattr(known, name).clone()
        values[rows[better]] = getattr(near, name)[better]
        return values

    return Normalizer(merged("log_value"), merged("error"), merged("effective_draws"))
