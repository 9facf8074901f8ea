"""A diagnosis in words: one line per check."""

import math
from collections.abc import Iterator

from eande.diagnostics.diagnosis import Diagnosis, Near, Verdict
from eande.diagnostics.uniformity import SMALLEST, Uniformity
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.inference.samplers.importance import UNRELIABLE

# Where the true parameters have more than this share of the weight, an estimate of the information
# is within a nat of the most that the draws can show, and no measurement.
_NEAR_CEILING = math.exp(-1)


def verdicts(found: Diagnosis, alarm: float, *, shared: bool) -> Iterator[Verdict]:
    """Say what a diagnosis found, check by check.

    Args:
        found: the numbers.
        alarm: how often each check of ranks may raise an alarm about a model that is right.
        shared: whether data share prior draws that are too few to stand for the prior.
    """
    if found.near is not None:
        yield from _near(found, found.near)
        yield from _calibration(found, alarm, shared)
        yield from _few_draws(found)
        return
    yield from _information(found)
    yield from _calibration(found, alarm, shared)
    few = (found.weighed.effective_draws < ENOUGH_DRAWS).double().mean().item()
    if few < 1:
        yield from _parameters(found)
    yield Verdict("normaliser", None, _of_normaliser(found))
    if found.nearer:
        text = f"few prior draws come near {found.nearer} of {found.data} posteriors"
        done = "ranked among" if found.samples is None else "weighed by"
        yield Verdict("proposals", None, f"{text}: {done} proposals that do")
    yield from _few_draws(found)
    if found.pareto_k is not None:
        unreliable = int((found.pareto_k > UNRELIABLE).sum())
        text = f"Pareto k above {UNRELIABLE} for {unreliable} of {len(found.pareto_k)} posteriors"
        yield Verdict("importance", None, text)


def _of_normaliser(found: Diagnosis) -> str:
    unknown = found.log_normalizer.isnan().double().mean().item()
    if unknown == 1:
        return "C is not known: too few draws come near any of the posteriors"
    noise = f"{100 * found.cv_noise:.0f} % by the finite number of draws alone"
    text = f"C varies by {100 * found.cv_normalizer:.0f} % over data, {noise}"
    left_out = f"; not known of {100 * unknown:.0f} % of them" if unknown else ""
    return f"{text}{left_out}"


def _few_draws(found: Diagnosis) -> Iterator[Verdict]:
    few = (found.weighed.effective_draws < ENOUGH_DRAWS).double().mean().item()
    if few == 0:
        return
    text = (
        f"effective sample size under {ENOUGH_DRAWS} for {100 * few:.0f} % of the posteriors: "
        "checks have little power there"
    )
    if found.near is not None:
        yield Verdict("draws", None, f"{text}; {_more(found)}")
        return
    left_out = "" if few == 1 else ", and the two lines on parameters leave them out"
    yield Verdict("draws", None, f"{text}{left_out}; {_more(found, 'or samples=200')}")


def _more(found: Diagnosis, instead: str = "") -> str:
    """Say what gives more draws where they are too few."""
    if found.all_draws:
        return "the prior is known by these draws only: give its law"
    return f"raise draws, {instead}" if instead else "raise draws"


def _near(found: Diagnosis, near: Near) -> Iterator[Verdict]:
    """Say what was looked at; how much the data tell there is no reason for an alarm."""
    failed = f"; {near.failed} of {near.tried} failed" if near.failed else ""
    yield Verdict(
        "simulations",
        None,
        f"{found.data} near the observation, of parameters from its posterior{failed}",
    )
    amount = f"{found.log_ratio:.2f} ± {found.log_ratio_error:.2f} nats"
    yield Verdict("log ratio", None, f"{amount}: what another datum adds to that posterior")


def _information(found: Diagnosis) -> Iterator[Verdict]:
    learned = found.log_ratio > 2 * found.log_ratio_error
    amount = f"{found.log_ratio:.2f} ± {found.log_ratio_error:.2f} nats"
    bound = "lower bound on the mutual information of parameters and data"
    yield Verdict(
        "log ratio", learned, f"{amount}: {bound if learned else 'no better than the prior'}"
    )
    if found.samples is None and found.weighed.own_share.mean() > _NEAR_CEILING:
        ceiling = f"near {found.ceiling:.1f} nats, all that {found.draws} draws can show"
        yield Verdict("information", None, f"{ceiling}: {_more(found)}")


def _calibration(found: Diagnosis, alarm: float, shared: bool) -> Iterator[Verdict]:
    # Ranks that share few draws have no p-value under the smallest.
    least = 2 * SMALLEST if shared else 0.0
    alarm_of_joint = max(alarm, least)
    alarm_of_each = max(alarm / len(found.names), least)
    checks = [
        _of_ranks(f"ranks of {name}", ranks, alarm_of_each, _fault_of_parameter(ranks))
        for name, ranks in zip(found.names, found.sbc, strict=True)
    ]
    for name, ranks in found.joint.items():
        fault = _JOINT_FAULTS.get(name, _fault_of_tarp)(ranks)
        details = _covered(found) if name == "coverage" else ""
        checks.append(_of_ranks(name, ranks, alarm_of_joint, fault, details))
    if found.tested:
        yield from checks
        return
    # An alarm is right however few the draws; only its absence proves nothing.
    yield from (verdict for verdict in checks if verdict.passed is False)
    if found.near is None:
        drawn = "prior draws"
        remedy = _more(found, "or rank among samples=200 of every posterior")
    else:
        drawn = "samples of the posterior"
        remedy = _more(found)
    where = f"of {found.draws} {drawn} hardly any comes near the true parameters"
    yield Verdict("calibration", None, f"NOT TESTED: {where}; {remedy}")


def _parameters(found: Diagnosis) -> Iterator[Verdict]:
    divergences = ", ".join(
        f"{name} {nats:.2f}" for name, nats in zip(found.names, found.divergence, strict=True)
    )
    yield Verdict("each parameter", None, f"marginal posterior from prior, nats: {divergences}")
    shrinkage = ", ".join(
        f"{name} {100 * share:.0f} %"
        for name, share in zip(found.names, found.shrinkage, strict=True)
    )
    yield Verdict("shrinkage", None, f"of the prior's variance, explained: {shrinkage}")


def _of_ranks(name: str, ranks: Uniformity, alarm: float, fault: str, details: str = "") -> Verdict:
    passed = ranks.p_value >= alarm
    parts = [details, f"p = {ranks.p_value:.2g}", "" if passed else fault]
    return Verdict(name, passed, ", ".join(part for part in parts if part))


def _covered(found: Diagnosis) -> str:
    levels = " / ".join(str(level) for level in found.covered)
    covered = " / ".join(f"{100 * share:.0f}" for share in found.covered.values())
    return f"regions of {levels} % cover {covered} %"


def _fault_of_parameter(ranks: Uniformity) -> str:
    """Say what is wrong if the ranks of a parameter are not uniform."""
    shift = abs(ranks.mean - 0.5)
    excess = ranks.spread - 1
    if shift > abs(excess) / 2:
        return f"posteriors lie too {'low' if ranks.mean > 0.5 else 'high'}"
    return "posteriors are too narrow" if excess > 0 else "posteriors are too wide"


def _fault_of_coverage(ranks: Uniformity) -> str:
    """Say what is wrong if the levels of highest-density regions are not uniform."""
    return "too narrow: over-confident" if ranks.lacking else "too wide: under-confident"


def _fault_of_tarp(_: Uniformity) -> str:
    """Say what is wrong if the ranks of distances are not uniform."""
    return "posteriors are displaced, too narrow or too wide"


# What a failure means, for each of the joint statistics of ``ranks.py``.
_JOINT_FAULTS = {"coverage": _fault_of_coverage, "TARP": _fault_of_tarp}
