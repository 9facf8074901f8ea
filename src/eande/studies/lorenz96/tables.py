"""The table of the Lorenz 96 study for a terminal, and a line about every run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from eande.diagnostics.diagnose import LEVELS


def run_line(run: Mapping[str, Any]) -> str:
    """Return a line about one run."""
    reached = max(record["held_out_log_ratio"] for record in run["history"])
    return f"{run['method']}, seed {run['seed']}: {reached:.2f} nats on held-out data"


def median_over_data(run: Mapping[str, Any], measure: str) -> float:
    """Return the median of a measure over the test data of a run."""
    return float(np.median(np.asarray(run["per_datum"][measure], dtype=float)))


def results_table(runs: Sequence[Mapping[str, Any]], samples: int) -> Table:
    """Return a row per run, for a terminal.

    Args:
        runs: records of the main table.
        samples: per posterior, of which MMD² is shown.
    """
    table = Table(title="Lorenz 96: medians over test data", box=SIMPLE)
    for column in ("method", "seed", "nats", "MMD²", "angle", "error", "z", "50/80/95"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for run in runs:
        table.add_row(
            run["method"],
            str(run["seed"]),
            f"{run['mean_log_ratio']:.2f}",
            f"{median_over_data(run, f'mmd2_0.05_{samples}'):.4f}",
            f"{median_over_data(run, 'angular_tv'):.3f}",
            f"{median_over_data(run, 'radial_error'):.3f}",
            f"{run['radial_z_rms']:.2f}",
            "/".join(f"{100 * run['coverage'][str(level)]:.0f}" for level in LEVELS),
        )
    table.add_row(
        "floor",
        "",
        "",
        f"{median_over_data(runs[-1], f'mmd2_floor_0.05_{samples}'):.4f}",
        f"{median_over_data(runs[-1], 'angular_tv_floor'):.3f}",
        "",
        "1.00",
        "50/80/95",
    )
    table.caption = (
        "nats: mean log ratio of the true parameters. MMD² (σ = 0.05) and total variation of the "
        "angle to the reference circle; floor: those of the reference to itself. error: of F. "
        "z: root mean square of the radial z-score. 50/80/95: how often such regions cover the "
        "truth, in %."
    )
    return table
