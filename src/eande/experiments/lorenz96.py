"""The paper's Lorenz 96 study: the posterior of (F₁, F₂) given one window of 250 × 396 numbers is a ring.

The reference is uniform on the part of the circle of radius F = √(F₁² + F₂²) inside the prior's square. It has no width; ours is the width of
our knowledge of F, which must match our error: distances to the reference are shown beside coverage and scores of the radius.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eande.core.model import EmbedAndEmulate
from eande.core.seeds import generator
from eande.diagnostics.distances import squared_mmd
from eande.experiments.records import provenance, write_json
from eande.simulation.simulate import simulate
from eande.simulation.simulations import Simulations
from eande.simulation.views import Compose, RandomWindow, Roll, fixed_views
from eande.simulators.lorenz96 import Lorenz96
from eande.simulators.lorenz96_encoder import SmallRingEncoder, lorenz96_encoder
from eande.training.fit import fit
from eande.training.settings import FitSettings

HALF_WIDTH = 15.0
WINDOW = 250
ANGLE_BINS = 24
BANDWIDTHS = (0.01, 0.05)
# What is not the paper's method has a name of its own: the emulator is drawn to the data but not pushed, τ is learned, the ring is turned.
METHODS: dict[str, dict[str, Any]] = {"plain": {"temperature": 0.05}, "anchored": {"repulsion": "encoder", "temperature": "learn"}}


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: to train on.
        validation: to select by, several windows each.
        test: to evaluate.
        observations: stored states per simulation.
        resnet: whether the encoder is the paper's ResNet-34 or a small one.
        epochs: of training.
        batch_size: pairs per step.
        samples: per posterior.
    """

    simulations: int = 500
    validation: int = 50
    test: int = 200
    observations: int = 2_000
    resnet: bool = True
    epochs: int = 2_000
    batch_size: int = 500
    samples: int = 2_000


SIZES = {
    "paper": Size(),
    "small": Size(test=50, resnet=False, epochs=300, batch_size=125),
    "demo": Size(test=20, observations=600, resnet=False, epochs=110, batch_size=125),
    "toy": Size(24, 12, 3, observations=260, resnet=False, epochs=2, batch_size=24, samples=50),
}


@dataclass(frozen=True)
class Data:
    """Simulations of one seed: to train, to validate, and one window each to test."""

    train: Simulations
    validation: Simulations
    test_phi: Tensor
    test_y: Tensor


def make_data(size: Size, seed: int, device: str, *, progress: bool) -> Data:
    """Simulate; on a GPU the data stay there."""
    simulator = Lorenz96(observations=size.observations, device=device)
    total = size.simulations + size.validation + size.test
    everything = simulate(simulator, simulator.prior, total, seed=seed, block_size=50, progress=progress)
    y = everything.y[:].to(device)
    first, second = size.simulations, size.simulations + size.validation
    # Several windows of each: selection by 50 would be selection by chance.
    rows = torch.arange(first, second).repeat_interleave(4)
    test_y = torch.cat(list(fixed_views(RandomWindow(WINDOW), y[second:])))
    return Data(
        Simulations(everything.phi[:first], y[:first], torch.arange(first)),
        Simulations(everything.phi[rows], y[rows.to(device)], rows),
        everything.phi[second:],
        test_y,
    )


def train(size: Size, method: str, data: Data, seed: int, device: str, *, progress: bool) -> EmbedAndEmulate:
    """Fit one model."""
    dimension = 128 if size.resnet else 64
    window = RandomWindow(WINDOW)
    on_gpu = device == "cuda"
    settings = FitSettings(
        epochs=size.epochs, batch_size=size.batch_size, learning_rate=1e-3 if size.resnet else 2e-3, embedding_dimension=dimension,
        width=512 if size.resnet else 256, blocks=5 if size.resnet else 3, normalization="batch", ema=0.98, normalizer_draws=10_000,
        validate_every=max(1, size.epochs // 20), precision="bf16-mixed" if on_gpu else "32-true", compile=on_gpu and size.resnet, device=device,
        seed=seed, **METHODS[method],
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder: nn.Module = lorenz96_encoder(dimension) if size.resnet else SmallRingEncoder(dimension)
    views = window if method == "plain" else Compose(window, Roll(sections=(36, 360)))
    prior = Lorenz96().prior
    return fit(data.train, prior, encoder=encoder, views=views, validation=data.validation, settings=settings, progress=progress)


def reference_samples(forcing: float, n: int, seed: int) -> Tensor:
    """Draw from the uniform law on the circle of that radius inside the square."""
    stream = generator(seed, "reference")
    inside = torch.zeros(0, 2)
    while len(inside) < n:
        angle = 2 * math.pi * torch.rand(4 * n, generator=stream)
        points = forcing * torch.stack([angle.cos(), angle.sin()], dim=1)
        inside = torch.cat([inside, points[(points.abs() <= HALF_WIDTH).all(1)]])
    return inside[:n]


def angle_histogram(phi: Tensor) -> Tensor:
    """Return the share of points per bin of the angle."""
    angle = torch.atan2(phi[:, 1], phi[:, 0])
    return torch.histc(angle.double(), ANGLE_BINS, -math.pi, math.pi) / len(phi)


def evaluate(model: EmbedAndEmulate, data: Data, size: Size, seed: int) -> dict[str, Any]:
    """Compare every test posterior with its reference, from samples; all lists have one entry per test datum."""
    posteriors = model.posteriors(data.test_y, draws=100_000 if size.samples >= 1_000 else 1_000)
    rows = [_evaluate_one(posterior, phi, size, seed + i) for i, (posterior, phi) in enumerate(zip(posteriors, data.test_phi, strict=True))]
    lists = {name: [row[name] for row in rows] for name in rows[0]}
    medians = {f"median_{name}": float(np.median(values)) for name, values in lists.items() if name not in ("z", "mass_above")}
    mass = np.array(lists["mass_above"])
    return {
        **medians,
        "mean_log_ratio": float(np.mean(lists["log_ratio"])),
        "radial_z_standard_deviation": float(np.std(lists["z"])),
        "coverage": {f"{level}": float((mass < level / 100).mean()) for level in (50, 80, 95)},
        "fewest_effective_draws": min(posterior.effective_draws for posterior in posteriors),
        "per_datum": lists,
    }


def _evaluate_one(posterior: Any, phi: Tensor, size: Size, seed: int) -> dict[str, float]:
    samples = posterior.sample(size.samples, seed=seed)[0].cpu()
    forcing = phi.norm().item()
    reference, other = (reference_samples(forcing, size.samples, 2 * seed + i) for i in range(2))
    radius = samples.norm(dim=1).double()
    truth, drawn = posterior.log_ratio(phi.unsqueeze(0)).item(), posterior.log_ratio(samples).double()
    # A finer reference for angles: its own sampling error would count twice.
    exact = angle_histogram(reference_samples(forcing, 200_000, seed))
    found = {
        "log_ratio": truth,
        "z": ((radius.mean() - forcing) / radius.std()).item(),
        "radial_error": abs(radius.mean().item() - forcing),
        "radial_spread": radius.std().item(),
        "crps": ((radius - forcing).abs().mean() - (radius.unsqueeze(1) - radius).abs().mean() / 2).item(),
        "mass_above": (drawn > truth).double().mean().item(),
        "angular_tv": 0.5 * (angle_histogram(samples) - exact).abs().sum().item(),
        "angular_tv_floor": 0.5 * (angle_histogram(reference) - exact).abs().sum().item(),
    }
    for bandwidth in BANDWIDTHS:
        for n in (100, size.samples):
            ours, first, second = (points[:n] / HALF_WIDTH for points in (samples, reference, other))
            found[f"mmd2_{bandwidth}_{n}"] = squared_mmd(ours, first, bandwidth).item()
            found[f"mmd2_floor_{bandwidth}_{n}"] = squared_mmd(second, first, bandwidth).item()
    return found


def run_study(
    size: str, methods: Iterable[str], seeds: Iterable[int], output: Path, *, device: str, progress: bool, report: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Run every method for every seed and write ``lorenz96-main.json`` after each run, so that nothing is lost."""
    chosen, results = SIZES[size], []
    about = provenance("numba")
    for seed in seeds:
        began = time.perf_counter()
        data = make_data(chosen, seed, device, progress=progress)
        simulated = time.perf_counter() - began
        for method in methods:
            began = time.perf_counter()
            model = train(chosen, method, data, seed, device, progress=progress)
            trained = time.perf_counter() - began
            found = {"method": method, "seed": seed, "seconds_simulating": simulated, "seconds_training": trained}
            found |= evaluate(model, data, chosen, seed) | {"history": model.history}
            results.append(found | {"model": model, "data": data})
            report(found)
            stored = [{name: value for name, value in run.items() if name not in ("model", "data")} for run in results]
            content = {"study": "lorenz96-main", "size": size, "settings": asdict(chosen) | {"methods": METHODS}, "runs": stored, "provenance": about}
            write_json(output / "lorenz96-main.json", content)
    return results
