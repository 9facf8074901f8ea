"""The region of a round: how much of a posterior it leaves out, the model's and the true one."""

import pytest
import torch

import eande
from eande.priors.truncated import TruncatedPrior
from eande.sequential import region
from eande.sequential.region import EPSILON, FEWEST_INSIDE, SAMPLES, cut
from helpers.rounds_runs import BOX, SETTINGS, exact_samples, observe, simulator

FRESH = 200_000


@pytest.fixture(scope="module")
def simulations():
    return eande.simulate(simulator, BOX, 500, seed=0, progress=False)


@pytest.fixture(scope="module")
def single(simulations):
    return eande.fit(simulations, BOX, settings=SETTINGS, progress=False)


@pytest.fixture(scope="module")
def joint(simulations):
    return eande.fit(simulations, BOX, settings=SETTINGS, members=2, progress=False)


FITTED = BOX.sample(500, seed=3)


def narrower(model, *phi, fitted=FITTED, **options):
    observed = torch.stack([torch.as_tensor(observe(one)).float() for one in phi])
    found = cut(model, observed, fitted, **({"wanted": 500, "seed": 0} | options))
    assert found.prior is not None, found.reason
    return found.prior, observed


def outside(prior, model, y):
    """The share of a model's posterior that lies outside."""
    phi, _ = model.posterior(y).sample(FRESH, seed=11)
    return (~prior.contains(phi)).double().mean().item()


def test_no_more_than_a_ten_thousandth_of_the_posterior_lies_outside(joint):
    """The mass outside has a Beta(1, 30,000) law: over 2 ε with a probability of 1 in 400."""
    assert (1 - EPSILON) ** SAMPLES < 0.05
    prior, (y,) = narrower(joint, [0.4, -0.2])
    count = outside(prior, joint, y) * FRESH
    assert count <= 2 * EPSILON * FRESH + 3 * (2 * EPSILON * FRESH) ** 0.5
    assert prior.log_mass < -1


def test_fewer_samples_leave_more_outside(joint, monkeypatch):
    monkeypatch.setattr(region, "SAMPLES", 100)
    prior, (y,) = narrower(joint, [0.4, -0.2])
    assert outside(prior, joint, y) > 2 * EPSILON


def test_the_region_of_a_single_model_is_wider(single):
    prior, (y,) = narrower(single, [0.4, -0.2])
    assert outside(prior, single, y) < EPSILON / 5
    assert prior.log_mass < -1


def test_of_the_true_posterior_less_than_a_hundredth_is_cut_off(single, joint):
    for model in (single, joint):
        for phi in ([0.4, -0.2], [-1.2, 1.1], [1.95, 0.0]):
            prior, (y,) = narrower(model, phi)
            assert (~prior.contains(exact_samples(y, 10_000))).float().mean() < 0.01


def test_the_region_of_several_observations_holds_the_posterior_of_each(joint):
    prior, observed = narrower(joint, [1.4, -1.2], [-1.4, 1.3])
    for y in observed:
        assert (~prior.contains(exact_samples(y, 10_000))).float().mean() < 0.01
    assert not prior.contains(torch.zeros(1, 2)).any(), "between them nothing is kept"


def test_regions_lie_one_in_the_other(joint):
    wide, observed = narrower(joint, [0.4, -0.2])
    again = eande.simulate(simulator, wide, 400, seed=1, progress=False)
    model = eande.fit(again, wide, settings=SETTINGS, progress=False)
    narrow = cut(model, observed, again.phi, wanted=500, seed=1).prior
    assert isinstance(narrow, TruncatedPrior)
    assert wide.contains(narrow.sample(2_000, seed=0)).all()
    assert narrow.log_mass <= wide.log_mass


def test_a_region_holds_some_of_what_the_model_was_fitted_to(joint):
    """Where there was next to nothing, a model that is sure of itself proves little."""
    plenty, _ = narrower(joint, [1.5, -1.2])
    far = FITTED[(FITTED - torch.tensor([1.5, -1.2])).norm(dim=1) > 1.6]
    assert not plenty.contains(far).any(), "without the rule, none is kept"
    bare, _ = narrower(joint, [1.5, -1.2], fitted=far)
    assert bare.contains(far).sum() == FEWEST_INSIDE
    assert bare.contains(plenty.sample(2_000, seed=0)).all()
    few, _ = narrower(joint, [1.5, -1.2], fitted=far[:7])
    assert few.contains(far[:7]).all()


def test_what_is_too_expensive_to_draw_from_is_not_cut_off(joint):
    observed = torch.as_tensor(observe([0.4, -0.2])).float().unsqueeze(0)
    found = cut(joint, observed, FITTED, wanted=30_000_000, seed=0)
    assert found.prior is None
    assert "30,000,000 draws from it would take" in found.reason


def test_a_region_that_no_draw_reaches_is_told_in_a_line(joint, monkeypatch):
    def nothing_there(prior, inside, *, box=None):
        return TruncatedPrior(prior, lambda phi: phi[:, 0] > 5)

    monkeypatch.setattr(region, "TruncatedPrior", nothing_there)
    observed = torch.as_tensor(observe([0.4, -0.2])).float().unsqueeze(0)
    found = cut(joint, observed, FITTED, wanted=500, seed=0)
    assert found.prior is None
    assert found.reason.startswith("it cannot be drawn from (inside: expected a region")
    assert "\n" not in found.reason
