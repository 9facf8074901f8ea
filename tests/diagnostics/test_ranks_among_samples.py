"""Ranks among samples of every posterior, for posteriors too sharp for prior draws."""

import pytest
import torch

import eande
from eande.diagnostics.diagnose import diagnose
from helpers.sharp_gaussians import box, gaussian


def in_samples(dimension, believed, data):
    model, simulated = gaussian(box(dimension), 0.1, believed=believed)
    return diagnose(model, simulated(data, 0), draws=20_000, samples=100, progress=False)


@pytest.mark.thorough
def test_ranks_among_samples_agree_with_those_among_draws():
    found = in_samples(2, 0.1, 100)
    (model, simulated) = gaussian(box(2), 0.1)
    draws = diagnose(model, simulated(100, 0), draws=20_000)
    assert found.passed
    assert found.samples == 100
    torch.testing.assert_close(found.weighed.ranks, draws.weighed.ranks, atol=0.2, rtol=0)
    torch.testing.assert_close(found.weighed.level, draws.weighed.level, atol=0.2, rtol=0)
    torch.testing.assert_close(found.weighed.tarp, draws.weighed.tarp, atol=0.2, rtol=0)
    torch.testing.assert_close(found.weighed.deviation, draws.weighed.deviation, rtol=0.4, atol=0)
    assert found.divergence == pytest.approx(draws.divergence, abs=0.1)
    with pytest.raises(
        eande.InputError, match="samples: expected a whole number of at least 100, got 5"
    ):
        diagnose(model, simulated(100, 0), samples=5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("believed", "fault"),
    [(0.05, "too narrow"), pytest.param(0.2, "too wide", marks=pytest.mark.slow)],
)
def test_ranks_among_samples_see_faults(believed, fault):
    found = in_samples(2, believed, 40)
    assert not found.passed
    assert fault in next(verdict.text for verdict in found.verdicts if verdict.name == "coverage")


@pytest.mark.slow
@pytest.mark.parametrize(("believed", "passes"), [(0.1, True), (0.05, False), (0.2, False)])
def test_samples_tell_of_ten_sharp_parameters_what_draws_cannot(believed, passes):
    assert in_samples(10, believed, 30).passed == passes
