r"""Calibration: the exponent β in p(φ) r(φ, y)^β, chosen by held-out score.

A model fitted to few simulations is often too sure of itself, or not sure enough, and not by the same amount everywhere.
The held-out log ratio of pair i as a function of t = log β,

    ℓ_i(t) = e^t s_i(φ_i) − log E_{p(φ)} exp(e^t s_i(φ)),

is concave in e^t and cheap: one pass of the networks gives the scores, and the curves ℓ_i are tabulated once. Three kinds
of t compete: 0 (leave the model as it is), a constant, and t_i = a + w·(f(y_i) − f̄), linear in the embedding, with a
penalty on w. Each is judged by the score of simulations left out of its own fit (folds of whole groups), and the simplest
one within two standard errors of the best wins; a constant that sharpens is the smallest within one error of the best one.
So chance does not make a posterior surer than it was.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eande.core.checks import InputError, as_float_tensor, check_choice, check_count

if TYPE_CHECKING:
    from eande.core.model import EmbedAndEmulate

KINDS = ("auto", "constant", "datum")
_LOG_EXPONENTS = torch.linspace(math.log(0.05), math.log(10.0), 40, dtype=torch.float64)
_PENALTIES = (100.0, 10.0, 1.0, 0.1)
_FOLDS = 5
_FEWEST = 20
# The smallest constant that does nearly as well as the best one is only looked for above 1: widening is no risk.
_NO_CHANGE = int((_LOG_EXPONENTS < 0).sum())


@dataclass(frozen=True)
class Calibration:
    """What calibration found, on simulations used for nothing else.

    Args:
        kind: ``"none"``, ``"constant"`` or ``"datum"``: what the exponent depends on.
        exponent: the median exponent over the held-out data.
        range: its 5 % and 95 % quantiles over them.
        before: held-out mean log ratio of the model as it was, in nats.
        after: that of the calibrated model, on data left out of the calibration's own fit.
        error: standard error of the difference.
    """

    kind: str
    exponent: float
    range: tuple[float, float]
    before: float
    after: float
    error: float


@dataclass(frozen=True)
class _Rule:
    """t = constant + slope·f."""

    kind: str
    constant: float
    slope: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        t = torch.full((len(features),), self.constant, dtype=torch.float64)
        return t if self.slope is None else t + features @ self.slope


def calibrate(model: "EmbedAndEmulate", phi: Any, y: Any, groups: Any = None, *, kind: str = "auto", draws: int = 50_000) -> Calibration:
    """Set the exponent of a model by held-out pairs, and report. An earlier calibration is forgotten first.

    Args:
        model: is changed in place.
        phi: parameters (m, D) of simulations used neither in training nor in selection.
        y: their data (m, *y_shape).
        groups: ids of the parameters (m,), where several data share them; they stay together in a fold.
        kind: ``"constant"`` for one exponent, ``"datum"`` for one that depends on the embedding, ``"auto"`` for the simplest that scores well.
        draws: prior draws for the normalisers.
    """
    check_choice("kind", kind, KINDS)
    check_count("draws", draws, 2)
    phi = as_float_tensor("phi", phi, device=model.device)
    ids = torch.arange(len(phi)) if groups is None else torch.as_tensor(groups)
    if len(ids.unique()) < _FEWEST:
        raise InputError(f"held_out: expected at least {_FEWEST} different parameters to calibrate by, got {len(ids.unique())}")
    model.similarity.exponent.fill_(1.0)
    model.similarity.slope = None
    curves, features = _tabulate(model, phi, as_float_tensor("y", y, device="cpu"), draws)
    # From none at all (None) over a constant (infinite penalty) to ever freer ones.
    penalties = [None, *([math.inf] if kind != "datum" else []), *(_PENALTIES if kind != "constant" else [])]
    scores = torch.stack([_cross_validated(curves, features, ids, penalty) for penalty in penalties])
    best = int(scores.mean(1).argmax())
    # Simplest first.
    winner = next(i for i in range(best + 1) if i == best or _within(scores[best] - scores[i], ids, 2))
    rule = _fit(curves, features, ids, penalties[winner])
    model.similarity.exponent.fill_(math.exp(rule.constant))
    if rule.slope is not None:
        model.similarity.slope = rule.slope.to(model.device, torch.float32)
    exponents = rule(features).exp()
    gain, error = _gain(scores[winner] - scores[0], ids)
    before = scores[0].mean().item()
    low, middle, high = exponents.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return Calibration(rule.kind, middle, (low, high), before, before + gain, error)


def _tabulate(model: "EmbedAndEmulate", phi: Tensor, y: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """Return the curves ℓ_i at the tabulated exponents (m, T) and the embeddings (m, n), both in float64 on the CPU."""
    similarity, bank = model.similarity, model.prior_bank(model.prior, draws)
    embedded = torch.cat([model.embed_all(part) for part in y.split(model.encoder_rows)])
    emulated = model.emulate_all(phi)
    curves = []
    for f, g in zip(embedded.split(1), emulated.split(1), strict=True):
        scores = similarity.score(f, bank.emulated)[0].double().masked_fill(~bank.inside, -torch.inf)
        own, top = similarity.paired_score(f, g).double(), scores.max()
        powers = _LOG_EXPONENTS.exp().to(scores.device)
        # Shifted by the top: sharp scores overflow no exponential, and far ones only vanish.
        sums = torch.stack([((scores - top) * power).exp().mean().log() for power in powers])
        curves.append(powers * (own - top) - sums)
    return torch.stack(curves).cpu(), similarity.features(embedded).double().cpu()


def _value(curves: Tensor, t: Tensor) -> Tensor:
    """Interpolate each curve at its own t."""
    step = _LOG_EXPONENTS[1] - _LOG_EXPONENTS[0]
    place = ((t - _LOG_EXPONENTS[0]) / step).clamp(0, len(_LOG_EXPONENTS) - 1.001)
    left = place.detach().floor().long().unsqueeze(1)
    share = place - left[:, 0]
    return (1 - share) * curves.gather(1, left)[:, 0] + share * curves.gather(1, left + 1)[:, 0]


def _fit(curves: Tensor, features: Tensor, ids: Tensor, penalty: float | None) -> _Rule:
    """Fit t to the curves: None leaves the model alone, an infinite penalty allows a constant only."""
    if penalty is None:
        return _Rule("none", 0.0)
    top = int(curves.mean(0).argmax())
    if math.isinf(penalty):
        least = next((i for i in range(_NO_CHANGE, top) if _within(curves[:, top] - curves[:, i], ids, 1)), top)
        return _Rule("constant", _LOG_EXPONENTS[least].item())
    centre = features.mean(0)
    constant = torch.tensor(_LOG_EXPONENTS[top].item(), dtype=torch.float64, requires_grad=True)
    slope = torch.zeros_like(centre, requires_grad=True)
    optimizer = torch.optim.LBFGS([constant, slope], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -_value(curves, constant + (features - centre) @ slope).mean() + penalty * slope.square().sum() / len(curves)
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        return _Rule("datum", (constant - centre @ slope).item(), slope.detach())


def _cross_validated(curves: Tensor, features: Tensor, ids: Tensor, penalty: float | None) -> Tensor:
    """Return every pair's score under a rule fitted without its fold."""
    scores = torch.empty(len(curves), dtype=torch.float64)
    folds = ids.unique(return_inverse=True)[1] % _FOLDS
    for fold in range(_FOLDS):
        out = folds == fold
        scores[out] = _value(curves[out], _fit(curves[~out], features[~out], ids[~out], penalty)(features[out]))
    return scores


def _within(difference: Tensor, ids: Tensor, errors: float) -> bool:
    """Return whether the mean of a difference is at most so many of its standard errors."""
    mean, error = _gain(difference, ids)
    return mean <= errors * error


def _gain(difference: Tensor, ids: Tensor) -> tuple[float, float]:
    """Return the mean of a difference of scores and its standard error; data of one group are one draw."""
    inverse = ids.unique(return_inverse=True)[1]
    count = torch.zeros(int(inverse.max()) + 1, dtype=torch.float64).index_add_(0, inverse, torch.ones(len(ids), dtype=torch.float64))
    sums = torch.zeros_like(count).index_add_(0, inverse, difference)
    means = sums / count
    return difference.mean().item(), (means.std() / len(means) ** 0.5).item()
