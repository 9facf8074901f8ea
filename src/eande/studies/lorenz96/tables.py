"""What runs of the Lorenz 96 study say: how they were made, in a line, in a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from eande.studies.lorenz96.recipes import Recipe
from eande.studies.lorenz96.sizes import Size
from eande.studies.lorenz96.terms import Terms


def recipe_of(run: Mapping[str, Any]) -> Recipe:
    """Return how a run was trained."""
    return Recipe(**run["settings"]["recipe"])


def terms_of(run: Mapping[str, Any]) -> Terms:
    """Return what a run got."""
    return Terms(**run["settings"]["terms"])


def size_of(run: Mapping[str, Any]) -> Size:
    """Return how much work a run was."""
    return Size(**run["settings"]["size"])


def run_line(run: Mapping[str, Any]) -> str:
    """Return a line about one run."""
    what = f"{run['method']}, b = {run['b']:g}, seed {run['seed']}"
    if run["trial"]:
        what += f", {run['trial']}"
    if run.get("failed"):
        return f"{what}: {run['failed']}"
    best = max(run["history"], key=lambda record: record["held_out_log_ratio"])
    medians = run["medians"]
    mmd2 = medians[f"mmd2_0.05_{size_of(run).samples}"]
    return (
        f"{what}, {run['seconds_training']:.0f} s: {run['score']:.2f} held out (epoch "
        f"{best['epoch']}), {run['mean_log_ratio']:.2f} nats, MMD² {mmd2:.4f}, "
        f"angle {medians['angular_tv']:.3f}, z {run['radial_z_rms']:.2f}"
    )


def median_over_data(run: Mapping[str, Any], measure: str) -> float:
    """Return the median of a measure over the test data of a run."""
    return float(np.median(np.asarray(run["per_datum"][measure], dtype=float)))
