"""Runs of the Lorenz 96 study: one after another, or several side by side on one GPU.

A run is a row of a comparison with a seed. It is trained, measured, and added to the result file of
its comparison at once: a campaign that was stopped goes on where it was, and several processes may
add to one file, if each has methods or systems of its own: what two of them do is kept once.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import torch

from eande.foundations.checks import InputError, check_choice
from eande.foundations.provenance import provenance
from eande.studies.lorenz96.comparisons import (
    COMPARISONS,
    SYSTEMS,
    Row,
    Rows,
    searched_kinds,
)
from eande.studies.lorenz96.crossfit import find_exponent, with_exponent
from eande.studies.lorenz96.data import Data, make_data
from eande.studies.lorenz96.physics import measure_physics
from eande.studies.lorenz96.pictures import keep_pictures
from eande.studies.lorenz96.recipes import Recipe, train
from eande.studies.lorenz96.ring import measure
from eande.studies.lorenz96.schema import KINDS, MEASURES
from eande.studies.lorenz96.search import Run, stages_of, trials, winner
from eande.studies.lorenz96.sizes import Size, choose_size
from eande.studies.lorenz96.tables import recipe_of, size_of, terms_of
from eande.studies.lorenz96.terms import Terms
from eande.studies.records import StoredRuns, read_results
from eande.training.loop import DivergedError


@dataclass(frozen=True)
class Unsearched(Recipe):
    """Where a search would start that has not been run.

    Args:
        message: what to say where it is asked for.
    """

    message: str = ""


KEY = ("size", "method", "b", "simulations", "calibration", "seed", "trial")
# Of the history in result files.
_NOTED = ("epoch", "held_out_log_ratio", "held_out_density", "cv_normalizer")
# Significant digits of that, and of what is measured of every datum.
_DIGITS = 4
# Simulations of the last few seeds are kept: jobs of one seed come one after the other.
_KEPT = 2
# Versions of a network that a process may compile.
_MOST_COMPILED = 64


@dataclass(frozen=True)
class Job:
    """One run.

    Args:
        method: the name of its row, or of its search.
        row: how it is trained, and under which terms.
        size: the name of the study's.
        seed: of simulations and networks.
        device: ``"cpu"`` or ``"cuda"``.
        judged_by_held_out: whether simulations held out stand for test data, as in a search.
        pictures: the file that densities of a few posteriors go into, None for no pictures.
    """

    method: str
    row: Row
    size: str
    seed: int
    device: str
    judged_by_held_out: bool = False
    pictures: Path | None = None

    @property
    def key(self) -> dict[str, Any]:
        """What tells this run from others in the result file."""
        return {
            "size": self.size,
            "method": self.method,
            "b": self.row.terms.b,
            "simulations": self.row.terms.simulations,
            "calibration": self.row.terms.calibration,
            "seed": self.seed,
            "trial": name_trial(self.row.recipe) if self.judged_by_held_out else "",
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What the result file says of how the run was made."""
        return {
            "recipe": self.row.recipe.describe(),
            "terms": self.row.terms.describe(),
            "size": asdict(choose_size(self.size)),
        }


def name_trial(recipe: Recipe) -> str:
    """Return a recipe's length and settings in a line.

    Example:
        >>> name_trial(Recipe("eande", 600, {"temperature": 0.03, "view_weight": 0.2}))
        'steps 600, temperature 0.03, view_weight 0.2'
    """
    settings = {"steps": recipe.steps} | dict(recipe.settings)
    return ", ".join(f"{name} {value}" for name, value in settings.items())


@lru_cache(maxsize=_KEPT)
def _data(size: Size, terms: Terms, seed: int, device: str) -> Data:
    return make_data(size, terms, seed, device, progress=False)


def run_job(job: Job) -> list[dict[str, Any]]:
    """Train and measure; return the run, and the same calibrated where the terms ask for it."""
    row = job.row
    size = choose_size(job.size)
    # Nothing but this tells one method's simulations from another's.
    of_data = Terms(
        b=row.terms.b,
        simulations=row.terms.simulations,
        validation=row.terms.validation,
        design=row.terms.design,
        calibration="fresh" if row.terms.calibration == "fresh" else "none",
    )
    data = _data(size, of_data, job.seed, job.device)
    if job.judged_by_held_out:
        data = data.judged_by_held_out()
    common = (row.recipe, size, row.terms, data, job.seed, job.device)
    about = job.key | {"settings": job.settings}
    began = time.perf_counter()
    try:
        model = train(*common, progress=False)
    except DivergedError as error:
        # The prior's own score.
        failed = {"score": 0.0, "failed": str(error), "history": [], "seconds_training": 0.0}
        return [about | failed | {"provenance": provenance("numba", "sbi")}]
    seconds = time.perf_counter() - began
    history = model.history if row.recipe.members == 1 else model.members[0].history
    noted = [_noted(record) for record in history]
    chosen = "held_out_density" if row.terms.select_by == "density" else "held_out_log_ratio"
    about |= {
        "seconds_training": seconds,
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "history": noted,
        "score": max(record[chosen] for record in noted),
        "provenance": provenance("numba", "sbi"),
    }
    found = [about | {"calibration": "none"} | _measured(model, data, job)]
    if job.pictures is not None:
        keep_pictures(job.pictures, job.method, model, data, size.finer)
    if row.terms.calibration != "none":
        try:
            exponent = find_exponent(*common, model=model, progress=False)
        except DivergedError as error:
            # The full fit is kept; a fold's did not learn.
            return [*found, about | {"failed": str(error)}]
        calibrated = with_exponent(model, exponent)
        found.append(about | {"exponent": exponent} | _measured(calibrated, data, job))
    return found


def _measured(model: Any, data: Data, job: Job) -> dict[str, Any]:
    """Return what is measured of a model, and of every datum what pages read."""
    size = choose_size(job.size)
    found = measure(model, data, size, job.seed)
    per_datum = found.pop("per_datum")
    found["medians"] = {
        name.removeprefix("median_"): found.pop(name)
        for name in list(found)
        if name.startswith("median_")
    }
    if job.judged_by_held_out:
        return found
    found["physics"] = measure_physics(data)
    names = (*MEASURES, f"mmd2_0.05_{size.samples}")
    return found | {
        "per_datum": {
            name: [float(f"{value:.{_DIGITS}g}") for value in per_datum[name]] for name in names
        }
    }


def _noted(record: Mapping[str, float]) -> dict[str, float]:
    """Return what the result file keeps of a record of the history."""
    return {
        name: float(f"{record[name]:.{_DIGITS}g}") if name != "epoch" else int(record[name])
        for name in _NOTED
        if name in record
    }


class Campaign:
    """Runs jobs, in this process or in several, until they are done or the time is over.

    Args:
        output: the folder of result files.
        workers: processes side by side; 1 for this one.
        until: when no further run is begun, by ``time.time``.
        report: called with every new run.
    """

    def __init__(
        self,
        output: Path,
        *,
        workers: int,
        until: float,
        report: Callable[[Run], None],
    ) -> None:
        self.output = output
        self.until = until
        self.report = report
        self.pool = None
        if workers > 1:
            # A process that has used a GPU cannot be forked.
            self.pool = ProcessPoolExecutor(workers, get_context("spawn"), _calm)

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.time() >= self.until

    def __enter__(self) -> Self:
        """Return the campaign."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def run(self, jobs: Sequence[Job], stored: StoredRuns) -> None:
        """Run those jobs that the file does not hold, and add them to it.

        A run on file that was made in another way is refused: a table of both would be of neither.
        """
        waiting = []
        for job in jobs:
            found = stored.find(**job.key)
            if found is None:
                waiting.append(job)
            elif _made_by(found) != (job.row.recipe, job.row.terms, choose_size(job.size)):
                raise InputError(
                    f"{stored.path}: expected a run of {job.method}, seed {job.seed}, with "
                    f"{name_trial(job.row.recipe)}, got one with {name_trial(recipe_of(found))}, "
                    "under other terms or of another size; move it away, or use another --output"
                )
        errors = []
        for finished in self._finished(waiting, stored):
            try:
                self._add(finished(), stored)
            except Exception as error:
                errors.append(error)
        if errors:
            # After the others, which are kept.
            raise errors[0]

    def _finished(
        self, jobs: Sequence[Job], stored: StoredRuns
    ) -> Iterator[Callable[[], list[dict[str, Any]]]]:
        """Yield for every job, in the order in which they end, what returns its runs."""
        if self.pool is not None:
            futures = [self.pool.submit(_run_until, job, self.until) for job in jobs]
            for future in as_completed(futures):
                yield future.result
            return
        _calm()
        for job in jobs:
            # Another process may have made it meanwhile.
            if not self.over and stored.find(**job.key) is None:
                yield partial(run_job, job)

    def _add(self, runs: Iterable[dict[str, Any]], stored: StoredRuns) -> None:
        for run in runs:
            stored.add(run)
            self.report(run)


def _made_by(run: Run) -> tuple[Recipe, Terms, Size]:
    return recipe_of(run), terms_of(run), size_of(run)


def _calm() -> None:
    """Keep a process to one thread, and quiet about models that learn little."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if torch.cuda.is_available():
        # Encoders of several widths and batches of several sizes, one after another.
        torch._dynamo.config.recompile_limit = _MOST_COMPILED


def _run_until(job: Job, until: float) -> list[dict[str, Any]]:
    return [] if time.time() >= until else run_job(job)


def open_runs(output: Path, part: str, device: str) -> StoredRuns:
    """Return the runs of a part of the study, as its result file has them."""
    name = f"lorenz96-{part}"
    head = {"study": name, "device": device}
    return StoredRuns(output / f"{name}.json", KINDS[part], head, KEY)


def run_search(
    campaign: Campaign,
    size: str,
    device: str,
    *,
    kinds: Sequence[str] = (),
    systems: Sequence[float] = SYSTEMS,
) -> None:
    """Search the settings of methods: the stages of all searches side by side.

    Args:
        campaign: that runs them.
        size: one of :data:`~eande.studies.lorenz96.sizes.SIZES`.
        device: ``"cpu"`` or ``"cuda"``.
        kinds: which of those that have stages at this size, all where none is named.
        systems: b, of those that are searched for each.
    """
    chosen = choose_size(size)
    stages = stages_of(chosen)
    for kind in kinds:
        check_choice("method", kind, list(stages))
    stored = open_runs(campaign.output, "search", device)
    searched = searched_kinds()
    asked = [
        (kind, b)
        for kind in kinds or stages
        for b in systems
        # How many simulations a posterior needs is asked of one system.
        if b == SYSTEMS[0] or "2000" not in kind
    ]
    while not campaign.over:
        stored.find(seed=-1)  # what other processes have added
        jobs = []
        for kind, b in asked:
            terms = _at(searched[kind].terms, b, chosen)
            for recipe, seed in trials(stored.runs, kind, b, chosen).missing():
                jobs.append(Job(kind, Row(recipe, terms), size, seed, device, True))
        if not jobs:
            return
        campaign.run(jobs, stored)


def _at(terms: Terms, b: float, size: Size) -> Terms:
    return Terms(**terms.describe() | {"b": b}).at(size)


def run_comparison(
    campaign: Campaign,
    name: str,
    size: str,
    device: str,
    *,
    seeds: Sequence[int],
    systems: Sequence[float],
    methods: Sequence[str] = (),
) -> Sequence[Run]:
    """Run the rows of a comparison for every system and seed; return its runs.

    Args:
        campaign: that runs them.
        name: one of :data:`~eande.studies.lorenz96.comparisons.COMPARISONS`.
        size: one of :data:`~eande.studies.lorenz96.sizes.SIZES`.
        device: ``"cpu"`` or ``"cuda"``.
        seeds: of simulations and networks.
        systems: b, of those that the comparison has.
        methods: names of rows; all where none is named.
    """
    chosen = choose_size(size)
    stored = open_runs(campaign.output, name, device)
    for run in stored.runs:
        if run["size"] != size:
            raise InputError(
                f"{stored.path}: expected runs of size {size}, got one of size {run['size']}; "
                "move it away, or use another --output"
            )
    path = campaign.output / "lorenz96-search.json"
    found = read_results(path, KINDS["search"])["runs"] if os.path.lexists(path) else []
    rows = {
        b: rows_of(name, b, chosen, found, methods)
        for b in COMPARISONS[name].systems
        if b in systems
    }
    jobs = [
        Job(
            method,
            row,
            size,
            seed,
            device,
            pictures=pictures_of(campaign.output, name, b)
            if seed == 0 and COMPARISONS[name].size == "paper"
            else None,
        )
        for seed in seeds
        for b, of_system in rows.items()
        for method, row in of_system.items()
    ]
    campaign.run(jobs, stored)
    return stored.runs


def pictures_of(output: Path, name: str, b: float) -> Path:
    """Return the file of pictures of a comparison and a system."""
    return output / f"lorenz96-{name}-b{b:g}-pictures.npz"


def rows_of(
    name: str, b: float, size: Size, found: Sequence[Run], methods: Sequence[str] = ()
) -> Rows:
    """Return rows of a comparison, given the runs of the search.

    Args:
        name: one of :data:`~eande.studies.lorenz96.comparisons.COMPARISONS`.
        b: of the system.
        size: of the networks.
        found: runs of the search.
        methods: names of rows; all where none is named.
    """

    def search(kind: str, system: float) -> Recipe:
        try:
            return winner(found, kind, system, size)
        except InputError as error:
            start = searched_kinds()[kind].start
            return Unsearched(start.kind, start.steps, start.settings, message=str(error))

    rows = COMPARISONS[name].rows(search, b)
    for method in methods:
        check_choice("method", method, list(rows))
    chosen = {method: row for method, row in rows.items() if not methods or method in methods}
    for row in chosen.values():
        # What is not asked for need not have been searched.
        if isinstance(row.recipe, Unsearched):
            raise InputError(row.recipe.message)
    return {method: Row(row.recipe, _at(row.terms, b, size)) for method, row in chosen.items()}
