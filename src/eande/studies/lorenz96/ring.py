"""What the Lorenz 96 study measures: how near a posterior is to its ring, and whether it is as wide as its error.

The reference is uniform on the part of the circle of radius F = √(F₁² + F₂²) inside the prior's square. It has no width; ours is the width of
our knowledge of F, which must match our error: distances to the reference are shown beside coverage and scores of the radius.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from eande.diagnostics.diagnose import LEVELS
from eande.diagnostics.distances import squared_mmd
from eande.foundations.checks import EandeWarning
from eande.foundations.seeds import derive_seed, generator
from eande.inference.samplers.importance import resample
from eande.inference.samplers.rejection import BudgetExceeded, bank_rejection
from eande.simulators.lorenz96 import Lorenz96

HALF_WIDTH = 15.0
ANGLE_BINS = 24
BANDWIDTHS = (0.01, 0.05)
# Posteriors weighed at once: a score per prior draw of each, in float64.
_TOGETHER = 16
REGIONS = {"F < 5": (0.0, 5.0), "5 < F < 15": (5.0, 15.0), "F > 15": (15.0, math.inf)}


def reference_samples(forcing: float, n: int, seed: int) -> Tensor:
    """Draw from the uniform law on the circle of that radius inside the square."""
    stream = generator(seed, "reference")
    inside = torch.zeros(0, 2)
    while len(inside) < n:
        angle = 2 * math.pi * torch.rand(4 * n, generator=stream)
        points = forcing * torch.stack([angle.cos(), angle.sin()], dim=1)
        inside = torch.cat([inside, points[(points.abs() <= HALF_WIDTH).all(1)]])
    return inside[:n]


def reference_angles(forcing: float) -> Tensor:
    """Return the reference's share per bin of the angle, by a fine rule."""
    angle = (torch.arange(1_000 * ANGLE_BINS, dtype=torch.float64) + 0.5) / (
        1_000 * ANGLE_BINS
    ) * 2 * math.pi - math.pi
    inside = (forcing * torch.stack([angle.cos(), angle.sin()])).abs().amax(0) <= HALF_WIDTH
    shares = inside.double().view(ANGLE_BINS, -1).sum(1)
    return shares / shares.sum()


def angle_histogram(phi: Tensor) -> Tensor:
    """Return the share of points per bin of the angle."""
    angle = torch.atan2(phi[:, 1], phi[:, 0])
    return torch.histc(angle.double().cpu(), ANGLE_BINS, -math.pi, math.pi) / len(phi)


def evaluate(
    posteriors: Sequence[Any], test_phi: Tensor, samples: int, seed: int
) -> dict[str, Any]:
    """Compare every posterior with its reference, from samples; all lists have one entry per test datum."""
    rows = [
        _evaluate_one(posterior, phi, samples, derive_seed(seed, i))
        for i, (posterior, phi) in enumerate(zip(posteriors, test_phi, strict=True))
    ]
    lists = {name: [float(f"{row[name]:.5g}") for row in rows] for name in rows[0]}
    medians = {
        f"median_{name}": float(np.median(values))
        for name, values in lists.items()
        if name != "mass_above"
    }
    mass = np.array(lists["mass_above"])
    return {
        **medians,
        "mean_log_ratio": float(np.mean(lists["log_ratio"])),
        "mean_crps": float(np.mean(lists["crps"])),
        "radial_z_rms": float(np.sqrt(np.mean(np.square(lists["z"])))),
        "coverage": {f"{level}": float((mass < level / 100).mean()) for level in LEVELS},
        "fewest_effective_draws": min(posterior.effective_draws for posterior in posteriors),
        "per_datum": lists,
    }


def draw(posterior: Any, n: int, seed: int) -> tuple[Tensor, bool]:
    """Draw samples by acceptance–rejection; where that takes too long, from the bank by its weights, with replacement, and say so."""
    try:
        return posterior.sample(n, seed=seed, sampler=bank_rejection, max_evaluations=2_000_000)[
            0
        ], False
    except BudgetExceeded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EandeWarning)  # the result says that it was done
            return resample(posterior, n, seed=seed)[0], True


def _evaluate_one(posterior: Any, phi: Tensor, size: int, seed: int) -> dict[str, float]:
    samples, resampled = draw(posterior, size, seed)
    forcing, device = phi.norm().item(), samples.device
    reference, other = (
        reference_samples(forcing, size, derive_seed(seed, i)).to(device) for i in range(2)
    )
    radius = samples.norm(dim=1).double()
    # What few draws carry is known: their least number is reported.
    truth, drawn = (
        posterior.score(points).double() - posterior.log_normalizer
        for points in (phi.unsqueeze(0), samples)
    )
    exact = reference_angles(forcing)
    found = {
        "log_ratio": truth.item(),
        "z": ((radius.mean() - forcing) / radius.std()).item(),
        "radial_error": abs(radius.mean().item() - forcing),
        "radial_bias": radius.mean().item() - forcing,
        "radial_spread": radius.std().item(),
        "crps": (
            (radius - forcing).abs().mean() - (radius.unsqueeze(1) - radius).abs().mean() / 2
        ).item(),
        # Ties count half: a posterior that is the prior covers as often as it says.
        "mass_above": ((drawn > truth).double() + (drawn == truth).double() / 2).mean().item(),
        "resampled": float(resampled),
        "angular_tv": 0.5 * (angle_histogram(samples) - exact).abs().sum().item(),
        "angular_tv_floor": 0.5 * (angle_histogram(reference) - exact).abs().sum().item(),
    }
    for n in (100, size):
        # The mean over disjoint sets of n: one set of 100 alone has an error of a sixth.
        ours, first, second = (
            points[: size // n * n].view(-1, n, 2) / HALF_WIDTH
            for points in (samples, reference, other)
        )
        for name, values in (
            ("mmd2", squared_mmd(ours, first, BANDWIDTHS)),
            ("mmd2_floor", squared_mmd(second, first, BANDWIDTHS)),
        ):
            found |= {
                f"{name}_{bandwidth}_{n}": value
                for bandwidth, value in zip(BANDWIDTHS, values.mean(1).tolist(), strict=True)
            }
    return found


def calibration(posteriors: Sequence[Any], phi: Tensor, seed: int) -> dict[str, Any]:
    """Return coverage of highest-density regions and scores of the radius, over all data, the first 500 and three ranges of F.

    The posterior averaged over data must give back the prior: one draw of each is tested against it.
    """
    forcing = phi.norm(dim=1).numpy()
    places = torch.rand(len(phi), generator=generator(seed, "places"), dtype=torch.float64)
    index = torch.arange(len(phi)).split(_TOGETHER)
    parts = [_weights(posteriors[k[0] : k[-1] + 1], phi[k], places[k]) for k in index]
    log_ratio, z, mass, draws = (
        np.concatenate([part[name] for part in parts])
        for name in ("log_ratio", "z", "mass_above", "draw")
    )
    chosen = {"all": np.ones(len(phi), dtype=bool), "the first 500": np.arange(len(phi)) < 500}
    chosen |= {name: (forcing >= low) & (forcing < high) for name, (low, high) in REGIONS.items()}
    return {
        "regions": {
            name: {
                "data": int(kept.sum()),
                "mean_log_ratio": float(log_ratio[kept].mean()),
                "radial_z_mean": float(z[kept].mean()),
                "radial_z_rms": float(np.sqrt((z[kept] ** 2).mean())),
                "coverage": {
                    f"{level}": float((mass[kept] < level / 100).mean()) for level in LEVELS
                },
            }
            for name, kept in chosen.items()
            if kept.any()
        },
        "prior_recovery": _prior_recovery(draws, seed),
    }


def _weights(posteriors: Sequence[Any], phi: Tensor, places: Tensor) -> dict[str, np.ndarray]:
    """Measure posteriors of one bank by their weights on its prior draws, and draw once from each, at a place in (0, 1)."""
    model, bank = posteriors[0].model, posteriors[0].bank
    phi, radius, embedded = (
        phi.to(model.device),
        bank.phi.norm(dim=1).double(),
        torch.stack([posterior.embedded for posterior in posteriors]),
    )
    with torch.no_grad():
        scores = model.similarity.score(embedded, bank.emulated).double()
        truth = model.similarity.paired_score(embedded, model.emulate(phi)).double()
    weights = scores.softmax(1)
    mean = weights @ radius
    spread = (weights @ radius.square() - mean.square()).clamp(min=1e-12).sqrt()
    chosen = torch.searchsorted(weights.cumsum(1), places.to(weights.device).unsqueeze(1)).clamp(
        max=len(radius) - 1
    )[:, 0]
    found = {
        "log_ratio": truth
        - torch.tensor([posterior.log_normalizer for posterior in posteriors], device=truth.device),
        "z": (mean - phi.norm(dim=1)) / spread,
        "mass_above": (
            weights
            * ((scores > truth.unsqueeze(1)).double() + (scores == truth.unsqueeze(1)).double() / 2)
        ).sum(1),
        "draw": bank.phi[chosen],
    }
    return {name: value.cpu().numpy() for name, value in found.items()}


def _prior_recovery(draws: np.ndarray, seed: int) -> dict[str, float]:
    """Test draws (n, 2) against the prior: counts on a grid of 6 × 6, and radii against as many of the prior's."""
    counts = np.histogram2d(
        draws[:, 0], draws[:, 1], bins=6, range=[[-HALF_WIDTH, HALF_WIDTH]] * 2
    )[0].ravel()
    prior = Lorenz96().prior.sample(len(draws), seed=seed).norm(dim=1).numpy()
    return {
        "draws": len(draws),
        "p_value_of_counts": float(stats.chisquare(counts).pvalue),
        "p_value_of_radii": float(stats.ks_2samp(np.linalg.norm(draws, axis=1), prior).pvalue),
    }


def budget_estimates(y: Tensor, simulator: Lorenz96) -> dict[str, Tensor]:
    """Estimate F from windows (m, time, K + K·J) by physics alone: the budgets of energy and of momentum of u, averaged over a window.

    The advection conserves Σ u²; what is left of the energy's budget is F⟨u⟩ = ⟨u²⟩ + h c ⟨u v̄⟩ + Δ(u²/2)/T.
    """
    u, v = (
        y[..., : simulator.slow].double(),
        y[..., simulator.slow :].double().unflatten(-1, (simulator.slow, simulator.fast)).mean(-1),
    )
    duration = (y.shape[1] - 1) * simulator.interval
    coupling = simulator.h * simulator.c

    def average(x: Tensor) -> Tensor:
        return torch.trapezoid(x.mean(-1), dx=simulator.interval, dim=1) / duration

    def change(x: Tensor) -> Tensor:
        return (x[:, -1] - x[:, 0]).mean(-1) / duration

    advection = -u.roll(1, -1) * (u.roll(2, -1) - u.roll(-1, -1))
    return {
        "energy": (average(u * u) + coupling * average(u * v) + change(u * u / 2)) / average(u),
        "momentum": change(u) + average(u) + coupling * average(v) - average(advection),
    }
