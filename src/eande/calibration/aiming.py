r"""Aiming: an affine correction of embedded data, f ← f + Tᵀf + b, found by held-out pairs.

A model fitted to few simulations errs to one side where they are sparse: an emulator that is smooth
over a distance h puts a ring of radius F at F + h²/4F. No exponent mends that; an embedding moved a
little does. With f̄ and σ the mean and the spread of f, T and c in

    f + Tᵀ(f − f̄) + σ c      maximise      Σ_i ℓ_i − λ (‖T‖² + ‖c‖²) m/G,

where ℓ_i = s_i(φ_i) − log (1/(N + 1)) Σ_{j=0…N} exp(s_i(φ_j)), with φ_0 = φ_i and φ_1 … φ_N from
the prior, is the held-out score of pair i, proper for any N as in
:mod:`eande.calibration.exponents`, and the m pairs belong to G different parameters. One exponent
is fitted along and then forgotten: sharpness is calibrated afterwards. Few steps from one λ to the
next keep even the freest map near the identity.

Simulations left out of a fit (folds of whole groups) judge, by prior draws it has not seen: there
is no correction unless the best one gains two standard errors, and then it is the least that comes
within one error of it. What is calibrated next sees every datum as moved by the fit that left it
out; only λ was chosen with it.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from rich.progress import track
from torch import Tensor

from eande.calibration.cross_validation import folds, within
from eande.networks.precision import full_precision
from eande.similarities.calibrated import Aim, move
from eande.similarities.similarity import Similarity

# λ, from no correction to a free one; each fit starts where the one before it ended.
_LAMBDAS = (math.inf, 1e6, 1e5, 1e4, 1e3, 1e2)
_ITERATIONS = 20
# Prior draws to fit by, and as many to judge by (10,000 find the same correction).
_DRAWS = 4_000
_SCORES_AT_ONCE = 2**22


class Aimed(NamedTuple):
    """A correction, and the held-out data moved by it.

    Args:
        aim: fitted to all pairs.
        f: embedded data (m, n), each moved by the fit that left it out.
    """

    aim: Aim
    f: Tensor


class _Fitted(NamedTuple):
    """A correction, and the log of the exponent found with it."""

    aim: Aim
    log_exponent: Tensor


def find_aim(
    similarity: Similarity,
    f: Tensor,
    g: Tensor,
    bank: Tensor,
    groups: Tensor,
    *,
    progress: bool = False,
) -> Aimed | None:
    """Return the correction and the data moved by it; None where no correction helps.

    Args:
        similarity: of a model without calibration.
        f: f(y_i), shape (m, n).
        g: g(φ_i) of the same pairs.
        bank: g of prior draws.
        groups: the group of each pair (m,).
        progress: whether to show a progress bar.
    """
    to_fit, to_judge = bank[: 2 * _DRAWS].chunk(2)
    fold = folds(groups)
    scores = {strength: torch.empty(len(f), dtype=torch.float64) for strength in _LAMBDAS}
    moved = {strength: torch.empty_like(f) for strength in _LAMBDAS}
    for number in track(fold.unique().tolist(), "aiming", disable=not progress):
        left_out = fold == number
        out = left_out.to(f.device)
        rest = _Pairs(similarity, f[~out], g[~out], to_fit, groups[~left_out])
        for strength, fitted in zip(_LAMBDAS, rest.path(_LAMBDAS), strict=True):
            judged = _judge(similarity, fitted, f[out], g[out], to_judge)
            moved[strength][out] = judged.f
            scores[strength][left_out] = judged.scores
    best = max(_LAMBDAS, key=lambda strength: scores[strength].mean().item())
    if within(scores[best] - scores[math.inf], groups, 2):
        return None
    # The least correction that is as good: a freer one follows the chance of these simulations.
    least = next(
        strength for strength in _LAMBDAS if within(scores[best] - scores[strength], groups, 1)
    )
    strengths = _LAMBDAS[: _LAMBDAS.index(least) + 1]
    fitted = _Pairs(similarity, f, g, to_fit, groups).path(strengths)[-1]
    return Aimed(fitted.aim, moved[least])


class _Judged(NamedTuple):
    """Data as a fit moved them, and their scores."""

    f: Tensor
    scores: Tensor


@torch.no_grad()
def _judge(similarity: Similarity, fitted: _Fitted, f: Tensor, g: Tensor, bank: Tensor) -> _Judged:
    """Score pairs that a fit has not seen, by prior draws it has not seen."""
    with full_precision(f.device):
        moved = move(similarity, f, fitted.aim)
        rows = max(1, _SCORES_AT_ONCE // len(bank))
        exponent = fitted.log_exponent.exp()
        parts = zip(moved.split(rows), g.split(rows), strict=True)
        scores = [log_picked(similarity, *pair, bank, exponent) for pair in parts]
    return _Judged(moved, torch.cat(scores).double().cpu())


def log_picked(
    similarity: Similarity, f: Tensor, g: Tensor, bank: Tensor, exponent: Tensor
) -> Tensor:
    """Return the log of N + 1 times the probability of picking each datum's own φ, shape (m,).

    Out of it and the N draws of a bank (N, n): a proper score for any N; with enough draws it is
    the log ratio.
    """
    own = exponent * similarity.paired_score(f, g)
    others = exponent * similarity.score(f, bank)
    total = torch.cat([own.unsqueeze(1), others], dim=1).logsumexp(1)
    return own - total + math.log(len(bank) + 1)


class _Pairs:
    """Held-out pairs, and what a correction is worth on them."""

    def __init__(
        self, similarity: Similarity, f: Tensor, g: Tensor, bank: Tensor, groups: Tensor
    ) -> None:
        self.similarity = similarity
        self.f = f
        self.g = g
        self.bank = bank
        self.groups = len(groups.unique())
        self.centre = f.mean(0)
        self.scale = (f - self.centre).square().sum(1).mean().sqrt().clamp(min=1e-30)

    def path(self, strengths: Sequence[float]) -> list[_Fitted]:
        """Fit with one λ after the other."""
        n = self.f.shape[1]
        turn = self.f.new_zeros(n, n)
        shift = self.f.new_zeros(n)
        log_exponent = self.f.new_zeros(())
        found = []
        for strength in strengths:
            # In units of what λ allows, so that all directions curve about alike; an infinite one
            # allows nothing.
            unit = strength**-0.5
            free = [(x / unit if unit else x).clone().requires_grad_() for x in (turn, shift)]
            free.append(log_exponent.clone().requires_grad_())
            # In these units the slopes of a strong λ are tiny, and the optimiser takes tiny slopes
            # for the end.
            optimizer = torch.optim.LBFGS(
                free,
                max_iter=_ITERATIONS,
                tolerance_change=1e-9,
                line_search_fn="strong_wolfe",
            )
            with full_precision(self.f.device):
                optimizer.step(partial(self.loss, free, unit))
            turn = unit * free[0].detach()
            shift = unit * free[1].detach()
            log_exponent = free[2].detach()
            found.append(_Fitted(self.aim(turn, shift), log_exponent))
        return found

    def aim(self, turn: Tensor, shift: Tensor) -> Aim:
        """Return the correction that turns around the centre and shifts by spreads."""
        return Aim(turn, self.scale * shift - self.centre @ turn)

    def loss(self, free: list[Tensor], unit: float) -> Tensor:
        """Return the penalised loss per pair and leave its gradient in ``free``.

        Some rows of scores are in memory at a time.
        """
        turn, shift, log_exponent = free
        total = torch.zeros_like(log_exponent)
        gradient = [torch.zeros_like(x) for x in free]
        rows = max(1, _SCORES_AT_ONCE // len(self.bank))
        m = len(self.f)
        for f, g in zip(self.f.split(rows), self.g.split(rows), strict=True):
            moved = move(self.similarity, f, self.aim(unit * turn, unit * shift))
            scores = log_picked(self.similarity, moved, g, self.bank, log_exponent.exp())
            penalty = (turn.square().sum() + shift.square().sum()) / self.groups
            part = len(f) / m * penalty - scores.sum() / m
            # Of nothing else: the model's own parameters may ask for gradients, too.
            more = torch.autograd.grad(part, free)
            gradient = [old + new for old, new in zip(gradient, more, strict=True)]
            total = total + part.detach()
        for x, found in zip(free, gradient, strict=True):
            x.grad = found
        return total.detach()
