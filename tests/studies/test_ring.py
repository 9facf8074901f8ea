"""The measures of the Lorenz 96 study: known rings pass and wrong ones do not."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from eande.foundations.seeds import generator
from eande.inference.samplers.rejection import BudgetExceeded
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.physics import budget_estimates
from eande.studies.lorenz96.ring import (
    angle_histogram,
    calibration,
    draw,
    evaluate_one,
    reference_angles,
    reference_samples,
)


@pytest.mark.parametrize("forcing", [3.0, 14.9, 19.0])
def test_the_reference_lies_on_the_circle_inside_the_square(forcing):
    points = reference_samples(forcing, 20_000, 0)
    torch.testing.assert_close(points.norm(dim=1), torch.full((20_000,), forcing))
    assert points.abs().max() <= 15
    shares = angle_histogram(points)
    assert shares.sum().item() == pytest.approx(1)
    assert (shares - reference_angles(forcing)).abs().sum() < 0.04
    if forcing < 15:
        assert shares.min() > 0.9 / 24
    else:
        assert shares[0] == 0  # around the angle −π the circle is outside
        assert shares.max() > 1.5 / 24


class Ring:
    """A posterior whose radius is normal around a centre and whose angle is uniform."""

    default_sampler = None

    def __init__(self, centre, spread, lost=0.0):
        self.centre = centre
        self.spread = spread
        self.lost = lost

    def sample(self, n, *, seed, **options):
        stream = generator(seed, "ring")
        radius = self.centre + self.spread * torch.randn(n, generator=stream)
        angle = 2 * math.pi * (1 - self.lost) * torch.rand(n, generator=stream)
        return radius.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1), None

    log_normalizer = 0.0

    def score(self, phi):
        return -(((phi.norm(dim=1) - self.centre) / self.spread) ** 2) / 2


def measure(spread, *, stated=None, lost=0.0, n=40):
    """Evaluate rings centred with an error of that spread, and as wide as stated."""
    errors = torch.randn(n, generator=generator(1))
    rows = []
    for i, error in enumerate(errors.tolist()):
        phi = reference_samples(9.0, 1, 100 + i)[0]
        rows.append(evaluate_one(Ring(9.0 + spread * error, stated or spread, lost), phi, 500, i))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_a_calibrated_ring_is_found_calibrated():
    found = measure(0.1)
    assert 0.75 < found["z"].std() < 1.25
    assert 0.3 < (found["mass_above"] < 0.5).mean() < 0.72
    assert np.median(found["angular_tv"]) < 1.3 * np.median(found["angular_tv_floor"])
    assert np.median(found["mmd2_0.05_500"]) < 1.3 * np.median(found["mmd2_floor_0.05_500"])
    # The score of a normal forecast with the right spread, σ/√π on average.
    assert found["crps"].mean() == pytest.approx(0.1 / math.sqrt(math.pi), rel=0.2)


@pytest.mark.thorough
def test_wrong_rings_are_told_from_the_right_one():
    right = measure(0.1)
    wide = measure(0.1, stated=0.4)
    narrow = measure(0.1, stated=0.03)
    broken = measure(0.1, lost=0.25)
    assert wide["z"].std() < 0.5
    assert (wide["mass_above"] < 0.5).mean() > 0.9
    assert narrow["z"].std() > 2
    assert (narrow["mass_above"] < 0.5).mean() < 0.3
    assert min(wide["crps"].mean(), narrow["crps"].mean()) > 1.1 * right["crps"].mean()
    assert np.median(broken["angular_tv"]) > 0.2
    assert np.median(broken["mmd2_0.05_500"]) > 2 * np.median(right["mmd2_0.05_500"])


class Needle:
    """A posterior too narrow for its bank: acceptance–rejection gives up."""

    default_sampler = None

    def __init__(self):
        self.bank = SimpleNamespace(phi=torch.rand(1_000, 2, generator=generator(0)))

    def sample(self, n, **options):
        raise BudgetExceeded("too narrow", self.bank.phi[:0], None)

    def bank_scores(self):
        return torch.where(torch.arange(1_000) < 3, 0.0, -50.0)


def test_a_posterior_too_narrow_to_sample_is_resampled_and_said_so():
    samples, resampled = draw(Needle(), 600, 1)
    assert resampled
    assert len(samples.unique(dim=0)) == 3
    shares = (samples.unsqueeze(1) == Needle().bank.phi[:3]).all(-1).double().mean(0)
    assert (shares - 1 / 3).abs().max() < 0.08


def test_budgets_find_the_forcing_and_a_wrong_one_does_not():
    simulator = Lorenz96(observations=400)
    phi = torch.tensor([[6.0, 8.0], [0.0, 5.0]])
    y = torch.as_tensor(simulator(phi.numpy(), np.random.default_rng(0)))[:, 100:350]
    for name, found in budget_estimates(y, simulator).items():
        assert (found - phi.norm(dim=1)).abs().max() < 0.05, name
    uncoupled = budget_estimates(y, Lorenz96(observations=400, h=0.0))
    assert (uncoupled["energy"] - phi.norm(dim=1)).abs().max() > 0.2


def test_coverage_and_the_prior_are_told_from_weights():
    """Posteriors with the right width cover as often as they say and give back the prior.

    Too narrow ones do not cover.
    """
    prior = Lorenz96().prior
    phi = prior.sample(400, seed=3)
    observed = phi.norm(dim=1) + 0.3 * torch.randn(400, generator=generator(4))

    def posteriors(stated):
        bank = SimpleNamespace(phi=prior.sample(20_000, seed=5))

        def make(centre):
            ring = Ring(centre, stated)
            return SimpleNamespace(
                bank=bank,
                score=ring.score,
                bank_scores=lambda: ring.score(bank.phi),
                log_normalizer=0.0,
            )

        return [make(centre) for centre in observed.tolist()]

    right, narrow = (calibration(posteriors(stated), phi, 0) for stated in (0.3, 0.1))
    covered = right["regions"]["all"]["coverage"]
    assert all(abs(covered[level] - int(level) / 100) < 0.09 for level in covered)
    assert 0.85 < right["regions"]["all"]["radial_z_rms"] < 1.15
    assert (
        min(
            right["prior_recovery"]["p_value_of_counts"],
            right["prior_recovery"]["p_value_of_radii"],
        )
        > 1e-3
    )
    assert narrow["regions"]["all"]["coverage"]["80"] < 0.5
    assert narrow["regions"]["all"]["radial_z_rms"] > 2
