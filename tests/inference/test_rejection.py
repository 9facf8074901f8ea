"""Rejection sampling: exact, with a bound that corrects itself."""

import pytest
import torch
from scipy import stats
from torch.distributions import MultivariateNormal

from eande.foundations.checks import InputError
from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo, acceptance_rejection
from eande.priors.box import BoxPrior
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.studies.synthetic.measures import angle_test
from helpers.exact_posteriors import (
    ALPHA,
    gaussian_posterior,
    linear_gaussian_model,
    observation,
    peaked,
)
from helpers.models import exact_model


@pytest.mark.parametrize("redundant", [False, True])
@pytest.mark.parametrize("kappa", [2, 8])
@pytest.mark.parametrize("bound", ["estimated", "exact"])
def test_samples_follow_the_exact_posterior(kappa, redundant, bound):
    task = VonMisesFisher(kappa, redundant=redundant, seed=1)
    y = observation(task)
    samples, info = (
        exact_model(task).posterior(y).sample(20_000, seed=0, sampler="rejection", bound=bound)
    )
    exact = task.sample_posterior(y, 20_000, seed=1)
    assert angle_test(task, y, samples, exact) > ALPHA
    if redundant:
        assert stats.kstest(samples[:, 0].numpy(), "uniform").pvalue > ALPHA
    # The paper's acceptance: 1 / max r = (mean of e^{κ cos}) / e^κ, known for the exact bound.
    assert info.acceptance_rate == pytest.approx({2: 0.308, 8: 0.143}[kappa], abs=0.01)


@pytest.mark.parametrize("kappa", [2, 8])
def test_the_same_test_flags_a_temperature_off_by_thirty_percent(kappa):
    task = VonMisesFisher(kappa, seed=1)
    y = observation(task)
    exact = task.sample_posterior(y, 20_000, seed=1)
    for factor in (0.7, 1.3):
        samples, _ = (
            exact_model(task, temperature=factor / kappa).posterior(y).sample(20_000, seed=0)
        )
        assert angle_test(task, y, samples, exact) < ALPHA


def test_a_bound_that_is_far_too_low_corrects_itself():
    task = VonMisesFisher(8, seed=1)
    y = observation(task)
    posterior = exact_model(task).posterior(y)
    samples, info = posterior.sample(20_000, seed=0, sampler="rejection", bound=-1.0)
    assert info.exceedances > 0
    assert info.log_bound == pytest.approx(8 - posterior.log_normalizer, abs=0.01)
    assert angle_test(task, y, samples, task.sample_posterior(y, 20_000, seed=1)) > ALPHA


@pytest.mark.thorough
def test_samples_are_those_the_final_bound_would_have_given(monkeypatch):
    """In batches of 5 the bound rises again and again.

    Earlier acceptances must be tested again, or samples of the low bound stay in.
    """
    monkeypatch.setattr("eande.inference.samplers.rejection._SMALLEST_BATCH", 5)
    monkeypatch.setattr("eande.inference.samplers.rejection._LARGEST_BATCH", 5)
    posterior = exact_model(task := VonMisesFisher(8, seed=1)).posterior(observation(task))
    for seed in range(30):
        raised, info = posterior.sample(60, seed=seed, sampler="rejection", bound=-1.0)
        final, _ = posterior.sample(60, seed=seed, sampler="rejection", bound=info.log_bound)
        assert torch.equal(raised, final)


def test_a_proposal_of_ones_own():
    """Algorithm 3 with any proposal: candidates near the posterior, weights corrected for it."""
    model = linear_gaussian_model(noise=0.1)
    posterior = model.posterior([0.3])
    proposal = MultivariateNormal(torch.tensor([0.3]), torch.eye(1) * 0.15**2)
    samples, info = posterior.sample(20_000, seed=0, sampler="rejection", proposal=proposal)
    _, plain = posterior.sample(1_000, seed=0)
    mean, std = gaussian_posterior([0.3], noise=0.1)
    assert stats.kstest(samples[:, 0].numpy(), stats.norm(mean, std).cdf).pvalue > ALPHA
    assert info.acceptance_rate > 3 * plain.acceptance_rate
    with pytest.raises(InputError, match="rigorous bound is for the prior"):
        posterior.sample(10, sampler="rejection", proposal=proposal, bound="exact")
    with pytest.raises(
        InputError,
        match="expected 'estimated' for a similarity without an upper bound, got 'exact'",
    ):
        posterior.sample(10, sampler="rejection", bound="exact")
    with pytest.raises(InputError, match="expected 'estimated', 'exact' or a number, got 'loose'"):
        posterior.sample(10, sampler="rejection", bound="loose")


def test_the_budget_ends_sampling_with_what_was_found():
    posterior = linear_gaussian_model(noise=0.01).posterior([2.5])
    with pytest.raises(
        BudgetExceeded,
        match=r"expected 10000 samples within 20000 evaluations, got \d+ .*acceptance rate",
    ) as caught:
        posterior.sample(10_000, max_evaluations=20_000, sampler=acceptance_rejection)
    assert isinstance(caught.value.info, SampleInfo)
    assert caught.value.phi.shape[1] == 1
    assert caught.value.info.evaluations <= 20_000


def test_a_proposal_that_misses_the_posterior_is_refused_and_a_bounded_one_is_exact():
    posterior = peaked(BoxPrior([0], [1])).posterior([0.5])
    with pytest.raises(
        InputError,
        match=r"proposal: expected one that covers the posterior, got one without density on "
        r"\d+% of it",
    ):
        posterior.sample(100, sampler="rejection", proposal=BoxPrior([0.5], [1]))
    exact, _ = posterior.sample(20_000, seed=1)
    bounded, info = posterior.sample(20_000, sampler="rejection", proposal=BoxPrior([-0.2], [1.1]))
    assert info.log_bound < 10
    assert bounded.mean().item() == pytest.approx(exact.mean().item(), abs=0.01)
    assert bounded.std().item() == pytest.approx(exact.std().item(), rel=0.05)
    with pytest.raises(InputError, match="bound: expected a finite number, got nan"):
        posterior.sample(10, sampler="rejection", bound=float("nan"))
