"""The field's common benchmark: five tasks of sbibm at three numbers of simulations, against samples of the exact posteriors of ten observations.

One set of settings serves all tasks. Scores are sbibm's classifier two-sample test, ½ where posterior and reference cannot be told apart.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from eande.diagnostics.distances import c2st
from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.inference.samplers.importance import resample
from eande.inference.samplers.rejection import BudgetExceeded
from eande.simulation.run.simulate import simulate
from eande.simulators.sbibm import OBSERVATIONS, TASKS, Reference, read_reference
from eande.studies.records import provenance, stored_runs, table, write_json
from eande.training.fit import fit
from eande.training.settings import FitSettings

WHEEL = "sbibm-1.1.0-py2.py3-none-any.whl"
# Medians over the ten observations at 1,000, 10,000 and 100,000 simulations, of sbibm's published runs (gaussian_mixture: of its later rerun).
PUBLISHED = {
    "two_moons": {"NRE": (0.815, 0.765, 0.616), "NPE": (0.715, 0.608, 0.542)},
    "gaussian_linear": {"NRE": (0.690, 0.559, 0.524), "NPE": (0.686, 0.534, 0.506)},
    "gaussian_mixture": {"NRE": (0.768, 0.737, 0.729), "NPE": (0.701, 0.602, 0.547)},
    "slcp": {"NRE": (0.970, 0.957, 0.932), "NPE": (0.973, 0.907, 0.819)},
    "bernoulli_glm": {"NRE": (0.900, 0.818, 0.734), "NPE": (0.873, 0.668, 0.556)},
}
BUDGETS = (1_000, 10_000, 100_000)
# Samples per score: the classifier of ten parameters needs minutes for the benchmark's 10,000.
SAMPLES, FEWER, LOW_DIMENSION = 10_000, 2_000, 2


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        budgets: numbers of simulations, in the order they are run.
        steps: of the optimiser, about.
        observations: how many of the ten.
        samples: per score, at most.
        rescored: how many observations of a task are scored again with the benchmark's 10,000 samples, where fewer are used.
    """

    budgets: tuple[int, ...] = (10_000, 1_000, 100_000)
    steps: int = 2_000
    observations: int = 10
    samples: int = SAMPLES
    rescored: int = 1


SIZES = {
    "paper": Size(),
    "quick": Size(budgets=(10_000,), steps=1_000, observations=3, samples=1_000, rescored=0),
    "toy": Size(budgets=(200,), steps=20, observations=2, samples=100, rescored=0),
}


def fit_settings(simulations: int, steps: int, seed: int) -> FitSettings:
    """Return the settings of all tasks: the library's defaults, with an explicit number of epochs that makes about so many steps."""
    settings = FitSettings(device="cpu", seed=seed)
    per_epoch = max(1, math.ceil(0.9 * simulations / settings.batch_size))
    epochs = max(1, steps // per_epoch)
    # Sharp posteriors of eight heads make a validation as dear as many steps.
    return replace(settings, epochs=epochs, validate_every=max(1, epochs // 10))


def fetch_wheel(folder: Path) -> Path:
    """Return the path of sbibm's wheel, of which only the data are used; pip downloads it the first time."""
    path = folder / WHEEL
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "sbibm==1.1.0",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(
                f"wheel: expected {path}, which pip could not download: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
            )
    return path


def run(
    size: str,
    tasks: Sequence[str],
    wheel: Path,
    output: Path,
    *,
    seed: int = 0,
    progress: bool,
    report: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Score every task at every number of simulations and write ``sbibm.json`` after each; cells that the file holds already are not repeated."""
    chosen, path = SIZES[size], output / "sbibm.json"
    settings = asdict(chosen) | {"fit": asdict(fit_settings(10_000, chosen.steps, 0))}
    head = {"study": "sbibm", "size": size, "settings": settings, "published": PUBLISHED}
    runs = stored_runs(path, head)
    # All that may be missing is asked for before the first fit.
    references = {
        task: [
            read_reference(wheel, task, number) for number in OBSERVATIONS[: chosen.observations]
        ]
        for task in tasks
    }
    c2st(torch.rand(10, 1), torch.rand(10, 1))
    for budget in chosen.budgets:
        for task in tasks:
            if any(
                (run["task"], run["simulations"], run["seed"]) == (task, budget, seed)
                for run in runs
            ):
                continue
            runs.append(_cell(task, budget, chosen, references[task], seed, progress=progress))
            report(runs[-1])
            write_json(path, head | {"runs": runs})
    return runs


def _cell(
    task: str,
    budget: int,
    size: Size,
    references: Sequence[Reference],
    seed: int,
    *,
    progress: bool,
) -> dict[str, Any]:
    prior = TASKS[task].prior
    simulations = simulate(TASKS[task].simulator, prior, budget, seed=seed, progress=progress)
    began = time.perf_counter()
    model = fit(
        simulations, prior, settings=fit_settings(budget, size.steps, seed), progress=progress
    )
    found: dict[str, Any] = {
        "task": task,
        "simulations": budget,
        "seed": seed,
        "seconds_training": time.perf_counter() - began,
        "held_out_log_ratio": max(record["held_out_log_ratio"] for record in model.history),
        "scores": [],
        "samples": size.samples if prior.dimension <= LOW_DIMENSION else min(FEWER, size.samples),
        "seconds_sampling": 0.0,
        "resampled": [],
        "rescored": {},
    }
    for number, reference in enumerate(references, start=1):
        began = time.perf_counter()
        samples, resampled = _draw(model, reference.observation, size.samples)
        found["seconds_sampling"] += time.perf_counter() - began
        found["resampled"] += [number] if resampled else []
        used = found["samples"]
        found["scores"].append(c2st(reference.samples[:used], samples[:used], jobs=os.cpu_count()))
        if used < SAMPLES and number <= size.rescored and budget == 10_000:
            found["rescored"][number] = c2st(reference.samples, samples, jobs=os.cpu_count())
    return found | {"median": median(found["scores"]), "provenance": provenance("scikit-learn")}


def _draw(model: EmbedAndEmulate, observation: Any, n: int) -> tuple[Any, bool]:
    """Return samples, and whether they had to be taken from prior draws by weight."""
    posterior = model.posterior(observation, draws=100_000)
    try:
        return posterior.sample(n, seed=0)[0], False
    except BudgetExceeded:
        return resample(posterior, n)[0], True


def write_page(runs: list[dict[str, Any]], path: Path) -> None:
    """Write the table of medians beside the published ones."""
    rows = []
    for task, published in PUBLISHED.items():
        for budget in sorted({run["simulations"] for run in runs}):
            cells = [run for run in runs if (run["task"], run["simulations"]) == (task, budget)]
            others = [
                f"{published[name][BUDGETS.index(budget)]:.3f}" if budget in BUDGETS else "–"
                for name in ("NRE", "NPE")
            ]
            for run in cells:
                spread = f"{min(run['scores']):.3f}–{max(run['scores']):.3f}"
                cell = [task, f"{budget:,}", str(run["seed"]), f"{run['median']:.3f}", spread]
                rows.append(
                    [*cell, *others, f"{run['samples']:,}", f"{run['seconds_training']:.0f} s"]
                )
    head = [
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
    offsets = [
        f"{run['task']}, observation {number}: {score:.3f} with 10,000 samples, {run['scores'][int(number) - 1]:.3f} with {run['samples']:,}"
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
        "Generated from `results/sbibm.json` by `eande reproduce sbibm`; do not edit. Classifier two-sample test, ½ is perfect: medians over",
        f"{len(runs[0]['scores'])} observations. NRE and NPE: the medians sbibm published, over ten. One set of settings for all tasks: a mixture of",
        "eight Gaussians as similarity.\n",
        table(head, rows),
        *([f"Fewer samples give lower scores: {'; '.join(offsets)}.\n"] if offsets else []),
        *(
            [
                f"Taken from prior draws by weight, because sampling ran out of its budget: {'; '.join(taken)}.\n"
            ]
            if taken
            else []
        ),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text))
