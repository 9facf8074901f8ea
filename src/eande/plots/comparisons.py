"""Figures that compare methods or settings: boxes and curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eande.plots.style import ACCENT, COLORS, OURS, Axes, Figure

_BOXES = "box: quartiles over all seeds and test data, whiskers: 5–95 %"
_LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))


def distance_boxes(
    distances: Mapping[str, Sequence[float]], paper: Mapping[str, float], *, label: str
) -> Figure:
    """Show the distribution of distances per task as a box, and the paper's median as a line.

    Args:
        distances: values per task.
        paper: the paper's median per task.
        label: of the vertical axis.
    """
    figure, axis = _boxes(distances, width=1.9)
    for position, task in enumerate(distances, start=1):
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
    figure, axis = _boxes(values, width=1.3)
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
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axis = figure.subplots()
    for number, (name, (places, values)) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        mean = values.mean(0)
        spread = values.std(0)
        axis.plot(
            places,
            mean,
            color=color,
            linestyle=_LINE_STYLES[number % len(_LINE_STYLES)],
            label=name,
            marker="." if len(places) < 12 else None,
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
    axis.set_title(title, fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    return figure


def _boxes(values: Mapping[str, Sequence[float]], *, width: float) -> tuple[Figure, Axes]:
    """Draw a box per name, quartiles with whiskers at 5 and 95 %."""
    figure = Figure(figsize=(width * len(values) + 1.3, 3.6), layout="constrained")
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
