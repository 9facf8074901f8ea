"""Conditional and marginal posteriors are those of a Gaussian that is known."""

import math

import pytest
import torch
from torch.distributions import Independent, LogNormal, MultivariateNormal, Normal

import eande
from eande.foundations.checks import EandeWarning
from helpers.exact_posteriors import posterior_of
from helpers.sharp_gaussians import gaussian

# A normal prior of three parameters that depend on each other, and a score that ties them further.
COVARIANCE = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.3], [0.0, 0.3, 1.0]])
TIES = torch.tensor([[30.0, 12.0, 5.0], [12.0, 60.0, 8.0], [5.0, 8.0, 20.0]])
CENTRE = torch.tensor([0.4, -0.2, 0.1])


def known():
    prior = eande.DistributionPrior(
        MultivariateNormal(torch.zeros(3), COVARIANCE), names=["a", "b", "c"]
    )
    posterior = posterior_of(
        lambda phi: torch.einsum("ki,ij,kj->k", phi - CENTRE, TIES, phi - CENTRE) / -2,
        prior,
        draws=10_000,
    )
    precision = torch.linalg.inv(COVARIANCE.double()) + TIES.double()
    covariance = torch.linalg.inv(precision)
    return posterior, covariance @ (TIES.double() @ CENTRE.double()), covariance


def test_a_conditional_posterior_is_that_of_a_normal_law():
    posterior, mean, covariance = known()
    found = posterior.conditional({"b": -0.1})
    assert found.prior.names == ("a", "c")
    precision = torch.linalg.inv(covariance)[[0, 2]][:, [0, 2]]
    expected = mean[[0, 2]] + covariance[[0, 2], 1] / covariance[1, 1] * (-0.1 - mean[1])
    own = torch.linalg.inv(precision)
    phi, _ = found.sample(5_000, seed=0)
    z = (phi.double().mean(0) - expected) / own.diagonal().sqrt() * 5_000**0.5
    assert z.abs().max() < 4
    assert torch.cov(phi.double().T).sub(own).abs().max() < 0.05 * own.max()
    law = MultivariateNormal(expected, own)
    log_prob = found.log_prob(phi[:50])
    torch.testing.assert_close(log_prob.double(), law.log_prob(phi[:50].double()), atol=0.1, rtol=0)


def test_a_marginal_posterior_is_that_of_a_normal_law():
    posterior, mean, covariance = known()
    found = posterior.marginal(["c", "a"])
    chosen = [2, 0]
    law = MultivariateNormal(mean[chosen], covariance[chosen][:, chosen])
    phi, _ = found.sample(5_000, seed=0)
    z = (phi.double().mean(0) - law.mean) / law.stddev * 5_000**0.5
    assert z.abs().max() < 4
    points = phi[:10]
    expected = law.log_prob(points.double())
    torch.testing.assert_close(found.log_prob(points).double(), expected, atol=0.1, rtol=0)
    whole = posterior.marginal(["c", "b", "a"])
    phi, _ = posterior.sample(10)
    torch.testing.assert_close(whole.log_prob(phi[:, [2, 1, 0]]), posterior.log_prob(phi))


@pytest.mark.parametrize(
    "prior",
    [
        eande.BoxPrior([-1, -1, -1], [1, 1, 1]),
        eande.ProductPrior(phi1=(-1, 1), phi2=Normal(0.0, 1.0), phi3=(-2, 2)),
        Independent(Normal(torch.zeros(3), torch.ones(3)), 1),
    ],
    ids=["box", "product", "independent"],
)
def test_independent_parameters_do_not_depend_on_what_is_given(prior):
    """A score that is a sum leaves a normal law of each, far inside the prior."""
    posterior = posterior_of(lambda phi: (phi / 0.05).square().sum(1) / -2, prior, draws=10_000)
    found = posterior.conditional({"phi2": 0.1, "phi3": 0.0})
    phi, _ = found.sample(4_000, seed=0)
    assert phi.mean().abs() < 4 * 0.05 / 4_000**0.5
    assert phi.std().item() == pytest.approx(0.05, rel=0.06)
    log_density = posterior.marginal(["phi1"]).log_prob([[0.0], [0.05]])
    assert (log_density[0] - log_density[1]).item() == pytest.approx(0.5, abs=0.05)
    assert log_density[0].item() == pytest.approx(-math.log(0.05 * math.sqrt(2 * math.pi)), abs=0.1)


def test_what_lies_outside_has_no_density():
    posterior = posterior_of(lambda phi: 0 * phi[:, 0], eande.BoxPrior([-1, -1], [1, 1]))
    assert posterior.marginal(["phi1"]).log_prob([[2.0]]) == -torch.inf
    assert posterior.marginal(["phi1"]).log_prob([[0.0]]).item() == pytest.approx(math.log(0.5))
    with pytest.raises(eande.InputError, match="values in the prior's support"):
        posterior.conditional({"phi1": 2.0})


def test_what_the_prior_trained_under_excludes_has_no_density_under_a_wider_one():
    model, _ = gaussian(eande.BoxPrior([-1, -1], [1, 1]), 0.2)
    wider = eande.BoxPrior([-1.003, -1.003], [1.003, 1.003])
    with pytest.warns(EandeWarning, match="is left out"):
        posterior = model.posterior([0.0, 0.0], prior=wider)
    found = posterior.marginal(["phi1"]).log_prob([[0.0], [1.002]])
    assert found[0].item() == pytest.approx(-math.log(0.2 * math.sqrt(2 * math.pi)), abs=0.1)
    assert found[1] == -torch.inf
    with pytest.raises(eande.InputError, match="values that the prior trained under holds"):
        posterior.conditional({"phi1": 1.002})


def test_what_cannot_be_given_is_told():
    posterior = posterior_of(lambda phi: 0 * phi[:, 0], eande.BoxPrior([-1, -1], [1, 1]))
    for given, told in (
        ({"speed": 1.0}, "expected some of phi1, phi2, got 'speed'"),
        ({}, "and not of all, got 0"),
        ({"phi1": 0.0, "phi2": 0.0}, "and not of all, got 2"),
        ([0.0], "expected values by parameters' names"),
    ):
        with pytest.raises(eande.InputError, match=told):
            posterior.conditional(given)
    for names, told in (
        ("phi1", "expected a list of some of phi1, phi2"),
        (["speed"], "expected some of phi1, phi2, got 'speed'"),
        (["phi1", "phi1"], "expected each once"),
    ):
        with pytest.raises(eande.InputError, match=told):
            posterior.marginal(names)
    tied = eande.TruncatedPrior(eande.BoxPrior([-1, -1], [1, 1]), lambda phi: phi.sum(1) > 0)
    with pytest.raises(eande.InputError, match="whose parameters are independent or normal"):
        posterior_of(lambda phi: 0 * phi[:, 0], tied).conditional({"phi1": 0.5})
    laws = eande.DistributionPrior(Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1))
    assert posterior_of(lambda phi: 0 * phi[:, 0], laws).conditional({"phi1": 0.5}).prior.names == (
        "phi2",
    )
