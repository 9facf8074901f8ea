"""Figures of diagnostics: ranks, z-scores, coverage, and what the data leave open."""

import numpy as np

from eande.diagnostics.diagnosis import Diagnosis
from eande.diagnostics.identifiability import Identifiability
from eande.diagnostics.uniformity import Uniformity
from eande.foundations.checks import InputError, check_instance, show
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.plots.style import COLORS, OURS, REFERENCE, Axes, Figure

# Ellipses are drawn at this share of a standard deviation, so that they do not overlap.
_DRAWN = 0.3


def diagnosis(found: Diagnosis) -> Figure:
    """Show the ranks of every check in the band of uniform ones, and z-scores against shrinkage.

    Args:
        found: by :func:`eande.diagnose`.
    """
    check_instance("found", found, Diagnosis, "a Diagnosis (from eande.diagnose)")
    panels = len(found.checks)
    columns = min(3, panels + 1)
    rows = -(-(panels + 1) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (name, ranks) in zip(axes, found.checks.items(), strict=False):
        _ranks(axis, name, ranks)
    _z_scores(axes[panels], found)
    for axis in axes[panels + 1 :]:
        axis.set_axis_off()
    band = "band: 95 % simultaneous for a calibrated model"
    missing = "NOT TESTED: too few prior draws near the true parameters"
    title = f"{found.data} held-out data; {band if found.tested else missing}"
    figure.suptitle(title, fontsize=10)
    return figure


def coverage(diagnosis: Diagnosis) -> Figure:
    """Show how often regions of the highest density hold the true parameters, at every level.

    On the diagonal they do as often as they say. Under it posteriors are too narrow, over it too
    wide; within the band the difference may be chance.

    Args:
        diagnosis: by :func:`eande.diagnose`.

    Example:
        >>> found = eande.diagnose(model, held_out, progress=False)
        >>> print(coverage(found).axes[0].get_title())
        no sign of miscalibration among 200 data (p = ...)
        regions of 50 % hold ... %, 80 % hold ... %, 95 % hold ... %
    """
    check_instance("diagnosis", diagnosis, Diagnosis, "a Diagnosis (from eande.diagnose)")
    found = diagnosis.coverage
    figure = Figure(figsize=(4.8, 5.0), layout="constrained")
    axis = figure.subplots()
    # Nothing is covered at level 0, and everything at level 1.
    level = np.concatenate([[0.0], found.places, [1.0]])
    low, high = np.concatenate([[[0.0, 0.0]], found.band, [[1.0, 1.0]]]).T
    share = np.concatenate([[0.0], found.below, [1.0]])
    axis.fill_between(
        level,
        low,
        high,
        color=REFERENCE,
        alpha=0.35,
        linewidth=0,
        label=f"95 % band of a calibrated model, {diagnosis.data} data",
    )
    axis.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":", label="as it should be")
    axis.plot(level, share, color=OURS, linewidth=1.8, label="this model")
    axis.text(0.03, 0.97, "too wide", va="top", fontsize=9, color="0.35")
    axis.text(0.97, 0.03, "too narrow", ha="right", fontsize=9, color="0.35")
    axis.set(
        xlabel="level of the region",
        ylabel="share of data whose region holds the truth",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
    axis.set_title(_coverage_in_words(diagnosis), fontsize=9)
    figure.legend(loc="outside lower center", frameon=False, fontsize=8)
    return figure


def _coverage_in_words(diagnosis: Diagnosis) -> str:
    """Say what the curve shows: on which side it leaves the band, if it does."""
    if not diagnosis.tested:
        return "NOT TESTED: too few prior draws near the true parameters"
    found = diagnosis.coverage
    covered = ", ".join(f"{level} % hold {100 * s:.0f} %" for level, s in diagnosis.covered.items())
    low, high = found.band.T
    if ((found.below >= low) & (found.below <= high)).all():
        words = f"no sign of miscalibration among {diagnosis.data} data"
    elif found.lacking:
        words = "posteriors are too narrow: over-confident"
    else:
        words = "posteriors are too wide: under-confident"
    return f"{words} (p = {found.p_value:.2g})\nregions of {covered}"


def ellipses(found: Identifiability, *, pair: tuple[int, int] = (0, 1)) -> Figure:
    """Show what the data leave open around points of the prior.

    Ellipses are of the local posterior's covariance, prior included, at 0.3 standard deviations.

    Args:
        found: by :func:`eande.identifiability`.
        pair: which two parameters.
    """
    check_instance(
        "found", found, Identifiability, "an Identifiability (from eande.identifiability)"
    )
    parameters = range(len(found.names))
    is_pair = isinstance(pair, list | tuple) and len(set(map(str, pair))) == len(pair) == 2
    if not is_pair or not all(one in parameters for one in pair):
        raise InputError(
            f"pair: expected the numbers of two of {len(parameters)} parameters, got {show(pair)}"
        )
    first, second = pair
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    axis = figure.subplots()
    angle = np.linspace(0, 2 * np.pi, 60)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    # Of the other parameters nothing is known but the prior.
    covariance = np.linalg.inv(found.fisher.numpy() + np.eye(len(found.names)))
    covariance = covariance[:, [[first], [second]], [first, second]]
    scale = found.scale[[first, second]].numpy()
    centres = found.phi[:, [first, second]].numpy()
    known = found.known.numpy()
    for centre, matrix in zip(centres[known], covariance[known], strict=True):
        unit = np.linalg.cholesky(matrix) @ circle
        x, y = centre[:, None] + _DRAWN * scale[:, None] * unit
        axis.plot(x, y, color=OURS, linewidth=0.8)
    axis.set(xlabel=found.names[first], ylabel=found.names[second])
    axis.set_title(f"what the data leave open, {_DRAWN} standard deviations", fontsize=10)
    return figure


def _ranks(axis: Axes, name: str, ranks: Uniformity) -> None:
    """Draw the distribution of ranks less the diagonal: deviations are too small to see on it."""
    low, high = (ranks.band - ranks.places[:, None]).T
    axis.fill_between(ranks.places, low, high, color=REFERENCE, alpha=0.35, linewidth=0)
    axis.plot(ranks.places, ranks.below - ranks.places, color=OURS)
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_title(f"{name}, p = {ranks.p_value:.2g}", fontsize=9)
    axis.set(xlabel="level", ylabel="share below − level", xlim=(0, 1))


def _z_scores(axis: Axes, found: Diagnosis) -> None:
    """Draw the z-score of every datum and parameter against the shrinkage of the variance."""
    for d, name in enumerate(found.names):
        deviation = found.weighed.deviation[:, d]
        known = (found.weighed.effective_draws >= ENOUGH_DRAWS) & (deviation > 0)
        z = (found.weighed.mean[:, d] - found.phi[:, d])[known] / deviation[known]
        shrinkage = 1 - (deviation[known] / found.prior_deviation[d]) ** 2
        axis.plot(
            shrinkage,
            z,
            "o",
            color=COLORS[d % len(COLORS)],
            markersize=2,
            alpha=0.5,
            markeredgewidth=0,
            label=name,
        )
    axis.set(xlabel="shrinkage of the prior's variance", ylabel="z-score", title="")
    axis.legend(frameon=False, fontsize=8)
