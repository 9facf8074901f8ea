"""The paper's Lorenz 96 study: the posterior of (F₁, F₂) given one window of 250 × 396 numbers is a ring.

Simulations, the methods compared and the main table; :mod:`eande.studies.ring` says what is measured.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.foundations.checks import InputError
from eande.foundations.seeds import derive_seed
from eande.inference.ensemble import ensemble
from eande.inference.model import EmbedAndEmulate
from eande.networks.lorenz96 import SmallRingEncoder, lorenz96_encoder
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import Compose, RandomWindow, Roll, View, fixed_views
from eande.simulation.run.simulate import simulate
from eande.simulators.lorenz96 import Lorenz96
from eande.studies import ring
from eande.studies.records import provenance, stored_runs, write_json
from eande.training.fit import fit
from eande.training.settings import FitSettings

WINDOW = 250
WINDOWS = 4
MEMBERS = 3
# What is not the paper's method has a name of its own: the emulator is drawn to the data but not pushed, τ is learned, the ring is turned.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.1},
    "anchored": {"repulsion": "encoder"},
}
# Calibrated on simulations used for nothing else: the exponents of the anchored model, that and where it puts data, the exponents of an ensemble.
METHODS = (*SETTINGS, "calibrated", "aimed", "ensemble")
# Of the baselines, where they differ from their defaults.
BASELINE_SETTINGS: dict[str, dict[str, Any]] = {
    "nre-c": {"learning_rate": 1e-3, "classes": 4},
    "npe-c": {"learning_rate": 1e-3, "batch_size": 125},
    "critic": {"learning_rate": 1e-3},
}
# Of E&E's epochs, so that all get the same time: with a small encoder a step of a baseline takes longer, and NPE-C has small batches always.
_SHARE_OF_EPOCHS = {"small": 0.7, "npe-c": 0.6}
# Posteriors of these forcings are pictured, on so fine a grid.
PICTURED, PIXELS = (4.0, 10.0, 17.0), 200
BASELINES = tuple(BASELINE_SETTINGS)


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: to train on.
        validation: to select by, several windows each.
        calibration: to calibrate by, several windows each.
        test: to evaluate.
        fresh: further ones to measure coverage by.
        observations: stored states per simulation.
        encoder: ``"resnet34"`` (the paper's), ``"resnet18"`` (half as many channels) or ``"small"``, for CPUs.
        epochs: of training; baselines on a small encoder get fewer, so that they take as long.
        batch_size: pairs per step.
        samples: per posterior.
        draws: of the prior, per posterior.
        finer: how many points a side of a picture's pixel is the mean of.
    """

    simulations: int = 500
    validation: int = 50
    calibration: int = 500
    test: int = 200
    fresh: int = 4_000
    observations: int = 2_000
    encoder: str = "resnet34"
    epochs: int = 2_000
    batch_size: int = 500
    samples: int = 2_000
    draws: int = 2_000_000
    finer: int = 5


SIZES = {
    "paper": Size(),
    "smoke": Size(
        60,
        20,
        40,
        4,
        24,
        encoder="resnet18",
        epochs=8,
        batch_size=60,
        samples=200,
        draws=20_000,
        finer=1,
    ),
    "small": Size(
        calibration=50,
        test=50,
        fresh=0,
        encoder="small",
        epochs=450,
        batch_size=125,
        draws=100_000,
        finer=2,
    ),
    "demo": Size(
        calibration=50,
        test=20,
        fresh=0,
        observations=600,
        encoder="small",
        epochs=110,
        batch_size=125,
        draws=100_000,
        finer=2,
    ),
    "toy": Size(
        24,
        12,
        20,
        3,
        20,
        observations=260,
        encoder="small",
        epochs=2,
        batch_size=24,
        samples=100,
        draws=1_000,
        finer=1,
    ),
}


@dataclass(frozen=True)
class Data:
    """Simulations of one seed: to train, to validate, to calibrate, and one window each to test."""

    train: Simulations
    validation: Simulations
    calibration: Simulations
    test_phi: Tensor
    test_y: Tensor
    fresh_phi: Tensor
    fresh_y: Tensor


def make_data(size: Size, seed: int, device: str, *, b: float = 10.0, progress: bool) -> Data:
    """Simulate; on a GPU the data stay there."""
    simulator = Lorenz96(observations=size.observations, device=device, b=b)
    # Convolutions of one shape, thousands of times: let cuDNN try its algorithms.
    torch.backends.cudnn.benchmark = device == "cuda"
    # Evenly: with 500 random draws nothing under F = 1.7 may have been seen, and whatever is fitted then errs there without knowing it.
    n = size.simulations + size.validation
    everything = simulate(
        simulator, simulator.prior, n, seed=seed, design="even", block_size=50, progress=progress
    )
    phi, y, n = everything.phi, everything.y[:].to(device), size.simulations
    # Several windows of each: selection by 50 would be selection by chance.
    held_out = torch.arange(n, len(phi)).repeat_interleave(WINDOWS)
    return Data(
        Simulations(phi[:n], y[:n], torch.arange(n)),
        Simulations(phi[held_out], y[held_out.to(device)], held_out),
        Simulations(
            *windows(simulator, size.calibration, derive_seed(seed, "calibration"), each=WINDOWS)
        ),
        *windows(simulator, size.test, derive_seed(seed, "test"))[:2],
        *windows(simulator, size.fresh, derive_seed(seed, "fresh"))[:2],
    )


def windows(
    simulator: Lorenz96, n: int, seed: int, *, each: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Simulate and keep only windows: parameters, so many random windows of each, and the number of the simulation."""
    phi, rng = simulator.prior.sample(n, seed=seed), np.random.default_rng(seed)
    kept = [torch.zeros(0, WINDOW, simulator.slow * (1 + simulator.fast))]
    for begin in range(0, n, 250):
        part = phi[begin : begin + 250]
        y = torch.as_tensor(simulator(part.numpy(), rng)).repeat_interleave(each, 0)
        kept += fixed_views(RandomWindow(WINDOW), y)
    y, numbers = (
        torch.cat([window.to(kept[-1].device) for window in kept]),
        torch.arange(n).repeat_interleave(each),
    )
    finite = torch.isfinite(y).flatten(1).all(1)
    return phi[numbers][finite.cpu()], y[finite], numbers[finite.cpu()]


def make_encoder(size: Size, seed: int) -> tuple[nn.Module, int]:
    """Make the encoder of that size; return it with its embedding dimension."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if size.encoder == "small":
            return SmallRingEncoder(64), 64
        return (
            lorenz96_encoder(128)
            if size.encoder == "resnet34"
            else lorenz96_encoder(128, depth=18, width=32)
        ), 128


def make_views(*, turned: bool) -> View:
    """Return what the encoder sees: a random window, of a ring that may be turned."""
    window = RandomWindow(WINDOW)
    return Compose(window, Roll(sections=(36, 360))) if turned else window


def fit_settings(size: Size, method: str, seed: int, device: str, **changes: Any) -> FitSettings:
    """Return how a method is trained; ``changes`` are settings other than its own."""
    on_gpu, large = device == "cuda", size.encoder != "small"
    # Batch statistics of 125 parameters are too noisy for the emulator; the paper's batches hold all parameters.
    settings = FitSettings(
        epochs=size.epochs, batch_size=size.batch_size, learning_rate=1e-3 if large else 2e-3, similarity="cosine",
        embedding_dimension=128 if large else 64, width=512 if large else 256, blocks=5 if large else 3,
        normalization="batch" if large else "layer", ema=0.98,
        validate_every=max(1, size.epochs // 20), precision="bf16-mixed" if on_gpu else "32-true", compile=on_gpu and large, device=device,
        seed=seed, **SETTINGS[method],
    )  # fmt: skip
    return replace(settings, **changes)


def train(
    size: Size, method: str, data: Data, seed: int, device: str, *, progress: bool, **changes: Any
) -> EmbedAndEmulate:
    """Fit one model; ``changes`` are settings other than the method's."""
    settings, encoder = (
        fit_settings(size, method, seed, device, **changes),
        make_encoder(size, seed)[0],
    )
    views, prior = make_views(turned=method != "plain"), Lorenz96().prior
    return fit(
        data.train,
        prior,
        encoder=encoder,
        views=views,
        validation=data.validation,
        settings=settings,
        progress=progress,
    )


def measure(model: Any, data: Data, size: Size, seed: int) -> dict[str, Any]:
    """Evaluate a model on the test data and its calibration on fresh ones."""
    found = ring.evaluate(
        model.posteriors(data.test_y, draws=size.draws), data.test_phi, size.samples, seed
    )
    if len(data.fresh_phi):
        # A flow's values take a thousand times as long, and its posteriors are wide.
        draws = size.draws // (200 if getattr(model, "kind", "") == "npe-c" else 10)
        found["calibration"] = ring.calibration(
            model.posteriors(data.fresh_y, draws=draws), data.fresh_phi, seed
        )
    return found


def keep_pictures(path: Path, method: str, model: Any, data: Data, finer: int) -> None:
    """Add the densities of three test posteriors, relative to the prior, on a grid of the square to a file of arrays."""
    forcing = data.test_phi.norm(dim=1)
    chosen = [int((forcing - wanted).abs().argmin()) for wanted in PICTURED]
    # Rings are thinner than a pixel: each is the mean over a finer grid.
    fine = finer * PIXELS
    side = (torch.arange(fine) + 0.5) / fine * 2 * ring.HALF_WIDTH - ring.HALF_WIDTH
    grid = torch.cartesian_prod(side, side)
    densities = []
    for posterior in model.posteriors(data.test_y[chosen]):
        density = (posterior.score(grid) - posterior.log_normalizer).exp().view(1, fine, fine)
        densities.append(functional.avg_pool2d(density, finer)[0].cpu().numpy())
    arrays = read_pictures(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")  # in one step, as all result files
    arrays |= {"phi": data.test_phi[chosen].numpy(), method: np.stack(densities).astype(np.float32)}
    np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)


def read_pictures(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of pictures, none where there is no file."""
    try:
        return dict(np.load(path)) if path.exists() else {}
    except (ValueError, OSError, BadZipFile) as error:
        raise InputError(
            f"{path}: expected arrays, got something damaged ({error}); move it away, or use another --output"
        ) from None


def physics(data: Data) -> dict[str, Any]:
    """Estimate F by budgets, the physics baseline: errors on the test data."""
    estimates = ring.budget_estimates(data.test_y, Lorenz96())
    errors = {
        name: (found.cpu() - data.test_phi.norm(dim=1)).abs() for name, found in estimates.items()
    }
    return {
        f"median_radial_error_of_{name}": error.median().item() for name, error in errors.items()
    }


def fit_all(
    methods: Iterable[str], size: Size, data: Data, seed: int, device: str, *, progress: bool
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield every method's name, model and how it was made; an ensemble takes the anchored model before it as its first member."""
    first: EmbedAndEmulate | None = None
    for method in sorted(methods, key=[*METHODS, *BASELINES].index):
        began = time.perf_counter()
        about: dict[str, Any] = {}
        if method in BASELINES:
            from eande.studies.baselines import train_baseline

            share = _SHARE_OF_EPOCHS.get("small" if size.encoder == "small" else method, 1.0)
            epochs = max(1, round(share * size.epochs))
            model: Any = train_baseline(
                method,
                data,
                size,
                seed,
                device,
                progress=progress,
                epochs=epochs,
                **BASELINE_SETTINGS[method],
            )
        elif method == "plain":
            model = train(size, method, data, seed, device, progress=progress)
        else:
            first = first or train(size, "anchored", data, seed, device, progress=progress)
            model = copy.deepcopy(first)
            if method == "ensemble":
                seeds = [derive_seed(seed, "member", i) for i in range(1, MEMBERS)]
                model = ensemble(
                    [
                        first,
                        *(
                            train(size, "anchored", data, other, device, progress=progress)
                            for other in seeds
                        ),
                    ]
                )
            if method != "anchored":
                about["calibrated"] = asdict(
                    model.calibrate(
                        data.calibration, aim=method == "aimed", draws=min(50_000, size.draws)
                    )
                )
        yield (
            method,
            model,
            about | {"seconds_training": time.perf_counter() - began, "history": model.history},
        )


def run_main(
    size: str,
    methods: Iterable[str],
    seeds: Iterable[int],
    output: Path,
    *,
    device: str,
    progress: bool,
    report: Callable[[dict[str, Any]], None],
    printed: bool = False,
) -> list[dict[str, Any]]:
    """Run every method for every seed and write ``lorenz96-main.json`` after each; runs that the file holds already are not repeated.

    With ``printed``, the system is the one the paper prints, b = 1, and the file ``lorenz96-printed.json``.
    """
    name, b = ("lorenz96-printed", 1.0) if printed else ("lorenz96-main", 10.0)
    chosen, path, wanted = SIZES[size], output / f"{name}.json", list(methods)
    settings = asdict(chosen) | {"members": MEMBERS, "windows": WINDOWS, "b": b}
    head = {"study": name, "size": size, "device": device, "settings": settings}
    trained = {
        method: asdict(fit_settings(chosen, method if method == "plain" else "anchored", 0, device))
        for method in METHODS
    } | BASELINE_SETTINGS
    runs, pictures = stored_runs(path, head, trained), output / f"{name}-pictures.npz"
    read_pictures(pictures)  # damage is better found before the training
    last: tuple[Any, Any] = (None, None)
    for seed in seeds:
        missing = [
            method
            for method in wanted
            if not any((run["method"], run["seed"]) == (method, seed) for run in runs)
        ]
        if not missing:
            continue
        began = time.perf_counter()
        data = make_data(chosen, seed, device, b=b, progress=progress)
        about = {
            "seed": seed,
            "seconds_simulating": time.perf_counter() - began,
            "physics": physics(data),
        }
        for method, model, how in fit_all(missing, chosen, data, seed, device, progress=progress):
            found = {"method": method, "settings": trained[method]} | about | how
            found |= measure(model, data, chosen, seed) | {"provenance": provenance("numba", "sbi")}
            if seed == 0:
                keep_pictures(pictures, method, model, data, chosen.finer)
            runs.append(found)
            report(found)
            write_json(path, head | {"runs": runs})
            last = (model, data)
    return [run | {"model": None, "data": None} for run in runs[:-1]] + [
        runs[-1] | {"model": last[0], "data": last[1]}
    ]
