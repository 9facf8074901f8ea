"""What the synthetic study measures: how near a model is to the exact posterior and networks."""

from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from eande.diagnostics.distances import best_rotation, l1_distance, linear_r2
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import coefficient_of_variation
from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher


def evaluate(
    task: VonMisesFisher,
    model: EmbedAndEmulate,
    seed: int,
    *,
    test_data: int = 50,
    draws: int = 10_000,
) -> dict[str, Any]:
    """Compare a model with the exact posterior of fresh test data.

    Args:
        task: which knows its posterior and the true f and g.
        model: what to evaluate.
        seed: of the test data and of the prior draws.
        test_data: how many.
        draws: of the prior, over which both posteriors are normalised.
    """
    test = simulate(
        task, task.prior, test_data, seed=seed + 2_000_000, block_size=1_000, progress=False
    )
    phi = task.prior.sample(draws, seed=seed + 3_000_000)
    posteriors = model.posteriors(test.y, draws=draws)
    scores = torch.stack([posterior.score(phi) for posterior in posteriors])
    distance = l1_distance(scores, task.log_ratio(phi, test.y[:]))
    log_normalizers = torch.tensor([posterior.log_normalizer for posterior in posteriors])
    # The Kolmogorov–Smirnov test of the latent angle: samples of the model against exact ones.
    observed = test.y[0]
    samples, _ = posteriors[0].sample(2_000, seed=seed)
    exact = task.sample_posterior(observed, 2_000, seed=seed)
    result = {
        "l1": distance.tolist(),
        "l1_median": distance.quantile(0.5).item(),
        **_compare_networks(task, model, seed),
        "cv_normalizer": coefficient_of_variation(log_normalizers),
        "held_out_log_ratio": max(record["held_out_log_ratio"] for record in model.history),
        "information": task.information(),
        "sampling_p_value": angle_test(task, observed, samples, exact),
    }
    if task.redundant:
        result["redundant_sensitivity"] = redundant_sensitivity(task, model)
    return result


def _compare_networks(task: VonMisesFisher, model: EmbedAndEmulate, seed: int) -> dict[str, float]:
    """Say how far f and g are linear in the true ones, and how far a rotation of them."""
    data = simulate(
        task, task.prior, 2_000, seed=seed + 4_000_000, block_size=1_000, progress=False
    )
    f = model.embed(data.y)
    g = model.emulate(data.phi)
    f_true = task.true_encoder(data.y[:])
    g_true = task.true_emulator(data.phi)
    rotation = best_rotation(torch.cat([f_true, g_true]), torch.cat([f, g]))
    residual = f_true.double() @ rotation.T - f.double()
    return {
        "r2_f": linear_r2(f, f_true),
        "r2_g": linear_r2(g, g_true),
        "rotation_residual": residual.norm(dim=1).square().mean().sqrt().item(),
    }


def angle_test(task: VonMisesFisher, y: Tensor, first: Tensor, second: Tensor) -> float:
    """Return the p-value of a two-sample Kolmogorov–Smirnov test of the latent angle (d = 2).

    The angle is that between g(φ) and f(y), both the true ones.
    """
    centre = task.true_encoder(y.unsqueeze(0))[0].double()

    def angle(phi: Tensor) -> np.ndarray:
        g = task.true_emulator(phi.double())
        return torch.atan2(centre[0] * g[:, 1] - centre[1] * g[:, 0], g @ centre).numpy()

    return float(stats.ks_2samp(angle(first), angle(second)).pvalue)


def redundant_sensitivity(
    task: VonMisesFisher, model: EmbedAndEmulate, *, draws: int = 2_000
) -> float:
    """Return the mean of ‖∂g/∂φ_R‖ over that of the derivative of g along the ellipse (d = 2).

    Both are per standard deviation of the prior.
    """
    phi = task.prior.sample(draws, seed=0)
    scale = phi.std(0)
    jacobian = (
        torch.func.vmap(torch.func.jacrev(lambda row: model.emulate(row.unsqueeze(0))[0]))(phi)
        * scale
    )
    g = task.true_emulator(phi)
    inverse = torch.as_tensor(np.linalg.inv(task.matrix).T, dtype=phi.dtype)
    tangent = torch.stack([-g[:, 1], g[:, 0]], 1) @ inverse / scale[1:]
    tangent = tangent / tangent.norm(dim=1, keepdim=True)
    along = (jacobian[:, :, 1:] @ tangent.unsqueeze(2)).norm(dim=1).mean()
    return (jacobian[:, :, 0].norm(dim=1).mean() / along).item()
