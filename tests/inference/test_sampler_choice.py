"""Which sampler is chosen, by options or by the expected cost."""

import pytest
import torch

import eande
from eande.inference.samplers.guided import Found, GuidedInfo
from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo
from eande.inference.samplers.tempered import TemperedInfo, tempered
from helpers.exact_posteriors import (
    box_model,
    cube,
    gaussian_posterior,
    linear_gaussian_model,
    peaked,
    posterior_of,
    two_modes,
)


def test_an_option_of_one_sampler_needs_its_name():
    posterior = posterior_of(lambda phi: -phi.square().sum(1), cube(2))
    assert isinstance(posterior.sample(100)[1], SampleInfo)
    assert isinstance(posterior.sample(100, sampler="tempered", particles=500)[1], TemperedInfo)
    assert isinstance(posterior.sample(100, sampler="rejection", bound=0.0)[1], SampleInfo)
    with pytest.raises(eande.BudgetExceeded) as caught:
        posterior_of(lambda phi: -500 * phi.square().sum(1), cube(2)).sample(
            500, sampler="rejection", bound=0.0, max_evaluations=900
        )
    assert caught.value.info.evaluations == 900
    whole = "max_evaluations: expected a whole number"
    dimension = "proposal: expected one of dimension 2, got dimension 3"
    for options, message in (
        ({"max_evaluations": "x"}, whole),
        ({"max_evaluations": "x", "sampler": "tempered", "particles": 500}, whole),
        ({"proposal": cube(3), "sampler": "rejection"}, dimension),
        ({"particles": 500}, "particles: expected sampler='tempered' with it, got no sampler"),
        ({"bound": 0.0}, "bound: expected sampler='rejection' with it, got no sampler"),
        ({"proposal": cube(2)}, "proposal: expected sampler='rejection' with it, got no sampler"),
        ({"partciles": 500}, "sample: expected no option 'partciles'"),
        ({"sampler": "nuts"}, "sampler: expected one of .*'importance'.*'tempered'.*got 'nuts'"),
        ({"sampler": 3}, "sampler: expected a name or a function of .* got 3"),
    ):
        with pytest.raises(eande.InputError, match=message):
            posterior.sample(100, **options)


def test_a_prior_without_a_density_stays_with_rejection():
    prior = eande.SamplerPrior(
        lambda n, seed: torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)).numpy()
    )
    posterior = posterior_of(lambda phi: -(phi / 0.001).square().sum(1) / 2, prior)
    assert isinstance(posterior.sample(5)[1], SampleInfo)
    with pytest.raises(
        eande.InputError,
        match="sampler: expected 'rejection' for a prior without a density, got 'tempered'",
    ):
        posterior.sample(10, sampler=tempered)


def test_rejection_by_name_is_not_replaced():
    posterior = posterior_of(two_modes, cube(10))
    with pytest.raises(eande.BudgetExceeded, match="expected 10 samples within 5000 evaluations"):
        posterior.sample(10, sampler="rejection", bound=1.0, max_evaluations=5_000)


@pytest.mark.parametrize(("reliable", "expected"), [(True, GuidedInfo), (False, TemperedInfo)])
def test_where_prior_draws_do_not_suffice_a_guide_or_tempering_takes_over(
    reliable, expected, monkeypatch
):
    monkeypatch.setattr("eande.inference.samplers.choose._TIMES_EXPECTED", 0.01)
    monkeypatch.setattr("eande.inference.samplers.choose._LEAST_BUDGET", 1_000)
    monkeypatch.setattr(Found, "reliable", reliable)
    samples, info = linear_gaussian_model(noise=0.1).posterior([0.3]).sample(5_000, seed=0)
    assert isinstance(info, expected)
    mean, std = gaussian_posterior([0.3], noise=0.1)
    assert abs(samples.mean().item() - mean) < 0.2 * std
    with pytest.raises(BudgetExceeded):
        linear_gaussian_model(noise=0.1).posterior([0.3]).sample(
            5_000, seed=0, max_evaluations=2_000
        )


def test_any_other_sampler_can_be_injected():
    posterior = box_model().posterior([1.0])
    phi, info = posterior.sample(
        7,
        seed=3,
        sampler=lambda p, n, *, seed, steps: (p.bank.phi[:n], {"seed": seed, "steps": steps}),
        steps=4,
    )
    assert phi.shape == (7, 2)
    assert info == {"seed": 3, "steps": 4}


@pytest.mark.parametrize(
    ("sampler", "options"),
    [("rejection", {"particles": 500}), ("importance", {"max_evaluations": 10})],
)
def test_an_option_of_another_sampler_is_refused(sampler, options):
    posterior = peaked(eande.BoxPrior([0], [1])).posterior([0.5])
    (option,) = options
    with pytest.raises(
        eande.InputError, match=f"{option}: expected an option of sampler='{sampler}', got another"
    ):
        posterior.sample(5, sampler=sampler, **options)
