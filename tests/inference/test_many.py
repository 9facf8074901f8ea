"""Samples of many posteriors at once are those of each posterior alone."""

import pytest
import torch

import eande
from eande.inference.samplers.guided import GuidedInfo
from helpers.exact_posteriors import gaussian_posterior, linear_gaussian_model
from helpers.sharp_gaussians import box, gaussian


def test_they_are_those_of_the_exact_posteriors():
    """Means within four standard errors of forty, and of their squares."""
    ys = torch.linspace(-1, 1, 40).unsqueeze(1)
    phi, infos = linear_gaussian_model().samples(ys, 1_000, progress=False)
    assert phi.shape == (40, 1_000, 1)
    assert all(isinstance(info, GuidedInfo) for info in infos)
    exact = torch.tensor([gaussian_posterior([y]) for y in ys[:, 0].tolist()])
    white = (phi[:, :, 0] - exact[:, :1]) / exact[:, 1:]
    means = white.mean(1) * 1_000**0.5
    squares = (white.square().mean(1) - 1) * 500**0.5
    for z in (means, squares):
        assert z.abs().max() < 4
        # Independent of each other: root mean squares of forty are within a third of 1.
        assert 0.66 < z.square().mean().sqrt() < 1.34
        assert z.mean().abs() < 3 / 40**0.5


def test_sharp_posteriors_are_sampled_as_well():
    model, simulated = gaussian(box(5), 0.02)
    y = simulated(60, 0).y
    inside = y[(y.abs() < 0.85).all(1)][:20]
    phi, _ = model.samples(inside, 600, progress=False)
    white = (phi - inside.unsqueeze(1)) / 0.02
    assert white.mean(1).square().mean().sqrt() * 600**0.5 == pytest.approx(1, abs=0.3)
    assert (white.std(1) - 1).abs().mean() < 0.05
    assert white.flatten(0, 1).mean(0).abs().max() < 4 / 12_000**0.5


def test_a_forgotten_weight_would_be_seen(monkeypatch):
    """The sibling: proposals taken for samples are wider than the posterior."""
    from eande.inference.guide import Guide

    monkeypatch.setattr(Guide, "prior_ratio", lambda guide, x: torch.zeros(x.shape[:2]).double())
    ys = torch.linspace(-1, 1, 10).unsqueeze(1)
    phi, _ = linear_gaussian_model().samples(ys, 1_000, progress=False)
    exact = torch.tensor([gaussian_posterior([y]) for y in ys[:, 0].tolist()])
    spread = phi[:, :, 0].std(1) / exact[:, 1]
    assert (spread - 1).abs().mean() > 0.05


def test_same_seed_same_samples_and_others_else():
    model, simulated = gaussian(box(2), 0.1)
    y = simulated(20, 0).y
    first, infos = model.samples(y, 50, progress=False)
    again, same = model.samples(y, 50, progress=False)
    assert torch.equal(first, again)
    assert infos == same
    assert not torch.equal(first, model.samples(y, 50, seed=1, progress=False)[0])


def test_priors_of_draws_alone_are_sampled_one_by_one():
    known = box(2)
    prior = eande.SamplerPrior(lambda n, seed: known.sample(n, seed=seed))
    model, simulated = gaussian(prior, 0.3)
    phi, infos = model.samples(simulated(20, 0).y, 30, progress=False)
    assert phi.shape == (20, 30, 2)
    assert not any(isinstance(info, GuidedInfo) for info in infos)
