r"""Aiming: an affine correction of embedded data, f ← f + Tᵀf + b, found by held-out pairs.

A model fitted to few simulations errs to one side where they are sparse: an emulator that is smooth over a distance h puts a ring of radius F
at F + h²/4F. No exponent mends that; an embedding moved a little does. With f̄ and σ the mean and the spread of f, T and c in

    f + Tᵀ(f − f̄) + σ c      maximise      Σ_i ℓ_i − λ (‖T‖² + ‖c‖²) m/G,

where ℓ_i = s_i(φ_i) − log (1/(N + 1)) Σ_{j=0…N} exp(s_i(φ_j)), with φ_0 = φ_i and φ_1 … φ_N from the prior, is the held-out score of pair i,
proper for any N as in :mod:`eande.calibration.calibrate`, and the m pairs belong to G different parameters. One exponent is fitted along and then
forgotten: sharpness is calibrated afterwards. Few steps from one λ to the next keep even the freest map near the identity.

Simulations left out of a fit (folds of whole groups) judge, by prior draws it has not seen: there is no correction unless the best one gains two
standard errors, and then it is the least that comes within one error of it. What is calibrated next sees every datum as moved by the fit that left
it out; only λ was chosen with it.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from eande.inference.normalizer import folds, log_picked, within
from eande.networks.precision import full_precision
from eande.similarities.similarity import Aim, Similarity

# λ, from no correction to a free one; each fit starts where the one before it ended.
_LAMBDAS = (math.inf, 1e6, 1e5, 1e4, 1e3, 1e2)
_ITERATIONS = 20
# Prior draws to fit by, and as many to judge by (10,000 find the same correction), and scores at a time.
_DRAWS, _SCORES_AT_ONCE = 4_000, 2**22


class _Fitted(NamedTuple):
    """A correction, and the log of the exponent found with it."""

    aim: Aim
    log_exponent: Tensor


def find_aim(
    similarity: Similarity, features: Tensor, emulated: Tensor, bank: Tensor, ids: Tensor
) -> tuple[Aim, Tensor] | None:
    """Return the correction and the embeddings of the data, each by the fit that left it out; None where no correction helps.

    Args:
        similarity: of a model without calibration.
        features: f(y_i), shape (m, n).
        emulated: g(φ_i) of the same pairs.
        bank: g of prior draws.
        ids: the group of each pair (m,).
    """
    to_fit, to_judge = bank[: 2 * _DRAWS].chunk(2)
    fold, device = folds(ids), features.device
    scores = {strength: torch.empty(len(features), dtype=torch.float64) for strength in _LAMBDAS}
    moved: dict[float, dict[int, Tensor]] = {strength: {} for strength in _LAMBDAS}
    for number in fold.unique().tolist():
        out = (fold == number).to(device)
        rest = _Pairs(similarity, features[~out], emulated[~out], to_fit, ids[~out.cpu()])
        for strength, fitted in zip(_LAMBDAS, rest.path(_LAMBDAS), strict=True):
            with torch.no_grad(), full_precision(device):
                moved[strength][number] = similarity.place_datum(features[out], fitted.aim)
                rows = max(1, _SCORES_AT_ONCE // len(to_judge))
                parts = zip(
                    moved[strength][number].split(rows), emulated[out].split(rows), strict=True
                )
                judged = [
                    log_picked(similarity, f, g, to_judge, fitted.log_exponent.exp())
                    for f, g in parts
                ]
                scores[strength][out.cpu()] = torch.cat(judged).double().cpu()
    best = max(_LAMBDAS, key=lambda strength: scores[strength].mean().item())
    if within(scores[best] - scores[math.inf], ids, 2):
        return None
    # The least correction that is as good: a freer one follows the chance of these simulations.
    least = next(
        strength for strength in _LAMBDAS if within(scores[best] - scores[strength], ids, 1)
    )
    embedded = torch.empty(
        len(features), moved[least][0].shape[1], dtype=features.dtype, device=device
    )
    for number, part in moved[least].items():
        embedded[(fold == number).to(device)] = part
    return _Pairs(similarity, features, emulated, to_fit, ids).path(
        _LAMBDAS[: _LAMBDAS.index(least) + 1]
    )[-1].aim, embedded


class _Pairs:
    """Held-out pairs, and what a correction is worth on them."""

    def __init__(
        self, similarity: Similarity, features: Tensor, emulated: Tensor, bank: Tensor, ids: Tensor
    ) -> None:
        self.similarity, self.features, self.emulated, self.bank = (
            similarity,
            features,
            emulated,
            bank,
        )
        self.groups = len(ids.unique())
        self.centre = features.mean(0)
        self.scale = (features - self.centre).square().sum(1).mean().sqrt().clamp(min=1e-30)

    def path(self, strengths: Sequence[float]) -> list[_Fitted]:
        """Fit with one λ after the other."""
        n, found = self.features.shape[1], []
        turn, shift, log_exponent = (self.features.new_zeros(shape) for shape in ((n, n), (n,), ()))
        for strength in strengths:
            # In units of what λ allows, so that all directions curve about alike; an infinite one allows nothing.
            unit = strength**-0.5
            free = [(x / unit if unit else x).clone().requires_grad_() for x in (turn, shift)] + [
                log_exponent.clone().requires_grad_()
            ]
            # In these units the slopes of a strong λ are tiny, and the optimiser takes tiny slopes for the end.
            optimizer = torch.optim.LBFGS(
                free, max_iter=_ITERATIONS, tolerance_change=1e-9, line_search_fn="strong_wolfe"
            )
            with full_precision(self.features.device):
                optimizer.step(partial(self.loss, free, unit))
            turn, shift, log_exponent = (
                unit * free[0].detach(),
                unit * free[1].detach(),
                free[2].detach(),
            )
            found.append(_Fitted(self.aim(turn, shift), log_exponent))
        return found

    def aim(self, turn: Tensor, shift: Tensor) -> Aim:
        """Return the correction that turns around the centre and shifts by spreads."""
        return Aim(turn, self.scale * shift - self.centre @ turn)

    def loss(self, free: list[Tensor], unit: float) -> Tensor:
        """Return the penalised loss per pair and leave its gradient in ``free``, some rows of scores in memory at a time."""
        turn, shift, log_exponent = free
        total, gradient = torch.zeros_like(log_exponent), [torch.zeros_like(x) for x in free]
        rows, m = max(1, _SCORES_AT_ONCE // len(self.bank)), len(self.features)
        for f, g in zip(self.features.split(rows), self.emulated.split(rows), strict=True):
            embedded = self.similarity.place_datum(f, self.aim(unit * turn, unit * shift))
            scores = log_picked(self.similarity, embedded, g, self.bank, log_exponent.exp())
            part = (
                len(f) / m * (turn.square().sum() + shift.square().sum()) / self.groups
                - scores.sum() / m
            )
            # Of nothing else: the model's own parameters may ask for gradients, too.
            gradient = [
                old + new
                for old, new in zip(gradient, torch.autograd.grad(part, free), strict=True)
            ]
            total = total + part.detach()
        for x, found in zip(free, gradient, strict=True):
            x.grad = found
        return total.detach()
