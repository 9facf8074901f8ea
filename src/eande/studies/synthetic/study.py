"""The paper's synthetic study (its Table 1 and Figure 3): four tasks with exact posteriors.

κ = 2 and 8, without and with a redundant parameter; embedding dimension 2, τ = 1/κ, 50 test data, both posteriors
normalised over the same 10,000 prior draws.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from eande.diagnostics.distances import best_rotation, l1_distance, linear_r2
from eande.foundations.seeds import global_seed
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import coefficient_of_variation
from eande.networks.mlp import ResidualMLP
from eande.simulation.run.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.studies.records import provenance, stored_runs, write_json
from eande.training.fit import fit
from eande.training.settings import FitSettings

# Median L1 over 50 test data, as printed in the paper.
PAPER_L1 = {(2, False): 0.032, (8, False): 0.041, (2, True): 0.049, (8, True): 0.055}


@dataclass(frozen=True)
class Size:
    """How much work a study is.

    Args:
        simulations: training pairs.
        epochs: of ``steps_per_epoch`` steps each.
        steps_per_epoch: see :class:`FitSettings`.
        restarts: short starts of two epochs; in a two-dimensional embedding up to a third of all starts stays folded.
    """

    simulations: int = 2_000_000
    epochs: int = 90
    steps_per_epoch: int = 100
    restarts: int = 6


SIZES = {
    "paper": Size(),
    "quick": Size(simulations=500_000, epochs=25, restarts=6),
    "toy": Size(5_000, epochs=2, steps_per_epoch=10, restarts=2),
}


@dataclass(frozen=True)
class Cell:
    """One run: a task, a size and a seed (of the task's data map, the simulations and the networks alike)."""

    kappa: int
    redundant: bool
    seed: int
    size: Size


def settings_for(cell: Cell) -> FitSettings:
    """Return the settings of a run: the paper's embedding dimension and temperature, and ours."""
    return FitSettings(
        epochs=cell.size.epochs,
        steps_per_epoch=cell.size.steps_per_epoch,
        batch_size=500,
        learning_rate=2e-3,
        similarity="cosine",
        temperature=1 / cell.kappa,
        embedding_dimension=2,
        ema=0.998,
        restarts=cell.size.restarts,
        restart_epochs=2,
        validate_every=25,
        normalizer_draws=2_000,
        device="cpu",
        seed=cell.seed,
    )


def train(cell: Cell) -> tuple[VonMisesFisher, EmbedAndEmulate]:
    """Simulate and fit."""
    task = VonMisesFisher(cell.kappa, redundant=cell.redundant, seed=cell.seed)
    simulations = simulate(
        task, task.prior, cell.size.simulations, seed=cell.seed, block_size=100_000, progress=False
    )
    # Late in training the score changes by 1e-4 nats: a smaller validation set would select by chance.
    validation = simulate(
        task, task.prior, 10_000, seed=cell.seed + 1_000_000, block_size=10_000, progress=False
    )
    # The data map has kinks, so its inverse is best learned by ReLUs; the emulator's truth is linear, so a small smooth one does.
    with global_seed(cell.seed, "networks"):
        encoder = ResidualMLP(task.dimension, 2, width=120, blocks=3)
        emulator = ResidualMLP(task.prior.dimension, 2, width=60, blocks=1, activation="silu")
    model = fit(
        simulations,
        task.prior,
        encoder=encoder,
        emulator=emulator,
        validation=validation,
        settings=settings_for(cell),
        progress=False,
    )
    return task, model


def evaluate(
    task: VonMisesFisher,
    model: EmbedAndEmulate,
    seed: int,
    *,
    test_data: int = 50,
    draws: int = 10_000,
) -> dict[str, Any]:
    """Compare a model with the exact posterior of fresh test data."""
    test = simulate(
        task, task.prior, test_data, seed=seed + 2_000_000, block_size=1_000, progress=False
    )
    phi = task.prior.sample(draws, seed=seed + 3_000_000)
    posteriors = model.posteriors(test.y, draws=draws)
    distance = l1_distance(
        torch.stack([posterior.score(phi) for posterior in posteriors]),
        task.log_ratio(phi, test.y[:]),
    )
    data = simulate(
        task, task.prior, 2_000, seed=seed + 4_000_000, block_size=1_000, progress=False
    )
    f, g = model.embed(data.y), model.emulate(data.phi)
    f_true, g_true = task.true_encoder(data.y[:]), task.true_emulator(data.phi)
    rotation = best_rotation(torch.cat([f_true, g_true]), torch.cat([f, g]))
    result = {
        "l1": distance.tolist(),
        "l1_median": distance.quantile(0.5).item(),
        "r2_f": linear_r2(f, f_true),
        "r2_g": linear_r2(g, g_true),
        "rotation_residual": (f_true.double() @ rotation.T - f.double())
        .norm(dim=1)
        .square()
        .mean()
        .sqrt()
        .item(),
        "cv_normalizer": coefficient_of_variation(
            torch.tensor([posterior.log_normalizer for posterior in posteriors])
        ),
        "held_out_log_ratio": max(record["held_out_log_ratio"] for record in model.history),
        "information": task.information(),
        "sampling_p_value": _sampling_p_value(task, posteriors[0], test.y[0], seed),
    }
    if task.redundant:
        result["redundant_sensitivity"] = redundant_sensitivity(task, model)
    return result


def _sampling_p_value(
    task: VonMisesFisher, posterior: Any, y: Tensor, seed: int, n: int = 2_000
) -> float:
    """Return the Kolmogorov–Smirnov p-value of the latent angle around f(y): model samples against exact ones."""
    samples, _ = posterior.sample(n, seed=seed)
    return angle_test(task, y, samples, task.sample_posterior(y, n, seed=seed))


def angle_test(task: VonMisesFisher, y: Tensor, first: Tensor, second: Tensor) -> float:
    """Return the two-sample Kolmogorov–Smirnov p-value of the angle between g(φ) and f(y), for d = 2."""
    centre = task.true_encoder(y.unsqueeze(0))[0].double()

    def angle(phi: Tensor) -> np.ndarray:
        g = task.true_emulator(phi.double())
        return torch.atan2(centre[0] * g[:, 1] - centre[1] * g[:, 0], g @ centre).numpy()

    return float(stats.ks_2samp(angle(first), angle(second)).pvalue)


def redundant_sensitivity(
    task: VonMisesFisher, model: EmbedAndEmulate, *, draws: int = 2_000
) -> float:
    """Return mean ‖∂g/∂φ_R‖ over the mean derivative of g along the ellipse, both per prior standard deviation (d = 2)."""
    phi = task.prior.sample(draws, seed=0)
    scale = phi.std(0)
    jacobian = (
        torch.func.vmap(torch.func.jacrev(lambda row: model.emulate(row.unsqueeze(0))[0]))(phi)
        * scale
    )
    g = task.true_emulator(phi)
    tangent = (
        torch.stack([-g[:, 1], g[:, 0]], 1)
        @ torch.as_tensor(np.linalg.inv(task.matrix).T, dtype=phi.dtype)
        / scale[1:]
    )
    tangent = tangent / tangent.norm(dim=1, keepdim=True)
    along = (jacobian[:, :, 1:] @ tangent.unsqueeze(2)).norm(dim=1).mean()
    return (jacobian[:, :, 0].norm(dim=1).mean() / along).item()


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train and evaluate one run on one thread; the entry ``picture`` holds samples of one posterior for the figure."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    task, model = train(cell)
    result = (
        asdict(cell) | evaluate(task, model, cell.seed) | {"seconds": time.perf_counter() - began}
    )
    observed = simulate(task, task.prior, 1, seed=7, progress=False).y[0]
    samples, _ = model.posterior(observed).sample(4_000, seed=0)
    result["picture"] = (samples.numpy(), task.sample_posterior(observed, 4_000, seed=1).numpy())
    return result


def run_study(
    size: str,
    seeds: Iterable[int],
    output: Path,
    *,
    processes: int,
    report: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Run all four tasks for all seeds and write ``synthetic.json`` after each run, so that nothing is lost; runs it holds are not repeated."""
    path = output / "synthetic.json"
    cells = [
        Cell(kappa, redundant, seed, SIZES[size]) for seed in seeds for kappa, redundant in PAPER_L1
    ]
    settings = asdict(settings_for(cells[0])) | {"temperature": "1 / kappa", "seed": "each run's"}
    head = {"study": "synthetic", "size": size, "settings": settings}
    results = stored_runs(path, head)
    done = {(run["kappa"], run["redundant"], run["seed"]): run for run in results}
    missing = [cell for cell in cells if (cell.kappa, cell.redundant, cell.seed) not in done]
    for cell in set(cells) - set(missing):
        report(done[cell.kappa, cell.redundant, cell.seed])
    began, about = time.perf_counter(), provenance()
    # Spawned, not forked: a forked child inherits torch's thread pools in an unusable state.
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        for finished in as_completed([pool.submit(run_cell, cell) for cell in missing]):
            results.append(finished.result() | {"provenance": about})
            report(results[-1])
            stored = [
                {key: value for key, value in one.items() if key != "picture"} for one in results
            ]
            stored.sort(key=lambda one: (one["redundant"], one["kappa"], one["seed"]))
            about_all = {
                "processes": processes,
                "seconds": time.perf_counter() - began,
                "provenance": about,
            }
            write_json(path, head | about_all | {"cells": summarize(results), "runs": stored})
    finally:
        # What has not begun would be thrown away.
        pool.shutdown(cancel_futures=True)
    return results


def summarize(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per task: the median L1 over all seeds and test data, its spread over seeds, and the worst of the rest."""
    rows = []
    for (kappa, redundant), paper in PAPER_L1.items():
        runs = [one for one in results if (one["kappa"], one["redundant"]) == (kappa, redundant)]
        if not runs:
            continue
        pooled = np.concatenate([one["l1"] for one in runs])
        medians = [one["l1_median"] for one in runs]
        rows.append(
            {
                "kappa": kappa,
                "redundant": redundant,
                "paper_l1": paper,
                "l1_median": float(np.median(pooled)),
                "l1_quartiles": np.quantile(pooled, [0.25, 0.75]).tolist(),
                "l1_median_of_each_seed": medians,
                "smallest_r2": min(min(one["r2_f"], one["r2_g"]) for one in runs),
                "largest_cv_normalizer": max(one["cv_normalizer"] for one in runs),
                "largest_redundant_sensitivity": max(
                    (one["redundant_sensitivity"] for one in runs), default=None
                )
                if redundant
                else None,
                "smallest_sampling_p_value": min(one["sampling_p_value"] for one in runs),
                "trapped": sum(median > 0.3 for median in medians),
                "runs": len(runs),
            }
        )
    return rows
