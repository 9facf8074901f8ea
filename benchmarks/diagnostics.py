r"""Measure which diagnostic sees which fault, how often it raises a false alarm, and its speed.

    python benchmarks/diagnostics.py --size toy|full --only faults,speed \
        --output results/diagnostics.json

faults      200 repetitions of 200 data and 4,000 prior draws of a toy with two modes, under its
            exact ratio and under five wrong ones
speed       simulation-based calibration, ranks of 1,000 held-out data against 1,000 samples each:
            a fitted model of ours, and sbi's run_sbc on NRE-C with the same encoder
"""

import argparse
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eande
from eande.diagnostics.ranks import Weighed, weigh
from eande.diagnostics.uniformity import uniformity
from eande.foundations.provenance import provenance
from eande.networks.mlp import ResidualMLP
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.studies.lorenz96.through_sbi import Quiet
from eande.studies.records import ResultFile

NOISE = 0.1
FAULTS = ("exact", "too wide", "too narrow", "shifted", "one mode lost", "the prior")
# Each check may raise a false alarm once in a hundred times.
LEVEL = 0.01


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        repeats: of every fault.
        data: per repetition.
        draws: per repetition.
        held_out: data of the comparison with sbi.
        samples: per posterior.
        sbi_data: of these, how many sbi gets; its time grows in proportion.
        epochs: of training.
        sbi_search: steps of sbi's search for its bound; 100 is its default.
    """

    repeats: int = 200
    data: int = 200
    draws: int = 4_000
    held_out: int = 1_000
    samples: int = 1_000
    sbi_data: int = 20
    epochs: int = 20
    sbi_search: int = 100


SIZES = {"full": Size(), "toy": Size(3, 60, 100, 50, 20, 1, 1, 1)}


def fold(phi: Tensor) -> Tensor:
    """Return what the toy's data know of the parameters: not the sign of the first."""
    return torch.stack([phi[..., 0].abs(), phi[..., 1]], dim=-1)


def weighed(fault: str, data: int, draws: int, seed: int) -> Weighed:
    """Weight prior draws of the toy y = (|φ₁|, φ₂) + noise by its exact ratio, or a wrong one.

    The fault says in which way it is wrong.
    """
    random = torch.Generator().manual_seed(seed)
    drawn, phi, references = (
        torch.rand(n, 2, generator=random) * 2 - 1 for n in (draws, data, data)
    )
    y = fold(phi) + NOISE * torch.randn(data, 2, generator=random)
    width = {"too wide": 1.3, "too narrow": 0.7}.get(fault, 1.0) * NOISE
    shift = NOISE / 2 if fault == "shifted" else 0.0

    def score(points: Tensor) -> Tensor:
        value = -((fold(points) - y.unsqueeze(1) - shift) / width).square().sum(-1) / 2
        if fault == "one mode lost":
            value = value.masked_fill(points[..., 0] < 0, -50.0)
        return torch.zeros_like(value) if fault == "the prior" else value

    chance = torch.rand(data, generator=random, dtype=torch.float64)
    return weigh(
        score(drawn.unsqueeze(0)), score(phi.unsqueeze(1))[:, 0], drawn, phi, references, chance
    )


def alarms(found: Weighed, level: float = LEVEL) -> dict[str, bool]:
    """Return which checks raise an alarm, as ``diagnose`` decides it."""
    error = found.log_ratio.std() / len(found.log_ratio) ** 0.5
    return {
        "ranks": min(uniformity(ranks).p_value for ranks in found.ranks.T)
        < level / found.ranks.shape[1],
        "coverage": uniformity(found.level).p_value < level,
        "TARP": uniformity(found.tarp).p_value < level,
        "log ratio": bool(found.log_ratio.mean() <= 2 * error),
    }


def measure_faults(size: Size, record: ResultFile) -> None:
    """Count alarms of every check for every fault."""
    for fault in FAULTS:
        found = [
            alarms(weighed(fault, size.data, size.draws, seed)) for seed in range(size.repeats)
        ]
        record.add(
            f"alarms, {fault}",
            {check: sum(one[check] for one in found) / size.repeats for check in found[0]},
        )


def measure_speed(size: Size, record: ResultFile) -> None:
    """Time simulation-based calibration of a model of ours and of NRE-C with the same encoder."""
    from sbi.diagnostics import run_sbc
    from sbi.inference import NRE_C
    from sbi.neural_nets import classifier_nn
    from sbi.utils import BoxUniform

    task = VonMisesFisher(8, seed=0)
    # sbi needs a prior with a density: a box around the ellipse the task's parameters lie on.
    prior = eande.BoxPrior([-2.5, -1.5], [2.5, 1.5])
    simulations = eande.simulate(
        task, prior, 2_000 if size.epochs > 1 else 200, seed=0, progress=False
    )
    held_out = eande.simulate(task, prior, size.held_out, seed=1, progress=False)
    draws = max(50_000 if size.epochs > 1 else 100, size.samples)
    ours = {}
    for similarity in ("cosine", "mixture"):
        settings = eande.FitSettings(
            epochs=size.epochs, similarity=similarity, width=64, device="cpu"
        )
        model = eande.fit(simulations, prior, settings=settings, progress=False)
        # The first call loads libraries and tabulates what is cached.
        eande.diagnose(model, held_out, draws=100, progress=False)
        began = time.perf_counter()
        found = eande.diagnose(model, held_out, draws=draws, progress=False)
        ours[similarity] = time.perf_counter() - began
        record.add(
            f"fewest_effective_draws, {similarity}", found.weighed.effective_draws.min().item()
        )
    record.add("seconds_of_diagnose", ours)
    box = BoxUniform(prior.low, prior.high)
    classifier = classifier_nn("resnet", embedding_net_x=ResidualMLP(2, 16, width=64, blocks=2))
    trainer = NRE_C(box, classifier=classifier, tracker=Quiet(), show_progress_bars=False)
    trainer.append_simulations(simulations.phi, simulations.y[:]).train(max_num_epochs=size.epochs)
    # The faster of its samplers in two dimensions; its default, MCMC, takes minutes for one datum.
    search = {"num_iter_to_find_max": size.sbi_search}
    posterior = trainer.build_posterior(
        sample_with="rejection", rejection_sampling_parameters=search
    )
    some = slice(size.sbi_data)
    began = time.perf_counter()
    run_sbc(
        held_out.phi[some],
        held_out.y[some],
        posterior,
        num_posterior_samples=size.samples,
        show_progress_bar=False,
    )
    theirs = time.perf_counter() - began
    for_all = theirs * size.held_out / size.sbi_data
    record.add("seconds_of_run_sbc", {"data": size.sbi_data, "seconds": theirs, "for_all": for_all})
    record.add("times_faster", {name: for_all / seconds for name, seconds in ours.items()})


PARTS: dict[str, Any] = {"faults": measure_faults, "speed": measure_speed}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=Path("results/diagnostics.json"))
    asked = parser.parse_args()
    parts = asked.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only: expected some of {', '.join(PARTS)}, got {asked.only}")
    warnings.simplefilter("ignore")
    size = SIZES[asked.size]
    about = {
        "settings": asdict(size) | {"level": LEVEL},
        "seed": 0,
        "provenance": provenance("sbi", "arviz-stats"),
    }
    record = ResultFile(asked.output, study="diagnostics", size=asked.size, **about)
    for part in parts:
        PARTS[part](size, record)


if __name__ == "__main__":
    main()
