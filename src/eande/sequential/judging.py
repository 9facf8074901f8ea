"""How good a round's model is where its simulations are, by those that no model is fitted to.

They were drawn from the present prior, that is, from near the observations, and the model has not
seen them. The score is the mean log ratio of their true parameters among draws of that prior. Taken
from the whole prior it is nats of another question: nats of rounds compare as log r − log p(R).
Two models compare on the same simulations, under the same prior.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eande.diagnostics.belonging import Belongs
from eande.diagnostics.diagnose import diagnose
from eande.foundations.checks import EandeWarning
from eande.inference.held_out import check_held_out, embed_rows
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import estimate_normalizer
from eande.priors.prior import Prior
from eande.similarities.prior_only import PriorOnly
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View

# Draws among which true parameters are found.
_DRAWS = 20_000
# Fewer held-out simulations tell nothing; more than the second take longer than they are worth.
_FEWEST = 20
_MOST = 300
_FEWEST_TO_BELONG = 100
# How often each check raises an alarm about a model that is right; that of strangeness by fewer
# than 300 simulations does so three times in their number.
_ALARM = 0.01


class Judged(NamedTuple):
    """What held-out simulations say of a model.

    Args:
        held_out: how many of them.
        score: mean log ratio in nats, relative to the present prior; None where they are too few.
        error: its standard error.
        gain: over another model, in nats; None without one.
        alarms: why the model is not to be trusted near the observations, a line each.
    """

    held_out: int
    score: float | None
    error: float | None
    gain: float | None
    alarms: tuple[str, ...]


def judge(
    model: EmbedAndEmulate,
    before: EmbedAndEmulate | None,
    held_out: Simulations,
    observed: Tensor,
    *,
    views: View | None,
    seed: int,
) -> Judged:
    """Score a model on held-out simulations of its prior, and look for reasons not to trust it.

    Args:
        model: fitted under the present prior.
        before: that of the round before; None in the first.
        held_out: simulations of the present prior that neither was fitted to.
        observed: observations (m, *y_shape).
        views: what the encoder sees of a simulation.
        seed: of tie-breaks.
    """
    some = held_out[:_MOST]
    if len(some.groups.unique()) < _FEWEST:
        return Judged(len(held_out), None, None, None, tuple(_warned(model, observed)))
    warned = list(_warned(model, observed))
    score = log_ratios(model, model.prior, held_out, views)
    gain = None
    if before is not None:
        gain = (score - log_ratios(before, model.prior, held_out, views)).mean().item()
    alarms = [*warned, *_checked(model, some, observed, views, seed)]
    error = score.std().item() / len(score) ** 0.5
    return Judged(len(held_out), score.mean().item(), error, gain, tuple(alarms))


@torch.no_grad()
def log_ratios(
    model: EmbedAndEmulate, prior: Prior, held_out: Simulations, views: View | None
) -> Tensor:
    """Return log r of pairs (m,) relative to a prior that the model's contains.

    The true parameters count as one draw more: without, a sharp model that no draw comes near would
    look better than it is. Of a prior that is known by its draws they may be among them already.
    """
    seen = check_held_out("held_out", model, held_out, views, one_per_group=True)
    f = embed_rows(model, seen.y)
    bank = model.prior_bank(prior, _DRAWS)
    own = model.similarity.paired_score(f, model.emulate_all(seen.phi.to(model.device))).double()
    log_sum = estimate_normalizer(model.similarity, f, bank).log_value + math.log(len(bank.phi))
    among = torch.zeros_like(own, dtype=torch.bool)
    if prior.distinct_draws is not None:
        known = set(map(tuple, bank.phi.tolist()))
        rows = map(tuple, seen.phi.tolist())
        among = torch.tensor([row in known for row in rows], device=own.device)
    log_total = torch.where(among, log_sum, torch.logaddexp(log_sum, own))
    return own - log_total + (len(bank.phi) + 1 - among.double()).log()


def _warned(model: EmbedAndEmulate, observed: Tensor) -> Iterator[str]:
    """Return what the model itself says of the observations: far out, or cut off at the edge."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.posteriors(observed)
    for one in caught:
        if not issubclass(one.category, EandeWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        else:
            yield str(one.message).removeprefix("y: ")


def _checked(
    model: EmbedAndEmulate,
    held_out: Simulations,
    observed: Tensor,
    views: View | None,
    seed: int,
) -> Iterator[str]:
    """Check that regions cover as often as they say, and that the observations could be these."""
    if not isinstance(model.similarity, PriorOnly):
        found = diagnose(
            model, held_out, draws=_DRAWS, views=views, alarm=_ALARM, seed=seed, progress=False
        )
        if found.tested and found.coverage.p_value < _ALARM and found.coverage.lacking:
            shares = ", ".join(
                f"{100 * one:.0f} for {level}" for level, one in found.covered.items()
            )
            yield f"its regions are too small: they cover {shares} per cent"
    if len(held_out.groups.unique()) >= _FEWEST_TO_BELONG:
        belongs = Belongs(model, held_out, views=views, progress=False)(observed)
        strange = (belongs.p_value <= max(_ALARM, belongs.resolution)).nonzero()[:, 0].tolist()
        for number in strange:
            yield (
                f"observation {number} is unlike {len(held_out)} simulations of the region "
                f"(p = {belongs.p_value[number].item():.2g}): nothing like it was simulated"
            )
