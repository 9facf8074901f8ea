"""What every prior keeps: draws in the support, a density that integrates to one."""

import numpy as np
import pytest
import torch
from torch.distributions import Gamma, Independent, LogNormal, MultivariateNormal, Normal, Uniform

from eande.priors.box import BoxPrior
from eande.priors.convert import as_prior
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.priors.product import ProductPrior
from eande.priors.truncated import TruncatedPrior
from eande.simulators.von_mises_fisher import VonMisesFisher

PRIORS = [
    BoxPrior([-1, 0], [1, 5]),
    DistributionPrior(Independent(Normal(torch.zeros(2), torch.tensor([1.0, 3.0])), 1)),
    DistributionPrior(Independent(Uniform(torch.zeros(2), torch.ones(2)), 1)),
    DistributionPrior(Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1)),
    DistributionPrior(MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))),
    ProductPrior(a=LogNormal(0.0, 1.0), b=(0, 4)),
    ProductPrior(a=Normal(0.0, 1.0), b=Gamma(2.0, 1.0)),
    SamplerPrior(lambda n, seed: np.random.default_rng(seed).normal(size=(n, 2))),
    EmpiricalPrior(torch.randn(37, 2)),
    VonMisesFisher(2).prior,
    TruncatedPrior(BoxPrior([-1, 0], [1, 5]), lambda phi: phi[:, 0] + phi[:, 1] < 2),
    TruncatedPrior(
        DistributionPrior(Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1)),
        lambda phi: phi[:, 0] * phi[:, 1] > 0.5,
        box=[[0.2, 0.2], [4, 4]],
    ),
    TruncatedPrior(
        SamplerPrior(lambda n, seed: np.random.default_rng(seed).normal(size=(n, 2))),
        lambda phi: phi[:, 0] > 0,
    ),
]


@pytest.mark.parametrize("prior", PRIORS, ids=lambda p: type(p).__name__)
def test_every_prior_keeps_the_contract(prior):
    state = torch.get_rng_state()
    phi = prior.sample(100, seed=3)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    assert phi.shape == (100, 2)
    assert phi.dtype == torch.float32
    assert torch.equal(phi, prior.sample(100, seed=3))
    assert not torch.equal(phi, prior.sample(100, seed=4))
    assert prior.contains(phi).all()
    assert len(prior.names) == prior.dimension == 2
    assert repr(prior).startswith(f"{type(prior).__name__}(")
    assert "\n" not in repr(prior)
    assert all(name in repr(prior) for name in prior.names)
    if prior.has_density:
        assert torch.isfinite(prior.log_prob(phi)).all()
        outside = torch.tensor([[1e9, -1e9]])
        assert prior.log_prob(outside).item() < -30
    assert as_prior(prior) is prior


@pytest.mark.parametrize(
    "prior", [p for p in PRIORS if p.has_density], ids=lambda p: type(p).__name__
)
def test_densities_integrate_to_one(prior):
    """By importance sampling from a wide proposal.

    400,000 draws, tolerance five standard errors.
    """
    proposal = Independent(Normal(torch.ones(2), torch.full((2,), 4.0)), 1)
    torch.manual_seed(0)
    phi = proposal.sample((400_000,))
    weights = (prior.log_prob(phi) - proposal.log_prob(phi)).exp()
    assert abs(weights.mean() - 1) < max(5 * weights.std() / 400_000**0.5, 0.02)
