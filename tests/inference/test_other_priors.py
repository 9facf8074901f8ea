"""A posterior under another prior than the one of the training."""

import math

import pytest
import torch
from scipy import stats
from torch.distributions import Independent, Normal

from conftest import Function
from eande.foundations.checks import EandeWarning, InputError
from eande.inference.model import EmbedAndEmulate
from eande.inference.samplers.rejection import SampleInfo
from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.similarities.dot import Dot
from helpers.exact_posteriors import (
    ALPHA,
    box_model,
    gaussian_posterior,
    linear_gaussian_model,
    peaked,
)


def test_another_prior_agrees_with_its_exact_posterior():
    other = Independent(Normal(torch.tensor([0.8]), torch.tensor([0.4])), 1)
    samples, _ = linear_gaussian_model().posterior([0.3], prior=other).sample(20_000, seed=0)
    mean, std = gaussian_posterior([0.3], prior_mean=0.8, prior_std=0.4)
    assert stats.kstest(samples[:, 0].numpy(), stats.norm(mean, std).cdf).pvalue > ALPHA


@pytest.mark.parametrize(
    "other",
    [
        BoxPrior([-3], [0]),
        DistributionPrior(Independent(Normal(torch.tensor([-0.3]), torch.tensor([0.1])), 1)),
    ],
    ids=["box", "normal"],
)
def test_another_prior_that_disagrees_with_the_data_is_sampled_all_the_same(other):
    """The score's peak lies where that prior has nothing, or next to nothing."""
    prior = BoxPrior([-3], [3])
    encoder = Function(
        lambda y: torch.cat([y, -0.5 * torch.ones_like(y)], dim=1) / 0.3**2 * math.sqrt(2)
    )
    model = EmbedAndEmulate(
        encoder,
        Function(lambda phi: torch.cat([phi, phi.square()], dim=1)),
        Dot(2),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )
    samples, info = model.posterior([1.0], prior=other, draws=100_000).sample(5_000, seed=0)
    assert isinstance(info, SampleInfo)
    if isinstance(other, BoxPrior):
        exact = stats.truncnorm(-4 / 0.3, -1 / 0.3, loc=1.0, scale=0.3)
    else:
        precision = 1 / 0.1**2 + 1 / 0.3**2
        exact = stats.norm((-0.3 / 0.1**2 + 1 / 0.3**2) / precision, precision**-0.5)
    assert stats.kstest(samples[:, 0].numpy(), exact.cdf).pvalue > ALPHA


def test_a_prior_outside_the_training_support_is_refused_and_a_little_is_reported():
    model = box_model()
    with pytest.raises(
        InputError, match=r"expected at most 1% of its mass outside .* got 5\d\.\d%"
    ):
        model.posterior([1.0], prior=BoxPrior([0, -3], [6.6, 3]))
    with pytest.warns(EandeWarning, match="outside the training prior's support") as warned:
        posterior = model.posterior([1.0], prior=BoxPrior([-3, -3], [3.03, 3]))
    assert warned[0].filename == __file__  # where the user can do something about it
    assert posterior.log_prob([[3.02, 0.0]]).item() == -math.inf
    with pytest.raises(InputError, match="expected one of dimension 2, got dimension 3"):
        model.posterior([1.0], prior=BoxPrior([0, 0, 0], [1, 1, 1]))


def test_one_distribution_makes_one_bank():
    model = peaked(DistributionPrior(Independent(Normal(torch.zeros(1), torch.ones(1)), 1)))
    rows = []
    model.emulator.register_forward_hook(lambda _module, args, _out: rows.append(len(args[0])))
    other = Independent(Normal(torch.zeros(1), torch.full((1,), 0.5)), 1)
    for _ in range(3):
        model.posterior([0.2], prior=other)
    assert len(rows) == 1
