r"""The exponent β of p(φ) r(φ, y)^β as a function of the datum, fitted to held-out pairs.

The held-out score of pair i as a function of t = log β, over prior draws φ_1 … φ_N and φ_0 = φ_i
itself,

    ℓ_i(t) = e^t s_i(φ_i) − log (1/(N + 1)) Σ_{j=0…N} exp(e^t s_i(φ_j)),

is concave in e^t and cheap: one pass of the networks gives the scores, and the curves ℓ_i are
tabulated once. It is the log of the probability of picking φ_i out of N + 1: for any N its mean is
highest for the true ratio, so that too few draws do not flatter a sharp exponent, and with enough
of them it is the log ratio. Where few of them come near a posterior, the φ_j are weighted draws
from near it (:mod:`eande.calibration.near_draws`): exp(e^t s) is then multiplied by p/q.

The score hardly changes near its optimum. Coverage does: u_i(t), the posterior's mass where its
ratio is higher than at φ_i, rises with t, and must be uniform on (0, 1). The objective "coverage"
maximises −∫ (u_i − ½) dt instead, whose optimum has mean u of ½ along every feature; it is as
concave, and less noisy near its optimum.

Three kinds of t compete: 0 (leave the model as it is), a constant, and t_i = a + w·(f(y_i) − f̄),
linear in the embedding, with a ridge penalty on w. Each is judged on simulations left out of its
own fit (folds of whole groups). The best one must beat a constant, and no change at all, by two
standard errors (by one where it widens); a constant that sharpens is the smallest within one error
of the best one. So chance does not make a posterior surer than it was.

Reference:
    Oord, Li and Vinyals, *Representation Learning with Contrastive Predictive Coding*, 2018 (the
    score, and its optimum at the true ratio).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from rich.progress import track
from torch import Tensor

from eande.calibration.cross_validation import folds, within
from eande.calibration.near_draws import NearDraws
from eande.inference.levels import mass_above
from eande.inference.normalizer import PriorBank
from eande.similarities.calibrated import EXPONENTS, Slope
from eande.similarities.similarity import PairScore

KINDS = ("auto", "constant", "datum")
OBJECTIVES = ("score", "coverage")
# Exponents are tabulated in steps of a fifth of an octave; 1 is among them.
_STEP = math.log(2) / 5
_NO_CHANGE = round(-math.log(EXPONENTS[0]) / _STEP)
_LOG_EXPONENTS = _STEP * torch.arange(
    -_NO_CHANGE, round(math.log(EXPONENTS[1]) / _STEP) + 1, dtype=torch.float64
)
# Ridge penalties; inf = constant.
_SLOPES = (10.0, 1.0, 0.1, 0.01, 0.001)
_PENALTIES = {
    "constant": (math.inf,),
    "datum": _SLOPES,
    "auto": (math.inf, *_SLOPES),
}
# Nats below the top from which a weight no longer counts.
_FAR = 40.0


@dataclass(frozen=True)
class Rule:
    """t = constant + slope·(f − centre), inside the table.

    Args:
        kind: ``"none"``, ``"constant"`` or ``"datum"``.
        constant: of t.
        slope: what of t depends on the datum.
    """

    kind: str
    constant: float
    slope: Slope | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Return t of every datum (m,), given features (m, n)."""
        t = torch.full((len(features),), self.constant, dtype=torch.float64)
        if self.slope is not None:
            t = t + (features - self.slope.centre) @ self.slope.slope
        return t.clamp(_LOG_EXPONENTS[0], _LOG_EXPONENTS[-1])


@dataclass(frozen=True)
class Table:
    """The held-out pairs at the tabulated exponents, in float64 on the CPU.

    Args:
        scores: ℓ_i, (m, T).
        levels: u_i, (m, T).
    """

    scores: Tensor
    levels: Tensor


@dataclass(frozen=True)
class Found:
    """A rule, and what it does for the held-out data.

    Args:
        rule: the rule fitted to all of them.
        exponents: what it gives them (m,).
        before: their scores ℓ_i without it (m,).
        after: with rules fitted without their own fold (m,).
    """

    rule: Rule
    exponents: Tensor
    before: Tensor
    after: Tensor


@torch.no_grad()
def tabulate(
    similarity: PairScore,
    f: Tensor,
    g: Tensor,
    bank: PriorBank,
    *,
    near: Iterable[tuple[int, NearDraws]] = (),
    progress: bool,
) -> Table:
    """Tabulate ℓ_i and u_i of held-out pairs.

    Args:
        similarity: as it was trained.
        f: embedded data (m, n).
        g: emulated true parameters (m, n).
        bank: prior draws.
        near: draws in the place of these, with the place of the datum, where these are too few.
        progress: whether to show a progress bar.
    """
    powers = _LOG_EXPONENTS.exp().to(f.device)
    curves = []
    levels = []
    pairs = zip(f.split(1), g.split(1), strict=True)
    shown = track(pairs, "calibrating", total=len(f), disable=not progress)
    waiting = iter(near)
    upcoming = next(waiting, None)
    for place, (datum, phi) in enumerate(shown):
        own = similarity.paired_score(datum, phi).double()
        if upcoming is not None and upcoming[0] == place:
            others, ratios, own_ratio = upcoming[1]
            upcoming = next(waiting, None)
        else:
            others = similarity.score(datum, bank.emulated)[0].double()
            others = others.masked_fill(~bank.inside, -torch.inf)
            ratios = torch.zeros_like(others)
            own_ratio = torch.zeros_like(own)
        count = len(others) + 1
        others = others.masked_fill(ratios == -torch.inf, -torch.inf)
        top = torch.maximum(own, others.max())
        # Shifted by the tops: sharp scores overflow no exponential, and those too far to count at
        # any exponent are left out.
        counted = others > top - _FAR / EXPONENTS[0]
        close, ratios = others[counted], ratios[counted]
        largest = torch.cat([ratios, own_ratio]).max()
        weights = (powers.unsqueeze(1) * (close - top) + (ratios - largest)).exp_()
        mine = (powers * (own - top) + (own_ratio - largest)).exp()
        total = weights.sum(1) + mine
        curves.append(powers * (own - top) - (total / count).log() - largest)
        # Half of what is level with it, its own share included: among N + 1 that could each be the
        # one, u then has the mean ½ for any N.
        levels.append(mass_above(close, own[0], weights, own_weight=mine))
    return Table(torch.stack(curves).cpu(), torch.stack(levels).cpu())


def find_exponents(
    table: Table,
    features: Tensor,
    groups: Tensor,
    *,
    kind: str,
    objective: str,
    from_prior: bool,
) -> Found:
    """Find the rule of the exponents by cross-validation.

    Args:
        table: the held-out pairs at the tabulated exponents.
        features: f(y_i), (m, n), in float64 on the CPU.
        groups: of the pairs (m,).
        kind: ``"constant"``, ``"datum"`` or ``"auto"``.
        objective: ``"score"`` or ``"coverage"``.
        from_prior: whether it is the prior that must be improved on, not the model.
    """
    # The prior's own coverage is right: only the score can say that a model is better.
    by_score = objective == "score" or from_prior
    curves = table.scores if by_score else _coverage_curves(table.levels)
    nothing = torch.zeros(len(table.scores), dtype=torch.float64)
    alone = nothing if from_prior else curves[:, _NO_CHANGE]
    before = nothing if from_prior else table.scores[:, _NO_CHANGE]
    found = {
        penalty: _cross_validated(curves, features, groups, penalty) for penalty in _PENALTIES[kind]
    }
    best = max(found, key=lambda penalty: _value(curves, found[penalty]).mean().item())
    reached = _value(curves, found[best])
    if math.inf in found and within(reached - _value(curves, found[math.inf]), groups, 2):
        best = math.inf
        reached = _value(curves, found[best])
    rule = _fit(curves, features, groups, best)
    sharpens = rule(features).mean() > 0
    if within(reached - alone, groups, 2 if sharpens else 1):
        exponents = torch.full_like(nothing, 0.0 if from_prior else 1.0)
        return Found(Rule("none", 0.0), exponents, before, before)
    return Found(rule, rule(features).exp(), before, _value(table.scores, found[best]))


def _coverage_curves(levels: Tensor) -> Tensor:
    """Return −∫ (u_i − ½) dt, zero at no change."""
    middle = (levels[:, 1:] + levels[:, :-1]) / 2 - 0.5
    sums = torch.cat([torch.zeros_like(levels[:, :1]), middle.cumsum(1)], dim=1)
    return -_STEP * (sums - sums[:, _NO_CHANGE : _NO_CHANGE + 1])


def _value(curves: Tensor, t: Tensor) -> Tensor:
    """Interpolate each curve at its own t."""
    place = ((t - _LOG_EXPONENTS[0]) / _STEP).clamp(0, len(_LOG_EXPONENTS) - 1.001)
    left = place.detach().floor().long().unsqueeze(1)
    share = place - left[:, 0]
    below = curves.gather(1, left)[:, 0]
    above = curves.gather(1, left + 1)[:, 0]
    return (1 - share) * below + share * above


def _fit(curves: Tensor, features: Tensor, groups: Tensor, penalty: float) -> Rule:
    """Fit t to the curves; an infinite penalty allows a constant only."""
    top = int(curves.mean(0).argmax())
    if math.isinf(penalty):
        # Only above 1: widening is no risk.
        smaller = range(_NO_CHANGE, top)
        least = next((i for i in smaller if within(curves[:, top] - curves[:, i], groups, 1)), top)
        return Rule("constant", _LOG_EXPONENTS[least].item())
    centre = features.mean(0)
    # One scale for all: a penalty means the same for embeddings of any length, and small
    # directions stay small.
    scale = (features - centre).square().sum(1).mean().sqrt().clamp(min=1e-30)
    scaled = (features - centre) / scale
    start = _LOG_EXPONENTS[top].item()
    constant = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    slope = torch.zeros_like(centre, requires_grad=True)
    # A millionth of a nat decides nothing.
    optimizer = torch.optim.LBFGS(
        [constant, slope], max_iter=100, tolerance_change=1e-6, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        ridge = penalty * slope.square().sum() / len(curves)
        value = ridge - _value(curves, constant + scaled @ slope).mean()
        value.backward()
        return value

    optimizer.step(loss)
    return Rule("datum", constant.item(), Slope(slope.detach() / scale, centre))


def _cross_validated(curves: Tensor, features: Tensor, groups: Tensor, penalty: float) -> Tensor:
    """Return every pair's t under a rule fitted without its fold."""
    found = torch.empty(len(curves), dtype=torch.float64)
    fold = folds(groups)
    for number in fold.unique():
        out = fold == number
        rule = _fit(curves[~out], features[~out], groups[~out], penalty)
        found[out] = rule(features[out])
    return found
