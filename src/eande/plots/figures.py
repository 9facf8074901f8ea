"""Figures: results in, a matplotlib Figure out. Colours stay apart for colour-blind readers (Okabe and Ito's)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eande.diagnostics.diagnosis import Diagnosis
from eande.diagnostics.identifiability import Identifiability
from eande.foundations.checks import InputError
from eande.inference.normalizer import ENOUGH_DRAWS

try:
    from matplotlib.figure import Figure
except ImportError:
    raise ImportError("figures need matplotlib: pip install 'embed-and-emulate[plots]'") from None

OURS, EXACT, ACCENT = "#0072B2", "#E69F00", "#D55E00"
COLORS = (OURS, ACCENT, "#009E73", "#CC79A7", EXACT, "#56B4E9", "#000000")


def posterior_pairs(
    ours: np.ndarray, reference: np.ndarray, names: Sequence[str], *, title: str = ""
) -> Figure:
    """Show samples of two posteriors: marginals on the diagonal, pairs below it.

    Args:
        ours: samples (n, D).
        reference: samples (m, D), for instance of the exact posterior.
        names: one per parameter.
        title: of the figure.
    """
    count = len(names)
    if not ours.shape[1] == reference.shape[1] == count:
        raise InputError(
            f"names: expected one per parameter, {ours.shape[1]} and {reference.shape[1]} of them, got {count}"
        )
    figure = Figure(figsize=(2.4 * count, 2.4 * count), layout="constrained")
    axes = figure.subplots(count, count, squeeze=False)
    limits = [
        (min(a.min(), b.min()), max(a.max(), b.max()))
        for a, b in zip(ours.T, reference.T, strict=True)
    ]
    for row in range(count):
        for column in range(count):
            axis = axes[row, column]
            if column > row:
                axis.set_axis_off()
            elif column == row:
                bins = np.linspace(*limits[row], 41)
                axis.hist(reference[:, row], bins, density=True, color=EXACT, alpha=0.6)
                axis.hist(
                    ours[:, row], bins, density=True, histtype="step", color=OURS, linewidth=1.6
                )
                axis.set_yticks([])
            else:
                axis.plot(
                    reference[:, column],
                    reference[:, row],
                    "o",
                    color=EXACT,
                    markersize=2.5,
                    alpha=0.5,
                    markeredgewidth=0,
                    rasterized=True,
                )
                axis.plot(
                    ours[:, column],
                    ours[:, row],
                    "o",
                    color=OURS,
                    markersize=1.2,
                    alpha=0.4,
                    markeredgewidth=0,
                    rasterized=True,
                )
                axis.set_xlim(limits[column])
                axis.set_ylim(limits[row])
            if row == count - 1:
                axis.set_xlabel(names[column])
            if column == 0 and row > 0:
                axis.set_ylabel(names[row])
    figure.suptitle(
        f"{title}\nfilled: exact    line and small points: Embed & Emulate", fontsize=10
    )
    return figure


def _boxes(values: Mapping[str, Sequence[float]], *, width: float) -> tuple[Figure, Any]:
    """Draw a box per name, quartiles with whiskers at 5 and 95 %."""
    figure = Figure(figsize=(width * len(values) + 1.3, 3.6), layout="constrained")
    axis = figure.subplots()
    style: dict[str, Any] = {"color": OURS}
    axis.boxplot(
        list(values.values()), tick_labels=list(values), showfliers=False, whis=(5, 95), widths=0.5,
        boxprops=style, whiskerprops=style, capprops=style, medianprops={"color": OURS, "linewidth": 2.5},
    )  # fmt: skip
    return figure, axis


def distance_boxes(
    distances: Mapping[str, Sequence[float]], paper: Mapping[str, float], *, label: str
) -> Figure:
    """Show a distribution of distances per task as a box, with the paper's median as a line beside it.

    Args:
        distances: values per task.
        paper: the paper's median per task.
        label: of the vertical axis.
    """
    figure, axis = _boxes(distances, width=1.9)
    for position, task in enumerate(distances, start=1):
        axis.plot(
            [position - 0.4, position + 0.4],
            [paper[task]] * 2,
            color=ACCENT,
            linestyle="--",
            label="paper's median" if position == 1 else None,
        )
    axis.set_ylim(bottom=0)
    axis.set_ylabel(label)
    axis.set_title("box: quartiles over all seeds and test data, whiskers: 5–95 %", fontsize=9)
    axis.legend(frameon=False)
    return figure


def ring(
    density: np.ndarray,
    samples: np.ndarray,
    reference: np.ndarray,
    *,
    half_width: float,
    title: str = "",
    method: str = "Embed & Emulate",
) -> Figure:
    """Show a posterior of two parameters on a square: heat map, the reference circle, and marginals of samples of both.

    Args:
        density: posterior density on a grid (k, k) over the square, first axis the first parameter.
        samples: of the posterior (n, 2).
        reference: samples of the reference (m, 2).
        half_width: of the square.
        title: of the figure.
        method: whose posterior it is.
    """
    figure = Figure(figsize=(5.4, 5.6), layout="constrained")
    axes = figure.subplots(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    axes[0, 1].set_axis_off()
    main, above, beside = axes[1, 0], axes[0, 0], axes[1, 1]
    limits = (-half_width, half_width)
    main.imshow(
        density.T,
        origin="lower",
        extent=(*limits, *limits),
        cmap="cividis",
        vmax=np.quantile(density, 0.998),
        aspect="auto",
    )
    order = np.argsort(np.arctan2(reference[:, 1], reference[:, 0]))
    main.plot(*reference[order].T, ".", color=ACCENT, markersize=1.5, label="reference circle")
    main.set(xlabel="F₁", ylabel="F₂", xlim=limits, ylim=limits)
    main.legend(loc="center", fontsize=8, frameon=True)
    bins = np.linspace(*limits, 41)
    for axis, column, orientation in ((above, 0, "vertical"), (beside, 1, "horizontal")):
        axis.hist(
            reference[:, column],
            bins,
            density=True,
            color=EXACT,
            alpha=0.6,
            orientation=orientation,
        )
        axis.hist(
            samples[:, column],
            bins,
            density=True,
            histtype="step",
            color=OURS,
            linewidth=1.6,
            orientation=orientation,
        )
        axis.set(xticks=[], yticks=[])
    above.set_xlim(limits)
    beside.set_ylim(limits)
    figure.suptitle(f"{title}\nmarginals: filled reference, line {method}", fontsize=10)
    return figure


def boxes(
    values: Mapping[str, Sequence[float]],
    *,
    label: str,
    floor: float | None = None,
    title: str = "",
) -> Figure:
    """Show a distribution of values per method as a box, on a logarithmic axis, with the floor as a line.

    Args:
        values: per method.
        label: of the vertical axis.
        floor: the value of the reference against itself.
        title: of the figure.
    """
    figure, axis = _boxes(values, width=1.3)
    if floor is not None:
        axis.axhline(floor, color=ACCENT, linestyle="--", label="floor: reference against itself")
        axis.legend(frameon=False, fontsize=8)
    axis.set(yscale="log", ylabel=label)
    axis.set_title(
        f"{title}\nbox: quartiles over all seeds and test data, whiskers: 5–95 %".strip(),
        fontsize=9,
    )
    return figure


def posterior_grid(
    densities: Mapping[str, np.ndarray], phi: np.ndarray, *, half_width: float
) -> Figure:
    """Show posteriors on a square: a row per observation, a column per method, each with the reference circle and its marginals.

    Args:
        densities: per method, densities (rows, k, k) relative to the uniform prior, first axis of a grid the first parameter.
        phi: true parameters (rows, 2).
        half_width: of the square.
    """
    figure = Figure(
        figsize=(2.5 * len(densities) + 0.4, 2.6 * len(phi) + 0.5), layout="constrained"
    )
    axes = figure.subplots(len(phi), len(densities), squeeze=False)
    limits, angle = (-half_width, half_width), np.linspace(0, 2 * np.pi, 400)
    for column, (name, maps) in enumerate(densities.items()):
        for row, (density, truth) in enumerate(zip(maps, phi, strict=True)):
            axis, radius = axes[row, column], np.hypot(*truth)
            axis.imshow(
                density.T,
                origin="lower",
                extent=(*limits, *limits),
                cmap="cividis",
                vmax=max(np.quantile(density, 0.998), 1e-9),
            )
            axis.plot(
                radius * np.cos(angle),
                radius * np.sin(angle),
                color=ACCENT,
                linewidth=1.0,
                linestyle=(0, (1, 6)),
            )
            place = np.linspace(*limits, len(density))
            for marginal, along in ((density.mean(1), "x"), (density.mean(0), "y")):
                height = limits[0] + 0.25 * half_width * marginal / max(marginal.max(), 1e-9)
                axis.plot(
                    *((place, height) if along == "x" else (height, place)),
                    color="white",
                    linewidth=0.9,
                )
            axis.set(xlim=limits, ylim=limits, xticks=(-15, 0, 15), yticks=(-15, 0, 15))
            if row == 0:
                axis.set_title(name, fontsize=9)
            if column == 0:
                axis.set_ylabel(f"F = {radius:.1f}\nF₂")
            if row == len(phi) - 1:
                axis.set_xlabel("F₁")
    figure.suptitle(
        "heat map: posterior    dotted: reference circle    white: marginals", fontsize=9
    )
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
    """Show one line per name, the mean over repetitions with a band of one standard deviation.

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
    styles = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
    for number, (name, (places, values)) in enumerate(lines.items()):
        color, mean, spread = COLORS[number % len(COLORS)], values.mean(0), values.std(0)
        axis.plot(
            places,
            mean,
            color=color,
            linestyle=styles[number % len(styles)],
            label=name,
            marker="." if len(places) < 12 else None,
        )
        axis.fill_between(
            places, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0
        )
    axis.set(
        xlabel=x, ylabel=y, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear"
    )
    axis.set_title(title, fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    return figure


def diagnosis(found: Diagnosis) -> Figure:
    """Show the ranks of every parameter, the coverage and TARP against the band uniform ones stay in, and z-scores against shrinkage.

    Args:
        found: by :func:`eande.diagnose`.
    """
    panels = list(found.checks.items())
    columns = min(3, len(panels) + 1)
    rows = -(-(len(panels) + 1) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (title, ranks) in zip(axes, panels, strict=False):
        # The difference from the diagonal: what matters is too small to see on it.
        axis.fill_between(
            ranks.places,
            *(ranks.band - ranks.places[:, None]).T,
            color=EXACT,
            alpha=0.35,
            linewidth=0,
        )
        axis.plot(ranks.places, ranks.below - ranks.places, color=OURS)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_title(f"{title}, p = {ranks.p_value:.2g}", fontsize=9)
        axis.set(xlabel="level", ylabel="share below − level", xlim=(0, 1))
    for d, name in enumerate(found.names):
        deviation = found.weighed.deviation[:, d]
        known = (found.weighed.effective_draws >= ENOUGH_DRAWS) & (deviation > 0)
        z = (found.weighed.mean[:, d] - found.phi[:, d])[known] / deviation[known]
        shrinkage = 1 - (deviation[known] / found.prior_deviation[d]) ** 2
        axes[len(panels)].plot(
            shrinkage,
            z,
            "o",
            color=COLORS[d % len(COLORS)],
            markersize=2,
            alpha=0.5,
            markeredgewidth=0,
            label=name,
        )
    axes[len(panels)].set(xlabel="shrinkage of the prior's variance", ylabel="z-score", title="")
    axes[len(panels)].legend(frameon=False, fontsize=8)
    for axis in axes[len(panels) + 1 :]:
        axis.set_axis_off()
    band = (
        "band: where a right model stays 95 times in 100"
        if found.tested
        else "NOT TESTED: too few prior draws near the true parameters"
    )
    figure.suptitle(f"{found.data} held-out data; {band}", fontsize=10)
    return figure


def ellipses(found: Identifiability, *, pair: tuple[int, int] = (0, 1)) -> Figure:
    """Show what the data leave open around points of the prior: ellipses of one standard deviation of the local posterior, prior included.

    Args:
        found: by :func:`eande.identifiability`.
        pair: which two parameters.
    """
    first, second = pair
    if not 0 <= min(pair) < max(pair) < len(found.names):
        raise InputError(
            f"pair: expected the numbers of two of {len(found.names)} parameters, got {pair}"
        )
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    axis = figure.subplots()
    scale, angle = found.scale[[first, second]].numpy(), np.linspace(0, 2 * np.pi, 60)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    # Of the other parameters nothing is known but the prior.
    covariance = np.linalg.inv(found.fisher.numpy() + np.eye(len(found.names)))[
        :, [[first], [second]], [first, second]
    ]
    known = found.known.numpy()
    for centre, matrix in zip(
        found.phi[:, [first, second]].numpy()[known], covariance[known], strict=True
    ):
        # Shrunk, so that they do not cover each other.
        x, y = centre[:, None] + 0.3 * scale[:, None] * (np.linalg.cholesky(matrix) @ circle)
        axis.plot(x, y, color=OURS, linewidth=0.8)
    axis.set(xlabel=found.names[first], ylabel=found.names[second])
    axis.set_title("what the data leave open, 0.3 standard deviations", fontsize=10)
    return figure
