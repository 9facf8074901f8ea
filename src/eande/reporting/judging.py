"""What checks mean, in plain words and with what to do: the verdicts of a report."""

from __future__ import annotations

import math

from scipy import stats
from torch import Tensor

from eande.diagnostics.belonging import Belonging
from eande.diagnostics.diagnosis import Diagnosis
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior
from eande.reporting.blocks import ALARM, NOT_CHECKED, OK, Verdict
from eande.reporting.words import counted, hold_out, listed, number, p_value, per_cent
from eande.similarities.prior_only import PriorOnly

# Fewer held-out simulations than this cannot clear a model, only accuse it.
ENOUGH_DATA = 100
_STRANGE = 0.01
# It is strange to be stranger than all of so many that the strangest has a p-value of this or less.
_STRANGEST = 0.03
_UNUSUAL = 0.05
# Standard errors by which a share has to miss its level to be spoken of.
_MISSED = 2.0
_FAR_OUT = 3.0
_LEVEL = 95
_CALIBRATE = "calibrate (eande.calibrate; on the command line eande calibrate)"
_NEAR = " near this observation (eande.rounds; on the command line eande rounds)"
_LOOK = (
    "Do not use this posterior: look for another unit, order, noise or process in the data, and "
    "simulate what is missing."
)

DRAWS = "Is the posterior made of enough draws?"
LEARNED = "Did the model learn anything?"
BELONGS = "Is the observation like the simulations?"
PREDICTS = "Does the posterior predict the observation?"
NEAR = "Is the stated uncertainty right near this observation?"
UNSEEN = "Are the held-out simulations new to the model?"
REGIONS = "Is the stated uncertainty right on average?"
PARAMETERS = "Is each parameter right on average?"
PARAMETERS_NEAR = "Is each parameter right near this observation?"


def is_prior(model: EmbedAndEmulate) -> bool:
    """Return whether a fit found nothing, so that all posteriors are the prior."""
    members = model.members or (model,)
    return isinstance(model.similarity, PriorOnly) or all(
        isinstance(member.similarity, PriorOnly) for member in members
    )


def not_checked(question: str, why: str, advice: str = "") -> Verdict:
    """Return the verdict of a check that was not made."""
    return Verdict(question, NOT_CHECKED, why, advice)


def of_learning(model: EmbedAndEmulate, found: Diagnosis | None) -> Verdict:
    """Say whether unseen parameters are likelier under their posteriors than under the prior."""
    if is_prior(model):
        return Verdict(
            LEARNED,
            ALARM,
            "No: in training nothing was found that holds on other simulations, so every posterior "
            "here is the prior.",
            "Give more simulations, longer training, or an encoder that knows what the data are; "
            "or the data say nothing of these parameters.",
        )
    if found is None:
        return not_checked(
            LEARNED,
            "No held-out simulations were given.",
            hold_out(200),
        )
    amount = f"{found.log_ratio:.2f} ± {found.log_ratio_error:.2f} nats"
    if found.log_ratio > 2 * found.log_ratio_error:
        times = math.exp(min(found.log_ratio, 700))
        factor = number(times, 2) if times < 10 or times >= 1e6 else f"{times:,.0f}"
        return Verdict(
            LEARNED,
            OK,
            f"Yes: the true parameters of {found.data:,} unseen simulations are {factor} times as "
            f"likely under their posteriors as under the prior ({amount}).",
        )
    return Verdict(
        LEARNED,
        ALARM,
        f"The true parameters of {found.data:,} unseen simulations are no likelier under their "
        f"posteriors than under the prior ({amount}).",
        "Simulate more or train longer; do not use these posteriors.",
    )


def of_novelty(found: Diagnosis) -> Verdict | None:
    """Say that the model was trained on what was held out; None where nothing is known of it."""
    if all(verdict.name != "held out" or verdict.passed for verdict in found.verdicts):
        return None
    return Verdict(
        UNSEEN,
        ALARM,
        "No: it was trained on some of them, so the checks on average say nothing.",
        hold_out(200),
    )


def of_regions(found: Diagnosis, question: str = REGIONS) -> Verdict:
    """Say whether regions cover as often as they say."""
    near = question == NEAR
    what = "fresh simulations around its posterior" if near else "held-out simulations"
    passed = {verdict.name: verdict.passed for verdict in found.verdicts}
    narrow = found.coverage.lacking
    level = _worst(found, narrow) if passed.get("coverage") is False else _LEVEL
    share = found.covered[level]
    test = stats.binomtest(round(share * found.data), found.data)
    interval = test.proportion_ci(0.95)
    cover = f"The {level} % regions cover {per_cent(share)}"
    truth = f"between {per_cent(interval.low)} and {per_cent(interval.high)}"
    if passed.get("coverage") is False and abs(_miss(found, level)) < _MISSED:
        uneven = "the levels at which the truth lies are unevenly spread"
        return Verdict(
            question,
            ALARM,
            f"{cover} of {found.data:,} {what}, but {uneven} ({p_value(found.coverage.p_value)}): "
            "too wide at some levels, too narrow at others.",
            f"Look at the figure below; simulate more{_NEAR if near else ''}, or {_CALIBRATE}.",
        )
    if passed.get("coverage") is False:
        fault = (
            "over-confident, the truth lies outside more often than they say"
            if narrow
            else "under-confident, wider than they need be"
        )
        more = f"Simulate more{_NEAR if near else ''}, or {_CALIBRATE}"
        careful = "do not trust these intervals before" if narrow else "the intervals are safe, but"
        advice = f"{more}; {careful}." if narrow else f"{more}; {careful} more could be said."
        found_in = f"of {found.data:,} {what}"
        return Verdict(question, ALARM, f"{cover} {found_in}: {fault}.", advice)
    if passed.get("TARP") is False:
        return Verdict(
            question,
            ALARM,
            f"{cover} of {found.data:,} {what}, but distances from random points (TARP, "
            f"{p_value(found.tarp.p_value)}) say that posteriors are displaced or too wide or "
            "too narrow.",
            f"Look at each parameter below; simulate more, or {_CALIBRATE}.",
        )
    if not found.tested:
        return not_checked(
            question,
            "Too few draws come near the true parameters to rank them.",
            f"{known_by_draws(found.draws)} Then run this again."
            if found.all_draws
            else "Run eande.diagnose with more draws=, or with samples=200.",
        )
    if found.data < ENOUGH_DATA:
        return not_checked(
            question,
            f"Checked on only {counted(found.data, 'simulation')}: too few to clear it. {cover}; "
            f"the true share may be anything {truth}.",
            "Hold out 200 simulations or more." if not near else "Simulate more around it.",
        )
    return Verdict(
        question,
        OK,
        f"Yes: the {level} % regions cover {per_cent(share)} of {found.data:,} {what}; so the true "
        f"share lies {truth}.",
    )


def effective_draws(phi: Tensor) -> float:
    """Return of how many draws samples (n, D) are made, some of them often; of equal weights.

    Example:
        >>> import torch
        >>> phi = torch.arange(50.0).repeat(500)[:, None]
        >>> round(effective_draws(phi))
        50
        >>> effective_draws(torch.rand(100, 2, generator=torch.Generator().manual_seed(0)))
        inf
    """
    _, counts = phi.unique(dim=0, return_counts=True)
    equal = (counts * (counts - 1)).sum().item()
    return len(phi) * (len(phi) - 1) / equal if equal else math.inf


def of_draws(phi: Tensor, prior: Prior) -> Verdict | None:
    """Raise an alarm where samples of a posterior are the same few draws of the prior.

    Args:
        phi: samples (n, D).
        prior: that of the model.
    """
    if not isinstance(prior, EmpiricalPrior):
        return None
    effective = effective_draws(phi.cpu())
    if effective >= ENOUGH_DRAWS:
        return None
    return Verdict(
        DRAWS,
        ALARM,
        f"Hardly: only about {effective:.0f} of the {len(prior.draws):,} parameters that the prior "
        "is known by come near it, so that its means and intervals are rough.",
        known_by_draws(len(prior.draws)),
    )


def known_by_draws(draws: int) -> str:
    """Say what to do where there are too few draws of a prior that nobody knows otherwise."""
    return (
        f"The prior is known by {draws:,} draws only: say the law that the parameters were drawn "
        "from, such as prior = eande.BoxPrior(…)."
    )


def _worst(found: Diagnosis, narrow: bool) -> int:
    """Return the level whose regions are most wrong in that direction."""
    return max(
        found.covered, key=lambda level: -_miss(found, level) if narrow else _miss(found, level)
    )


def _miss(found: Diagnosis, level: int) -> float:
    """Return by how many standard errors the regions of a level cover more than they say."""
    expected = level / 100
    error = math.sqrt(expected * (1 - expected) / found.data)
    return (found.covered[level] - expected) / error


def of_parameters(found: Diagnosis, question: str = PARAMETERS) -> Verdict:
    """Say whether the true values of each parameter fall anywhere in their posteriors."""
    wrong = {
        verdict.name.removeprefix("ranks of "): verdict.text.rpartition(", ")[2]
        for verdict in found.verdicts
        if verdict.name.startswith("ranks of ") and verdict.passed is False
    }
    if wrong:
        faults = listed([f"{name}: {fault}" for name, fault in wrong.items()])
        return Verdict(
            question,
            ALARM,
            f"{len(wrong)} of {len(found.names)} are not: {faults}.",
            f"Simulate more, or {_CALIBRATE}; in Python, aim=True moves what lies too low or high.",
        )
    if not found.tested:
        return not_checked(question, "Too few draws come near the true parameters to rank them.")
    if found.data < ENOUGH_DATA:
        return not_checked(
            question,
            f"Checked on only {counted(found.data, 'simulation')}: nothing is wrong that so few "
            "could show.",
            "Hold out 200 simulations or more.",
        )
    smallest = min(ranks.p_value for ranks in found.sbc)
    return Verdict(
        question,
        OK,
        f"Yes: the true values of {listed(list(found.names))} lie neither too high nor too low in "
        "their posteriors, and neither too near the middle nor too far from it (smallest "
        f"{p_value(smallest)} of {len(found.sbc)}).",
    )


def of_belonging(found: Belonging, question: str = BELONGS) -> Verdict:
    """Say whether an observation is like the simulations, or like those of its posterior."""
    p = float(found.p_value[0])
    predicted = question == PREDICTS
    others = "anything that its posterior predicts" if predicted else "anything simulated"
    strangest = min(found.each, key=lambda name: float(found.each[name][0]))
    because = {
        "image": "its embedding lies where no parameters lead",
        "activations": "the encoder answers to it as to no simulation",
        "summaries": "its mean, spread, skewness or roughness is like no simulation's",
    }.get(strangest, strangest)
    if p < _STRANGE:
        advice = (
            "The simulator lacks something that the data have, or the posterior is wrong: look at "
            "the figure below."
            if predicted
            else _LOOK
        )
        return Verdict(
            question,
            ALARM,
            f"The observation is unlike {others} ({p_value(p)}): {because}.",
            advice,
        )
    if p <= found.resolution <= _STRANGEST:
        return Verdict(
            question,
            ALARM,
            f"The observation is stranger than {others}: so is one of {1 / p:.0f} genuine ones "
            f"({p_value(p)}); {because}.",
            f"{_LOOK} More simulations to compare it with would make this surer.",
        )
    if p <= found.resolution:
        least = math.ceil(len(found.each) / _STRANGE)
        more = (
            f"Simulate from the posterior {least} times or more (predicted= of eande.predict; in a "
            f"study file: predicted = {least} or more)."
        )
        return not_checked(
            question,
            f"The observation is stranger than all the simulations, but these are too few to say "
            f"more than {p_value(p)}.",
            more if predicted else hold_out(least),
        )
    if p < _UNUSUAL:
        return Verdict(
            question, OK, f"It is unusual, but simulations as strange occur ({p_value(p)})."
        )
    return Verdict(question, OK, f"Yes: nothing sets it apart ({p_value(p)}).")


def of_reach(reach: float) -> Verdict | None:
    """Say that an observation lies far outside of all simulated data, None where it does not."""
    if reach <= _FAR_OUT:
        return None
    return Verdict(
        BELONGS,
        ALARM,
        f"The observation lies {reach:.3g} times as far from the mean of the simulated data as any "
        "of them: nothing like it was simulated.",
        _LOOK,
    )
