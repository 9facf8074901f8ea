"""Many observations are summarised at once, as well as one by one."""

import pytest
import torch

import eande
from eande.foundations.checks import EandeWarning
from helpers.exact_posteriors import gaussian_posterior, linear_gaussian_model
from helpers.sharp_gaussians import box, gaussian

NORMAL_90 = 1.6449


def test_they_are_those_of_the_exact_posteriors():
    """A Gaussian of known mean and deviation; the effective sample size is thousands."""
    ys = torch.linspace(-1, 1, 40).unsqueeze(1)
    found = linear_gaussian_model().summaries(ys, progress=False)
    exact = [gaussian_posterior([y]) for y in ys[:, 0].tolist()]
    for summary, (mean, std) in zip(found, exact, strict=True):
        assert not summary.info.nearby
        assert summary.info.effective_draws > 2_000
        assert summary.mean.item() == pytest.approx(mean, abs=0.04)
        assert summary.std.item() == pytest.approx(std, rel=0.05)
        assert summary.lower.item() == pytest.approx(mean - NORMAL_90 * std, abs=0.06)
        assert summary.upper.item() == pytest.approx(mean + NORMAL_90 * std, abs=0.06)


def test_sharp_posteriors_get_draws_of_their_own():
    model, simulated = gaussian(box(5), 0.02)
    inside = simulated(60, 0)
    ys = inside.y[(inside.y.abs() < 0.9).all(1)][:20]
    found = model.summaries(ys, progress=False)
    assert all(summary.info.nearby for summary in found)
    error = torch.stack([summary.mean for summary in found]) - ys
    assert error.square().mean().sqrt() < 0.1 * 0.02
    std = torch.stack([summary.std for summary in found])
    assert (std / 0.02 - 1).abs().mean() < 0.05
    width = torch.stack([summary.upper - summary.lower for summary in found])
    assert (width / (2 * NORMAL_90 * 0.02) - 1).abs().mean() < 0.05


def test_they_are_those_of_samples_with_derived_quantities():
    model, simulated = gaussian(box(2), 0.3)
    ys = simulated(3, 0).y
    derived = {"sum": lambda p: p["phi1"] + p["phi2"]}
    found = model.summaries(ys, derived=derived, progress=False)
    again = model.summaries(ys, derived=derived, progress=False)
    for y, summary, same in zip(ys, found, again, strict=True):
        sampled = model.posterior(y).summary(derived=derived)
        assert summary.names == sampled.names == ("phi1", "phi2", "sum")
        torch.testing.assert_close(summary.mean, sampled.mean, atol=0.03, rtol=0)
        torch.testing.assert_close(summary.std, sampled.std, atol=0, rtol=0.1)
        torch.testing.assert_close(summary.upper, sampled.upper, atol=0.06, rtol=0)
        assert torch.equal(summary.mean, same.mean)
        assert "sum" in str(summary)


def test_data_that_are_not_looked_at_together_share_no_random_numbers():
    """One datum 32 times, of which 16 are looked at together: errors of two are independent."""
    model, _ = gaussian(box(4), 0.02)
    found = model.summaries(torch.full((32, 4), 0.1), progress=False)
    assert found[0].info.nearby
    assert not torch.equal(found[0].mean, found[16].mean)


def test_few_effective_draws_are_told():
    known = box(5)
    prior = eande.SamplerPrior(lambda n, seed: known.sample(n, seed=seed))
    model, simulated = gaussian(prior, 0.02)
    with pytest.warns(EandeWarning, match="4 of 4 summaries rest on an effective sample size"):
        found = model.summaries(simulated(4, 0).y, progress=False)
    assert not any(summary.info.nearby for summary in found)
