"""A line about every run of the Lorenz 96 study, for a terminal, and what tables are made of."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def run_line(run: Mapping[str, Any]) -> str:
    """Return a line about one run."""
    what = f"{run['method']}, b = {run['b']:g}, seed {run['seed']}"
    if run["trial"]:
        what += f", {run['trial']}"
    if run.get("failed"):
        return f"{what}: {run['failed']}"
    best = max(run["history"], key=lambda record: record["held_out_log_ratio"])
    mmd = [value for name, value in run.items() if name.startswith("median_mmd2_0.05_")]
    return (
        f"{what}, {run['seconds_training']:.0f} s: {run['score']:.2f} held out (epoch "
        f"{best['epoch']}), {run['mean_log_ratio']:.2f} nats, MMD² {mmd[-1]:.4f}, "
        f"angle {run['median_angular_tv']:.3f}, z {run['radial_z_rms']:.2f}"
    )


def median_over_data(run: Mapping[str, Any], measure: str) -> float:
    """Return the median of a measure over the test data of a run."""
    return float(np.median(np.asarray(run["per_datum"][measure], dtype=float)))
