"""Figures of posteriors on a square: densities, and the circle they should lie on."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from eande.foundations.checks import check_positive, check_text
from eande.plots.arguments import as_array, by_name
from eande.plots.style import ACCENT, OURS, REFERENCE, Axes, Figure

# Heat maps saturate at this quantile: single peaks would leave the rest dark.
_BRIGHTEST = 0.998
# Densities that are zero everywhere still need a scale.
_TINY = 1e-9


def ring(
    density: np.ndarray,
    samples: np.ndarray,
    reference: np.ndarray,
    *,
    half_width: float,
    title: str = "",
    method: str = "Embed & Emulate",
) -> Figure:
    """Show a posterior of two parameters on a square: heat map, reference circle and marginals.

    Args:
        density: posterior density on a grid (k, k) over the square, first axis the first
            parameter.
        samples: of the posterior (n, 2).
        reference: samples of the reference (m, 2).
        half_width: of the square.
        title: of the figure.
        method: whose posterior it is.
    """
    density = as_array("density", density, ("k", "k"))
    samples = as_array("samples", samples, ("n", 2))
    reference = as_array("reference", reference, ("m", 2))
    check_positive("half_width", half_width)
    check_text("title", title)
    check_text("method", method)
    figure = Figure(figsize=(5.4, 5.6), layout="constrained")
    axes = figure.subplots(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    axes[0, 1].set_axis_off()
    above = axes[0, 0]
    main = axes[1, 0]
    beside = axes[1, 1]
    limits = (-half_width, half_width)
    _heat_map(main, density, half_width)
    main.set_aspect("auto")
    order = np.argsort(np.arctan2(reference[:, 1], reference[:, 0]))
    main.plot(*reference[order].T, ".", color=ACCENT, markersize=1.5, label="reference circle")
    main.set(xlabel="F₁", ylabel="F₂", xlim=limits, ylim=limits)
    main.legend(loc="center", fontsize=8, frameon=True)
    _marginals(above, samples[:, 0], reference[:, 0], limits)
    _marginals(beside, samples[:, 1], reference[:, 1], limits, "horizontal")
    above.set(xticks=[], yticks=[])
    beside.set(xticks=[], yticks=[])
    above.set_xlim(limits)
    beside.set_ylim(limits)
    figure.suptitle(f"{title}\nmarginals: filled reference, line {method}", fontsize=10)
    return figure


def posterior_grid(
    densities: Mapping[str, np.ndarray], phi: np.ndarray, *, half_width: float
) -> Figure:
    """Show posteriors on a square: a row per observation, a column per method.

    Each has the reference circle and its marginals.

    Args:
        densities: per method, densities (rows, k, k) relative to the uniform prior, first axis of
            a grid the first parameter.
        phi: true parameters (rows, 2).
        half_width: of the square.
    """
    phi = as_array("phi", phi, ("rows", 2))
    densities = {
        name: as_array("densities", maps, (len(phi), "k", "k"))
        for name, maps in by_name("densities", densities).items()
    }
    check_positive("half_width", half_width)
    size = (2.5 * len(densities) + 0.4, 2.6 * len(phi) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(phi), len(densities), squeeze=False)
    limits = (-half_width, half_width)
    angle = np.linspace(0, 2 * np.pi, 400)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for column, (name, maps) in enumerate(densities.items()):
        for row, (density, truth) in enumerate(zip(maps, phi, strict=True)):
            axis = axes[row, column]
            radius = np.hypot(*truth)
            _heat_map(axis, density, half_width)
            axis.plot(*(radius * circle), color=ACCENT, linewidth=1.0, linestyle=(0, (1, 6)))
            place = np.linspace(*limits, len(density))
            first = _height(density.mean(1), half_width)
            second = _height(density.mean(0), half_width)
            axis.plot(place, first, color="white", linewidth=0.9)
            axis.plot(second, place, color="white", linewidth=0.9)
            axis.set(xlim=limits, ylim=limits, xticks=(-15, 0, 15), yticks=(-15, 0, 15))
            if row == 0:
                axis.set_title(name, fontsize=9)
            if column == 0:
                axis.set_ylabel(f"F = {radius:.1f}\nF₂")
            if row == len(phi) - 1:
                axis.set_xlabel("F₁")
    legend = ("heat map: posterior", "dotted: reference circle", "white: marginals")
    # Two columns are narrower than the three on one line.
    figure.suptitle(("    " if len(densities) > 2 else "\n").join(legend), fontsize=9)
    return figure


def _marginals(
    axis: Axes,
    ours: np.ndarray,
    reference: np.ndarray,
    limits: tuple[float, float],
    orientation: Literal["vertical", "horizontal"] = "vertical",
) -> None:
    """Draw histograms of one parameter: the reference filled, ours as a line."""
    common: dict[str, Any] = {
        "bins": 40,
        "range": limits,
        "density": True,
        "orientation": orientation,
    }
    axis.hist(reference, color=REFERENCE, alpha=0.6, **common)
    axis.hist(ours, histtype="step", color=OURS, linewidth=1.6, **common)


def _heat_map(axis: Axes, density: np.ndarray, half_width: float) -> None:
    axis.imshow(
        density.T,
        origin="lower",
        extent=(-half_width, half_width, -half_width, half_width),
        cmap="cividis",
        vmax=max(np.quantile(density, _BRIGHTEST), _TINY),
    )


def _height(marginal: np.ndarray, half_width: float) -> np.ndarray:
    """Return a marginal density as heights over the lower edge, an eighth of the square at most."""
    return -half_width + 0.25 * half_width * marginal / max(marginal.max(), _TINY)
