"""The tempered sampler."""

import math
import re
import warnings

import pytest
import torch

import eande
from eande.inference.samplers.guided import Found
from eande.inference.samplers.rejection import SampleInfo
from eande.inference.samplers.tempered import TemperedInfo, tempered
from helpers.exact_posteriors import cube, posterior_of, two_modes


@pytest.mark.thorough
def test_mode_weights_in_ten_dimensions():
    posterior = posterior_of(two_modes, cube(10))
    phi, info = posterior.sample(10_000, seed=0, sampler="tempered")
    assert isinstance(info, TemperedInfo)
    assert (phi.mean(1) > 0).double().mean().item() == pytest.approx(0.7, abs=0.03)
    first = phi[phi.mean(1) > 0]
    assert torch.allclose(first.mean(0), torch.full((10,), 0.5), atol=0.01)
    assert torch.allclose(first.std(0), torch.full((10,), 0.1), atol=0.01)
    assert info.exponents[-1] == 1
    assert info.evaluations < 5_000_000
    # C is known: the prior's density times the integral of both Gaussians.
    exact = 10 * math.log(0.1 * math.sqrt(2 * math.pi)) - 10 * math.log(2)
    assert info.log_normalizer == pytest.approx(exact, abs=max(0.1, 4 * info.normalizer_error))


@pytest.mark.parametrize("reliable", [True, False])
def test_the_normaliser_is_right_where_no_prior_draw_carries_it(reliable, monkeypatch):
    """A likelihood of width 0.02 five standard deviations away from the prior's middle.

    The product of both is known. Where the guide fails it is tempering that finds it.
    """
    if not reliable:
        monkeypatch.setattr(Found, "reliable", False)
    width = 0.02
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), 0.04 * torch.eye(2))
    posterior = posterior_of(
        lambda phi: (phi - 1).square().sum(1) / (-2 * width**2), prior, draws=10_000
    )
    exact = math.log(width**2 / (width**2 + 0.04)) - 1 / (width**2 + 0.04)
    rough = float(re.search(r"log C = (\S+) ±", repr(posterior))[1])
    assert rough < exact - 1, "the case is not hard enough"
    phi = torch.full((1, 2), 0.98)
    # Warnings are errors here: there are none to give.
    value = posterior.log_prob(phi).item()
    for known in (posterior, posterior.refine(seed=1, particles=50_000)):
        error = max(0.05, 4 * known.normalizer_error)
        assert known.log_normalizer == pytest.approx(exact, abs=error)
        assert known.normalizer_error < 0.1
        assert known.effective_draws >= 100
    assert value == pytest.approx(posterior.unnormalized(phi).item() - exact, abs=error)
    again = posterior.refine(seed=1, particles=50_000)
    assert again.log_normalizer == known.log_normalizer != posterior.log_normalizer
    assert repr(again).endswith(f"± {again.normalizer_error:.2g})")


def test_refining_needs_a_density():
    prior = eande.EmpiricalPrior(torch.randn(500, 2))
    posterior = posterior_of(lambda phi: -50 * phi.square().sum(1), prior, draws=500)
    with pytest.raises(eande.InputError, match="density"):
        posterior.refine()
    with pytest.warns(eande.EandeWarning, match="the prior has no more draws"):
        posterior.log_ratio(torch.zeros(1, 2))
    unknown = eande.SamplerPrior(
        lambda n, seed: torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    )
    with pytest.warns(eande.EandeWarning, match=r"\(samples are not\): more draws"):
        posterior_of(lambda phi: -50 * phi.square().sum(1), unknown, draws=500).log_ratio(
            torch.zeros(1, 2)
        )


def test_a_loop_over_data_warns_of_few_draws_once():
    """Python shows equal warnings of one line once: the text must not have numbers of the datum."""
    prior = eande.EmpiricalPrior(torch.randn(500, 2))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for sharpness in (50, 60, 70):
            posterior = posterior_of(
                lambda phi, s=sharpness: -s * phi.square().sum(1), prior, draws=500
            )
            posterior.log_ratio(torch.zeros(1, 2))
    assert len(shown) == 1


@pytest.mark.thorough
def test_ten_gaussian_parameters_with_a_gaussian_prior():
    """The common benchmark's gaussian_linear.

    Prior and noise of variance 0.1, posterior N(y/2, 0.05).
    """
    prior = torch.distributions.MultivariateNormal(torch.zeros(10), 0.1 * torch.eye(10))
    y = torch.linspace(-0.8, 0.8, 10)
    posterior = posterior_of(lambda phi: (phi - y).square().sum(1) / -0.2, prior)
    phi, info = posterior.sample(10_000, seed=1, sampler=tempered)
    errors = (phi.mean(0) - y / 2).abs() / (
        math.sqrt(0.05) / torch.tensor(info.effective_samples).clamp(max=10_000).sqrt()
    )
    # Ten chances of three standard errors and more: one in forty runs would exceed it; a seed that
    # does not.
    assert errors.max() < 3
    assert torch.allclose(phi.var(0), torch.full((10,), 0.05), rtol=0.1)


def test_a_narrow_ring_is_sampled_all_around():
    posterior = posterior_of(lambda phi: -((phi.norm(dim=1) - 0.5) / 0.005).square() / 2, cube(2))
    phi, _ = posterior.sample(5_000, seed=0, sampler=tempered)
    assert (phi.norm(dim=1) - 0.5).std().item() == pytest.approx(0.005, rel=0.1)
    angle = torch.histc(torch.atan2(phi[:, 1], phi[:, 0]), 8, -math.pi, math.pi) / len(phi)
    assert (angle - 1 / 8).abs().max() < 0.03


def test_two_moons_have_equal_weights():
    """The common benchmark's observation (0, 0): two crescents."""

    def score(phi):
        place = torch.stack(
            [-(phi[:, 0] + phi[:, 1]).abs(), phi[:, 1] - phi[:, 0]], dim=1
        ) / math.sqrt(2)
        offset = -place - torch.tensor([0.25, 0.0])
        radius = offset.norm(dim=1)
        inside = -((radius - 0.1) / 0.01).square() / 2 - radius.clamp(min=1e-6).log()
        return torch.where(offset[:, 0] > 0, inside, -1e4)

    phi, _ = posterior_of(score, cube(2)).sample(10_000, seed=0, sampler=tempered)
    assert (phi.sum(1) > 0).double().mean().item() == pytest.approx(0.5, abs=0.02)


def test_both_samplers_agree_and_the_easy_case_is_exact():
    posterior = posterior_of(lambda phi: -(phi / 0.3).square().sum(1) / 2, cube(2))
    exact, info = posterior.sample(10_000, seed=0)
    assert isinstance(info, SampleInfo)
    other, _ = posterior.sample(10_000, seed=0, sampler=tempered)
    assert torch.allclose(exact.mean(0), other.mean(0), atol=0.02)
    assert torch.allclose(exact.std(0), other.std(0), atol=0.02)
    assert torch.equal(other, posterior.sample(10_000, seed=0, sampler=tempered)[0])
    assert not torch.equal(other, posterior.sample(10_000, seed=1, sampler=tempered)[0])
    assert other.abs().max() <= 1


def test_the_budget_ends_a_run_with_what_there_is():
    posterior = posterior_of(two_modes, cube(10))
    with pytest.raises(
        eande.BudgetExceeded, match=r"expected the exponent 1 within 400000 evaluations, got to 0\."
    ) as stopped:
        posterior.sample(1_000, sampler=tempered, max_evaluations=400_000)
    assert stopped.value.phi.shape == (20_000, 10)
    assert stopped.value.info.exponents[-1] < 1


@pytest.mark.thorough
def test_particles_that_do_not_move_far_are_told():
    """A long thin banana: no mixture fits, and walks are short."""

    def banana(phi):
        bent = phi[:, 1::2] - 4 * phi[:, ::2].square() + 0.5
        return -(bent / 0.01).square().sum(1) / 2

    with pytest.warns(
        eande.EandeWarning, match="particles are still correlated with where they began"
    ):
        posterior_of(banana, cube(10)).sample(500, seed=0, sampler=tempered, particles=2_000)
