"""A posterior under another prior than the one of the training."""

import math
import warnings

import pytest
import torch
from scipy import stats
from torch.distributions import Independent, LogNormal, Normal

from eande.foundations.checks import EandeWarning, InputError
from eande.inference.model import EmbedAndEmulate
from eande.inference.samplers.rejection import SampleInfo
from eande.priors.box import BoxPrior
from eande.priors.convert import share_beyond
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior
from eande.priors.product import ProductPrior
from eande.similarities.dot import Dot
from helpers.exact_posteriors import (
    ALPHA,
    box_model,
    gaussian_posterior,
    linear_gaussian_model,
    peaked,
)
from helpers.models import Function


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
    assert sum(rows) == 10_000


def log_normal(median, width):
    return DistributionPrior(
        Independent(LogNormal(torch.tensor([math.log(median)]), torch.tensor([width])), 1)
    )


def told(model, other):
    """Return the warnings of a posterior under another prior."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.posterior([0.2], prior=other, draws=2_000)
    return [str(one.message) for one in found if "practically nothing" in str(one.message)]


def test_a_prior_in_the_tails_of_the_training_prior_is_reported():
    """Trained under a median of 3: a median of 30 is ten standard deviations of log φ off."""
    model = peaked(log_normal(3.0, 0.5))
    with pytest.warns(EandeWarning) as warned:
        model.posterior([0.2], prior=log_normal(30.0, 0.2), draws=2_000)
    lines = [str(one.message) for one in warned]
    assert len(lines) == 1
    assert lines[0].startswith(
        "prior: 99.9% of its mass lies where practically nothing was simulated"
    ) or lines[0].startswith("prior: 100.0% of its mass")
    assert "\n" not in lines[0]
    assert warned[0].filename == __file__  # where the user can do something about it


@pytest.mark.parametrize(
    ("training", "other"),
    [
        (log_normal(3.0, 0.5), log_normal(4.0, 0.3)),
        (log_normal(3.0, 0.5), log_normal(3.0, 0.5)),
        (log_normal(3.0, 1.5), log_normal(1.0, 0.3)),
        (log_normal(3.0, 0.5), EmpiricalPrior(torch.linspace(1.5, 6, 500).unsqueeze(1))),
        (BoxPrior([-3], [3]), BoxPrior([2.5], [3])),
        (BoxPrior([-3], [3]), DistributionPrior(Independent(Normal(torch.ones(1), 0.2), 1))),
        (EmpiricalPrior(torch.linspace(1.5, 6, 500).unsqueeze(1)), log_normal(30.0, 0.2)),
    ],
    ids=["narrower", "the same", "low", "draws", "an edge", "a box", "a training known by draws"],
)
def test_a_prior_that_is_mildly_different_is_not(training, other):
    assert told(peaked(training), other) == []


def test_the_share_beyond_is_that_of_the_tails():
    """Under N(0, 1), 99.9 % of the draws lie within 3.29; of N(m, s) the rest is known.

    The level itself comes from the tenth of 10,000 draws: ±0.1 in φ, so ±20 % of a share.
    """
    standard = DistributionPrior(Independent(Normal(torch.zeros(1), torch.ones(1)), 1))
    edge = stats.norm.isf(0.0005)
    for mean, scale in ((2.0, 1.0), (0.0, 3.0), (5.0, 0.5)):
        other = DistributionPrior(
            Independent(Normal(torch.tensor([mean]), torch.tensor([scale])), 1)
        )
        expected = stats.norm.sf((edge - mean) / scale) + stats.norm.cdf((-edge - mean) / scale)
        assert share_beyond(standard, other.sample(50_000, seed=1)) == pytest.approx(
            expected, rel=0.2
        )
    own = share_beyond(standard, standard.sample(50_000, seed=1))
    assert own == pytest.approx(0.001, abs=0.001)


def test_on_a_half_line_the_logarithm_counts():
    """By the density of φ itself all small φ would pass, for there it is the highest."""
    training = log_normal(3.0, 2.0)
    small = torch.full((100, 1), 3.0 * math.exp(-2 * 4.5))
    large = torch.full((100, 1), 3.0 * math.exp(2 * 4.5))
    usual = torch.full((100, 1), 3.0 * math.exp(-2 * 2.0))
    assert share_beyond(training, small) == share_beyond(training, large) == 1
    assert share_beyond(training, usual) == 0
    product = ProductPrior(a=LogNormal(math.log(3.0), 2.0), b=(0, 1))
    inside = torch.full((100, 1), 1e-3)
    assert share_beyond(product, torch.cat([small, inside], 1)) == 1
    assert share_beyond(product, torch.cat([usual, inside], 1)) == 0
    assert share_beyond(product, torch.cat([usual, inside + 2], 1)) == 0, "left to the support"


def test_without_a_density_nothing_is_said():
    assert share_beyond(EmpiricalPrior(torch.rand(9, 1)), torch.zeros(3, 1)) is None
