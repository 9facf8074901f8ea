"""How a fit went: losses and held-out scores per step, and what a search tried."""

from collections.abc import Sequence
from typing import Any

from eande.foundations.checks import InputError, check_instance
from eande.inference.describing import best_record, scored_runs
from eande.inference.model import EmbedAndEmulate
from eande.plots.style import COLORS, LINE_STYLES, Axes, Figure
from eande.similarities.prior_only import PriorOnly

# Of the runs of a search, so many are written out, the best first.
_MOST_LISTED = 6
# Scores under the prior's by more than this share of the best are cut off: a bad start would
# leave no room for the rest.
_BELOW = 0.5


def training(model: EmbedAndEmulate) -> Figure:
    """Show the held-out score and the loss of a fit at every step that was validated.

    The best moment of each run, whose weights the model has, is a star. Where the length was
    searched for, the best moment of every run that was tried is a point with its standard error,
    and the best of them are written out.

    Args:
        model: from :func:`eande.fit`; of an ensemble all members are shown.

    Example:
        >>> above = training(model).axes[0]
        >>> above.get_ylabel()
        'held-out log ratio, nats'
    """
    check_instance("model", model, EmbedAndEmulate, "a model (from eande.fit)")
    runs = scored_runs(model.history)
    if not runs:
        raise InputError("model: expected one with a history (from eande.fit), got one without")
    tried = _in_words(model.tried)
    text_height = 0.15 * len(tried)
    figure = Figure(figsize=(6.8, 4.8 + text_height), layout="constrained")
    above, below, under = figure.subplots(
        3, 1, height_ratios=(2.9, 1.9, max(text_height, 0.01)), gridspec_kw={"hspace": 0.0}
    )
    under.set_axis_off()
    under.text(0, 1, "\n".join(tried), va="top", fontsize=8)
    for number, history in enumerate(runs):
        style: dict[str, Any] = {
            "color": COLORS[number % len(COLORS)],
            "linestyle": LINE_STYLES[number % len(LINE_STYLES)],
            "linewidth": 1.4,
        }
        name = f"member {number + 1}" if len(runs) > 1 else "this model"
        above.plot(*_column(history, "score"), label=name, **style)
        below.plot(*_column(history, "loss"), **style)
        best = best_record(history)
        above.plot(best["step"], best["score"], "*", color=style["color"], markersize=11)
    above.plot([], [], "*", color="0.3", markersize=9, linestyle="", label="best moment")
    _points(above, model.tried)
    above.axhline(0, color="0.5", linewidth=0.9, linestyle=":", label="the prior's own score")
    scores = [record["score"] for history in (*runs, model.tried) for record in history]
    above.set_ylim(*_limits(scores))
    above.tick_params(labelbottom=False)
    above.sharex(below)
    above.set_ylabel(_name_of_score(model.history))
    above.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    below.set(xlabel="step", ylabel="loss in training")
    figure.suptitle(_title(model, runs), fontsize=10)
    return figure


def _limits(scores: Sequence[float]) -> tuple[float, float]:
    """Return between which scores the axis reaches: the prior's too, a bad start not wholly."""
    high = max(*scores, 0.0)
    low = min(*scores, 0.0)
    if high > 0:
        low = max(low, -max(_BELOW * high, 1.0))
    margin = 0.06 * (high - low) or 0.1
    return low - margin, high + margin


def _column(history: Sequence[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """Return steps, and what the records there have of that name: before the first is no loss."""
    known = [record for record in history if name in record]
    return [record["step"] for record in known], [record[name] for record in known]


def _points(axis: Axes, tried: Sequence[dict[str, Any]]) -> None:
    """Draw the best moments of the runs of a search."""
    if not tried:
        return
    axis.errorbar(
        [trial["best_step"] for trial in tried],
        [trial["score"] for trial in tried],
        [trial["error"] for trial in tried],
        fmt="o",
        color="0.45",
        markersize=4,
        markerfacecolor="white",
        elinewidth=0.8,
        label=f"{len(tried)} runs tried,\nbest moment of each",
    )


def _in_words(tried: Sequence[dict[str, Any]]) -> list[str]:
    """Return the runs of a search in a line each, the best first; nothing where there was none."""
    if not tried:
        return []
    lines = ["tried, and what they reached at best:"]
    for trial in sorted(tried, key=lambda trial: -trial["score"])[:_MOST_LISTED]:
        inputs = "" if trial["inputs"] == "all" else f", {trial['inputs']} inputs"
        lines.append(
            f"{trial['score']:.2f} ± {trial['error']:.2f}   {trial['start']} start, repulsion "
            f"{trial['repulsion']}{inputs}, {trial['steps']:,} steps"
        )
    if len(tried) > _MOST_LISTED:
        lines.append(f"{len(tried) - _MOST_LISTED} more are in model.tried")
    return lines


def _name_of_score(history: Sequence[dict[str, Any]]) -> str:
    """Return what models were selected by: the log ratio, unless the settings said otherwise."""
    other = any(
        abs(record.get("held_out_log_ratio", record["score"]) - record["score"]) > 1e-9
        for record in history
        if "score" in record
    )
    return "held-out score" if other else "held-out log ratio, nats"


def _title(model: EmbedAndEmulate, runs: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Return what was trained, and what came of it."""
    best = max(best_record(history)["score"] for history in runs)
    steps = max(history[-1]["step"] for history in runs)
    members = f"{len(runs)} members, " if len(runs) > 1 else ""
    text = f"{members}{steps:,} steps, at best {best:.2f} on held-out pairs"
    if isinstance(model.similarity, PriorOnly):
        text += "\nno better than the prior, which this model therefore returns"
    return text
