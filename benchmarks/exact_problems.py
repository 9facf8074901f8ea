r"""Fit problems whose posteriors are known, with nothing but defaults, and compare the two.

    python benchmarks/exact_problems.py --size toy|full --output results/exact-problems.json \
        --only 'modes/10000/*' 'counts/*'

The problems are those of :mod:`eande.simulators.exact_problems`: vectors, sets, series, images and
counts of two parameters each, eight separated modes, and data that say nothing. A fit gets the
simulations and the prior; where a shape cannot tell what the data are, the word for it.

Both posteriors are tables over one grid of the parameters. Of every fit the file has, over 500
fresh pairs: the mean divergence KL(p(φ | y) ‖ q(φ | y)) of the exact posterior from the model's,
the mean log ratio in nats beside the exact one, and the coverage of highest-density regions beside
that of the exact posterior's on the same pairs. Runs that the file holds are not repeated.
"""

import argparse
import fnmatch
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import eande
from eande.foundations.provenance import provenance
from eande.simulators.exact_problems import PROBLEMS, ExactProblem
from eande.studies.records import StoredRuns
from eande.studies.schema import Provenance

LEVELS = (50, 80, 95)
# Of the fresh pairs; simulations have seeds of their own.
FRESH_SEED = 1_000
# What a shape cannot tell, and what has to be asked for.
OPTIONS: dict[str, dict[str, Any]] = {
    "normal draws": {"encoder": "set"},
    "gaps": {"settings": {"missing": "mask"}},
}
# Numbers of a table of scores that are in memory at a time.
NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: to fit to.
        seeds: fits of each problem and number of simulations.
        fresh: pairs to judge by.
        epochs: of training; None for the default.
    """

    simulations: tuple[int, ...] = (1_000, 10_000)
    seeds: int = 3
    fresh: int = 500
    epochs: int | None = None


SIZES = {"full": Size(), "toy": Size((60,), 1, fresh=10, epochs=1)}


@dataclass
class Run:
    """One fit."""

    problem: str
    simulations: int
    seed: int
    divergence: float
    divergence_error: float
    log_ratio: float
    exact_log_ratio: float
    covered: dict[str, float]
    exact_covered: dict[str, float]
    seconds: float
    cpu_seconds: float
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


class Judged(NamedTuple):
    """What two posteriors say of fresh pairs, each (m,).

    Args:
        divergence: of the exact posterior from the model's, in nats.
        log_ratio: of the true parameters under the model.
        level: of the model's smallest highest-density region with the true parameters in it.
        exact_log_ratio: under the exact posterior.
        exact_level: of the exact posterior's region.
    """

    divergence: Tensor
    log_ratio: Tensor
    level: Tensor
    exact_log_ratio: Tensor
    exact_level: Tensor


class Table(NamedTuple):
    """A posterior over the grid, for some data.

    Args:
        log_ratio: of every point of the grid, (m, k).
        own: log ratio of the true parameters, (m,).
        level: mass of the points that are denser than the true parameters, (m,).
    """

    log_ratio: Tensor
    own: Tensor
    level: Tensor

    @classmethod
    def of(cls, problem: ExactProblem, score: Callable[[Tensor], Tensor], phi: Tensor) -> "Table":
        """Normalise scores.

        Args:
            problem: with its grid.
            score: of all data with parameters (k, 2), up to a term of the datum, (m, k).
            phi: true parameters (m, 2).
        """
        grid, log_mass = problem.grid()
        log_prior = problem.prior.log_prob(grid).double()
        on_grid = score(grid).double()
        log_normalizer = (on_grid + log_mass).logsumexp(1, keepdim=True)
        log_ratio = on_grid - log_normalizer
        own = score(phi).double().diagonal() - log_normalizer[:, 0]
        above = log_ratio + log_prior > (own + problem.prior.log_prob(phi)).unsqueeze(1)
        return cls(log_ratio, own, ((log_ratio + log_mass).exp() * above).sum(1))


def judge(problem: ExactProblem, model: eande.EmbedAndEmulate, phi: Tensor, y: Tensor) -> Judged:
    """Compare a model with the exact posterior on pairs (m, 2) and (m, …)."""
    grid, log_mass = problem.grid()
    together = max(1, NUMBERS_AT_ONCE // len(grid))
    parts = []
    for true, data in zip(phi.double().split(together), y.split(together), strict=True):
        f = model.embed_all(data)
        exact = Table.of(problem, partial(_exact_score, problem, data.double()), true)
        found = Table.of(problem, partial(_score, model, f), true)
        apart = exact.log_ratio - found.log_ratio
        divergence = ((exact.log_ratio + log_mass).exp() * apart).sum(1)
        parts.append((divergence, found.own, found.level, exact.own, exact.level))
    return Judged(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _exact_score(problem: ExactProblem, y: Tensor, phi: Tensor) -> Tensor:
    return problem.log_likelihood(phi, y)


def _score(model: eande.EmbedAndEmulate, f: Tensor, phi: Tensor) -> Tensor:
    return model.similarity.score(f, model.emulate_all(phi.float()))


def covered(level: Tensor) -> dict[str, float]:
    """Return the share of the pairs that lie in the region of each level."""
    return {str(c): (level < c / 100).double().mean().item() for c in LEVELS}


def simulated(problem: ExactProblem, n: int, seed: int) -> eande.Simulations:
    """Simulate pairs; those of the problem with gaps have them."""
    phi = problem.prior.sample(n, seed=seed)
    y = problem(phi.numpy(), np.random.default_rng(seed))
    return eande.Simulations.from_arrays(phi, y, missing=bool(np.isnan(y).any()))


def run_cell(name: str, simulations: int, seed: int, size: Size) -> dict[str, Any]:
    """Fit one problem, and judge the model."""
    problem = PROBLEMS[name]
    given = simulated(problem, simulations, seed)
    fresh = simulated(problem, size.fresh, FRESH_SEED + seed)
    options = dict(OPTIONS.get(name, {}))
    asked = {"seed": seed, "epochs": size.epochs} | options.pop("settings", {})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        began = (time.perf_counter(), time.process_time())
        settings = eande.FitSettings(**asked)
        model = eande.fit(given, problem.prior, settings=settings, progress=False, **options)
        seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    with torch.no_grad():
        judged = judge(problem, model, fresh.phi, fresh.y[:])
    run = Run(
        name,
        simulations,
        seed,
        divergence=judged.divergence.mean().item(),
        divergence_error=(judged.divergence.std() / len(fresh) ** 0.5).item(),
        log_ratio=judged.log_ratio.mean().item(),
        exact_log_ratio=judged.exact_log_ratio.mean().item(),
        covered=covered(judged.level),
        exact_covered=covered(judged.exact_level),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        tried=model.tried,
        warnings=sorted({f"{one.category.__name__}: {one.message}" for one in warned}),
    )
    return asdict(run) | {"threads": torch.get_num_threads(), "commit": provenance()["commit"]}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds, and the provenance of the latest run."""
    summary: dict[str, dict[str, Any]] = {}
    for run in runs:
        own = [
            other
            for other in runs
            if (other["problem"], other["simulations"]) == (run["problem"], run["simulations"])
        ]
        numbers = ("divergence", "log_ratio", "exact_log_ratio", "cpu_seconds")
        found: dict[str, Any] = {name: mean(one[name] for one in own) for name in numbers}
        for name in ("covered", "exact_covered"):
            found[name] = {str(c): mean(one[name][str(c)] for one in own) for c in LEVELS}
        summary.setdefault(run["problem"], {})[str(run["simulations"])] = found | {
            "seeds": len(own)
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
    parser.add_argument("--output", type=Path, default=Path("results/exact-problems.json"))
    parser.add_argument("--only", nargs="+", default=["*"], help="problem/simulations/seed, or *")
    asked = parser.parse_args()
    size = SIZES[asked.size]
    cells = [
        (name, n, seed)
        for seed in range(size.seeds)
        for n in size.simulations
        for name in PROBLEMS
        if any(fnmatch.fnmatch(f"{name}/{n}/{seed}", pattern) for pattern in asked.only)
    ]
    if not cells:
        parser.error(f"--only: expected problem/simulations/seed, got {' '.join(asked.only)}")
    settings = asdict(size) | {"simulations": list(size.simulations), "fresh_seed": FRESH_SEED}
    head = {"study": "exact problems", "size": asked.size, "seed": 0, "settings": settings}
    stored = StoredRuns(
        asked.output,
        Results,
        head,
        ("problem", "simulations", "seed"),
        summary=summarize,
        in_order=True,
    )
    for name, n, seed in cells:
        if stored.find(problem=name, simulations=n, seed=seed) is None:
            run = run_cell(name, n, seed, size)
            print(
                f"{name}, {n} simulations, seed {seed}: KL {run['divergence']:.3f}, "
                f"{run['log_ratio']:.2f} of {run['exact_log_ratio']:.2f} nats, "
                f"covered {'/'.join(f'{100 * share:.0f}' for share in run['covered'].values())} "
                f"({'/'.join(f'{100 * share:.0f}' for share in run['exact_covered'].values())}), "
                f"{run['seconds']:.0f} s",
                flush=True,
            )
            stored.add(run)


if __name__ == "__main__":
    main()
