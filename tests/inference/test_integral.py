"""Densities that do not integrate to one are noticed, and no guide relies on them."""

import math
import warnings

import pytest
import torch
from torch.distributions import (
    Categorical,
    Dirichlet,
    Independent,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
)

import eande
from eande.inference.integral import can_be_proposed, log_integral
from eande.inference.samplers.guided import GuidedInfo
from eande.inference.samplers.tempered import TemperedInfo
from eande.priors.convert import as_prior
from helpers.exact_posteriors import posterior_of


class Lacking(MultivariateNormal):
    """A normal distribution whose log_prob lacks its constant."""

    def log_prob(self, value):
        return super().log_prob(value) + self.loc.shape[0] / 2 * math.log(2 * math.pi)


def normal(kind, dimension):
    return kind(torch.zeros(dimension), torch.eye(dimension))


def moons():
    means = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 40.0]])
    scales = torch.tensor([[1.0, 1.0], [0.1, 1.0], [3.0, 0.2]])
    parts = Independent(Normal(means, scales), 1)
    return MixtureSameFamily(Categorical(torch.tensor([0.5, 0.3, 0.2])), parts)


@pytest.mark.parametrize(
    "law",
    [
        normal(MultivariateNormal, 5),
        normal(MultivariateNormal, 20),
        moons(),
        Independent(LogNormal(torch.zeros(3), torch.ones(3)), 1),
        Independent(StudentT(torch.full((3,), 3.0)), 1),
    ],
    ids=["normal", "many parameters", "mixture", "half-lines", "heavy tails"],
)
def test_a_density_is_known_to_integrate_to_one(law):
    value, error = log_integral(as_prior(law))
    assert abs(value) < 5 * error
    assert error < 0.1


@pytest.mark.parametrize("dimension", [1, 5, 20])
def test_a_constant_that_lacks_is_told(dimension):
    lacking = dimension / 2 * math.log(2 * math.pi)
    prior = as_prior(normal(Lacking, dimension))
    value, error = log_integral(prior)
    assert value == pytest.approx(lacking, abs=5 * error)
    with pytest.warns(
        eande.EandeWarning, match=rf"log_prob of posteriors is off by \+{lacking:.2f}"
    ):
        assert not can_be_proposed(prior)


def test_a_law_on_a_surface_is_not_proposed_and_needs_no_warning():
    """A simplex: no draw of a Gaussian mixture lies on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not can_be_proposed(as_prior(Dirichlet(torch.ones(3))))
        assert can_be_proposed(as_prior(moons()))
        assert not can_be_proposed(eande.EmpiricalPrior(torch.randn(100, 2)))


def test_a_prior_whose_constant_lacks_is_tempered_and_its_normaliser_right():
    """A guide would mix a tenth of the prior with others, and mistake how much that is."""

    def score(phi):
        return (phi / 0.02).square().sum(1) / -2

    exact = 3 * math.log(0.02 / (1 + 0.02**2) ** 0.5)
    found = {}
    for kind in (MultivariateNormal, Lacking):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", eande.EandeWarning)
            posterior = posterior_of(score, normal(kind, 3), draws=10_000)
        assert ("integrates to 16" in " ".join(str(one.message) for one in told)) == (
            kind is Lacking
        )
        phi, info = posterior.sample(5_000, seed=0)
        assert phi.std(0).sub(0.02).abs().max() < 0.002
        assert posterior.log_normalizer == pytest.approx(exact, abs=0.15)
        found[kind] = type(info)
    assert found == {MultivariateNormal: GuidedInfo, Lacking: TemperedInfo}
    with pytest.raises(eande.InputError, match="a density that integrates to one, got 'guided'"):
        posterior.sample(10, sampler="guided")
