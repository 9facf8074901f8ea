r"""Fit the ten tasks of the common benchmark by defaults: what it takes, and what it brings.

    python benchmarks/fits.py --size toy|full --output results/fits.json \
        --only 'eande/slcp/1000/*' 'npe/*'

Two methods on the same simulations, each with its defaults and nothing else:

    eande     eande.fit(simulations, prior)
    npe       sbi's NPE, which is its NPE_C: a masked autoregressive flow

Of every fit the file has its seconds by the wall clock and of the processor, its peak of memory
above that before it, and the mean log ratio log q(φ | y) − log p(φ) of 1,000 fresh pairs, the same
for both methods. Ours is normalised by prior draws where enough of them come near a posterior, and
by candidates from a proposal of its own elsewhere, with the true parameters among them; the flow is
normalised as it is, its mass outside the prior's support counts as lost. Runs that the file holds
are not repeated; seconds compare on an idle machine only.
"""

import argparse
import fnmatch
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

import eande
from eande.foundations.provenance import provenance
from eande.simulators.sbibm import TASKS
from eande.studies.lorenz96.through_sbi import Quiet
from eande.studies.memory import PeakAnonymous
from eande.studies.records import StoredRuns
from eande.studies.schema import Provenance
from eande.training.validation import HeldOut, held_out_log_ratios

# Of the fresh pairs; simulations have seeds of their own.
FRESH_SEED = 1_000
# At a call of the simulator: two of them solve differential equations for all rows at once.
BLOCK = 10_000
# Prior draws for the normaliser, where these suffice.
DRAWS = 100_000
# Between two looks at the memory, in seconds.
LOOK = 0.05


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        tasks: of the common benchmark.
        seeds: fits of ours, for each number of simulations.
        npe: numbers of simulations that sbi's NPE is fitted to, with the first seed.
        fresh: pairs to judge by.
        epochs: of training; None for every method's default.
    """

    tasks: tuple[str, ...]
    seeds: dict[int, int]
    npe: tuple[int, ...]
    fresh: int = 1_000
    epochs: int | None = None


SIZES = {
    "full": Size(tuple(TASKS), {1_000: 3, 10_000: 3, 100_000: 1}, (1_000, 10_000)),
    "toy": Size(("two_moons", "sir"), {60: 1}, (60,), fresh=10, epochs=1),
}


@dataclass
class Run:
    """One fit."""

    method: str
    task: str
    simulations: int
    seed: int
    log_ratio: float
    error: float
    seconds: float
    cpu_seconds: float
    peak_mb: float
    tried: list[dict[str, Any]]
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


# What a fit comes to: log ratios of pairs, and the runs of its search.
Fitted = tuple[Callable[[eande.Simulations], Tensor], list[dict[str, Any]]]


def with_eande(simulations: eande.Simulations, prior: Any, seed: int, size: Size) -> Fitted:
    """Fit by our defaults."""
    settings = eande.FitSettings(seed=seed, epochs=size.epochs)
    model = eande.fit(simulations, prior, settings=settings, progress=False)

    def log_ratios(fresh: eande.Simulations) -> Tensor:
        return held_out_log_ratios(model, HeldOut(fresh, None, DRAWS), FRESH_SEED)

    return log_ratios, model.tried


def with_npe(simulations: eande.Simulations, prior: Any, seed: int, size: Size) -> Fitted:
    """Fit sbi's flow by its defaults."""
    from sbi.inference import NPE

    from eande.bridges.sbi import as_distribution

    torch.manual_seed(seed)
    law = as_distribution(prior, torch.device("cpu"))
    trainer = NPE(law, tracker=Quiet(), show_progress_bars=False)
    trainer.append_simulations(simulations.phi, simulations.y[:])
    flow = trainer.train(**({} if size.epochs is None else {"max_num_epochs": size.epochs}))

    def log_ratios(fresh: eande.Simulations) -> Tensor:
        log_density = flow.log_prob(fresh.phi.unsqueeze(0), fresh.y[:])[0].double()
        return log_density - prior.log_prob(fresh.phi).double()

    return log_ratios, []


METHODS = {"eande": with_eande, "npe": with_npe}


def run_cell(method: str, task: str, n: int, seed: int, size: Size) -> dict[str, Any]:
    """Fit one method to one set of simulations, and judge it."""
    prior = TASKS[task].prior
    given, fresh = (
        eande.simulate(
            TASKS[task].simulator, prior, number, seed=own, block_size=BLOCK, progress=False
        )
        for number, own in ((n, seed), (size.fresh, FRESH_SEED + seed))
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        began = (time.perf_counter(), time.process_time())
        with PeakAnonymous(LOOK) as memory:
            log_ratios, tried = METHODS[method](given, prior, seed, size)
        seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    with torch.no_grad():
        found = log_ratios(fresh)
    run = Run(
        method,
        task,
        n,
        seed,
        log_ratio=found.mean().item(),
        error=found.std().item() / math.sqrt(len(found)),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_mb=memory.above,
        tried=tried,
        warnings=sorted({f"{one.category.__name__}: {one.message}" for one in warned}),
    )
    return asdict(run) | {"threads": torch.get_num_threads(), "commit": provenance()["commit"]}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds, medians over tasks, and the provenance of the latest run."""
    summary: dict[str, dict[str, Any]] = {}
    for run in runs:
        same = [
            other
            for other in runs
            if all(other[key] == run[key] for key in ("method", "task", "simulations"))
        ]
        numbers = ("log_ratio", "seconds", "cpu_seconds", "peak_mb")
        cells = summary.setdefault(f"{run['method']}, {run['simulations']}", {"tasks": {}})
        cells["tasks"][run["task"]] = {
            name: mean(one[name] for one in same) for name in numbers
        } | {"seeds": len(same)}
    for cells in summary.values():
        cells["median_seconds"] = median(one["seconds"] for one in cells["tasks"].values())
    return {
        "summary": summary,
        "provenance": provenance("sbi"),
        "seconds": sum(run["seconds"] for run in runs),
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/fits.json"))
    parser.add_argument("--only", nargs="+", default=["*"], help="method/task/simulations/seed")
    asked = parser.parse_args()
    size = SIZES[asked.size]
    # Methods one after the other on the same simulations, so that both meet the same machine.
    cells = [
        (method, task, n, seed)
        for n, seeds in size.seeds.items()
        for seed in range(seeds)
        for task in size.tasks
        for method in METHODS
        if (method == "eande" or (n in size.npe and seed == 0))
        and any(fnmatch.fnmatch(f"{method}/{task}/{n}/{seed}", one) for one in asked.only)
    ]
    if not cells:
        parser.error(f"--only: expected method/task/simulations/seed, got {' '.join(asked.only)}")
    settings = asdict(size) | {"tasks": list(size.tasks), "npe": list(size.npe)}
    settings |= {"seeds": {str(n): count for n, count in size.seeds.items()}}
    settings |= {"fresh_seed": FRESH_SEED, "draws": DRAWS}
    head = {"study": "fits", "size": asked.size, "seed": 0, "settings": settings}
    key = ("method", "task", "simulations", "seed")
    stored = StoredRuns(asked.output, Results, head, key, summary=summarize, in_order=True)
    if asked.size != "toy":
        # Libraries, ours and sbi's, are loaded here, so that no timing has to.
        for method in METHODS:
            run_cell(method, "two_moons", 60, 0, SIZES["toy"])
    for cell in cells:
        if stored.find(**dict(zip(key, cell, strict=True))) is None:
            run = run_cell(*cell, size)
            print(
                f"{'/'.join(map(str, cell))}: {run['log_ratio']:.3f} ± {run['error']:.3f} nats, "
                f"{run['seconds']:.1f} s, {run['peak_mb']:.0f} MB",
                flush=True,
            )
            stored.add(run)


if __name__ == "__main__":
    main()
