"""The tables of the synthetic study: a line per run, a row per task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

# An embedding that stays folded ends far above this median L1.
_TRAPPED = 0.3


def name_task(kappa: int, redundant: bool) -> str:
    """Return the name of a task."""
    return f"{_kind(redundant)}, κ = {kappa}"


def _kind(redundant: bool) -> str:
    return "multimodal" if redundant else "unimodal"


def run_line(run: Mapping[str, Any]) -> str:
    """Return a line about one run."""
    return (
        f"κ = {run['kappa']}, {_kind(run['redundant'])}, seed {run['seed']}: "
        f"L1 {run['l1_median']:.4f}, held-out {run['held_out_log_ratio']:.3f} "
        f"of {run['information']:.3f} nats, {run['seconds']:.0f} s"
    )


def summarize(
    results: Sequence[dict[str, Any]], paper: Mapping[tuple[int, bool], float]
) -> list[dict[str, Any]]:
    """Return one row per task: the median L1 over all seeds and test data, and the worst seeds.

    Args:
        results: the records of runs.
        paper: the paper's median per (κ, redundant); tasks come in its order.
    """
    rows = []
    for (kappa, redundant), published in paper.items():
        runs = [run for run in results if (run["kappa"], run["redundant"]) == (kappa, redundant)]
        if runs:
            row = {"kappa": kappa, "redundant": redundant, "paper_l1": published}
            rows.append(row | _summarize_task(runs, redundant))
    return rows


def _summarize_task(runs: Sequence[dict[str, Any]], redundant: bool) -> dict[str, Any]:
    pooled = np.array([value for run in runs for value in run["l1"]], dtype=float)
    medians = [run["l1_median"] for run in runs]
    sensitivity = max(run["redundant_sensitivity"] for run in runs) if redundant else None
    return {
        "l1_median": float(np.median(pooled)),
        "l1_quartiles": np.quantile(pooled, [0.25, 0.75]).tolist(),
        "l1_median_of_each_seed": medians,
        "smallest_r2": min(min(run["r2_f"], run["r2_g"]) for run in runs),
        "largest_cv_normalizer": max(run["cv_normalizer"] for run in runs),
        "largest_redundant_sensitivity": sensitivity,
        "smallest_sampling_p_value": min(run["sampling_p_value"] for run in runs),
        "trapped": sum(median > _TRAPPED for median in medians),
        "runs": len(runs),
    }


def results_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the table of a summary, for a terminal."""
    table = Table(title="L1 distance to the exact posterior: median, range over seeds", box=SIMPLE)
    for column in ("task", "κ", "paper", "ours", "seeds", "R²", "CV(C)", "∂g/∂φ_R"):
        table.add_column(column, justify="left" if column == "task" else "right", no_wrap=True)
    for row in rows:
        medians = row["l1_median_of_each_seed"]
        sensitivity = row["largest_redundant_sensitivity"]
        table.add_row(
            _kind(row["redundant"]),
            str(row["kappa"]),
            f"{row['paper_l1']:.3f}",
            f"{row['l1_median']:.4f}",
            f"{min(medians):.3f}–{max(medians):.3f}",
            f"{row['smallest_r2']:.4f}",
            f"{row['largest_cv_normalizer']:.3f}",
            "–" if sensitivity is None else f"{sensitivity:.1%}",
        )
    trapped = sum(row["trapped"] for row in rows)
    runs = sum(row["runs"] for row in rows)
    table.caption = (
        "R², CV(C) and the derivative to the redundant parameter: worst seed. "
        f"Trapped: {trapped} of {runs} runs."
    )
    return table
