"""Samples of all parameters: each alone on the diagonal, each pair below it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from eande.foundations.checks import InputError, as_names, check_text
from eande.inference.derived import Derived, add_derived
from eande.inference.posterior import Posterior
from eande.plots.arguments import as_array, by_name
from eande.plots.densities import density, height_of
from eande.plots.style import (
    COLORS,
    LINE_STYLES,
    REFERENCE,
    Axes,
    Figure,
    Line2D,
    MaxNLocator,
    Patch,
    StrMethodFormatter,
    plain,
    unknown_letters_accepted,
)
from eande.priors.convert import as_prior

# Samples drawn of a posterior or a prior, always the same ones.
_DRAWN = 5_000
_SEED = 0
_MOST_PARAMETERS = 20
# Shares of the mass within contours.
_SHARES = (0.9, 0.5)
# Of fewer samples no density in the plane can be told: they are drawn as points.
_FEWEST = 100
_OF_PRIOR = "0.6"
# Of the largest density: what cannot be seen in a panel.
_UNSEEN = 0.005
# Between panels, of their width.
_GAP = 0.07
# Inches: of a panel where few, and of the whole where many.
_PANEL = 2.3
_WHOLE = 13.0
_SMALL_PANEL = 1.5
# Numbers at the axes of no more digits stand side by side.
_FEW_DIGITS = 4
# Points per letter of a name, about.
_LETTER = 5.0


class _Samples(NamedTuple):
    """Samples, and how they are drawn: as lines, or filled."""

    label: str
    values: np.ndarray
    color: str
    style: Any = "-"
    filled: bool = False


class _Drawing(NamedTuple):
    """All that a figure shows."""

    names: tuple[str, ...]
    sets: list[_Samples]
    truth: np.ndarray | None
    prior: np.ndarray | None

    def within(self, *places: int) -> np.ndarray | None:
        """Return between which values parameters can be, as far as the prior's draws tell."""
        if self.prior is None:
            return None
        drawn = self.prior[:, list(places)]
        return np.stack([drawn.min(0), drawn.max(0)])


def corner(
    samples: Any,
    *,
    names: Sequence[str] | None = None,
    truth: Any = None,
    prior: Any = None,
    reference: Any = None,
    derived: Derived | None = None,
    title: str = "",
) -> Figure:
    """Show posteriors: the density of each parameter, and of each pair the likeliest regions.

    These are the regions of the highest density that hold 50 and 90 % of the samples.

    Args:
        samples: a posterior, samples (n, D), or several of either by their labels.
        names: of the parameters; those of the posterior by default.
        truth: the true parameters (D,), drawn as lines.
        prior: drawn faintly on the diagonal; True takes that of the first posterior.
        reference: a posterior or samples (m, D) to compare with, drawn filled; or one of them by
            its label.
        derived: further quantities by name, each a function of the parameters by name.
        title: of the figure.

    Example:
        >>> samples = np.random.default_rng(0).normal(size=(1_000, 2))
        >>> figure = corner(samples, names=["rate", "scale"], truth=[0, 0])
        >>> [axis.get_xlabel() for axis in figure.axes]
        ['', 'rate', 'scale']
    """
    check_text("title", title)
    given = by_name("samples", samples) if isinstance(samples, Mapping) else {"posterior": samples}
    arrays = {label: _values("samples", one, None) for label, one in given.items()}
    dimension = next(iter(arrays.values())).shape[1]
    if dimension > _MOST_PARAMETERS:
        raise InputError(
            f"samples: expected at most {_MOST_PARAMETERS} parameters to draw, got {dimension}"
        )
    sets = []
    if reference is not None:
        label, filled = _labelled(reference)
        values = _values("reference", filled, dimension)
        sets.append(_Samples(label, values, REFERENCE, filled=True))
    for number, (label, values) in enumerate(arrays.items()):
        as_array("samples", values, ("n", dimension))
        color = COLORS[number % len(COLORS)]
        sets.append(_Samples(label, values, color, LINE_STYLES[number % len(LINE_STYLES)]))
    chosen = _names(names, given, dimension)
    point = None if truth is None else as_array("truth", truth, (dimension,))[None]
    before = _prior_draws(prior, given, dimension)

    def extended(values: np.ndarray) -> np.ndarray:
        return add_derived(chosen, torch.as_tensor(values), derived)[1].numpy()

    drawing = _Drawing(
        add_derived(chosen, torch.as_tensor(sets[0].values), derived)[0],
        [one._replace(values=extended(one.values)) for one in sets],
        None if point is None else extended(point)[0],
        None if before is None else extended(before),
    )
    return _draw(drawing, title)


def _values(name: str, given: Any, dimension: int | None) -> np.ndarray:
    """Return samples (n, D) of a posterior, or those that were given."""
    if isinstance(given, Posterior):
        given = given.sample(_DRAWN, seed=_SEED)[0]
    return as_array(name, given, ("n", "D" if dimension is None else dimension))


def _labelled(reference: Any) -> tuple[str, Any]:
    """Return the label of what is compared with, and the thing itself."""
    if not isinstance(reference, Mapping):
        return "reference", reference
    ((label, filled), *others) = by_name("reference", reference).items()
    if others:
        raise InputError(f"reference: expected one to compare with, got {len(others) + 1}")
    return label, filled


def _names(names: Any, given: Mapping[str, Any], dimension: int) -> tuple[str, ...]:
    if names is not None:
        return as_names("names", names, dimension)
    for one in given.values():
        if isinstance(one, Posterior):
            return one.prior.names
    return tuple(f"phi{d + 1}" for d in range(dimension))


def _prior_draws(prior: Any, given: Mapping[str, Any], dimension: int) -> np.ndarray | None:
    """Return draws of the prior (n, D), None where none is to be drawn."""
    if prior is None or prior is False:
        return None
    if prior is True:
        own = [one.prior for one in given.values() if isinstance(one, Posterior)]
        if not own:
            raise InputError("prior: expected a prior, for samples alone have none, got True")
        prior = own[0]
    prior = as_prior(prior)
    if prior.dimension != dimension:
        raise InputError(
            f"prior: expected one of {dimension} parameters, got one of {prior.dimension}"
        )
    return np.asarray(prior.sample(4 * _DRAWN, seed=_SEED))


def _draw(drawing: _Drawing, title: str) -> Figure:
    """Draw the lower triangle of panels, their axes shared by rows and columns."""
    count = len(drawing.names)
    side = min(_PANEL, _WHOLE / count)
    size = 4.2 if count == 1 else side * count + 0.6
    figure = Figure(figsize=(size, size))
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03)
    grid = figure.add_gridspec(count, count)
    limits = [_limits(drawing, d) for d in range(count)]
    small = 9 if side > _SMALL_PANEL else 7
    for row in range(count):
        for column in range(row + 1):
            axis = figure.add_subplot(grid[row, column])
            if row == column:
                _diagonal(axis, drawing, row)
            else:
                _pair(axis, drawing, column, row)
                axis.set_ylim(limits[row])
            axis.set_xlim(limits[column])
            last = row == count - 1
            _ticks(axis, side, small, pair=column < row, bottom=last, left=column == 0)
            if last:
                _name(axis.xaxis, drawing.names[column], side, small)
            if column == 0 < row:
                _name(axis.yaxis, drawing.names[row], side, small)
    figure.align_labels()
    _legend(figure, drawing, alone=count == 1)
    if title:
        plain(figure.suptitle(title, fontsize=11))
    if count > 1:
        _space_evenly(figure)
    return figure


def _space_evenly(figure: Figure) -> None:
    """Give all panels the same distance, within the margins that the labels need."""
    with unknown_letters_accepted():
        figure.draw_without_rendering()
    places = [axis.get_position() for axis in figure.axes]
    # None, and not "none": that keeps a place for the engine, and refuses what follows.
    figure.set_layout_engine(None)
    figure.subplots_adjust(
        left=min(place.x0 for place in places),
        bottom=min(place.y0 for place in places),
        right=max(place.x1 for place in places),
        top=max(place.y1 for place in places),
        wspace=_GAP,
        hspace=_GAP,
    )


def _limits(drawing: _Drawing, d: int) -> tuple[float, float]:
    """Return between which values a parameter is shown: where it has any density, and the truth."""
    ends = []
    for one in drawing.sets:
        place, height = _outline(one.values[:, d], drawing.within(d))
        seen = place[height > _UNSEEN * height.max()]
        ends.append(seen[[0, -1]])
    if drawing.truth is not None:
        ends.append(np.repeat(drawing.truth[d], 2))
    low = min(end[0] for end in ends)
    high = max(end[1] for end in ends)
    margin = 0.05 * (high - low) or 0.05 * abs(low) or 0.05
    return float(low - margin), float(high + margin)


def _diagonal(axis: Axes, drawing: _Drawing, d: int) -> None:
    """Draw the densities of one parameter."""
    if drawing.prior is not None:
        axis.plot(*_outline(drawing.prior[:, d]), color=_OF_PRIOR, linestyle=":", linewidth=1.3)
    for one in drawing.sets:
        place, height = _outline(one.values[:, d], drawing.within(d))
        if one.filled:
            axis.fill_between(place, height, color=one.color, alpha=0.45, linewidth=0)
        else:
            axis.plot(place, height, color=one.color, linestyle=one.style, linewidth=1.5)
    if drawing.truth is not None:
        axis.axvline(drawing.truth[d], color="black", linewidth=0.8)
    axis.set_ylim(bottom=0)


def _outline(values: np.ndarray, within: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return places and heights of a density, which falls to zero at its ends."""
    found = density(values[:, None], within).outlined()
    return found.centres[0], found.values


def _pair(axis: Axes, drawing: _Drawing, first: int, second: int) -> None:
    """Draw the likeliest regions of two parameters."""
    for one in drawing.sets:
        points = one.values[:, [first, second]]
        if len(points) < _FEWEST:
            marker = "s" if one.filled else "o"
            axis.plot(*points.T, marker, color=one.color, markersize=2.5, markeredgewidth=0)
            continue
        found = density(points, drawing.within(first, second)).outlined()
        levels = [height_of(found.values, share) for share in _SHARES]
        levels[1] = max(levels[1], np.nextafter(levels[0], np.inf))
        place = (*found.centres, found.values.T)
        if one.filled:
            shades = [(one.color, 0.3), (one.color, 0.65)]
            axis.contourf(*place, levels=[*levels, np.inf], colors=shades)
        else:
            axis.contour(
                *place, levels=levels, colors=one.color, linestyles=[one.style], linewidths=1.3
            )
    if drawing.truth is not None:
        axis.axvline(drawing.truth[first], color="black", linewidth=0.8)
        axis.axhline(drawing.truth[second], color="black", linewidth=0.8)
        axis.plot(drawing.truth[first], drawing.truth[second], "s", color="black", markersize=4)


def _ticks(axis: Axes, side: float, small: int, *, pair: bool, bottom: bool, left: bool) -> None:
    """Label a few numbers, at the bottom and at the left of the figure only."""
    few = 4 if side > _SMALL_PANEL else 3
    axis.tick_params(labelsize=small - 1, labelbottom=bottom, labelleft=left)
    axis.tick_params(axis="x", labelrotation=0 if side > _SMALL_PANEL else 45)
    for one in (axis.xaxis, axis.yaxis) if pair else (axis.xaxis,):
        low, high = one.get_view_interval()
        digits = 2 + int(np.ceil(np.log10(max(abs(low), abs(high)) / (high - low) + 1)))
        one.set_major_locator(MaxNLocator(few, prune="both"))
        one.set_major_formatter(StrMethodFormatter(f"{{x:.{max(_FEW_DIGITS, digits)}g}}"))
        if digits > _FEW_DIGITS and one is axis.xaxis:
            axis.tick_params(axis="x", labelrotation=45)
    if not pair:
        axis.set_yticks([])


def _name(side_of: Any, name: str, side: float, small: int) -> None:
    """Write a parameter's name at its axis; one longer than a panel is turned out of the way."""
    label = side_of.set_label_text(name, fontsize=small + 1)
    plain(label)
    if len(name) * _LETTER <= 72 * side:
        return
    if side_of.axis_name == "y":
        label.set(rotation=0, horizontalalignment="right")
    else:
        label.set(rotation=45, horizontalalignment="right", rotation_mode="anchor")


def _legend(figure: Figure, drawing: _Drawing, *, alone: bool) -> None:
    """Say what is what, where there are no panels: in the upper right corner."""
    entries: list[tuple[Any, str]] = []
    for one in drawing.sets:
        if one.filled:
            entries.append((Patch(color=one.color, alpha=0.55, linewidth=0), one.label))
        else:
            entries.append((Line2D([], [], color=one.color, linestyle=one.style), one.label))
    if drawing.prior is not None:
        entries.append((Line2D([], [], color=_OF_PRIOR, linestyle=":"), "prior"))
    if drawing.truth is not None:
        entries.append((Line2D([], [], color="black", linewidth=0.8), "truth"))
    legend = figure.legend(
        [handle for handle, _ in entries],
        [str(number) for number in range(len(entries))],
        loc="outside upper center" if alone else "upper right",
        ncols=2 if alone else 1,
        frameon=False,
        fontsize=9,
        title=None if alone else "regions: 50 and 90 %",
        title_fontsize=9,
    )
    # Afterwards: matplotlib leaves out labels that begin with an underscore.
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(label)
        plain(text)
