r"""Measure on a fitted Lorenz 96 model what the diagnostics promise.

    python benchmarks/lorenz96_diagnostics.py --size toy|full \
        --output results/lorenz96-diagnostics.json

belongs            p-values of genuine windows, and of four kinds of others: of the system with
                   b = 1, with much and with less noise, and with their times shuffled, against a
                   reference of held-out simulations
identifiability    the angle between the sloppy direction and the tangent of the circle that gives
                   the same data, over the prior
"""

import argparse
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import eande
from eande.diagnostics.belonging import SCORES
from eande.foundations.provenance import provenance
from eande.foundations.seeds import derive_seed, generator
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96 import data as study_data
from eande.studies.lorenz96.recipes import EANDE, OURS, Recipe, train
from eande.studies.lorenz96.sizes import SIZES as STUDY_SIZES
from eande.studies.lorenz96.sizes import WINDOWS
from eande.studies.lorenz96.terms import Terms
from eande.studies.records import ResultFile

LEVEL = 0.01
# Smaller batches than a GPU's: as many passes over the simulations in fewer minutes.
BATCH_SIZE = 125
STEPS = 1_800


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        study: the size of the study that the model is fitted at.
        reference: simulations that the observations are compared with.
        observations: genuine ones; of the others a tenth.
        bank: simulations, four windows each, over which the covariance of scores is estimated.
        points: of the prior, where the directions are looked at.
    """

    study: str = "small"
    reference: int = 600
    observations: int = 500
    bank: int = 1_000
    points: int = 200


SIZES = {"full": Size(), "toy": Size("toy", 120, 20, 20, 10)}


def windows(
    size: Size, n: int, name: str, *, b: float = 10.0, each: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Simulate ``n`` parameters and windows of each; also return the number of the simulation."""
    simulator = Lorenz96(observations=STUDY_SIZES[size.study].observations, device="cpu", b=b)
    return study_data.windows(simulator, n, derive_seed(0, name), each=each)


def measure_belonging(
    size: Size, model: eande.EmbedAndEmulate, reference: eande.Simulations, record: ResultFile
) -> None:
    """Count how often p is under the level, for genuine windows and for four kinds of others."""
    belongs = eande.Belongs(model, reference)
    few = max(2, size.observations // 10)
    genuine = windows(size, size.observations, "genuine")[1]
    some = genuine[:few]
    noise = torch.randn(some.shape, generator=generator(0, "noise"))
    spread = some.std(dim=1, keepdim=True)
    shuffled = torch.stack(
        [y[torch.randperm(len(y), generator=generator(0, "times", i))] for i, y in enumerate(some)]
    )
    observed = {
        "genuine": genuine,
        "b = 1": windows(size, few, "other", b=1.0)[1],
        "noise as large as the signal": some + spread * noise,
        "noise of 0.3 of the signal": some + 0.3 * spread * noise,
        "times shuffled": shuffled,
    }
    for name, y in observed.items():
        found = belongs(y)
        flagged = (found.p_value < LEVEL).double().mean().item()
        each = {
            score: (len(SCORES) * p < LEVEL).double().mean().item()
            for score, p in found.each.items()
        }
        record.add(
            f"belongs, {name}",
            {
                "observations": len(y),
                "flagged": flagged,
                "by_score": each,
                "median_p": found.p_value.median().item(),
            },
        )


def measure_identifiability(
    size: Size, model: eande.EmbedAndEmulate, bank: eande.Simulations, record: ResultFile
) -> None:
    """Compare the directions found with radius and tangent."""
    # Where the whole circle lies in the square, but not at the origin, where there is no tangent.
    phi = model.prior.sample(20 * size.points, seed=derive_seed(0, "points"))
    radius = phi.norm(dim=1)
    phi = phi[(radius > 2) & (radius < 14)][: size.points]
    found = eande.identifiability(model, bank, phi=phi)
    tangent = torch.stack([-phi[:, 1], phi[:, 0]], dim=1).double() / phi.norm(dim=1, keepdim=True)
    cosine = (found.directions[:, :, -1] * tangent).sum(1).abs()
    angle = cosine.clamp(max=1).acos().rad2deg()
    quantiles = {f"{share:.0%} quantile": angle.quantile(share).item() for share in (0.5, 0.9, 1.0)}
    information = found.eigenvalues.median(0).values.tolist()
    record.add(
        "identifiability",
        {
            "points": len(phi),
            "degrees_between_sloppy_direction_and_tangent": quantiles,
            "median_information": {"stiff": information[0], "sloppy": information[1]},
            "equivalent_pairs": len(found.equivalent()),
        },
    )


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/lorenz96-diagnostics.json"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    size = SIZES[asked.size]
    chosen = replace(STUDY_SIZES[size.study], test=1, fresh=0)
    terms = Terms(turned=True)
    recipe = Recipe(EANDE, STEPS, OURS | {"batch_size": BATCH_SIZE})
    about = {
        "settings": asdict(size) | {"level": LEVEL, "study": asdict(chosen)},
        "seed": 0,
        "provenance": provenance("numba"),
    }
    record = ResultFile(asked.output, study="lorenz96-diagnostics", size=asked.size, **about)
    data = study_data.make_data(chosen, terms, 0, "cpu", progress=True)
    model = train(recipe, chosen, terms, data, 0, "cpu", progress=True)
    record.add("held_out_log_ratio", max(entry["held_out_log_ratio"] for entry in model.history))
    reference = eande.Simulations(*windows(size, size.reference, "reference"))
    measure_belonging(size, model, reference, record)
    bank = eande.Simulations(*windows(size, size.bank, "bank", each=WINDOWS))
    measure_identifiability(size, model, bank, record)


if __name__ == "__main__":
    main()
