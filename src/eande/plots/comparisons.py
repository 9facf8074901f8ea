"""Figures that compare methods or settings: boxes and curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eande.foundations.checks import (
    InputError,
    check_flag,
    check_number,
    check_positive,
    check_text,
    show,
)
from eande.plots.arguments import as_array, by_name
from eande.plots.style import ACCENT, COLORS, LINE_STYLES, OURS, Axes, Figure

# Places of curves that are few enough to be marked, and the range in which each has its label.
_FEW = 12
_NARROW = 100
_BOXES = "box: quartiles over all seeds and test data, whiskers: 5–95 %"


def distance_boxes(
    distances: Mapping[str, Sequence[float]], paper: Mapping[str, float], *, label: str
) -> Figure:
    """Show the distribution of distances per task as a box, and the paper's median as a line.

    Args:
        distances: values per task.
        paper: the paper's median per task.
        label: of the vertical axis.
    """
    values = _as_values("distances", distances)
    paper = by_name("paper", paper)
    for task in values:
        check_number("paper", paper.get(task))
    check_text("label", label)
    figure, axis = _boxes(values, width=1.9)
    for position, task in enumerate(values, start=1):
        axis.plot(
            [position - 0.4, position + 0.4],
            [paper[task], paper[task]],
            color=ACCENT,
            linestyle="--",
            label="paper's median" if position == 1 else None,
        )
    axis.set_ylim(bottom=0)
    axis.set_ylabel(label)
    axis.set_title(_BOXES, fontsize=9)
    axis.legend(frameon=False)
    return figure


def boxes(
    values: Mapping[str, Sequence[float]],
    *,
    label: str,
    floor: float | None = None,
    title: str = "",
) -> Figure:
    """Show the distribution of values per method as a box, on a logarithmic axis.

    Args:
        values: per method.
        label: of the vertical axis.
        floor: the value of the reference against itself, shown as a line.
        title: of the figure.
    """
    drawn = _as_values("values", values)
    check_text("label", label)
    check_text("title", title)
    if floor is not None:
        check_positive("floor", floor)
    figure, axis = _boxes(drawn, width=1.3)
    if floor is not None:
        axis.axhline(floor, color=ACCENT, linestyle="--", label="floor: reference against itself")
        axis.legend(frameon=False, fontsize=8)
    axis.set(yscale="log", ylabel=label)
    axis.set_title(f"{title}\n{_BOXES}".strip(), fontsize=9)
    return figure


def curves(
    lines: Mapping[str, tuple[Sequence[float], np.ndarray]],
    *,
    x: str,
    y: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Show one line per name: the mean over repetitions in a band of one standard deviation.

    Args:
        lines: places and values (repetitions, places) per name.
        x: label.
        y: label.
        title: of the figure.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical axis is.
    """
    drawn = {name: _as_line(line) for name, line in by_name("lines", lines).items()}
    check_text("x", x)
    check_text("y", y)
    check_text("title", title)
    check_flag("log_x", log_x)
    check_flag("log_y", log_y)
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axis = figure.subplots()
    for number, (name, (places, values)) in enumerate(drawn.items()):
        color = COLORS[number % len(COLORS)]
        mean = values.mean(0)
        spread = values.std(0)
        axis.plot(
            places,
            mean,
            color=color,
            linestyle=LINE_STYLES[number % len(LINE_STYLES)],
            label=name,
            marker="." if len(places) < _FEW else None,
        )
        low = mean - spread
        high = mean + spread
        axis.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
    axis.set(
        xlabel=x,
        ylabel=y,
        xscale="log" if log_x else "linear",
        yscale="log" if log_y else "linear",
    )
    places = np.unique(np.concatenate([line[0] for line in drawn.values()]))
    if log_x and len(places) < _FEW and 0 < places.max() < _NARROW * places.min():
        # Powers of ten would be one or two labels.
        axis.set_xticks(places, [f"{place:,g}" for place in places])
        axis.minorticks_off()
    axis.set_title(title, fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    return figure


def _as_line(line: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return places (k,) and values (repetitions, k) of a line."""
    if not isinstance(line, list | tuple) or len(line) != 2:
        raise InputError(f"lines: expected (places, values) per name, got {show(line)}")
    places = as_array("lines", line[0], ("places",))
    return places, as_array("lines", line[1], ("repetitions", len(places)))


def _as_values(name: str, values: Any) -> dict[str, np.ndarray]:
    """Return the values per name, an array each."""
    return {key: as_array(name, some, ("n",)) for key, some in by_name(name, values).items()}


def _boxes(values: Mapping[str, np.ndarray], *, width: float) -> tuple[Figure, Axes]:
    """Draw a box per name, quartiles with whiskers at 5 and 95 %."""
    # The title has its place above one box, too.
    figure = Figure(figsize=(max(5.2, width * len(values) + 1.3), 3.6), layout="constrained")
    axis = figure.subplots()
    line: dict[str, Any] = {"color": OURS}
    axis.boxplot(
        list(values.values()),
        tick_labels=list(values),
        showfliers=False,
        whis=(5, 95),
        widths=0.5,
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        medianprops={"color": OURS, "linewidth": 2.5},
    )
    return figure, axis
