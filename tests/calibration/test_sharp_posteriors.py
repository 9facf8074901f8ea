"""Calibration of posteriors that no prior draw comes near."""

import pytest
import torch

import eande
from eande.calibration.near_draws import near_draws
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
    assert not near_draws(model, model.embed(pairs.y), pairs.phi, bank, progress=False)
    few = model.prior_bank(model.prior, 5_000)
    found = near_draws(model, model.embed(pairs.y), pairs.phi, few, progress=False)
    assert set(found) == set(range(30))
    for place, drawn in found.items():
        weights = drawn.scores + drawn.prior_ratios
        log_c = weights.logsumexp(0) - torch.tensor(float(len(weights))).log()
        f = model.embed(pairs.y[place : place + 1])
        exact = model.similarity.score(f, bank.emulated)[0].double().logsumexp(0)
        assert abs(log_c - (exact - torch.tensor(50_000.0).log())) < 0.3
