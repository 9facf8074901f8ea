"""Measure how much the normaliser C(y) varies over data when both losses are trained, or one.

    python benchmarks/losses.py --size toy|full --output results/losses.json

This is what the symmetric loss is for. L_ΦY alone does not determine a factor of y in the ratio.
How far C then drifts depends on the range of the score: small on a sphere with a large temperature,
large with a small one, unbounded with free lengths. The simulator is the README's oscillation.
Zeros mean that the fit found nothing better than the prior: L_YΦ alone does not determine a factor
of φ, which with free lengths nothing bounds.
"""

import argparse
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import eande
from eande.foundations.provenance import provenance
from eande.inference.normalizer import coefficient_of_variation, estimate_normalizer
from eande.studies.records import ResultFile
from eande.training.validation import held_out_score
from similarities import oscillation

LOSSES = ("symmetric", "phi_y", "y_phi")
SIMILARITIES: dict[str, dict[str, Any]] = {
    f"cosine, τ = {tau}": {"similarity": eande.Cosine(tau)} for tau in (0.1, 0.03)
}
SIMILARITIES["cosine, τ = learn"] = {"similarity": "cosine"}
SIMILARITIES["dot"] = {"similarity": "dot"}


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        seeds: how many, of the simulations and of training.
        simulations: to fit to.
        fresh: to measure by.
        draws: of the prior, for normalisers.
        epochs: of training.
    """

    seeds: int = 5
    simulations: int = 2_000
    fresh: int = 1_000
    draws: int = 20_000
    epochs: int = 100


SIZES = {"full": Size(), "toy": Size(seeds=1, simulations=60, fresh=20, draws=200, epochs=1)}


def measure(size: Size, seed: int, settings: dict[str, Any]) -> tuple[float, float]:
    """Fit one model; return the coefficient of variation of C and the log ratio on fresh data."""
    prior = eande.BoxPrior([1, 0], [4, 1])
    simulations = eande.simulate(oscillation, prior, size.simulations, seed=seed, progress=False)
    fresh = eande.simulate(oscillation, prior, size.fresh, seed=1_000 + seed, progress=False)
    chosen = eande.FitSettings(
        epochs=size.epochs, embedding_dimension=32, device="cpu", seed=seed, **settings
    )
    model = eande.fit(simulations, prior, settings=chosen, progress=False)
    embedded = model.embed_all(fresh.y[:])
    normalizer = estimate_normalizer(
        model.similarity, embedded, model.prior_bank(prior, size.draws)
    )
    score = held_out_score(model.similarity, embedded, model.emulate_all(fresh.phi), normalizer)
    return coefficient_of_variation(normalizer.log_value), score.log_ratio


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/losses.json"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore", eande.EandeWarning)
    size = SIZES[asked.size]
    record = ResultFile(
        asked.output,
        study="losses",
        size=asked.size,
        settings=asdict(size),
        seed=0,
        provenance=provenance(),
    )
    for name, settings in SIMILARITIES.items():
        for loss in LOSSES:
            found = np.array(
                [measure(size, seed, settings | {"loss": loss}) for seed in range(size.seeds)]
            )
            variation, ratio = found.mean(0).tolist()
            spread = found[:, 0].std().item()
            record.add(
                f"{name}, {loss}",
                {"cv_normalizer": variation, "standard_deviation": spread, "log_ratio": ratio},
            )


if __name__ == "__main__":
    main()
