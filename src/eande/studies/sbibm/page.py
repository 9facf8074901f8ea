"""The results page of the benchmark: a table for each number of simulations, beside others'."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from eande.simulators.sbibm import TASKS
from eande.studies.markdown import table
from eande.studies.outputs import write_text
from eande.studies.sbibm.published import METHODS, published

# One method has not been run on it at 10,000 simulations, and means must be over the same tasks.
_LEFT_OUT = "slcp_distractors"
_HEAD = [
    "task",
    "E&E",
    "range",
    *METHODS,
    "sbi's NPE here",
    "memory",
    "NPE's",
]
_SCORES = ("E&E", *METHODS, "here")


def write_page(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the page of these runs."""
    samples = sorted({run["samples"] for run in runs})
    text = [
        "# The common benchmark: sbibm\n",
        "Generated from `results/sbibm.json` by `eande reproduce sbibm`; do not edit. Classifier "
        "two-sample test, ½ is perfect: medians over",
        f"{max(len(run['scores']) for run in runs)} observations, "
        f"{' or '.join(f'{count:,}' for count in samples)} samples per score. "
        "E&E: the default settings for all tasks, the mean over",
        "seeds of the median, and the range of the seeds' medians. They were settled on the first "
        "five tasks, and by held-out nats, not scores, of slcp_distractors and lotka_volterra;",
        "gaussian_linear_uniform, bernoulli_glm_raw and sir were run when they stood fast.",
        "NPE-PFN (TabPFN) and ensembles of five NPEs: published with NPE-PFN, over five seeds. NPE "
        "and NRE: published by sbibm. `sbi's NPE here`: sbi's defaults on",
        "the simulations of E&E's first seed. Memory is the fit's peak above what was used before, "
        "the mean over seeds. Seconds that compare are in `results/fits.json`:",
        "these runs shared their machines, of two kinds, with others.\n",
    ]
    for budget in sorted({run["simulations"] for run in runs}):
        text.append(f"## {budget:,} simulations\n")
        text.append(table(_HEAD, _rows([run for run in runs if run["simulations"] == budget])))
    for method, what in (
        ("eande", "Taken from prior draws by weight"),
        ("npe", "Samples of NPE of which some may lie outside the prior's support"),
    ):
        taken = [
            f"{run['task']} at {run['simulations']:,}, seed {run['seed']}, "
            f"observations {', '.join(map(str, run['resampled']))}"
            for run in _of_method(runs, method)
            if run.get("resampled")
        ]
        if taken:
            text.append(f"{what}, because sampling ran out of its budget: {'; '.join(taken)}.\n")
    write_text(path, "\n".join(text))


def _of_method(runs: Sequence[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    # Runs of the time when there was one method do not name it.
    return [run for run in runs if run.get("method", "eande") == method]


def _rows(runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of one number of simulations: its tasks, then means over them."""
    budget = runs[0]["simulations"]
    rows = []
    scores: dict[str, dict[str, float | None]] = {}
    for task in TASKS:
        of_task = [run for run in runs if run["task"] == task]
        if not of_task:
            continue
        ours = _of_method(of_task, "eande")
        npe = _of_method(of_task, "npe")
        medians = [run["median"] for run in ours]
        scores[task] = {
            "E&E": _mean(medians),
            **{method: published(task, method, budget) for method in METHODS},
            "here": _mean([run["median"] for run in npe]),
        }
        span = f"{min(medians):.3f}–{max(medians):.3f}" if len(medians) > 1 else "–"
        rows.append(
            [
                task,
                _text(scores[task]["E&E"]),
                span,
                *(_text(scores[task][name]) for name in _SCORES[1:]),
                _text(_memory(ours), ".0f", " MB"),
                _text(_memory(npe), ".0f", " MB"),
            ]
        )
    if len(scores) == len(TASKS):
        rows.append(_means("mean of the ten", list(scores.values())))
        nine = [entry for task, entry in scores.items() if task != _LEFT_OUT]
        rows.append(_means(f"mean without {_LEFT_OUT}", nine))
    return rows


def _means(name: str, tasks: Sequence[dict[str, float | None]]) -> list[str]:
    """Return a row of means, each over all tasks or not at all."""
    means = []
    for method in _SCORES:
        values = [entry[method] for entry in tasks]
        known = [value for value in values if value is not None]
        means.append(_text(mean(known) if len(known) == len(values) else None))
    return [name, means[0], "", *means[1:], "", ""]


def _memory(runs: Sequence[dict[str, Any]]) -> float | None:
    return _mean([run["peak_mb"] for run in runs if run.get("peak_mb") is not None])


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _text(value: float | None, form: str = ".3f", unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"
