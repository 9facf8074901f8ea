"""Posterior predictive data, with what was observed over them."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    as_names,
    check_count,
    check_no_infinity,
    check_shape,
    check_text,
    show_shape,
)
from eande.plots.style import ACCENT, OURS, Axes, Figure, plain
from eande.simulation.read.simulations import Simulations

# A vector of no more numbers than this is drawn number by number, a longer one as a series.
_SHORT = 20
# Of an array with two axes, so many rows at most are channels of a series; more are a grid.
_CHANNELS = 12
# Channels that are drawn, at most.
_DRAWN = 6
# Shares of the predictive data within the bands, and how dark these are.
_BANDS = {0.9: 0.2, 0.5: 0.4}
# Numbers whose spreads differ by more than this factor have no axis in common.
_ALIKE = 30.0
# Residuals beyond so many standard deviations have the darkest colours.
_FAR = 3.0


def predictive(
    observed: Any, simulated: Any, *, names: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Show what the posterior predicts, and what was observed.

    A series, (length,) or (channels, length), is drawn over the bands that hold 50 and 90 % of the
    simulated ones at each place; a vector of up to 20 numbers in an interval for each of them; a
    grid, (channels, height, width) or more than 12 rows, beside the mean and the spread of the
    simulated ones and what is left, in standard deviations. NaN is what is missing.

    Args:
        observed: the datum.
        simulated: from parameters of its posterior, Simulations or an array of shape (n, …).
        names: of the numbers of a short vector, or of the channels.
        title: of the figure.

    Example:
        >>> simulated = np.random.default_rng(0).normal(size=(200, 50))
        >>> predictive(np.zeros(50), simulated).axes[0].get_title()
        '50 of 50 observed numbers lie within the 90 % band'
    """
    check_text("title", title)
    values = _finite_or_missing("observed", observed)
    if not 1 <= values.ndim <= 3:
        raise InputError(
            "observed: expected a vector, a series (channels, length) or a grid (channels, height, "
            f"width), got shape {show_shape(values.shape)}"
        )
    check_count("size of observed", values.size, 1)
    if isinstance(simulated, Simulations):
        simulated = simulated.y[:]
    drawn = _finite_or_missing("simulated", simulated)
    check_shape("simulated", torch.as_tensor(drawn), ("n", *values.shape))
    check_count("number of simulated data", len(drawn), 2)
    if values.ndim == 1 and len(values) <= _SHORT:
        figure = _vector(values, drawn, _names(names, len(values), "y"))
    elif values.ndim == 1:
        figure = _series(values[None], drawn[:, None], _names(names, 1, ""))
    elif values.ndim == 2 and len(values) <= _CHANNELS:
        figure = _series(values, drawn, _names(names, len(values), "channel "))
    else:
        shape = values.shape if values.ndim == 3 else (1, *values.shape)
        channels = _names(names, shape[0], "channel " if shape[0] > 1 else "")
        figure = _grid(values.reshape(shape), drawn.reshape(-1, *shape), channels)
    if title:
        plain(figure.suptitle(title, fontsize=11))
    return figure


def _finite_or_missing(name: str, given: Any) -> np.ndarray:
    """Return numbers as an array, in which NaN is what is missing."""
    numbers = as_float_tensor(name, given).detach().cpu()
    check_no_infinity(name, numbers)
    return numbers.double().numpy()


def _names(names: Any, count: int, word: str) -> tuple[str, ...]:
    """Return the given names, or a word with a number each; a word of its own for one alone."""
    if names is not None:
        return as_names("names", names, count)
    return (word.strip(),) if count == 1 else tuple(f"{word}{i + 1}" for i in range(count))


def _quantiles(drawn: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Return quantiles of simulated data at each place, NaN where all are missing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        return np.nanquantile(drawn, shares, axis=0)


def _within(values: np.ndarray, drawn: np.ndarray, what: str) -> str:
    """Say in words how much of what was observed lies where 90 % of the simulated does."""
    low, high = _quantiles(drawn, [0.05, 0.95])
    known = np.isfinite(values) & np.isfinite(low)
    inside = int(((values >= low) & (values <= high))[known].sum())
    return f"{inside:,} of {int(known.sum()):,} observed numbers lie within {what}"


def _vector(values: np.ndarray, drawn: np.ndarray, names: Sequence[str]) -> Figure:
    """Draw an interval for each number, in its own units or, where these differ, in deviations."""
    title = _within(values, drawn, "their 90 % intervals")
    low, high = _quantiles(drawn, [0.05, 0.95])
    width = np.where(high > low, high - low, 1.0)
    centre = np.nanmean(drawn, axis=0)
    reach = np.nanmax(np.abs([low - centre.mean(), high - centre.mean(), values - centre.mean()]))
    alike = reach <= _ALIKE * np.nanmin(width)
    label = "value"
    if not alike:
        spread = drawn.std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        drawn = (drawn - centre) / scale
        values = (values - centre) / scale
        label = "(value − predictive mean) / predictive standard deviation"
    figure = Figure(figsize=(6.4, 1.3 + 0.32 * len(values)), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(values))
    for share, alpha in _BANDS.items():
        low, high = _quantiles(drawn, [(1 - share) / 2, (1 + share) / 2])
        axis.barh(
            places,
            high - low,
            left=low,
            height=0.55,
            color=OURS,
            alpha=alpha,
            label=f"{100 * share:.0f} % of the predicted",
        )
    axis.plot(
        values, places, "D", color=ACCENT, markersize=6, markeredgecolor="white", label="observed"
    )
    axis.set_yticks(places, names)
    for text in axis.get_yticklabels():
        plain(text)
    axis.invert_yaxis()
    axis.margins(x=0.04)
    axis.set_xlabel(label)
    axis.set_title(title, fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _series(values: np.ndarray, drawn: np.ndarray, names: Sequence[str]) -> Figure:
    """Draw a panel per channel: the bands of the simulated series, and the observed one."""
    height = 2.6 if len(values) == 1 else 1.6 * len(values)
    figure = Figure(figsize=(6.8, 1.0 + height), layout="constrained")
    axes = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    places = np.arange(values.shape[1])
    for axis, name, own, simulated in zip(axes, names, values, drawn.swapaxes(0, 1), strict=True):
        for share, alpha in _BANDS.items():
            low, high = _quantiles(simulated, [(1 - share) / 2, (1 + share) / 2])
            label = f"{100 * share:.0f} % of the predicted"
            axis.fill_between(places, low, high, color=OURS, alpha=alpha, linewidth=0, label=label)
        middle = _quantiles(simulated, [0.5])[0]
        axis.plot(places, middle, color=OURS, linewidth=1.2, label="median of the predicted")
        marker = "." if len(places) <= 200 else ""
        axis.plot(places, own, color="black", linewidth=0.9, marker=marker, label="observed")
        plain(axis.yaxis.set_label_text(name))
        axis.margins(x=0.01)
    axes[0].set_title(_within(values, drawn, "the 90 % band"), fontsize=9)
    axes[-1].set_xlabel("place in the series")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _grid(values: np.ndarray, drawn: np.ndarray, names: Sequence[str]) -> Figure:
    """Draw a row per channel: observed, mean and spread of the simulated, standardised residual."""
    rows = min(len(values), _DRAWN)
    height, width = values.shape[1:]
    side = float(np.clip(2.6 * height / width, 1.2, 3.4))
    figure = Figure(figsize=(12.0, 0.9 + rows * side), layout="constrained")
    axes = figure.subplots(rows, 4, squeeze=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice|Degrees of freedom", RuntimeWarning)
        mean = np.nanmean(drawn, axis=0)
        spread = np.nanstd(drawn, axis=0)
    residual = (values - mean) / np.where(spread > 0, spread, np.nan)
    for row in range(rows):
        both = np.concatenate([values[row].ravel(), mean[row].ravel()])
        low, high = np.nanquantile(both, [0.002, 0.998])
        _picture(axes[row, 0], values[row], "cividis", low, high)
        _picture(axes[row, 1], mean[row], "cividis", low, high)
        _picture(axes[row, 2], spread[row], "cividis", 0.0, float(np.nanmax(spread[row])))
        _picture(axes[row, 3], residual[row], "PuOr", -_FAR, _FAR)
        plain(axes[row, 0].yaxis.set_label_text(names[row]))
    titles = ("observed", "mean of the predicted", "standard deviation of the predicted")
    for axis, title in zip(axes[0], (*titles, "(observed − mean) / deviation"), strict=True):
        axis.set_title(title, fontsize=9)
    left = len(values) - rows
    text = _within(values, drawn, "their 90 % intervals")
    if left:
        text += f"; {left} more channels are not drawn"
    figure.supxlabel(text, fontsize=9)
    return figure


def _picture(axis: Axes, values: np.ndarray, colors: str, low: float, high: float) -> None:
    """Draw an array with its scale; what is missing stays grey."""
    axis.set_facecolor("0.8")
    extend = "both" if colors == "PuOr" else "neither"
    drawn = axis.imshow(
        values, cmap=colors, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )
    axis.figure.colorbar(drawn, ax=axis, extend=extend)
    axis.tick_params(labelsize=7)
