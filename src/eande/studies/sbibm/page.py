"""The results page of the benchmark: a table of medians beside the published ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eande.studies.markdown import table
from eande.studies.outputs import write_text
from eande.studies.sbibm.schema import BUDGETS
from eande.studies.sbibm.study import PUBLISHED

_HEAD = [
    "task",
    "simulations",
    "seed",
    "E&E",
    "range",
    "NRE",
    "NPE",
    "samples per score",
    "training",
]


def write_page(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the page of these runs."""
    offsets = [
        f"{run['task']}, observation {number}: {score:.3f} with 10,000 samples, "
        f"{run['scores'][int(number) - 1]:.3f} with {run['samples']:,}"
        for run in runs
        for number, score in run["rescored"].items()
    ]
    taken = [
        f"{run['task']} at {run['simulations']:,}, observations {run['resampled']}"
        for run in runs
        if run["resampled"]
    ]
    text = [
        "# The common benchmark: sbibm\n",
        "Generated from `results/sbibm.json` by `eande reproduce sbibm`; do not edit. Classifier "
        "two-sample test, ½ is perfect: medians over",
        f"{len(runs[0]['scores'])} observations. NRE and NPE: the medians sbibm published, over "
        "ten. One set of settings for all tasks: a mixture of",
        "eight Gaussians as similarity.\n",
        table(_HEAD, _rows(runs)),
    ]
    if offsets:
        text.append(f"Fewer samples give lower scores: {'; '.join(offsets)}.\n")
    if taken:
        text.append(
            "Taken from prior draws by weight, because sampling ran out of its budget: "
            f"{'; '.join(taken)}.\n"
        )
    write_text(path, "\n".join(text))


def _rows(runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    order = {task: i for i, task in enumerate(PUBLISHED)}
    rows = []
    # Stable: runs of one cell stay in the order in which they were made.
    for run in sorted(runs, key=lambda run: (order[run["task"]], run["simulations"])):
        task = run["task"]
        budget = run["simulations"]
        published = [
            f"{PUBLISHED[task][name][BUDGETS.index(budget)]:.3f}" if budget in BUDGETS else "–"
            for name in ("NRE", "NPE")
        ]
        rows.append(
            [
                task,
                f"{budget:,}",
                str(run["seed"]),
                f"{run['median']:.3f}",
                f"{min(run['scores']):.3f}–{max(run['scores']):.3f}",
                *published,
                f"{run['samples']:,}",
                f"{run['seconds_training']:.0f} s",
            ]
        )
    return rows
