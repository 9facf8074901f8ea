"""The field's common benchmark: the ten tasks of sbibm at three numbers of simulations.

Posteriors of ten observations are compared with samples of the exact ones, by sbibm's classifier
two-sample test: ½ where the two cannot be told apart. All tasks get the default settings. A cell is
one task, number of simulations and seed; each can be run alone, on another machine, too.

Reference:
    Lueckmann, Boelts, Greenberg, Gonçalves and Macke, *Benchmarking simulation-based inference*,
    2021.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from eande.diagnostics.two_sample import c2st_of_pairs
from eande.foundations.checks import InputError, check_choice
from eande.foundations.provenance import provenance
from eande.simulation.simulate import simulate
from eande.simulators.sbibm import OBSERVATIONS, TASKS, Reference, read_reference
from eande.studies.memory import PeakAnonymous
from eande.studies.records import StoredRuns, check_head, read_results
from eande.studies.sampling import sample_or_resample
from eande.studies.sbibm.published import PUBLISHED
from eande.studies.sbibm.schema import SbibmResults
from eande.studies.sbibm.wheel import fetch_wheel
from eande.training.fit import fit
from eande.training.settings import FitSettings

# At a call of the simulator: two of them solve differential equations for all rows at once.
_BLOCK = 10_000
# Between two looks at the memory, in seconds.
_LOOK = 0.05
# What samples one observation of a task, given its number: (y, n, number) → (samples, resampled).
_Sampler = Callable[[Tensor, int, int], tuple[Tensor, bool]]


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        budgets: numbers of simulations, in the order they are run.
        seeds: how many for each of them.
        baseline: budgets of the baseline, which has the first seed only.
        observations: how many of the ten.
        samples: per score.
        epochs: of a fit; None for the defaults.
    """

    budgets: tuple[int, ...] = (1_000, 10_000, 100_000)
    seeds: tuple[int, ...] = (3, 3, 1)
    baseline: tuple[int, ...] = (1_000, 10_000)
    observations: int = 10
    samples: int = 10_000
    epochs: int | None = None


SIZES = {
    "paper": Size(),
    "quick": Size(budgets=(10_000,), seeds=(1,), baseline=(10_000,), observations=3, samples=1_000),
    "toy": Size(budgets=(200,), seeds=(1,), baseline=(200,), observations=2, samples=100, epochs=2),
}


@dataclass(frozen=True)
class Cell:
    """What is run: a method on a task, with so many simulations and a seed."""

    method: str
    task: str
    simulations: int
    seed: int


def cells_of(
    size: str,
    *,
    tasks: Sequence[str] = (),
    budgets: Sequence[int] = (),
    seed: int | None = None,
    baseline: bool = False,
) -> list[Cell]:
    """Return the cells of a size, in the order they are run.

    Args:
        size: one of ``SIZES``.
        tasks: which; all where none is named.
        budgets: numbers of simulations, of the size's; all where none is named.
        seed: which; None for all that the size has.
        baseline: whether of the baseline, not of E&E.
    """
    check_choice("size", size, list(SIZES))
    chosen = SIZES[size]
    for task in tasks:
        check_choice("task", task, list(TASKS))
    seeds = dict(zip(chosen.budgets, chosen.seeds, strict=True))
    if baseline:
        seeds = dict.fromkeys(chosen.baseline, 1)
    for budget in budgets:
        check_choice("simulations", str(budget), [str(known) for known in seeds])
    return [
        Cell("npe" if baseline else "eande", task, budget, i)
        for budget, count in seeds.items()
        if not budgets or budget in budgets
        for task in (tasks or TASKS)
        for i in (range(count) if seed is None else [seed])
    ]


def stored_runs(size: str, output: Path) -> StoredRuns:
    """Return the runs that ``sbibm.json`` in a folder holds, to which others can be added."""
    check_choice("size", size, list(SIZES))
    settings = asdict(SIZES[size]) | {"fit": FitSettings().describe()}
    head = {"study": "sbibm", "size": size, "settings": settings, "published": PUBLISHED}
    key = ("method", "task", "simulations", "seed")
    return StoredRuns(output / "sbibm.json", SbibmResults, head, key)


def collect(size: str, output: Path, others: Sequence[Path]) -> list[dict[str, Any]]:
    """Add the runs of other result files, of other machines say, to ``sbibm.json``; return all.

    Args:
        size: of all of them.
        output: a folder.
        others: folders with a ``sbibm.json`` each.
    """
    stored = stored_runs(size, output)
    for other in others:
        path = other / "sbibm.json"
        check_head(path, stored.head, SbibmResults)
        for run in read_results(path, SbibmResults)["runs"]:
            stored.add(run)
    if not stored.runs:
        raise InputError(f"output: expected a folder with results of the study, got {output}")
    return stored.runs


def run_study(
    size: str,
    cells: Sequence[Cell],
    wheel: Path | None,
    output: Path,
    *,
    device: str = "auto",
    progress: bool,
    report: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Run cells and write ``sbibm.json`` after each; those that it holds already are not repeated.

    Args:
        size: one of ``SIZES``.
        cells: of :func:`cells_of`.
        wheel: of sbibm, with the observations and samples of their exact posteriors; None has pip
            download it.
        output: a folder.
        device: where to fit and to sample, as in :class:`~eande.FitSettings`. The classifiers of
            the scores are trained on a GPU wherever there is one.
        progress: whether to show progress bars.
        report: called with every new run.
    """
    stored = stored_runs(size, output)
    chosen = SIZES[size]
    if any(cell.method == "npe" for cell in cells):
        # What may be missing is asked for before the first fit.
        import eande.studies.sbibm.baseline  # noqa: F401
    wheel = wheel or fetch_wheel(Path.home() / ".cache" / "eande")
    numbers = OBSERVATIONS[: chosen.observations]
    references = {
        task: [read_reference(wheel, task, number) for number in numbers]
        for task in dict.fromkeys(cell.task for cell in cells)
    }
    for cell in cells:
        if stored.find(**asdict(cell)) is None:
            run = _run_cell(cell, chosen, references[cell.task], device, progress=progress)
            report(run)
            stored.add(run)
    return stored.runs


def run_line(run: dict[str, Any]) -> str:
    """Return a line about one run."""
    return (
        f"{run.get('method', 'eande')}, {run['task']}, {run['simulations']:,} simulations, "
        f"seed {run['seed']}: C2ST {run['median']:.3f} "
        f"after {run['seconds_training']:.0f} s of training"
    )


def _run_cell(
    cell: Cell, size: Size, references: Sequence[Reference], device: str, *, progress: bool
) -> dict[str, Any]:
    found: dict[str, Any] = asdict(cell) | {"samples": size.samples}
    sampler, trained = _train(cell, size, device, progress=progress)
    found |= trained
    began = time.perf_counter()
    pairs = []
    resampled = []
    for number, reference in enumerate(references, start=1):
        samples, short = sampler(reference.observation, size.samples, number)
        pairs.append((reference.samples[: size.samples], samples))
        if short:
            resampled.append(number)
    found |= {"seconds_sampling": time.perf_counter() - began, "resampled": resampled}
    began = time.perf_counter()
    scores = c2st_of_pairs(pairs, device="cuda" if torch.cuda.is_available() else "cpu")
    return found | {
        "seconds_scoring": time.perf_counter() - began,
        "scores": scores,
        "median": median(scores),
        "provenance": provenance(*(["sbi"] if cell.method == "npe" else [])),
    }


def _train(
    cell: Cell, size: Size, device: str, *, progress: bool
) -> tuple[_Sampler, dict[str, Any]]:
    """Simulate and fit; return what samples the posterior, and what is to be told of the fit."""
    task = TASKS[cell.task]
    prior = task.prior
    simulations = simulate(
        task.simulator,
        prior,
        cell.simulations,
        seed=cell.seed,
        block_size=_BLOCK,
        progress=progress,
    )
    about: dict[str, Any] = {}
    sampler: _Sampler
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with PeakAnonymous(_LOOK) as memory:
        if cell.method == "npe":
            from eande.studies.sbibm.baseline import TrainedNPE

            sampler = TrainedNPE(simulations, prior, seed=cell.seed, epochs=size.epochs).sample
        else:
            settings = FitSettings(seed=cell.seed, epochs=size.epochs, device=device)
            model = fit(simulations, prior, settings=settings, progress=progress)
            ratios = [record.get("held_out_log_ratio") for record in model.history]
            about["held_out_log_ratio"] = max(
                (ratio for ratio in ratios if ratio is not None), default=None
            )

            def sampler(y: Tensor, n: int, number: int) -> tuple[Tensor, bool]:
                return sample_or_resample(model.posterior(y, draws=100_000), n, seed=number)

    about["seconds_training"] = time.perf_counter() - began
    about["peak_mb"] = memory.above
    if torch.cuda.is_available():
        about["peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return sampler, about
