r"""Aiming: an affine correction of embedded data, f ← f + Tᵀf + b, found by held-out pairs.

A model fitted to few simulations errs to one side where they are sparse: an emulator that is smooth over a distance h puts a ring of radius F
at F + h²/4F. No exponent mends that; an embedding moved a little does. T and b maximise the held-out score of the pairs i,

    ℓ_i = s_i(φ_i) − log (1/(N + 1)) Σ_{j=0…N} exp(s_i(φ_j)),      φ_0 = φ_i, φ_1 … φ_N from the prior,

less λ (‖T‖² + ‖b‖²) per pair, together with one exponent, which is then forgotten: sharpness is calibrated afterwards. The score is proper for
any N, as in :mod:`eande.core.calibration`. Simulations left out of a fit (folds of whole groups) judge: there is no correction unless the best one
gains two standard errors, and then it is the least that comes within one error of it. What is calibrated next sees every datum as the fit without
it moves it, so that nothing looks better than it is.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from eande.core.networks import full_precision
from eande.core.scores import folds, log_picked, within
from eande.core.similarity import Similarity

# λ, from none to free; each fit starts where the one before it ended.
_PENALTIES = (math.inf, 1e6, 1e5, 1e4, 1e3, 1e2)
_ITERATIONS = 20
# Prior draws in a score, which is right for any number (10,000 find the same correction), and scores in memory at a time.
_DRAWS, _SCORES_AT_ONCE = 4_000, 2**22


class Aim(NamedTuple):
    """T, shape (n, n), b, shape (n,), and the log of the exponent found with them."""

    turn: Tensor
    shift: Tensor
    log_exponent: Tensor


def find_aim(similarity: Similarity, features: Tensor, emulated: Tensor, bank: Tensor, ids: Tensor) -> tuple[Aim | None, Tensor]:
    """Return the correction, None where none helps, and the embeddings of the data, each by the fit that left it out.

    Args:
        similarity: of a model without calibration; is left as it is.
        features: f(y_i), shape (m, n).
        emulated: g(φ_i) of the same pairs.
        bank: g of prior draws.
        ids: the group of each pair (m,).
    """
    bank, fold = bank[:_DRAWS], folds(ids).to(features.device)
    with torch.no_grad():
        plain = similarity.place_datum(features)
    scores = {penalty: torch.empty(len(features), dtype=torch.float64) for penalty in _PENALTIES}
    moved = {penalty: plain.clone() for penalty in _PENALTIES}
    for out in (fold == number for number in fold.unique()):
        for penalty, aim in zip(_PENALTIES, _path(similarity, features[~out], emulated[~out], bank, _PENALTIES), strict=True):
            with torch.no_grad(), full_precision(features.device):
                moved[penalty][out] = apply(similarity, features[out], aim)
                scores[penalty][out.cpu()] = _score(similarity, moved[penalty][out], emulated[out], bank, aim.log_exponent).double().cpu()
    best = max(_PENALTIES, key=lambda penalty: scores[penalty].mean().item())
    if within(scores[best] - scores[math.inf], ids, 2):
        return None, plain
    # The least correction that is as good: a freer one follows the chance of these simulations.
    least = next(penalty for penalty in _PENALTIES if within(scores[best] - scores[penalty], ids, 1))
    return _path(similarity, features, emulated, bank, _PENALTIES[: _PENALTIES.index(least) + 1])[-1], moved[least]


def apply(similarity: Similarity, features: Tensor, aim: Aim) -> Tensor:
    """Return the embeddings that the features (m, n) have with that correction."""
    similarity.turn, similarity.shift = aim.turn, aim.shift
    try:
        return similarity.place_datum(features)
    finally:
        similarity.turn, similarity.shift = None, None


def _score(similarity: Similarity, embedded: Tensor, emulated: Tensor, bank: Tensor, log_exponent: Tensor) -> Tensor:
    rows = max(1, _SCORES_AT_ONCE // len(bank))
    parts = zip(embedded.split(rows), emulated.split(rows), strict=True)
    return torch.cat([log_picked(similarity, f, g, bank, log_exponent.exp()) for f, g in parts])


def _path(similarity: Similarity, features: Tensor, emulated: Tensor, bank: Tensor, penalties: Sequence[float]) -> list[Aim]:
    """Fit with one penalty after the other."""
    pairs, found = _Pairs(similarity, features, emulated, bank), []
    turn, shift, log_exponent = (torch.zeros(shape, device=features.device) for shape in ((features.shape[1],) * 2, features.shape[1:], ()))
    for penalty in penalties:
        # In units of what the penalty allows, so that all directions curve about alike.
        unit = penalty**-0.5
        free = [(turn / (unit or 1)).requires_grad_(), (shift / (unit or 1)).requires_grad_(), log_exponent.clone().requires_grad_()]
        optimizer = torch.optim.LBFGS(free, max_iter=_ITERATIONS, tolerance_change=1e-4, line_search_fn="strong_wolfe")
        with full_precision(features.device):
            optimizer.step(partial(pairs.loss, free, unit))
        turn, shift, log_exponent = unit * free[0].detach(), unit * free[1].detach(), free[2].detach()
        found.append(pairs.aim(turn, shift, log_exponent))
    return found


class _Pairs:
    """Held-out pairs, and what a correction is worth on them."""

    def __init__(self, similarity: Similarity, features: Tensor, emulated: Tensor, bank: Tensor) -> None:
        self.similarity, self.features, self.emulated, self.bank = similarity, features, emulated, bank
        self.centre = features.mean(0)
        self.scale = (features - self.centre).square().sum(1).mean().sqrt().clamp(min=1e-30)

    def aim(self, turn: Tensor, shift: Tensor, log_exponent: Tensor) -> Aim:
        """Return the correction f + Tᵀ(f − centre) + scale · shift: T turns what differs between data, the shift moves them all."""
        return Aim(turn, self.scale * shift - self.centre @ turn, log_exponent)

    def loss(self, free: list[Tensor], unit: float) -> Tensor:
        """Return the penalised loss; its gradient is left in ``free``, some rows of scores in memory at a time."""
        turn, shift, log_exponent = free
        for x in free:
            x.grad = None
        total = (turn.square().sum() + shift.square().sum()) / len(self.features)
        total.backward()
        rows = max(1, _SCORES_AT_ONCE // len(self.bank))
        for f, g in zip(self.features.split(rows), self.emulated.split(rows), strict=True):
            aim = self.aim(unit * turn, unit * shift, log_exponent)
            part = -log_picked(self.similarity, apply(self.similarity, f, aim), g, self.bank, log_exponent.exp()).sum() / len(self.features)
            part.backward()
            total = total.detach() + part.detach()
        return total
