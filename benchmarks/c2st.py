r"""Compare our classifier two-sample test with scikit-learn's, which the benchmark sbibm takes.

    python benchmarks/c2st.py --size toy|full --wheel sbibm-1.1.0-py2.py3-none-any.whl \
        --output results/c2st.json --only 'slcp/1/*' 'sir/*'

Thirty pairs: samples of exact posteriors in 2, 5 and 10 parameters against others of the same
posterior with noise added, from none to so much that every point is told apart. Most pairs have
2,000 samples each (1,000 with ten parameters), one of every number of parameters has the
benchmark's 10,000: scikit-learn takes minutes for those. Without noise the two samples have no
point in common; with 10,000 they are the same points before noise is added.

The score of one pair depends on the seed of folds and classifiers: the noise that a difference has
to be compared with. Other seeds tell how large it is.

Seconds are those of a processor, one thread each (``OMP_NUM_THREADS=1``), so that other work on the
machine does not count. Both spread over several threads without loss: scikit-learn the folds, ours
the pairs. Pairs that the file holds are not repeated.
"""

import argparse
import fnmatch
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.diagnostics.two_sample import c2st
from eande.foundations.provenance import provenance
from eande.foundations.seeds import generator
from eande.simulators.sbibm import TASKS, read_reference
from eande.studies.records import StoredRuns
from eande.studies.sbibm.wheel import fetch_wheel
from eande.studies.schema import Provenance

# Scikit-learn's score is the reference of tests, and lives there.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.scikit_learn import c2st_by_scikit_learn

# Of a task and the number of an observation: noise in standard deviations of the posterior.
LEVELS = {
    ("two_moons", 1): (0.0, 0.02, 0.05, 0.2, 1.0),
    ("sir", 1): (0.0, 0.3, 0.7, 1.5, 10.0),
    ("slcp", 1): (0.0, 0.02, 0.05, 0.2, 1.0),
    ("slcp", 2): (0.0, 0.05, 0.1, 0.4, 3.0),
    ("gaussian_linear", 1): (0.0, 0.5, 1.0, 2.0, 5.0),
    ("bernoulli_glm", 1): (0.0, 0.3, 0.7, 1.5, 4.0),
}
# Scored with all samples at this level: a posterior in 2, 5 and 10 parameters each.
LARGE = (("two_moons", 1), ("slcp", 1), ("gaussian_linear", 1))
MIDDLE = 2


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        samples: of most pairs.
        fewer: of those with ten parameters.
        most: of those that are scored with all.
        levels: of noise, how many of the five.
        posteriors: how many of the six.
        seeds: further ones, for the noise of a score.
    """

    samples: int = 2_000
    fewer: int = 1_000
    most: int = 10_000
    levels: int = 5
    posteriors: int = 6
    seeds: int = 2


SIZES = {
    "full": Size(),
    "toy": Size(samples=20, fewer=20, most=40, levels=1, posteriors=2, seeds=1),
}


def a_pair(samples: torch.Tensor, count: int, noise: float, seed: int) -> list[torch.Tensor]:
    """Return samples of a posterior, and others with noise."""
    stream = generator(seed, "pairs of samples")
    order = torch.randperm(len(samples), generator=stream)
    first = samples[order[:count]]
    second = samples[order[-count:]]
    scale = noise * samples.std(0)
    return [first, second + scale * torch.randn(second.shape, generator=stream)]


@dataclass
class Run:
    """One pair.

    Args:
        task: of the benchmark.
        observation: its number.
        level: of the noise, its place among the posterior's levels.
        noise: in standard deviations of the posterior.
        parameters: of the task.
        samples: in each of the two sets.
        eande: our score.
        scikit_learn: theirs.
        seconds_eande: of a processor.
        seconds_scikit_learn: likewise.
        other_seeds: our scores with other seeds of folds and classifiers.
    """

    task: str
    observation: int
    level: int
    noise: float
    parameters: int
    samples: int
    eande: float
    scikit_learn: float
    seconds_eande: float
    seconds_scikit_learn: float
    other_seeds: list[float]


@dataclass
class Results:
    """The result file."""

    study: str
    size: str
    seed: int
    settings: dict[str, Any]
    runs: list[Run]
    summary: dict[str, Any]
    provenance: Provenance
    seconds: float


def run_cell(cell: tuple[str, int, int], size: Size, posterior: torch.Tensor) -> dict[str, Any]:
    """Score one pair by both, and by ours with other seeds."""
    task, number, level = cell
    levels = LEVELS[task, number]
    large = (task, number) in LARGE and level == MIDDLE
    few = size.fewer if posterior.shape[1] == 10 else size.samples
    count = size.most if large else few
    noise = levels[level]
    # The place of the pair among all.
    seed = len(levels) * list(LEVELS).index((task, number)) + level
    pair = a_pair(posterior, count, noise, seed)
    began = time.process_time()
    ours = c2st(*pair)
    between = time.process_time()
    theirs = c2st_by_scikit_learn(*pair)
    run = Run(
        task,
        number,
        level,
        noise=noise,
        parameters=posterior.shape[1],
        samples=count,
        eande=ours,
        scikit_learn=theirs,
        seconds_eande=between - began,
        seconds_scikit_learn=time.process_time() - between,
        other_seeds=[c2st(*pair, seed=2 + i) for i in range(size.seeds)],
    )
    return asdict(run) | {"threads": torch.get_num_threads(), "commit": provenance()["commit"]}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far apart the scores are, and by how much ours is faster."""
    differences = np.array([run["eande"] - run["scikit_learn"] for run in runs])
    seeds = np.array([[run["eande"], *run["other_seeds"]] for run in runs])
    seconds = {
        name: {
            dimension: sum(run[f"seconds_{name}"] for run in runs if run["parameters"] == dimension)
            for dimension in sorted({run["parameters"] for run in runs})
        }
        for name in ("eande", "scikit_learn")
    }
    summary = {
        "pairs": len(runs),
        "differences": {
            "mean": differences.mean().item(),
            "mean_absolute": np.abs(differences).mean().item(),
            "root_mean_square": np.sqrt((differences**2).mean()).item(),
            "largest": np.abs(differences).max().item(),
        },
        "standard_deviation_over_seeds": np.sqrt(seeds.var(1, ddof=1).mean()).item(),
        "speed_up": {
            f"{dimension} parameters": seconds["scikit_learn"][dimension] / ours
            for dimension, ours in seconds["eande"].items()
        },
    }
    return {
        "summary": summary,
        "provenance": provenance("scikit-learn"),
        "seconds": sum(run["seconds_eande"] + run["seconds_scikit_learn"] for run in runs),
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--wheel", type=Path, help="by default pip downloads it")
    parser.add_argument("--output", type=Path, default=Path("results/c2st.json"))
    parser.add_argument("--only", nargs="+", default=["*"], help="task/observation/level of noise")
    asked = parser.parse_args()
    size = SIZES[asked.size]
    cells = [
        (task, number, level)
        for task, number in list(LEVELS)[: size.posteriors]
        for level in range(size.levels)
        if any(fnmatch.fnmatch(f"{task}/{number}/{level}", one) for one in asked.only)
    ]
    if not cells:
        parser.error(f"--only: expected task/observation/level, got {' '.join(asked.only)}")
    head = {"study": "c2st", "size": asked.size, "seed": 0, "settings": asdict(size)}
    key = ("task", "observation", "level")
    stored = StoredRuns(asked.output, Results, head, key, summary=summarize, in_order=True)
    wheel = None
    for cell in cells:
        if stored.find(**dict(zip(key, cell, strict=True))) is not None:
            continue
        task, number, _ = cell
        if asked.size == "toy":
            # No download in tests: draws of the prior.
            posterior = TASKS[task].prior.sample(100, seed=number)
        else:
            wheel = wheel or asked.wheel or fetch_wheel(Path.home() / ".cache" / "eande")
            posterior = read_reference(wheel, task, number).samples
        run = run_cell(cell, size, posterior)
        print(
            f"{task} {number}, noise {run['noise']}: {run['eande']:.4f}, "
            f"scikit-learn {run['scikit_learn']:.4f}, "
            f"{run['seconds_scikit_learn'] / run['seconds_eande']:.0f} times as fast",
            flush=True,
        )
        stored.add(run)


if __name__ == "__main__":
    main()
