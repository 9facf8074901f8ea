"""Compare our classifier two-sample test with scikit-learn's, which the benchmark sbibm takes.

    python benchmarks/c2st.py --size toy|full --wheel sbibm-1.1.0-py2.py3-none-any.whl \
        --output results/c2st.json

Thirty pairs: samples of exact posteriors in 2, 5 and 10 parameters against others of the same
posterior with noise added, from none to so much that every point is told apart. Most pairs have
2,000 samples each (1,000 with ten parameters), one of every number of parameters has the
benchmark's 10,000: scikit-learn takes minutes for those. Without noise the two samples have no
point in common; with 10,000 they are the same points before noise is added.

The score of one pair depends on the seed of folds and classifiers: the noise that a difference has
to be compared with. Other seeds tell how large it is.

Seconds are those of a processor, one thread each (``OMP_NUM_THREADS=1``), so that other work on the
machine does not count. Both spread over several threads without loss: scikit-learn the folds, ours
the pairs. A run that was interrupted goes on where it was.
"""

import argparse
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
from eande.studies.records import ResultFile, read_results
from eande.studies.sbibm.wheel import fetch_wheel
from eande.studies.schema import Findings

# Scikit-learn's score is the reference of tests, and lives there.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.scikit_learn import c2st_by_scikit_learn

# Task, number of the observation, and noise in standard deviations of the posterior.
POSTERIORS = (
    ("two_moons", 1, (0.0, 0.02, 0.05, 0.2, 1.0)),
    ("sir", 1, (0.0, 0.3, 0.7, 1.5, 10.0)),
    ("slcp", 1, (0.0, 0.02, 0.05, 0.2, 1.0)),
    ("slcp", 2, (0.0, 0.05, 0.1, 0.4, 3.0)),
    ("gaussian_linear", 1, (0.0, 0.5, 1.0, 2.0, 5.0)),
    ("bernoulli_glm", 1, (0.0, 0.3, 0.7, 1.5, 4.0)),
)
# Scored with all samples: the middle one of a posterior in 2, 5 and 10 parameters.
LARGE = ("two_moons", "slcp", "gaussian_linear")


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


def measure(pair: list[torch.Tensor], seeds: int) -> dict[str, Any]:
    """Return both scores of a pair, the seconds they took, and our scores with other seeds."""
    began = time.process_time()
    ours = c2st(*pair)
    between = time.process_time()
    theirs = c2st_by_scikit_learn(*pair)
    return {
        "eande": ours,
        "scikit_learn": theirs,
        "seconds_eande": between - began,
        "seconds_scikit_learn": time.process_time() - between,
        "other_seeds": [c2st(*pair, seed=2 + i) for i in range(seeds)],
    }


def pairs_done(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a run with the same settings has found already."""
    if not path.exists():
        return {}
    content = read_results(path, Findings)
    return content if content["settings"] == settings else {}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--wheel", type=Path, help="by default pip downloads it")
    parser.add_argument("--output", type=Path, default=Path("results/c2st.json"))
    asked = parser.parse_args()
    size = SIZES[asked.size]
    settings = asdict(size) | {"threads": torch.get_num_threads()}
    done = pairs_done(asked.output, settings)
    record = ResultFile(
        asked.output,
        study="c2st",
        size=asked.size,
        settings=settings,
        seed=0,
        provenance=provenance("scikit-learn"),
    )
    pairs: list[dict[str, Any]] = []
    for task, number, levels in POSTERIORS[: size.posteriors]:
        if asked.size == "toy":
            # No download in tests: draws of the prior.
            posterior = TASKS[task].prior.sample(100, seed=number)
        else:
            wheel = asked.wheel or fetch_wheel(Path.home() / ".cache" / "eande")
            posterior = read_reference(wheel, task, number).samples
        for i, noise in enumerate(levels[: size.levels]):
            large = task in LARGE and number == 1 and i == len(levels) // 2
            few = size.fewer if posterior.shape[1] == 10 else size.samples
            count = size.most if large else few
            name = f"{task} {number}, noise {noise}"
            found = done.get(name)
            if found is None:
                found = measure(a_pair(posterior, count, noise, len(pairs)), size.seeds)
                found |= {"parameters": posterior.shape[1], "samples": count}
            record.add(name, found)
            pairs.append(found)
    differences = np.array([pair["eande"] - pair["scikit_learn"] for pair in pairs])
    record.add(
        "differences",
        {
            "pairs": len(pairs),
            "mean": differences.mean().item(),
            "mean_absolute": np.abs(differences).mean().item(),
            "root_mean_square": np.sqrt((differences**2).mean()).item(),
            "largest": np.abs(differences).max().item(),
        },
    )
    seeds = np.array([[pair["eande"], *pair["other_seeds"]] for pair in pairs])
    record.add(
        "standard deviation of a score over seeds", np.sqrt(seeds.var(1, ddof=1).mean()).item()
    )
    for dimension in sorted({pair["parameters"] for pair in pairs}):
        seconds = {
            name: sum(pair[f"seconds_{name}"] for pair in pairs if pair["parameters"] == dimension)
            for name in ("eande", "scikit_learn")
        }
        faster = seconds["scikit_learn"] / seconds["eande"]
        record.add(f"speed-up in {dimension} parameters", faster)


if __name__ == "__main__":
    main()
