r"""The region of a round: where the model leaves all but a ten-thousandth of each posterior.

For every observation y_o samples of the posterior are drawn, and the threshold t_o is the lowest
score among them:

    R = ⋃_o {φ : s(f(y_o), g(φ)) ≥ t_o},      t_o = min_i s(f(y_o), g(φ_i)),      i = 1 … N.

The posterior's mass below the lowest of N samples has a Beta(1, N) law, whatever the posterior is.
With N = 30,000 it is over ε = 10⁻⁴ with probability (1 − ε)^N = 5 %, and 3.3 · 10⁻⁵ on average.
That is the *model's* mass. Of the true posterior more is cut off where the model is too sure of
itself: an ensemble, as wide as its members disagree, seldom is; of a single model the samples are
drawn from the posterior with the power β = 0.7 of the ratio, which is wider.

Where the model was fitted to next to nothing, far out in the prior say, it may be sure and wrong,
and no sample of its own tells. So t_o is lowered until R holds 20 of the simulations that the model
was fitted to: a round cuts off what its simulations bear out, and no more.

Around all that lies a box, a tenth wider on every side than samples and draws of the prior in R
reach: a part of the region, in which priors that can be cut to a box are drawn from.
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
# Simulations that the model was fitted to, in the region of each observation at least.
FEWEST_INSIDE = 20
_MARGIN = 0.1
# Draws of the prior that tell how far the region reaches.
_DRAWS = 20_000
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
    fitted: Tensor,
    *,
    wanted: int,
    seed: int,
) -> Cut:
    """Cut a model's prior to where the posteriors of the observations are.

    Args:
        model: fitted.
        observed: observations (m, *y_shape).
        fitted: parameters that the model was fitted to (n, D).
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
    parts = []
    fewest = min(FEWEST_INSIDE, len(fitted))
    for number, posterior in enumerate(posteriors):
        assert isinstance(posterior.scorer, EmbeddedObservation)
        f = posterior.scorer.f
        try:
            phi, _ = posterior.sample(SAMPLES, seed=derive_seed(seed, "region", number))
        except BudgetExceeded as error:
            return Cut(None, f"its posterior could not be sampled ({error})")
        score = ScoreRegion.of(model, f, f.new_zeros(1)).depth
        borne_out = score(fitted.to(phi)).topk(fewest).values[-1]
        embedded.append(f)
        thresholds.append(score(phi).min().minimum(borne_out))
        parts.append(phi)
    region = ScoreRegion.of(model, torch.cat(embedded), torch.stack(thresholds))
    draws = model.prior_bank(model.prior, _DRAWS).phi
    near = torch.cat([draws, fitted.to(draws)])
    low, high = torch.cat([*parts, near[region(near)]]).cpu().aminmax(dim=0)
    margin = _MARGIN * (high - low)
    return _drawable(model.prior, region, torch.stack([low - margin, high + margin]), wanted)


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
