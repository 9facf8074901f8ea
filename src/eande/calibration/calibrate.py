r"""Calibration: the exponent β in p(φ) r(φ, y)^β, chosen by held-out pairs, after a correction of where data lie (:mod:`eande.calibration.aiming`).

A model fitted to few simulations is often too sure of itself, or not sure enough, and not by the same amount everywhere.
The held-out score of pair i as a function of t = log β, over prior draws φ_1 … φ_N and φ_0 = φ_i itself,

    ℓ_i(t) = e^t s_i(φ_i) − log (1/(N + 1)) Σ_{j=0…N} exp(e^t s_i(φ_j)),

is concave in e^t and cheap: one pass of the networks gives the scores, and the curves ℓ_i are tabulated once. It is the log
of the probability of picking φ_i out of N + 1: for any N its mean is highest for the true ratio, so that too few draws do not
flatter a sharp exponent, and with enough of them it is the log ratio.

The score hardly changes near its optimum. Coverage does: u_i(t), the posterior's mass where its ratio is higher than at φ_i,
rises with t, and must be uniform on (0, 1). The objective "coverage" maximises −∫ (u_i − ½) dt instead, whose optimum has mean
u of ½ along every feature; it is as concave, and cheaper to be right about.

Three kinds of t compete: 0 (leave the model as it is), a constant, and t_i = a + w·(f(y_i) − f̄), linear in the embedding, with
a penalty on w. Each is judged on simulations left out of its own fit (folds of whole groups). The best one must beat a
constant, and no change at all, by two standard errors (by one where it widens); a constant that sharpens is the smallest
within one error of the best one. So chance does not make a posterior surer than it was.

Reference:
    Oord, Li and Vinyals, *Representation Learning with Contrastive Predictive Coding*, 2018 (the score, and its optimum at the true ratio).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eande.calibration.aiming import find_aim
from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_choice,
    check_count,
    check_finite,
    check_shape,
    show_shape,
)
from eande.inference.levels import tied
from eande.inference.normalizer import PriorBank, folds, gain, within
from eande.similarities.similarity import EXPONENTS, Similarity

if TYPE_CHECKING:
    from eande.inference.model import EmbedAndEmulate

KINDS = ("auto", "constant", "datum")
OBJECTIVES = ("score", "coverage")
# Exponents are tabulated in steps of a fifth of an octave; 1 is among them.
_STEP = math.log(2) / 5
_NO_CHANGE = round(-math.log(EXPONENTS[0]) / _STEP)
_LOG_EXPONENTS = _STEP * torch.arange(
    -_NO_CHANGE, round(math.log(EXPONENTS[1]) / _STEP) + 1, dtype=torch.float64
)
# A constant only (infinite), then ever freer slopes.
_SLOPES = (10.0, 1.0, 0.1, 0.01, 0.001)
_PENALTIES = {"constant": (math.inf,), "datum": _SLOPES, "auto": (math.inf, *_SLOPES)}
_FEWEST = 20
# Nats under the top that a weight may be and count.
_FAR = 40.0


@dataclass(frozen=True)
class Calibration:
    """What calibration found, on simulations used for nothing else.

    Args:
        kind: ``"none"``, ``"constant"`` or ``"datum"``: what the exponent depends on.
        aimed: whether embeddings are moved, too.
        exponent: the median exponent over the held-out data.
        range: its 5 % and 95 % quantiles over them.
        before: held-out score of the model as it was, in nats: the mean log ratio, never flattered by too few prior draws.
        after: that of the calibrated model, on data left out of the calibration's own fit.
        error: standard error of the difference.
    """

    kind: str
    aimed: bool
    exponent: float
    range: tuple[float, float]
    before: float
    after: float
    error: float


@dataclass(frozen=True)
class _Rule:
    """t = constant + slope·(f − centre), inside the table."""

    kind: str
    constant: float
    slope: Tensor | None = None
    centre: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        t = torch.full((len(features),), self.constant, dtype=torch.float64)
        if self.slope is not None and self.centre is not None:
            t = t + (features - self.centre) @ self.slope
        return t.clamp(_LOG_EXPONENTS[0], _LOG_EXPONENTS[-1])


def calibrate(
    model: "EmbedAndEmulate",
    phi: Any,
    y: Any,
    groups: Any = None,
    *,
    kind: str = "auto",
    objective: str = "coverage",
    aim: bool = False,
    draws: int = 50_000,
) -> Calibration:
    """Set the exponent of a model, and where it puts data, by held-out pairs, and report. An earlier calibration is forgotten first.

    Posteriors that exist already stay what they are.

    Args:
        model: is changed in place.
        phi: parameters (m, D) of simulations used neither in training nor in selection.
        y: their data (m, *y_shape); what lies on disk is read in parts.
        groups: ids of the parameters (m,), where several data share them; they stay together in a fold.
        kind: ``"constant"`` for one exponent, ``"datum"`` for one that depends on the embedding, ``"auto"`` for the simplest that does well.
        objective: what is made right: ``"coverage"`` of regions of highest ratio (density, if the prior is uniform), or the held-out ``"score"``.
        aim: whether embeddings may be moved first, where that gains (:mod:`eande.calibration.aiming`); those of ensembles stay.
        draws: prior draws for the normalisers.
    """
    check_choice("kind", kind, KINDS)
    check_choice("objective", objective, OBJECTIVES)
    check_count("draws", draws, 2)
    phi = as_float_tensor("phi", phi, device=model.device)
    ids = torch.arange(len(phi)) if groups is None else torch.as_tensor(groups).cpu()
    y = y if hasattr(y, "shape") else as_float_tensor("y", y)
    check_pairs(model, phi, y, ids)
    # 0 is how a fit says that it found nothing better than the prior: this, and not the model it rejected, is what to improve on.
    fallen = model.similarity.exponent.item() == 0
    # A copy: posteriors made before keep the similarity, the embedding and the normaliser that belong together.
    earlier, found = model.similarity, None
    similarity = model.similarity = earlier.copy()
    with _uncalibrated(similarity):
        embedded, emulated, bank = (
            embed_rows(model, y),
            model.emulate_all(phi),
            model.prior_bank(model.prior, draws),
        )
        features = similarity.features(embedded)
        search = partial(
            _find_exponents,
            features=features.double().cpu(),
            ids=ids,
            kind=kind,
            objective=objective,
            fallen=fallen,
        )
        plain = chosen = search(*_tabulate(similarity, embedded, emulated, bank))
        if aim and similarity.aims and not fallen:
            found = find_aim(similarity, features, emulated, bank.emulated[bank.inside], ids)
        if found is not None:
            aimed = search(*_tabulate(similarity, found[1], emulated, bank))
            # As finished models: an exponent may do as well without.
            chosen = plain if within(aimed.after - plain.after, ids, 2) else aimed
    rule = chosen.rule
    similarity.set_exponent(
        0.0 if fallen and rule.kind == "none" else math.exp(rule.constant), rule.slope, rule.centre
    )
    similarity.set_aim(None if found is None or chosen is plain else found[0])
    if all(
        torch.equal(similarity.exponent, x.exponent) and x.slope is None and x.turn is None
        for x in (earlier, similarity)
    ):
        # Nothing changed.
        model.similarity = earlier
    before, (mean, error) = plain.before.mean().item(), gain(chosen.after - plain.before, ids)
    low, middle, high = chosen.exponents.quantile(
        torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    ).tolist()
    return Calibration(
        rule.kind, chosen is not plain, middle, (low, high), before, before + mean, error
    )


@dataclass(frozen=True)
class _Exponents:
    """A rule with the exponents it gives the held-out data, and their scores ℓ_i without it and, each by a rule fitted without its fold, with it."""

    rule: _Rule
    exponents: Tensor
    before: Tensor
    after: Tensor


def _find_exponents(
    scores: Tensor,
    levels: Tensor,
    *,
    features: Tensor,
    ids: Tensor,
    kind: str,
    objective: str,
    fallen: bool,
) -> _Exponents:
    # The prior's own coverage is right: only the score can say that a model is better.
    curves = scores if objective == "score" or fallen else _coverage_curves(levels)
    none = torch.zeros(len(scores), dtype=torch.float64)
    alone, before = (none, none) if fallen else (curves[:, _NO_CHANGE], scores[:, _NO_CHANGE])
    found = {
        penalty: _cross_validated(curves, features, ids, penalty) for penalty in _PENALTIES[kind]
    }
    best = max(found, key=lambda penalty: _value(curves, found[penalty]).mean().item())
    if math.inf in found and within(
        _value(curves, found[best]) - _value(curves, found[math.inf]), ids, 2
    ):
        best = math.inf
    rule = _fit(curves, features, ids, best)
    if within(_value(curves, found[best]) - alone, ids, 2 if rule(features).mean() > 0 else 1):
        return _Exponents(
            _Rule("none", 0.0), torch.full_like(none, 0.0 if fallen else 1.0), before, before
        )
    return _Exponents(rule, rule(features).exp(), before, _value(scores, found[best]))


def check_pairs(model: "EmbedAndEmulate", phi: Tensor, y: Any, ids: Tensor) -> None:
    """Refuse held-out pairs that do not fit the model, or too few of them, and what is no model."""
    if not hasattr(model, "similarity"):
        raise InputError(
            f"model: expected a fitted model (from a file: eande.load(path)), got {type(model).__name__}"
        )
    check_shape("phi", phi, ("n", model.prior.dimension))
    if tuple(y.shape[1:]) != model.y_shape:
        raise InputError(
            f"y: expected shape {show_shape(('n', *model.y_shape))}, got {show_shape(y.shape)}"
        )
    if len(phi) != len(y):
        raise InputError(f"phi and y: expected the same length, got {len(phi)} and {len(y)}")
    check_shape("groups", ids, (len(phi),))
    check_finite("phi", phi)
    outside = int((~model.prior.contains(phi)).sum())
    if outside:
        raise InputError(
            f"phi: expected every row inside the prior's support, got {outside} outside"
        )
    distinct = len(ids.unique())
    if distinct < _FEWEST:
        raise InputError(
            f"held_out: expected at least {_FEWEST} different parameters, got {distinct}"
        )


def first_of_groups(groups: Tensor) -> Tensor:
    """Return the index of the first row of every group, in order."""
    found, which = groups.unique(return_inverse=True)
    rows = torch.arange(len(groups))
    return (
        torch.full((len(found),), len(groups)).scatter_reduce(0, which, rows, "amin").sort().values
    )


@torch.no_grad()
def embed_rows(model: "EmbedAndEmulate", y: Any) -> Tensor:
    """Embed data (m, *y_shape) that may lie on disk, some rows at a time."""
    parts, rows = [], model.encoder_rows
    for start in range(0, len(y), rows):
        part = as_float_tensor("y", y[start : start + rows])
        check_finite(f"y[{start}:{start + len(part)}]", part)
        parts.append(model.embed(part))
        check_finite(f"embeddings of y[{start}:{start + len(part)}]", parts[-1])
    return torch.cat(parts)


@contextmanager
def _uncalibrated(similarity: Similarity) -> Iterator[None]:
    """Take an earlier calibration away inside the block; what ends it early leaves the model as it was."""
    earlier, aim = (
        (similarity.exponent.item(), similarity.slope, similarity.centre),
        similarity.own_aim,
    )
    try:
        similarity.set_exponent(1.0)
        similarity.set_aim(None)
        yield
    finally:
        similarity.set_exponent(*earlier)
        similarity.set_aim(aim)


@torch.no_grad()
def _tabulate(
    similarity: Similarity, embedded: Tensor, emulated: Tensor, bank: PriorBank
) -> tuple[Tensor, Tensor]:
    """Return ℓ_i and u_i at the tabulated exponents, each (m, T), in float64 on the CPU."""
    powers, curves, levels = _LOG_EXPONENTS.exp().to(embedded.device), [], []
    for f, g in zip(embedded.split(1), emulated.split(1), strict=True):
        own = similarity.paired_score(f, g).double()
        others = (
            similarity.score(f, bank.emulated)[0].double().masked_fill(~bank.inside, -torch.inf)
        )
        top = torch.maximum(own, others.max())
        # Shifted by the top: sharp scores overflow no exponential, and those too far to count at any exponent are left out.
        near = others[others > top - _FAR / EXPONENTS[0]]
        weights, mine = (powers.unsqueeze(1) * (near - top)).exp_(), (powers * (own - top)).exp()
        total = weights.sum(1) + mine
        curves.append(powers * (own - top) - (total / (len(others) + 1)).log())
        # Half of what is level with it, its own share included: among N + 1 that could each be the one, u then has the mean ½ for any N.
        higher = (near > own).double().masked_fill(tied(near, own), 0.5)
        levels.append((weights @ higher + mine / 2) / total)
    return torch.stack(curves).cpu(), torch.stack(levels).cpu()


def _coverage_curves(levels: Tensor) -> Tensor:
    """Return −∫ (u_i − ½) dt, zero at no change."""
    middle = (levels[:, 1:] + levels[:, :-1]) / 2 - 0.5
    curves = -_STEP * torch.cat([torch.zeros_like(levels[:, :1]), middle.cumsum(1)], dim=1)
    return curves - curves[:, _NO_CHANGE : _NO_CHANGE + 1]


def _value(curves: Tensor, t: Tensor) -> Tensor:
    """Interpolate each curve at its own t."""
    place = ((t - _LOG_EXPONENTS[0]) / _STEP).clamp(0, len(_LOG_EXPONENTS) - 1.001)
    left = place.detach().floor().long().unsqueeze(1)
    share = place - left[:, 0]
    return (1 - share) * curves.gather(1, left)[:, 0] + share * curves.gather(1, left + 1)[:, 0]


def _fit(curves: Tensor, features: Tensor, ids: Tensor, penalty: float) -> _Rule:
    """Fit t to the curves; an infinite penalty allows a constant only."""
    top = int(curves.mean(0).argmax())
    if math.isinf(penalty):
        # Only above 1: widening is no risk.
        least = next(
            (i for i in range(_NO_CHANGE, top) if within(curves[:, top] - curves[:, i], ids, 1)),
            top,
        )
        return _Rule("constant", _LOG_EXPONENTS[least].item())
    centre = features.mean(0)
    # One scale for all: a penalty means the same for embeddings of any length, and small directions stay small.
    scale = (features - centre).square().sum(1).mean().sqrt().clamp(min=1e-30)
    scaled = (features - centre) / scale
    constant = torch.tensor(_LOG_EXPONENTS[top].item(), dtype=torch.float64, requires_grad=True)
    slope = torch.zeros_like(centre, requires_grad=True)
    # A millionth of a nat decides nothing.
    optimizer = torch.optim.LBFGS(
        [constant, slope], max_iter=100, tolerance_change=1e-6, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -_value(
            curves, constant + scaled @ slope
        ).mean() + penalty * slope.square().sum() / len(curves)
        value.backward()
        return value

    optimizer.step(loss)
    return _Rule("datum", constant.item(), slope.detach() / scale, centre)


def _cross_validated(curves: Tensor, features: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Return every pair's t under a rule fitted without its fold."""
    found, fold = torch.empty(len(curves), dtype=torch.float64), folds(ids)
    for out in (fold == number for number in fold.unique()):
        found[out] = _fit(curves[~out], features[~out], ids[~out], penalty)(features[out])
    return found
