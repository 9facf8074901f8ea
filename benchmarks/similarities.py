"""Compare the similarities by held-out score, with the default settings otherwise.

    python benchmarks/similarities.py --size toy|full --output results/similarities.json

The default similarity was chosen by this. The tasks are those of the common benchmark and the
README's oscillation. Reported are the mean log ratio of fresh simulations in nats, its standard
error and the seconds of training; higher is better, and the standard error of a difference on the
same simulations is smaller. Where the effective sample size of a normaliser is small, the score is
too high.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import eande
from eande.foundations.provenance import provenance
from eande.inference.normalizer import estimate_normalizer
from eande.priors.prior import Prior
from eande.simulators.sbibm import TASKS
from eande.studies.records import ResultFile
from eande.training.validation import held_out_score

SIMILARITIES: dict[str, dict[str, Any]] = {
    "mixture": {},
    "cosine": {"similarity": "cosine", "embedding_dimension": 128},
}


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: to fit to.
        fresh: to score by.
        draws: of the prior, for normalisers.
        epochs: of training.
    """

    simulations: int = 10_000
    fresh: int = 2_000
    draws: int = 100_000
    epochs: int | None = None


SIZES = {"full": Size(), "toy": Size(simulations=60, fresh=20, draws=200, epochs=1)}


def oscillation(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The README's simulator."""
    times = np.linspace(0, 4, 50)
    signal = np.exp(-phi[:, 1:] * times) * np.cos(phi[:, :1] * times)
    return signal + 0.3 * rng.standard_normal(signal.shape)


def score(
    simulator: Callable[..., Any], prior: Prior, size: Size, settings: dict[str, Any]
) -> dict[str, float]:
    """Fit one model and score it."""
    simulations, fresh = (
        eande.simulate(simulator, prior, n, seed=seed, progress=False)
        for seed, n in enumerate((size.simulations, size.fresh))
    )
    began = time.perf_counter()
    chosen = eande.FitSettings(epochs=size.epochs, device="cpu", **settings)
    model = eande.fit(simulations, prior, settings=chosen, progress=False)
    seconds = time.perf_counter() - began
    embedded = model.embed_all(fresh.y[:])
    emulated = model.emulate_all(fresh.phi)
    bank = model.prior_bank(model.prior, size.draws)
    normalizer = estimate_normalizer(model.similarity, embedded, bank)
    found = held_out_score(model.similarity, embedded, emulated, normalizer)
    return {
        "log_ratio": found.log_ratio,
        "error": found.error,
        "fewest_effective_draws": found.effective_draws,
        "seconds_training": seconds,
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/similarities.json"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore", eande.EandeWarning)
    size = SIZES[asked.size]
    record = ResultFile(
        asked.output,
        study="similarities",
        size=asked.size,
        settings=asdict(size),
        seed=0,
        provenance=provenance(),
    )
    tasks = {name: (task.simulator, task.prior) for name, task in TASKS.items()}
    tasks["oscillation"] = (oscillation, eande.BoxPrior([1, 0], [4, 1]))
    for name, (simulator, prior) in tasks.items():
        found = {
            label: score(simulator, prior, size, settings)
            for label, settings in SIMILARITIES.items()
        }
        record.add(name, found)


if __name__ == "__main__":
    main()
