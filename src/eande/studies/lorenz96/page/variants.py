"""The page's sections on variants under older terms: ablations, the normaliser in training."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eande import plots
from eande.studies.lorenz96.page.parts import (
    Run,
    group,
    pool,
    save_figure,
    show_pictures,
    show_range,
)
from eande.studies.markdown import table

_TITLES = {"views": "The views' loss", "symmetry": "The symmetry of the loss"}
_FINDINGS = {
    "views": "that λ leaves the mean of MMD as it is and lessens its spread",
    "symmetry": "both losses together better than L_ΦY, and that better than L_YΦ",
}


def ablation_section(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    """Return the table of an ablation beside the paper's finding, and posteriors."""
    name = content["study"].removeprefix("lorenz96-")
    samples = content["settings"]["samples"]
    groups = group(content["runs"], "variant", list(content["settings"]["variants"]))
    medians = {}
    spreads = {}
    for label, runs in groups.items():
        low, middle, high = np.quantile(pool(runs, f"mmd2_0.05_{samples}"), [0.25, 0.5, 0.75])
        medians[label] = middle
        spreads[label] = high - low
    rows = [
        [
            label,
            str(len(runs)),
            show_range([run["mean_log_ratio"] for run in runs], 2),
            f"{medians[label]:.5f}",
            f"{spreads[label]:.5f}",
            f"{np.median(pool(runs, 'angular_tv')):.3f}",
        ]
        for label, runs in groups.items()
    ]
    head = [
        "variant",
        "seeds",
        "log ratio, nats",
        f"MMD² σ = 0.05, {samples}",
        "its interquartile range",
        "angle TV",
    ]
    return [
        f"## {_TITLES[name]}\n",
        f"All with the plain method. The paper finds {_FINDINGS[name]}. Here the smallest median "
        f"is that of {min(medians, key=medians.__getitem__)}, the least spread that of "
        f"{min(spreads, key=spreads.__getitem__)}.\n",
        table(head, rows),
        *show_pictures(
            results / f"lorenz96-{name}-pictures.npz", pages, f"lorenz96-{name}.png", list(groups)
        ),
    ]


def normalizer_section(content: dict[str, Any], _: Path, pages: Path) -> list[str]:
    """Return CV(C) during training."""
    groups = group(content["runs"], "variant", list(content["settings"]["variants"]))
    lines = {}
    rows = []
    for label, runs in groups.items():
        values = np.array(
            [[record["cv_normalizer"] for record in run["history"]] for run in runs], dtype=float
        )
        lines[label] = ([record["epoch"] for record in runs[0]["history"]], values)
        log_ratios = [run["history"][-1]["held_out_log_ratio"] for run in runs]
        last = show_range(values[:, -1].tolist(), 3)
        rows.append([label, str(len(runs)), last, show_range(log_ratios, 2)])
    figure = plots.curves(
        lines, x="epoch", y="CV of C(y)", title="Mean and one standard deviation over trials"
    )
    return [
        "## The normaliser during training\n",
        table(["variant", "trials", "CV(C) at the end", "log ratio at the end"], rows),
        f"The normaliser over up to 100,000 prior draws, on held-out data. {_one_sided(groups)}\n",
        save_figure(
            figure,
            pages,
            "lorenz96-normalizer.png",
            "Coefficient of variation of C during training",
        ),
    ]


def _one_sided(groups: Mapping[str, Sequence[Run]]) -> str:
    """Say by how much CV(C) of one-sided losses exceeds the symmetric one's, with its error."""
    last = {
        label: np.array([run["history"][-1]["cv_normalizer"] for run in runs], dtype=float)
        for label, runs in groups.items()
        if len(runs) > 1
    }
    told = []
    for label, values in last.items():
        same = last.get(f"L_sym,{label.partition(',')[2]}")
        if "only" in label and same is not None:
            error = math.hypot(*(one.std(ddof=1) / math.sqrt(len(one)) for one in (values, same)))
            told.append(f"{label}: {values.mean() - same.mean():+.3f} ± {error:.3f}")
    if not told:
        return ""
    return (
        "The paper finds the symmetric loss's CV(C) under the one-sided ones'. "
        f"By how much theirs is over it here: {'; '.join(told)}."
    )
