"""What the Lorenz 96 study measures of a posterior: is it a ring, and as wide as its error?

The reference is uniform on the part of the circle of radius F = √(F₁² + F₂²) inside the prior's
square. It has no width; a posterior has the width of what is known about F, which must match its
error. Distances to the reference are therefore shown beside coverage and scores of the radius.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from eande.diagnostics.diagnose import LEVELS
from eande.diagnostics.distances import squared_mmd
from eande.foundations.seeds import derive_seed, generator
from eande.inference.levels import mass_above
from eande.inference.samplers.rejection import bank_rejection
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.sizes import Size
from eande.studies.sampling import sample_or_resample

# Of the prior's square.
HALF_WIDTH = 15.0
ANGLE_BINS = 24
# Of the kernel of MMD², for samples scaled to [−1, 1]².
BANDWIDTHS = (0.01, 0.05)
REGIONS = {"F < 5": (0.0, 5.0), "5 < F < 15": (5.0, 15.0), "F > 15": (15.0, math.inf)}
# Evaluations of the emulator per posterior before its prior draws are resampled instead.
_BUDGET = 2_000_000


def measure(model: Any, data: Data, size: Size, seed: int) -> dict[str, Any]:
    """Evaluate a model on the test data and its calibration on fresh ones."""
    posteriors = model.posteriors(data.test_y, draws=size.draws)
    found = evaluate(posteriors, data.test_phi, size.samples, seed)
    if len(data.fresh_phi):
        # A flow's values take a thousand times as long, and its posteriors are wide.
        draws = size.draws // (200 if getattr(model, "kind", "") == "npe-c" else 10)
        fresh = model.posteriors(data.fresh_y, draws=draws)
        found["fresh"] = calibration(fresh, data.fresh_phi, seed)
    return found


def reference_samples(forcing: float, n: int, seed: int) -> Tensor:
    """Draw from the uniform distribution on the circle of that radius inside the square."""
    stream = generator(seed, "reference")
    inside = torch.zeros(0, 2)
    while len(inside) < n:
        angle = 2 * math.pi * torch.rand(4 * n, generator=stream)
        points = forcing * torch.stack([angle.cos(), angle.sin()], dim=1)
        inside = torch.cat([inside, points[(points.abs() <= HALF_WIDTH).all(1)]])
    return inside[:n]


def reference_angles(forcing: float) -> Tensor:
    """Return the reference's share per bin of the angle, by the midpoint rule."""
    count = 1_000 * ANGLE_BINS
    angle = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 * math.pi - math.pi
    inside = (forcing * torch.stack([angle.cos(), angle.sin()])).abs().amax(0) <= HALF_WIDTH
    shares = inside.double().view(ANGLE_BINS, -1).sum(1)
    return shares / shares.sum()


def angle_histogram(phi: Tensor) -> Tensor:
    """Return the share of points per bin of the angle."""
    angle = torch.atan2(phi[:, 1], phi[:, 0])
    return torch.histc(angle.double().cpu(), ANGLE_BINS, -math.pi, math.pi) / len(phi)


def draw(posterior: Any, n: int, seed: int) -> tuple[Tensor, bool]:
    """Draw samples by acceptance–rejection, or resample; the second value says which.

    A flow is drawn from by its own sampler.
    """
    if posterior.default_sampler is not None:
        return posterior.sample(n, seed=seed)[0], False
    return sample_or_resample(
        posterior, n, seed=seed, sampler=bank_rejection, max_evaluations=_BUDGET
    )


def evaluate(
    posteriors: Sequence[Any], test_phi: Tensor, samples: int, seed: int
) -> dict[str, Any]:
    """Compare every posterior with its reference, by samples.

    Args:
        posteriors: of the test data.
        test_phi: their true parameters.
        samples: per posterior.
        seed: of the samples.

    Returns:
        Medians and means over the test data, and under ``"per_datum"`` lists with one entry each.
    """
    rows = [
        evaluate_one(posterior, phi, samples, derive_seed(seed, i))
        for i, (posterior, phi) in enumerate(zip(posteriors, test_phi, strict=True))
    ]
    lists = {name: [float(f"{row[name]:.5g}") for row in rows] for name in rows[0]}
    medians = {
        f"median_{name}": float(np.median(values))
        for name, values in lists.items()
        if name != "mass_above"
    }
    return {
        **medians,
        "mean_log_ratio": float(np.mean(lists["log_ratio"])),
        "mean_crps": float(np.mean(lists["crps"])),
        "radial_z_rms": float(np.sqrt(np.mean(np.square(lists["z"])))),
        "coverage": _coverage(np.array(lists["mass_above"])),
        "fewest_effective_draws": min(posterior.effective_draws for posterior in posteriors),
        "per_datum": lists,
    }


def evaluate_one(posterior: Any, phi: Tensor, size: int, seed: int) -> dict[str, float]:
    """Compare one posterior with the reference of the true parameters ``phi``, (2,)."""
    samples, resampled = draw(posterior, size, seed)
    forcing = phi.norm().item()
    # Two: the distance of one to the other is the floor of every distance.
    reference, other = (
        reference_samples(forcing, size, derive_seed(seed, i)).to(samples.device) for i in range(2)
    )
    radius = samples.norm(dim=1).double()
    # Not log_ratio(), which warns of few effective draws: their smallest number is reported.
    truth = posterior.score(phi.unsqueeze(0)).double()[0]
    scores = posterior.score(samples).double()
    exact = reference_angles(forcing)
    spread = (radius.unsqueeze(1) - radius).abs().mean()
    return {
        "log_ratio": truth.item() - posterior.log_normalizer,
        "z": ((radius.mean() - forcing) / radius.std()).item(),
        "radial_error": abs(radius.mean().item() - forcing),
        "radial_bias": radius.mean().item() - forcing,
        "radial_spread": radius.std().item(),
        "crps": ((radius - forcing).abs().mean() - spread / 2).item(),
        "mass_above": mass_above(scores, truth, equal=torch.eq).item(),
        "resampled": float(resampled),
        "angular_tv": 0.5 * (angle_histogram(samples) - exact).abs().sum().item(),
        "angular_tv_floor": 0.5 * (angle_histogram(reference) - exact).abs().sum().item(),
        **_distances("mmd2", samples, reference),
        **_distances("mmd2_floor", other, reference),
    }


def _distances(name: str, first: Tensor, second: Tensor) -> dict[str, float]:
    """Return MMD² of both bandwidths between samples, of sets of 100 and of all."""
    found = {}
    size = len(first)
    for n in (100, size):
        # The mean over disjoint sets of n: one set of 100 alone has an error of a sixth.
        count = size // n * n
        sets = first[:count].view(-1, n, 2) / HALF_WIDTH
        others = second[:count].view(-1, n, 2) / HALF_WIDTH
        values = squared_mmd(sets, others, BANDWIDTHS).mean(1)
        for bandwidth, value in zip(BANDWIDTHS, values.tolist(), strict=True):
            found[f"{name}_{bandwidth}_{n}"] = value
    return found


def calibration(posteriors: Sequence[Any], phi: Tensor, seed: int) -> dict[str, Any]:
    """Return coverage of highest-density regions and scores of the radius.

    They are given over all data, the first 500 and three ranges of F. The posterior averaged over
    data must give back the prior: one draw of each is tested against it.

    Args:
        posteriors: of data that nothing else was done with.
        phi: their true parameters.
        seed: of the draws.
    """
    forcing = phi.norm(dim=1).numpy()
    places = torch.rand(len(phi), generator=generator(seed, "places"), dtype=torch.float64)
    parts = [
        _weigh(posterior, true, place.item())
        for posterior, true, place in zip(posteriors, phi, places, strict=True)
    ]
    log_ratio = np.array([part["log_ratio"] for part in parts])
    z = np.array([part["z"] for part in parts])
    mass = np.array([part["mass_above"] for part in parts])
    draws = np.array([part["draw"] for part in parts])
    chosen = {"all": np.ones(len(phi), dtype=bool), "the first 500": np.arange(len(phi)) < 500}
    chosen |= {name: (forcing >= low) & (forcing < high) for name, (low, high) in REGIONS.items()}
    return {
        "regions": {
            name: {
                "data": int(kept.sum()),
                "mean_log_ratio": float(log_ratio[kept].mean()),
                "radial_z_mean": float(z[kept].mean()),
                "radial_z_rms": float(np.sqrt((z[kept] ** 2).mean())),
                "coverage": _coverage(mass[kept]),
            }
            for name, kept in chosen.items()
            if kept.any()
        },
        "prior_recovery": _prior_recovery(draws, seed),
    }


def _coverage(mass: np.ndarray) -> dict[str, float]:
    """Return how often regions of each level hold the truth, given the mass above it."""
    return {f"{level}": float((mass < level / 100).mean()) for level in LEVELS}


def _weigh(posterior: Any, phi: Tensor, place: float) -> dict[str, Any]:
    """Measure a posterior by the weights of its prior draws; take the draw at a place in (0, 1)."""
    draws = posterior.bank.phi
    scores = posterior.bank_scores().double()
    truth = posterior.score(phi.unsqueeze(0)).double()[0]
    weights = scores.softmax(0)
    radius = draws.norm(dim=1).double()
    mean = weights @ radius
    spread = (weights @ radius.square() - mean.square()).clamp(min=1e-12).sqrt()
    chosen = torch.searchsorted(weights.cumsum(0), place).clamp(max=len(draws) - 1)
    return {
        "log_ratio": truth.item() - posterior.log_normalizer,
        "z": ((mean - phi.norm().item()) / spread).item(),
        "mass_above": mass_above(scores, truth, weights, equal=torch.eq).item(),
        "draw": draws[chosen].cpu().numpy(),
    }


def _prior_recovery(draws: np.ndarray, seed: int) -> dict[str, float]:
    """Test draws (n, 2) against the prior.

    By counts on a grid of 6 × 6, and by radii against as many of prior draws.
    """
    square = [[-HALF_WIDTH, HALF_WIDTH]] * 2
    counts, _, _ = np.histogram2d(draws[:, 0], draws[:, 1], bins=6, range=square)
    prior = Lorenz96().prior.sample(len(draws), seed=seed).norm(dim=1).numpy()
    return {
        "draws": len(draws),
        "p_value_of_counts": float(stats.chisquare(counts.ravel()).pvalue),
        "p_value_of_radii": float(stats.ks_2samp(np.linalg.norm(draws, axis=1), prior).pvalue),
    }
