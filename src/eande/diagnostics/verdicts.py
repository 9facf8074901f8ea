"""A diagnosis in words: one line per check."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eande.diagnostics.ranks import SMALLEST, Uniformity
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.inference.samplers.importance import UNRELIABLE

if TYPE_CHECKING:
    from eande.diagnostics.diagnose import Diagnosis

# The information within so many nats of what so many draws can show is a ceiling, not a measurement.
_NEAR = 1.0


@dataclass(frozen=True)
class Verdict:
    """One check in words.

    Args:
        name: of the check.
        passed: False raises an alarm; None only informs.
        text: what was found.
    """

    name: str
    passed: bool | None
    text: str


def in_words(found: "Diagnosis", alarm: float, *, shared: bool) -> Iterator[Verdict]:
    """Say what a diagnosis found, check by check.

    Args:
        found: the numbers.
        alarm: how often each check of ranks may raise an alarm about a model that is right.
        shared: whether data share prior draws too few to be taken for the prior.
    """
    learned = found.log_ratio > 2 * found.log_ratio_error
    amount = f"{found.log_ratio:.2f} ± {found.log_ratio_error:.2f} nats"
    saying = (
        "at least so much do the data say about the parameters"
        if learned
        else "no better than the prior"
    )
    yield Verdict("log ratio", learned, f"{amount}: {saying}")
    if found.log_ratio > found.ceiling - _NEAR:
        yield Verdict(
            "information",
            None,
            f"near {found.ceiling:.1f} nats, all that {found.draws} draws can show: raise draws",
        )
    calibration = list(_calibration(found, alarm, shared))
    # Alarms mean what they say, however few the draws; that there is none does not.
    yield from (
        calibration
        if found.tested
        else (verdict for verdict in calibration if verdict.passed is False)
    )
    if not found.tested:
        where = f"of {found.draws} prior draws hardly any comes near the true parameters"
        yield Verdict(
            "calibration",
            None,
            f"NOT TESTED: {where}; raise draws, or rank among samples=200 of every posterior",
        )
    few = (found.weighed.effective_draws < ENOUGH_DRAWS).double().mean().item()
    if few < 1:
        told = ", ".join(
            f"{name} {nats:.2f}" for name, nats in zip(found.names, found.divergence, strict=True)
        )
        yield Verdict("each parameter", None, f"marginal posterior from prior, nats: {told}")
        shrinkage = ", ".join(
            f"{name} {100 * share:.0f} %"
            for name, share in zip(found.names, found.shrinkage, strict=True)
        )
        yield Verdict("shrinkage", None, f"of the prior's variance, explained: {shrinkage}")
    noise = f"{100 * found.cv_noise:.0f} % by the finite number of draws alone"
    yield Verdict(
        "normaliser", None, f"C varies by {100 * found.cv_normalizer:.0f} % over data, {noise}"
    )
    if few > 0:
        left = "" if few == 1 else ", and the two lines on parameters leave them out"
        blunt = f"fewer than {ENOUGH_DRAWS} draws carry {100 * few:.0f} % of the posteriors: checks are blunt there{left}; raise draws"
        yield Verdict("draws", None, blunt)
    if found.pareto_k is not None:
        unreliable = int((found.pareto_k > UNRELIABLE).sum())
        yield Verdict(
            "importance",
            None,
            f"Pareto k above {UNRELIABLE} for {unreliable} of {len(found.pareto_k)} posteriors",
        )


def _calibration(found: "Diagnosis", alarm: float, shared: bool) -> Iterator[Verdict]:
    # Ranks that share few draws have no p-value under the smallest.
    least = 2 * SMALLEST if shared else 0.0
    alarm, alarm_of_each = max(alarm, least), max(alarm / len(found.names), least)
    for name, ranks in zip(found.names, found.sbc, strict=True):
        yield _calibrated(f"ranks of {name}", ranks, alarm_of_each, _shape_of_ranks(ranks))
    covered = " / ".join(f"{100 * share:.0f}" for share in found.covered.values())
    levels = " / ".join(str(level) for level in found.covered)
    side = (
        "too narrow: over-confident" if found.coverage.mean > 0.5 else "too wide: under-confident"
    )
    yield _calibrated(
        "coverage", found.coverage, alarm, side, f"regions of {levels} % cover {covered} %"
    )
    yield _calibrated("TARP", found.tarp, alarm, "posteriors are displaced, too narrow or too wide")


def _calibrated(name: str, ranks: Uniformity, alarm: float, fault: str, text: str = "") -> Verdict:
    passed = ranks.p_value >= alarm
    parts = [text, f"p = {ranks.p_value:.2g}", "" if passed else fault]
    return Verdict(name, passed, ", ".join(part for part in parts if part))


def _shape_of_ranks(ranks: Uniformity) -> str:
    """Say what ranks that are not uniform look like."""
    shift, spread = abs(ranks.mean - 0.5), ranks.spread - 1
    if shift > abs(spread) / 2:
        return f"posteriors lie too {'low' if ranks.mean > 0.5 else 'high'}"
    return "posteriors are too narrow" if spread > 0 else "posteriors are too wide"
