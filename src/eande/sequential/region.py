r"""The region of a round: where the model leaves all but a ten-thousandth of each posterior.

For every observation y_o samples of the posterior are drawn, and the threshold t_o is the lowest
score among them:

    R = ⋃_o {φ : s(f(y_o), g(φ)) ≥ t_o},      t_o = min_i s(f(y_o), g(φ_i)),      i = 1 … N.

The posterior's mass below the lowest of N samples has a Beta(1, N) law, whatever the posterior is.
With N = 30,000 it is over ε = 10⁻⁴ with probability (1 − ε)^N = 5 %, and 3.3 · 10⁻⁵ on average.
That is the *model's* mass. Of the true posterior more is cut off where the model is too sure of
itself: an ensemble, as wide as its members disagree, seldom is; of a single model the samples are
drawn from the posterior with the power β = 0.7 of the ratio, which is wider.

Around them lies a box, a tenth wider on every side than they reach: a part of the region, in which
priors that can be cut to a box are drawn from. What lies beyond has less than ε of the mass, too.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning, InputError
from eande.foundations.seeds import derive_seed
from eande.inference.model import EmbedAndEmulate, EmbeddedObservation
from eande.inference.regions import ScoreRegion
from eande.inference.samplers.rejection import BudgetExceeded
from eande.priors.prior import Prior
from eande.priors.truncated import TruncatedPrior
from eande.similarities.calibrated import Calibrated

# ε, and the samples whose lowest score leaves more than that with probability 5 %.
EPSILON = 1e-4
SAMPLES = 30_000
# β of a single model. An ensemble is as wide as its members disagree.
_POWER = 0.7
_MARGIN = 0.1
# Draws of the outer prior, or of it in the box, that a round's parameters may cost.
_MOST_TRIES = 20_000_000


class Cut(NamedTuple):
    """What a model makes of a prior.

    Args:
        prior: the narrower one; None where there is none.
        reason: why there is none.
    """

    prior: TruncatedPrior | None
    reason: str = ""


def cut(
    model: EmbedAndEmulate,
    observed: Tensor,
    *,
    wanted: int,
    seed: int,
) -> Cut:
    """Cut a model's prior to where the posteriors of the observations are.

    Args:
        model: fitted.
        observed: observations (m, *y_shape).
        wanted: how many parameters will be drawn.
        seed: of the samples.
    """
    wider = model
    if not model.members:
        wider = model.with_similarity(Calibrated(model.similarity, _POWER))
    with warnings.catch_warnings():
        # Of the observations: whoever asks has been told.
        warnings.simplefilter("ignore", EandeWarning)
        posteriors = wider.posteriors(observed)
    embedded = []
    thresholds = []
    corners = []
    for number, posterior in enumerate(posteriors):
        assert isinstance(posterior.scorer, EmbeddedObservation)
        f = posterior.scorer.f
        try:
            phi, _ = posterior.sample(SAMPLES, seed=derive_seed(seed, "region", number))
        except BudgetExceeded as error:
            return Cut(None, f"its posterior could not be sampled ({error})")
        score = ScoreRegion.of(model, f, f.new_zeros(1)).depth(phi)
        embedded.append(f)
        thresholds.append(score.min())
        low, high = phi.aminmax(dim=0)
        margin = _MARGIN * (high - low)
        corners.append(torch.stack([low - margin, high + margin]))
    lows, highs = torch.stack(corners).cpu().unbind(1)
    box = torch.stack([lows.amin(0), highs.amax(0)])
    region = ScoreRegion.of(model, torch.cat(embedded), torch.stack(thresholds))
    return _drawable(model.prior, region, box, wanted)


def _drawable(prior: Prior, region: ScoreRegion, box: Tensor, wanted: int) -> Cut:
    """Return the prior cut to a region, if drawing so many parameters from it is quick enough."""
    try:
        narrower = TruncatedPrior(prior, region, box=box)
    except InputError as error:
        return Cut(None, f"it cannot be drawn from ({error})")
    tries = wanted / narrower.acceptance
    if tries > _MOST_TRIES:
        return Cut(
            None,
            f"{wanted:,} draws from it would take {tries:.2g} tries, more than {_MOST_TRIES:.0g}",
        )
    return Cut(narrower)


def mass_of(prior: Prior) -> float:
    """Return log p(R) of a prior, 0 where nothing was cut off."""
    return prior.log_mass if isinstance(prior, TruncatedPrior) else 0.0


def shrinks(narrower: TruncatedPrior, prior: Prior, least: float) -> bool:
    """Return whether a region is smaller than the one before by more than a share of its mass."""
    return narrower.log_mass - mass_of(prior) < math.log(1 - least)
