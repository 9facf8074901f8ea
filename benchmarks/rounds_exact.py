r"""Rounds on problems whose posteriors are known: are they calibrated, and what do they cut off?

    python benchmarks/rounds_exact.py --size toy|full --output results/rounds-exact.json \
        --work /tmp/rounds-exact --only 'counts/*/reuse' 'growth/1?/*'

The problems are some of :mod:`eande.simulators.exact_problems`. A cell is one of them and one
observation, of parameters drawn from the prior, with or without reuse of earlier rounds'
simulations in the fits (``reuse``, ``anew``); rounds are made for it alone, by fits of a second.
Both posteriors are tables over one grid. Of every cell the file has the share of the exact
posterior that each round's region cut off, the level of the smallest highest-density region that
holds the true parameters, by the last model and exactly, and the divergence of the exact posterior
from the model's inside the region.

``summary`` has, for each problem, with and without reuse, the coverage of those regions over all
observations beside the exact posterior's on the same ones, with the probability that exact coverage
were as far from its level, and how much was cut off. Runs that the file holds are not repeated;
observations share the first round.
"""

import argparse
import fnmatch
import time
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from exact_problems import LEVELS, Table, simulated
from scipy import stats
from torch import Tensor

import eande
from eande.foundations.provenance import provenance
from eande.priors.truncated import TruncatedPrior
from eande.simulators.exact_problems import PROBLEMS, ExactProblem
from eande.studies.records import StoredRuns
from eande.studies.schema import Provenance

NAMES = ("counts", "growth")
# Whether a fit sees what lies in its region of earlier rounds, too, by its name.
REUSE = {"reuse": True, "anew": False}
# Of the observations; simulations have seeds of their own.
OBSERVED_SEED = 2_000


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        observations: of each problem.
        simulations: of all rounds together.
        rounds: how many.
        members: of each fit.
        epochs: of each fit.
    """

    observations: int = 100
    simulations: int = 900
    rounds: int = 3
    members: int = 2
    epochs: int = 40

    def fit(self) -> eande.FitSettings:
        """Return the settings of a fit of a second."""
        return eande.FitSettings(
            similarity=eande.Mixture(heads=4),
            embedding_dimension=8,
            width=32,
            epochs=self.epochs,
            batch_size=100,
            learning_rate=2e-3,
            start="linear",
            device="cpu",
        )


SIZES = {"full": Size(), "toy": Size(2, 120, rounds=2, members=1, epochs=2)}


@dataclass
class Run:
    """All rounds of a cell."""

    problem: str
    observation: int
    reuse: bool
    level: float
    exact_level: float
    divergence: float
    exact_mass_cut_off: list[float]
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


def name_of(reuse: bool) -> str:
    """Return the word for it."""
    return next(word for word, value in REUSE.items() if value == reuse)


def score(model: eande.EmbedAndEmulate, f: Tensor, phi: Tensor) -> Tensor:
    """Return a model's scores of parameters (k, D), minus infinity outside its prior, (m, k)."""
    phi = phi.float()
    scores = model.similarity.score(f, model.emulate_all(phi)).double()
    return scores.masked_fill(~model.prior.contains(phi), -torch.inf)


def cut_off(problem: ExactProblem, exact: Table, prior: Any) -> list[float]:
    """Return how much of an exact posterior lies outside the regions of each round, from 1 on."""
    grid, log_mass = problem.grid()
    mass = (exact.log_ratio[0] + log_mass).exp()
    shares = [0.0]
    inside = torch.ones(len(grid), dtype=torch.bool)
    regions = prior.regions if isinstance(prior, TruncatedPrior) else ()
    for number, region in enumerate(regions, start=1):
        inside &= region(grid.float())
        if number == len(regions):
            # Boxes are parts of the regions; of those before the last one is the intersection kept.
            inside &= prior.contains(grid.float())
        shares.append(mass[~inside].sum().item())
    return shares


def run_cell(name: str, observation: int, reuse: bool, size: Size, work: Path) -> dict[str, Any]:
    """Make rounds for an observation, and compare with its exact posterior."""
    problem = PROBLEMS[name]
    observed = simulated(problem, 1, OBSERVED_SEED + observation)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        began = (time.perf_counter(), time.process_time())
        model, info = eande.rounds(
            problem,
            problem.prior,
            observed.y[0],
            simulations=size.simulations,
            rounds=size.rounds,
            members=size.members,
            reuse=reuse,
            checkpoint=work / f"{name}-{name_of(reuse)}",
            settings=size.fit(),
            progress=False,
        )
        seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    with torch.no_grad():
        exact_score = partial(_exact_score, problem, observed.y[:].double())
        exact = Table.of(problem, exact_score, observed.phi.double())
        found = Table.of(
            problem, partial(score, model, model.embed_all(observed.y[:])), observed.phi.double()
        )
        mass = (exact.log_ratio + problem.grid()[1]).exp()
        apart = (exact.log_ratio - found.log_ratio).masked_fill(found.log_ratio == -torch.inf, 0)
    run = Run(
        name,
        observation,
        reuse,
        level=found.level.item(),
        exact_level=exact.level.item(),
        divergence=(mass * apart).sum().item(),
        exact_mass_cut_off=cut_off(problem, exact, model.prior),
        rounds=info.describe(),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        warnings=sorted({f"{one.category.__name__}: {one.message}" for one in warned}),
    )
    return asdict(run) | {"threads": torch.get_num_threads(), "commit": provenance()["commit"]}


def _exact_score(problem: ExactProblem, y: Tensor, phi: Tensor) -> Tensor:
    return problem.log_likelihood(phi, y)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return coverage and what was cut off, by problem, and the provenance of the latest run."""
    summary: dict[str, dict[str, Any]] = {}
    for name, reuse in dict.fromkeys((run["problem"], run["reuse"]) for run in runs):
        own = [run for run in runs if (run["problem"], run["reuse"]) == (name, reuse)]
        cut = torch.tensor([run["exact_mass_cut_off"][-1] for run in own], dtype=torch.float64)
        covered = {
            kind: {str(c): mean(run[kind] < c / 100 for run in own) for c in LEVELS}
            for kind in ("level", "exact_level")
        }
        summary.setdefault(name, {})[name_of(reuse)] = {
            "observations": len(own),
            "covered": covered["level"],
            "p_value": {
                str(c): float(
                    stats.binomtest(
                        sum(run["level"] < c / 100 for run in own), len(own), c / 100
                    ).pvalue
                )
                for c in LEVELS
            },
            "exact_covered": covered["exact_level"],
            "divergence": mean(run["divergence"] for run in own),
            "cut_off_in_95_per_cent": cut.quantile(0.95).item(),
            "cut_off_more_than_a_hundredth": (cut > 0.01).double().mean().item(),
            "log_mass": mean(run["rounds"]["rounds"][-1]["log_mass"] for run in own),
            "rounds": mean(len(run["rounds"]["rounds"]) for run in own),
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
    parser.add_argument("--output", type=Path, default=Path("results/rounds-exact.json"))
    parser.add_argument("--work", type=Path, required=True, help="a folder for stores and models")
    parser.add_argument("--only", nargs="+", default=["*"], help="problem/observation/reuse, or *")
    asked = parser.parse_args()
    size = SIZES[asked.size]
    cells = [
        (name, number, reuse)
        for word, reuse in REUSE.items()
        for number in range(size.observations)
        for name in NAMES
        if any(fnmatch.fnmatch(f"{name}/{number}/{word}", pattern) for pattern in asked.only)
    ]
    if not cells:
        parser.error(f"--only: expected problem/observation/reuse, got {' '.join(asked.only)}")
    settings = asdict(size) | {"fit": size.fit().describe(), "observed_seed": OBSERVED_SEED}
    head = {
        "study": "rounds on exact problems",
        "size": asked.size,
        "seed": 0,
        "settings": settings,
    }
    key = ("problem", "observation", "reuse")
    stored = StoredRuns(asked.output, Results, head, key, summary=summarize, in_order=True)
    for cell in cells:
        if stored.find(**dict(zip(key, cell, strict=True))) is None:
            name, number, reuse = cell
            run = run_cell(name, number, reuse, size, asked.work)
            stored.add(run)
            print(
                f"{name}, observation {number}, {name_of(reuse)}: level {run['level']:.3f} "
                f"({run['exact_level']:.3f}), KL {run['divergence']:.3f}, cut off "
                f"{run['exact_mass_cut_off'][-1]:.2%}, {len(run['rounds']['rounds'])} rounds, "
                f"{run['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
