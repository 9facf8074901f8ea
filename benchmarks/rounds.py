r"""Rounds on the tasks of sbibm: observations with samples of their exact posteriors.

    python benchmarks/rounds.py --size toy|full --output results/rounds-sbibm.json \
        --work /tmp/rounds --wheel sbibm-1.1.0-py2.py3-none-any.whl --only 'sir/1/10000/0' 'slcp/*'

A cell is one task, observation, number of simulations in all and seed: rounds by their defaults,
and nothing else. Of every cell the file has the classifier two-sample test of 10,000 samples
against as many of the exact posterior (½ where they cannot be told apart), the share of the exact
posterior that the last region cut off, and the table of the rounds. Beside them stand the scores of
amortised fits to as many simulations, of the same observations, where ``results/sbibm.json`` has
them.

Runs that the file holds are not repeated, and a cell that was stopped goes on where it was: stores
and models lie in the folder ``--work``. Observations of a task share the first round, whose time
is counted to the first of them.
"""

import argparse
import fnmatch
import json
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

import eande
from eande.diagnostics.two_sample import c2st_of_pairs
from eande.foundations.provenance import provenance
from eande.priors.truncated import TruncatedPrior
from eande.simulators.sbibm import OBSERVATIONS, TASKS, Reference, read_reference
from eande.studies.records import StoredRuns
from eande.studies.sampling import sample_or_resample
from eande.studies.sbibm.wheel import fetch_wheel
from eande.studies.schema import Provenance

AMORTISED = Path(__file__).parents[1] / "results" / "sbibm.json"
# Two tasks solve differential equations for all rows of a call at once.
BLOCK = 10_000


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: of all rounds together.
        rounds: how many; None for the default.
        seeds: of each task, observation and number of simulations.
        samples: per score.
        epochs: of a fit; None for the default.
    """

    simulations: tuple[int, ...] = (1_000, 10_000)
    rounds: int | None = None
    seeds: int = 3
    samples: int = 10_000
    epochs: int | None = None


SIZES = {"full": Size(), "toy": Size((120,), rounds=2, seeds=1, samples=100, epochs=2)}


@dataclass
class Run:
    """All rounds of a cell."""

    task: str
    observation: int
    simulations: int
    seed: int
    score: float
    exact_mass_cut_off: float
    resampled: bool
    rounds: dict[str, Any]
    seconds: float
    cpu_seconds: float
    warnings: list[str]


@dataclass
class Results:
    """The result file."""

    study: str
    size: str
    seed: int
    settings: dict[str, Any]
    runs: list[Run]
    summary: dict[str, dict[str, Any]]
    provenance: Provenance
    seconds: float


def run_cell(
    task: str,
    reference: Reference,
    observation: int,
    simulations: int,
    seed: int,
    size: Size,
    work: Path,
) -> dict[str, Any]:
    """Make all rounds of a cell, and compare the posterior with the exact one."""
    of = TASKS[task]
    options = {} if size.rounds is None else {"rounds": size.rounds}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        began = (time.perf_counter(), time.process_time())
        model, info = eande.rounds(
            of.simulator,
            of.prior,
            reference.observation,
            simulations=simulations,
            checkpoint=work / f"{task}-{simulations}-{seed}",
            settings=eande.FitSettings(seed=seed, epochs=size.epochs),
            block_size=BLOCK,
            seed=seed,
            progress=False,
            **options,
        )
        seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
        posterior = model.posterior(reference.observation)
        samples, resampled = sample_or_resample(posterior, size.samples, seed=observation)
    exact = reference.samples[: size.samples]
    cut_off = 0.0
    if isinstance(model.prior, TruncatedPrior):
        cut_off = (~model.prior.contains(reference.samples)).double().mean().item()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = Run(
        task,
        observation,
        simulations,
        seed,
        score=c2st_of_pairs([(exact, samples)], device=device)[0],
        exact_mass_cut_off=cut_off,
        resampled=resampled,
        rounds=info.describe(),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        warnings=sorted({f"{one.category.__name__}: {one.message}" for one in warned}),
    )
    return asdict(run) | {"threads": torch.get_num_threads(), "commit": provenance()["commit"]}


def amortised_scores() -> dict[tuple[str, int], list[list[float]]]:
    """Return the scores of amortised fits by task and simulations, one list for each seed."""
    found: dict[tuple[str, int], list[list[float]]] = {}
    if AMORTISED.exists():
        for run in json.loads(AMORTISED.read_text())["runs"]:
            if run.get("method", "eande") == "eande":
                found.setdefault((run["task"], run["simulations"]), []).append(run["scores"])
    return found


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over observations beside those of amortised fits, and the provenance."""
    amortised = amortised_scores()
    summary: dict[str, dict[str, Any]] = {}
    for task, n in sorted({(run["task"], run["simulations"]) for run in runs}):
        own = [run for run in runs if (run["task"], run["simulations"]) == (task, n)]
        numbers = sorted({run["observation"] for run in own})
        beside = [seed[number - 1] for seed in amortised.get((task, n), []) for number in numbers]
        last = [run["rounds"]["rounds"][-1] for run in own]
        summary.setdefault(task, {})[str(n)] = {
            "observations": numbers,
            "runs": len(own),
            "score": median(run["score"] for run in own),
            "amortised_score": median(beside) if beside else None,
            "exact_mass_cut_off": max(run["exact_mass_cut_off"] for run in own),
            "log_mass": mean(one["log_mass"] for one in last),
            "simulations_made": mean(
                sum(one["simulations"] for one in run["rounds"]["rounds"]) for run in own
            ),
            "cpu_seconds": mean(run["cpu_seconds"] for run in own),
        }
    return {
        "summary": summary,
        "provenance": provenance(),
        "seconds": sum(run["seconds"] for run in runs),
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/rounds-sbibm.json"))
    parser.add_argument("--work", type=Path, required=True, help="a folder for stores and models")
    parser.add_argument("--wheel", type=Path, help="of sbibm; downloaded by default")
    parser.add_argument("--only", nargs="+", default=["*"], help="task/observation/number/seed")
    asked = parser.parse_args()
    size = SIZES[asked.size]
    cells = [
        (task, number, n, seed)
        for seed in range(size.seeds)
        for n in size.simulations
        for number in OBSERVATIONS
        for task in TASKS
        if any(fnmatch.fnmatch(f"{task}/{number}/{n}/{seed}", pattern) for pattern in asked.only)
    ]
    if not cells:
        parser.error(
            f"--only: expected task/observation/simulations/seed, got {' '.join(asked.only)}"
        )
    head = {
        "study": "rounds on sbibm",
        "size": asked.size,
        "seed": 0,
        "settings": asdict(size) | {"simulations": list(size.simulations)},
    }
    key = ("task", "observation", "simulations", "seed")
    stored = StoredRuns(asked.output, Results, head, key, summary=summarize, in_order=True)
    wheel = asked.wheel or fetch_wheel(Path.home() / ".cache" / "eande")
    for cell in cells:
        if stored.find(**dict(zip(key, cell, strict=True))) is not None:
            continue
        task, number, n, seed = cell
        reference = read_reference(wheel, task, number)
        run = run_cell(task, reference, number, n, seed, size, asked.work)
        stored.add(run)
        kept = run["rounds"]["rounds"][-1]["log_mass"]
        print(
            f"{task}, observation {number}, {n} simulations, seed {seed}: C2ST {run['score']:.3f}, "
            f"log p(R) {kept:.2f}, {run['exact_mass_cut_off']:.2%} of the exact posterior cut off, "
            f"{run['seconds']:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
