"""The field's common benchmark: five tasks of sbibm at three numbers of simulations.

Posteriors of ten observations are compared with samples of the exact ones, by sbibm's classifier
two-sample test: ½ where the two cannot be told apart. One set of settings serves all tasks.

Reference:
    Lueckmann, Boelts, Greenberg, Gonçalves and Macke, *Benchmarking simulation-based inference*,
    2021.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from eande.diagnostics.two_sample import c2st
from eande.foundations.checks import check_choice
from eande.simulation.simulate import simulate
from eande.simulators.sbibm import OBSERVATIONS, TASKS, Reference, read_reference
from eande.studies.records import StoredRuns, provenance
from eande.studies.sampling import sample_or_resample
from eande.studies.sbibm.schema import SbibmResults
from eande.studies.sbibm.wheel import fetch_wheel
from eande.training.fit import fit
from eande.training.settings import FitSettings

# Medians over the ten observations at these numbers of simulations, of sbibm's published runs
# (gaussian_mixture: of its later rerun).
PUBLISHED = {
    "two_moons": {"NRE": (0.815, 0.765, 0.616), "NPE": (0.715, 0.608, 0.542)},
    "gaussian_linear": {"NRE": (0.690, 0.559, 0.524), "NPE": (0.686, 0.534, 0.506)},
    "gaussian_mixture": {"NRE": (0.768, 0.737, 0.729), "NPE": (0.701, 0.602, 0.547)},
    "slcp": {"NRE": (0.970, 0.957, 0.932), "NPE": (0.973, 0.907, 0.819)},
    "bernoulli_glm": {"NRE": (0.900, 0.818, 0.734), "NPE": (0.873, 0.668, 0.556)},
}
# The benchmark scores 10,000 samples. With ten parameters its classifier needs minutes for them,
# so that tasks of more than two parameters are scored by fewer.
SAMPLES = 10_000
FEWER_SAMPLES = 2_000
LOW_DIMENSION = 2


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        budgets: numbers of simulations, in the order they are run.
        steps: of the optimiser, about.
        observations: how many of the ten.
        samples: per score, at most.
        rescored: how many observations of a task are scored again with the benchmark's 10,000
            samples, where fewer are used.
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
    """Return the settings of all tasks: the library's defaults, and epochs for so many steps."""
    settings = FitSettings(device="cpu", seed=seed)
    per_epoch = max(1, math.ceil(0.9 * simulations / settings.batch_size))
    epochs = max(1, steps // per_epoch)
    # A validation of sharp posteriors with eight heads costs as much as many steps.
    return replace(settings, epochs=epochs, validate_every=max(1, epochs // 10))


def run_study(
    size: str,
    tasks: Sequence[str],
    wheel: Path | None,
    output: Path,
    *,
    seed: int = 0,
    progress: bool,
    report: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Score every task at every number of simulations; write ``sbibm.json`` after each.

    Runs that the file holds already are not repeated.

    Args:
        size: one of ``SIZES``.
        tasks: which; all where none is named.
        wheel: of sbibm, with the observations and samples of their exact posteriors; None has pip
            download it.
        output: a folder.
        seed: of simulations and networks.
        progress: whether to show progress bars.
        report: called with every new run.
    """
    check_choice("size", size, list(SIZES))
    for task in tasks:
        check_choice("task", task, list(PUBLISHED))
    tasks = tasks or list(PUBLISHED)
    chosen = SIZES[size]
    settings = asdict(chosen) | {"fit": fit_settings(10_000, chosen.steps, 0).describe()}
    head = {"study": "sbibm", "size": size, "settings": settings, "published": PUBLISHED}
    stored = StoredRuns(output / "sbibm.json", SbibmResults, head, ("task", "simulations", "seed"))
    wheel = wheel or fetch_wheel(Path.home() / ".cache" / "eande")
    numbers = OBSERVATIONS[: chosen.observations]
    references = {task: [read_reference(wheel, task, i) for i in numbers] for task in tasks}
    for budget in chosen.budgets:
        for task in tasks:
            if stored.find(task=task, simulations=budget, seed=seed) is None:
                run = _run_cell(task, budget, chosen, references[task], seed, progress=progress)
                report(run)
                stored.add(run)
    return stored.runs


def run_line(run: dict[str, Any]) -> str:
    """Return a line about one run."""
    return (
        f"{run['task']}, {run['simulations']:,} simulations: C2ST {run['median']:.3f} "
        f"after {run['seconds_training']:.0f} s of training"
    )


def _run_cell(
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
    seconds_training = time.perf_counter() - began
    low = prior.dimension <= LOW_DIMENSION
    used = size.samples if low else min(FEWER_SAMPLES, size.samples)
    found: dict[str, Any] = {
        "task": task,
        "simulations": budget,
        "seed": seed,
        "seconds_training": seconds_training,
        "held_out_log_ratio": max(record["held_out_log_ratio"] for record in model.history),
        "scores": [],
        "samples": used,
        "seconds_sampling": 0.0,
        "resampled": [],
        "rescored": {},
    }
    for number, reference in enumerate(references, start=1):
        began = time.perf_counter()
        posterior = model.posterior(reference.observation, draws=100_000)
        samples, resampled = sample_or_resample(posterior, size.samples)
        found["seconds_sampling"] += time.perf_counter() - began
        if resampled:
            found["resampled"].append(number)
        found["scores"].append(c2st(reference.samples[:used], samples[:used]))
        if used < SAMPLES and number <= size.rescored and budget == 10_000:
            found["rescored"][number] = c2st(reference.samples, samples)
    return found | {"median": median(found["scores"]), "provenance": provenance()}
