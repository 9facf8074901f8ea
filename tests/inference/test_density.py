"""The posterior's density."""

import math
import re

import pytest
import torch
from torch.distributions import Independent, Normal

from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.networks.mlp import ResidualMLP
from eande.priors.distribution import DistributionPrior
from eande.similarities.cosine import Cosine
from helpers.exact_posteriors import box_model, observation
from helpers.models import Function, exact_model


def test_log_prob_integrates_to_one_on_a_box():
    posterior = box_model().posterior([1.0])
    assert re.fullmatch(
        r"Posterior\(of a, b; log C = \S+ ± \S+, effective sample size \d+ of 10,000\)",
        repr(posterior),
    )
    edge = torch.linspace(-3, 3, 601)
    middle = (edge[1:] + edge[:-1]) / 2
    grid = torch.cartesian_prod(middle, middle)
    integral = (posterior.log_prob(grid).double().exp().sum() * 0.01**2).item()
    assert posterior.normalizer_error > 0
    assert abs(integral - 1) < 3 * posterior.normalizer_error
    # A normaliser wrong by ten errors must not pass.
    wrong = integral * math.exp(-10 * posterior.normalizer_error)
    assert abs(wrong - 1) > 3 * posterior.normalizer_error


def test_parameters_beyond_the_emulators_numbers_have_no_density():
    prior = DistributionPrior(Independent(Normal(torch.zeros(2), torch.ones(2)), 1))
    network = ResidualMLP(2, 4, width=8, blocks=1, normalization="layer")
    posterior = EmbedAndEmulate(
        Function(lambda y: y.repeat(1, 4)),
        network,
        Cosine(0.2),
        prior,
        y_shape=(1,),
        embedding_dimension=4,
    ).posterior([1.0])
    far = torch.tensor([[1e18, 0.0], [1e19, 1e19], [3e38, 0.0]])
    assert (posterior.log_prob(far) < -1e30).all()
    assert not posterior.log_ratio(far).isnan().any()


def test_log_prob_is_minus_infinity_outside_and_differentiable_inside():
    posterior = box_model().posterior([1.0])
    assert posterior.log_prob([[0.0, 5.0]]).item() == -math.inf
    phi = torch.tensor([[0.9, 1.2]], requires_grad=True)
    posterior.log_prob(phi).sum().backward()
    assert phi.grad is not None
    assert torch.isfinite(phi.grad).all()
    assert phi.grad.abs().sum() > 0


def test_a_sample_only_prior_says_so_in_one_line(task):
    posterior = exact_model(task).posterior(observation(task))
    with pytest.raises(InputError, match="known by draws only; log_ratio gives"):
        posterior.log_prob(task.prior.sample(3, seed=0))
    assert posterior.summary(samples=500).modes == ()
    assert posterior.map().shape == (2,)
