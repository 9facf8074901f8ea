r"""Measure what combined windows are worth: three of them, and a model that knows one.

    python benchmarks/views.py --size toy|full --output results/views.json

A level is seen in autoregressive noise, 60 numbers of it; models know windows of 20.

exact    the exact model of a window, for several memories of the noise
fitted   level and memory both unknown: models fitted to windows with nothing but defaults; beside
         them a model fitted to all 60 numbers of the same simulations

Of each: held-out nats, and how often regions of 50, 80 and 95 % hold the truth, for one window, for
three combined, the same calibrated on simulations of their own, and three taken for independent
ones. The reference is the exact posterior given all 60 numbers, on the same pairs.
"""

import argparse
import math
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import eande
from eande.foundations.provenance import provenance
from eande.inference.levels import mass_above
from eande.similarities.calibrated import Calibrated
from eande.studies.records import ResultFile

# Models whose score is given are made by helpers of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.exact_series import WHOLE, WINDOW, exact, series

MEMORIES = (0.0, 0.5, 0.9)
LEVELS = (50, 80, 95)
PRIOR = eande.BoxPrior([-3, 0], [3, 0.95], names=["level", "memory"])
# Of the exact posterior of both: points a side.
GRID = 100
DRAWS = 10_000


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        seeds: of exact models.
        fits: of fitted ones.
        simulations: to fit to.
        calibration: simulations used for nothing else.
        fresh: pairs to judge by.
        epochs: of a fit; None for the default.
    """

    seeds: int = 3
    fits: int = 2
    simulations: int = 1_000
    calibration: int = 500
    fresh: int = 500
    epochs: int | None = None


SIZES = {"full": Size(), "toy": Size(1, 1, 60, 40, 40, 1)}


def judged(log_ratio: Tensor, levels: Tensor) -> dict[str, Any]:
    """Return the mean log ratio at true parameters, and how often regions hold these.

    Args:
        log_ratio: of posterior to prior at the true parameters (m,).
        levels: the posterior's mass where the ratio is higher than there (m,).
    """
    return {
        "nats": log_ratio.mean().item(),
        "covered": {level: (levels <= level / 100).double().mean().item() for level in LEVELS},
    }


@torch.no_grad()
def judge(model: eande.EmbedAndEmulate, pairs: eande.Simulations) -> dict[str, Any]:
    """Judge a model by fresh pairs and prior draws."""
    bank = model.prior_bank(model.prior, DRAWS)
    f = model.embed_all(pairs.y)
    own = model.similarity.paired_score(f, model.emulate_all(pairs.phi)).double()
    ratios, levels = [], []
    for datum, score in zip(f.split(1), own, strict=True):
        scores = model.similarity.score(datum, bank.emulated)[0].double()
        log_c = scores.logsumexp(0) - math.log(DRAWS)
        ratios.append(score - log_c)
        levels.append(mass_above(scores, score, scores.softmax(0)))
    return judged(torch.stack(ratios), torch.stack(levels))


def first_windows(pairs: eande.Simulations) -> eande.Simulations:
    """Return the same pairs, with the first window of each series."""
    return eande.Simulations(pairs.phi, pairs.y[:, :WINDOW], pairs.groups, names=pairs.names)


def compare(
    single: eande.EmbedAndEmulate, calibration: eande.Simulations, fresh: eande.Simulations
) -> dict[str, Any]:
    """Judge one window, and three that are combined in three ways."""
    combined = eande.combine_views(single, (WHOLE,))
    calibrated, info = eande.calibrate(combined, calibration, progress=False)
    count = WHOLE // WINDOW
    independent = combined.with_similarity(Calibrated(combined.similarity, count))
    return {
        "exponent": info.exponent,
        "one_window": judge(single, first_windows(fresh)),
        "combined": judge(combined, fresh),
        "calibrated": judge(calibrated, fresh),
        "as_independent": judge(independent, fresh),
    }


def both(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Simulate series of a level and a memory."""
    level, memory = phi[:, 0], phi[:, 1]
    noise = rng.standard_normal(len(phi))
    columns = [noise]
    for _ in range(WHOLE - 1):
        noise = memory * noise + np.sqrt(1 - memory**2) * rng.standard_normal(len(phi))
        columns.append(noise)
    return level[:, None] + np.stack(columns, axis=1)


def log_likelihood(y: Tensor, phi: Tensor) -> Tensor:
    """Return log p(y | φ) of series (m, 60) at levels and memories (k, 2), (m, k)."""
    level, memory = phi.double().unbind(1)
    residual = y.double().unsqueeze(1) - level.unsqueeze(1)
    steps = residual[:, :, 1:] - memory.unsqueeze(1) * residual[:, :, :-1]
    variance = 1 - memory**2
    squares = residual[:, :, 0] ** 2 + steps.square().sum(2) / variance
    return -squares / 2 - (WHOLE - 1) / 2 * variance.log()


def exact_of_both(pairs: eande.Simulations) -> dict[str, Any]:
    """Judge the exact posterior of level and memory, on a grid."""
    ends = [(low, high) for low, high in ((-3, 3), (0, 0.95))]
    axes = [low + (high - low) * (torch.arange(GRID) + 0.5) / GRID for low, high in ends]
    grid = torch.cartesian_prod(*axes)
    ratios, levels = [], []
    for phi, y in zip(pairs.phi.split(1), pairs.y[:].split(1), strict=True):
        scores = log_likelihood(y, grid)[0]
        own = log_likelihood(y, phi)[0, 0]
        ratios.append(own - (scores.logsumexp(0) - math.log(len(grid))))
        levels.append(mass_above(scores, own, scores.softmax(0)))
    return judged(torch.stack(ratios), torch.stack(levels))


def fitted(seed: int, size: Size) -> dict[str, Any]:
    """Fit to windows and to whole series, and compare."""

    def simulated(n: int, name: int) -> eande.Simulations:
        return eande.simulate(both, PRIOR, n, seed=10 * seed + name, progress=False)

    simulations, calibration, fresh = (
        simulated(n, name)
        for name, n in enumerate((size.simulations, size.calibration, size.fresh))
    )
    settings = eande.FitSettings(seed=seed, epochs=size.epochs, device="cpu")
    windows = eande.RandomWindow(WINDOW)
    single = eande.fit(simulations, PRIOR, views=windows, settings=settings, progress=False)
    found = compare(single, calibration, fresh)
    whole = eande.fit(simulations, PRIOR, settings=settings, progress=False)
    return found | {"fitted_to_all": judge(whole, fresh), "exact": exact_of_both(fresh)}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/views.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    size = SIZES[asked.size]
    head = {"settings": asdict(size), "seed": 0, "provenance": provenance()}
    record = ResultFile(asked.output, study="views", size=asked.size, **head)
    for memory in MEMORIES:
        runs = []
        for seed in range(size.seeds):
            fresh = series(size.fresh, memory, 10 * seed + 2)
            found = compare(
                exact(WINDOW, memory), series(size.calibration, memory, 10 * seed + 1), fresh
            )
            runs.append(found | {"exact": judge(exact(WHOLE, memory), fresh)})
        record.add(f"memory {memory}", runs)
    record.add("fitted", [fitted(seed, size) for seed in range(size.fits)])


if __name__ == "__main__":
    main()
