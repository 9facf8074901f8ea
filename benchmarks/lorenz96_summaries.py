r"""Time the summaries of many observations of Lorenz 96, beside posteriors one by one.

    python benchmarks/lorenz96_summaries.py --size toy|smoke|paper --device cpu|cuda \
        --output results/lorenz96-summaries.json

A model of the study's size and our recipe is trained, on the ring turned. Then windows of fresh
simulations, on the device already, are summarised all at once; for some of them, evenly spread over
the others, the means and deviations are compared with those of exact samples, whose seconds are the
reference.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from eande.foundations.provenance import provenance
from eande.inference.model import EmbedAndEmulate
from eande.studies.lorenz96 import data as study_data
from eande.studies.lorenz96.recipes import EANDE, OURS, Recipe, train
from eande.studies.lorenz96.sizes import SIZES as STUDY_SIZES
from eande.studies.lorenz96.terms import Terms
from eande.studies.records import ResultFile


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        study: the size of the study whose simulations, encoder and data these are.
        steps: of training.
        observations: to summarise.
        compared: of these, one by one.
        samples: of each of those.
        repeats: of all summaries; the median counts.
    """

    study: str
    steps: int
    observations: int
    compared: int
    samples: int
    repeats: int


SIZES = {
    "paper": Size("paper", 800, 1_000, 20, 10_000, 5),
    "smoke": Size("smoke", 8, 64, 4, 2_000, 3),
    "toy": Size("toy", 2, 20, 2, 500, 2),
}


def clocked(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a function returns, and its seconds; no work of the device is left undone."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    found = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, time.perf_counter() - began


def measure(size: Size, model: EmbedAndEmulate, y: torch.Tensor, record: ResultFile) -> None:
    """Time summaries, and compare some with samples."""
    model.summaries(y[:8], progress=False)
    seconds = []
    for _ in range(size.repeats):
        found, taken = clocked(lambda: model.summaries(y, progress=False))
        seconds.append(taken)
    effective = torch.tensor([summary.info.effective_draws for summary in found])
    record.add(
        "summaries",
        {
            "observations": len(y),
            "seconds": seconds,
            "milliseconds_each": 1_000 * median(seconds) / len(y),
            "nearby": sum(summary.info.nearby for summary in found),
            "fewest_effective_draws": effective.min().item(),
            "median_effective_draws": effective.median().item(),
        },
    )
    _, encoding = clocked(lambda: model.embed_all(y))
    record.add("milliseconds_each_of_the_encoder", 1_000 * encoding / len(y))
    mean_z, ratios, alone = [], [], []
    for i in torch.linspace(0, len(y) - 1, size.compared).long().tolist():
        (phi, _), taken = clocked(lambda i=i: model.posterior(y[i]).sample(size.samples, seed=i))
        alone.append(taken)
        summary = found[i]
        error = phi.std(0) * (1 / size.samples + 1 / summary.info.effective_draws) ** 0.5
        mean_z.append((summary.mean - phi.mean(0)) / error)
        ratios.append(summary.std / phi.std(0))
    z, ratio = torch.stack(mean_z), torch.stack(ratios)
    record.add(
        "against_samples",
        {
            "observations": size.compared,
            "mean_z_rms": z.square().mean().sqrt().item(),
            "mean_z_largest": z.abs().max().item(),
            "deviation_ratio": [ratio.min().item(), ratio.median().item(), ratio.max().item()],
            "milliseconds_each": 1_000 * median(alone),
        },
    )


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="paper")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, default=Path("results/lorenz96-summaries.json"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    size = SIZES[asked.size]
    chosen = replace(STUDY_SIZES[size.study], test=size.observations, fresh=0)
    about = {
        "settings": asdict(size) | {"study": asdict(chosen)},
        "device": asked.device,
        "seed": 0,
        "provenance": provenance("numba"),
    }
    record = ResultFile(asked.output, study="lorenz96-summaries", size=asked.size, **about)
    terms = Terms(turned=True, looks=20)
    data = study_data.make_data(chosen, terms, 0, asked.device, progress=False)
    recipe = Recipe(EANDE, size.steps, OURS)
    began = time.perf_counter()
    model = train(recipe, chosen, terms, data, 0, asked.device, progress=False)
    record.add("seconds_of_training", time.perf_counter() - began)
    record.add("held_out_log_ratio", max(entry["held_out_log_ratio"] for entry in model.history))
    measure(size, model, data.test_y.to(asked.device), record)


if __name__ == "__main__":
    main()
