"""Calibration of posteriors that no prior draw comes near."""

import pytest
import torch

import eande
from eande.calibration.exponents import tabulate
from eande.calibration.near_draws import NearDraws, near_draws
from helpers.sharp_gaussians import box, gaussian

pytestmark = pytest.mark.thorough

NOISE = 0.02
FACTORS = {"too narrow": 1 / 1.5, "right": 1.0, "too wide": 1.5}


@pytest.mark.parametrize("fault", FACTORS)
def test_the_exponent_is_found_at_sixteen_nats(fault):
    factor = FACTORS[fault]
    model, simulated = gaussian(box(5), NOISE, believed=factor * NOISE)
    _, found = eande.calibrate(model, simulated(300, 0), progress=False)
    # Steps of a fifth of an octave; a constant that sharpens is the least within one error.
    assert factor**2 / 1.25 < found.exponent < factor**2 * 1.1
    # 15.9 nats are in the data; 10.8 is all that the number of prior draws can tell.
    assert 15.6 < found.after < 16.1
    assert found.before < found.after + 1e-6
    if fault != "right":
        assert found.before < found.after - 0.3


def test_only_data_that_few_prior_draws_come_near_get_others():
    model, simulated = gaussian(box(2), 0.05)
    pairs = simulated(30, 1)
    bank = model.prior_bank(model.prior, 50_000)
    assert not list(near_draws(model, model.embed(pairs.y), pairs.phi, bank))
    few = model.prior_bank(model.prior, 5_000)
    found = list(near_draws(model, model.embed(pairs.y), pairs.phi, few))
    assert [place for place, _ in found] == list(range(30))
    for place, drawn in found:
        weights = drawn.scores + drawn.prior_ratios
        log_c = weights.logsumexp(0) - torch.tensor(float(len(weights))).log()
        f = model.embed(pairs.y[place : place + 1])
        exact = model.similarity.score(f, bank.emulated)[0].double().logsumexp(0)
        assert abs(log_c - (exact - torch.tensor(50_000.0).log())) < 0.3


def test_draws_far_from_the_prior_of_many_parameters_overflow_nothing():
    """Where log p/q is −760 for all draws the table is that of −3."""
    model, simulated = gaussian(box(2), 0.05)
    pairs = simulated(1, 1)
    f, g = model.embed(pairs.y), model.emulate(pairs.phi)
    bank = model.prior_bank(model.prior, 1_000)
    scores = model.similarity.score(f, bank.emulated)[0].double()
    # One draw lies outside of the prior, with a score beyond all others.
    scores = torch.cat([scores, scores.new_tensor([1e4])])
    tables = []
    for ratio in (-3.0, -760.0):
        ratios = torch.full_like(scores, ratio)
        ratios[-1] = -torch.inf
        near = [(0, NearDraws(scores, ratios, torch.full((1,), ratio, dtype=torch.float64)))]
        tables.append(tabulate(model.similarity, f, g, bank, near=near, progress=False))
    few, many = tables
    assert many.scores.isfinite().all()
    assert torch.allclose(many.scores - few.scores, torch.tensor(757.0, dtype=torch.float64))
    assert torch.allclose(many.levels, few.levels)
