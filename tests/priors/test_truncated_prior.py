"""Truncated priors: what of a prior lies in a region, drawn exactly and normalised."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Independent, LogNormal, MultivariateNormal, Normal

from eande.foundations.checks import InputError
from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.priors.product import ProductPrior
from eande.priors.truncated import TruncatedPrior

SQUARE = BoxPrior([-1, -1], [1, 1], names=["a", "b"])
NORMAL = DistributionPrior(Independent(Normal(torch.zeros(2), torch.ones(2)), 1))
LOG_NORMAL = DistributionPrior(Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1))
MIXED = ProductPrior(a=LogNormal(0.0, 1.0), b=(0, 4))


def disc(phi):
    return phi.square().sum(1) <= 1


def small_disc(phi):
    return (phi - 0.5).square().sum(1) <= 0.01


def test_names_and_kind_are_those_of_the_outer_prior():
    prior = TruncatedPrior(SQUARE, disc)
    assert prior.names == ("a", "b")
    assert prior.outer is SQUARE
    assert repr(prior) == "TruncatedPrior(79% of BoxPrior(a=(-1, 1), b=(-1, 1)))"


def test_the_mass_is_measured_and_its_error_is_right():
    """Of twenty regions of known mass, z-scores stay below 4 and have a deviation near 1.

    Both fail by chance with probability 0.001 and 0.01.
    """
    z = []
    for number in range(20):
        radius = 0.3 + 0.03 * number
        prior = TruncatedPrior(SQUARE, lambda phi, r=radius: phi.norm(dim=1) <= r)
        exact = math.log(math.pi * radius**2 / 4)
        z.append((prior.log_mass - exact) / prior.log_mass_error)
    assert max(map(abs, z)) < 4
    low, high = (stats.chi2(20).ppf([0.005, 0.995]) / 20) ** 0.5
    assert low < np.sqrt(np.mean(np.square(z))) < high


def test_a_density_is_that_of_the_outer_prior_over_the_mass():
    prior = TruncatedPrior(NORMAL, disc)
    phi = torch.tensor([[0.3, 0.4], [0.9, 0.9]])
    mass = 1 - math.exp(-0.5)
    assert prior.log_prob(phi)[0].item() == pytest.approx(
        NORMAL.log_prob(phi)[0].item() - math.log(mass), abs=0.05
    )
    assert prior.log_prob(phi)[1].item() == -math.inf
    x = prior.unconstrain(phi)
    assert prior.unconstrained_log_prob(x)[1].item() == -math.inf
    assert torch.allclose(prior.constrain(x), phi)


@pytest.mark.parametrize("outer", [SQUARE, NORMAL, LOG_NORMAL, MIXED], ids=repr)
def test_draws_from_within_a_box_have_the_law_of_plain_rejection(outer):
    """Two-sample tests of each coordinate and their sum; a false alarm in a thousand runs."""
    box = torch.tensor([[0.25, 0.25], [0.75, 0.75]])
    plain = TruncatedPrior(outer, small_disc)
    boxed = TruncatedPrior(outer, small_disc, box=box)
    assert boxed._between is not None
    error = math.hypot(plain.log_mass_error, boxed.log_mass_error)
    assert abs(plain.log_mass - boxed.log_mass) < 4 * error
    first, second = plain.sample(4_000, seed=1), boxed.sample(4_000, seed=2)
    assert boxed.contains(second).all()
    assert plain.contains(second).all()
    assert _least_p(first, second) > 0.001 / 3


def test_the_same_test_sees_draws_of_another_law():
    """Resampled from the uniform law in the disc, as if the outer prior were none."""
    plain = TruncatedPrior(LOG_NORMAL, lambda phi: (phi - 1).norm(dim=1) < 0.9)
    even = TruncatedPrior(BoxPrior([0, 0], [2, 2]), lambda phi: (phi - 1).norm(dim=1) < 0.9)
    assert _least_p(plain.sample(4_000, seed=1), even.sample(4_000, seed=2)) < 1e-6


def _least_p(first, second):
    columns = [*zip(first.T, second.T, strict=True), (first.sum(1), second.sum(1))]
    return min(stats.ks_2samp(one.numpy(), other.numpy()).pvalue for one, other in columns)


def test_truncating_again_intersects():
    wide = TruncatedPrior(SQUARE, disc, box=[[-1, -1], [0.5, 1]])
    narrow = TruncatedPrior(wide, lambda phi: phi[:, 1] > 0, box=[[0, -1], [1, 1]])
    assert narrow.outer is SQUARE
    assert len(narrow.regions) == 2
    phi = narrow.sample(500, seed=0)
    assert wide.contains(phi).all()
    assert (phi[:, 0] >= 0).all()
    assert (phi[:, 0] <= 0.5).all()
    assert (phi[:, 1] > 0).all()
    # The quarter disc left of one half.
    exact = (0.5 * math.sqrt(0.75) + math.asin(0.5)) / 2 / 4
    assert abs(narrow.log_mass - math.log(exact)) < 4 * narrow.log_mass_error


def test_draws_of_the_wider_prior_inside_are_draws_of_the_narrower():
    wide = TruncatedPrior(NORMAL, lambda phi: phi.norm(dim=1) < 2)
    narrow = TruncatedPrior(wide, disc)
    reused = wide.sample(8_000, seed=1)
    assert _least_p(reused[narrow.contains(reused)], narrow.sample(4_000, seed=2)) > 0.001 / 3


def test_a_tiny_region_is_drawn_from_within_its_box():
    def inside(phi):
        return (phi - 0.5).norm(dim=1) < 1e-5

    prior = TruncatedPrior(SQUARE, inside, box=[[0.5 - 1e-5, 0.5 - 1e-5], [0.5 + 1e-5, 0.5 + 1e-5]])
    assert abs(prior.log_mass - math.log(math.pi * 1e-10 / 4)) < 0.1
    assert inside(prior.sample(1_000, seed=0)).all()


def test_a_prior_of_which_only_draws_are_known_keeps_those_inside():
    draws = torch.arange(10.0).unsqueeze(1)
    prior = TruncatedPrior(EmpiricalPrior(draws), lambda phi: phi[:, 0] < 4)
    assert prior.distinct_draws == 4
    assert prior.sample(4, seed=0).sort(0).values[:, 0].tolist() == [0, 1, 2, 3]
    assert prior.log_mass == pytest.approx(math.log(0.4))
    assert not prior.has_density


def test_laws_without_quantiles_are_drawn_from_by_plain_rejection():
    for outer in (
        DistributionPrior(MultivariateNormal(torch.zeros(2), torch.eye(2))),
        SamplerPrior(lambda n, seed: np.random.default_rng(seed).normal(size=(n, 2))),
    ):
        prior = TruncatedPrior(outer, disc, box=[[0, 0], [1, 1]])
        assert (prior.sample(100, seed=0) >= 0).all()
        assert abs(prior.log_mass - math.log((1 - math.exp(-0.5)) / 4)) < 0.1


def test_an_empty_region_is_refused():
    with pytest.raises(InputError, match=r"inside: expected a region that holds enough"):
        TruncatedPrior(SQUARE, lambda phi: phi[:, 0] > 2)
    with pytest.raises(InputError, match=r"inside: expected a region that holds enough"):
        TruncatedPrior(EmpiricalPrior([[0.0], [1.0]]), lambda phi: phi[:, 0] > 2)
    with pytest.raises(InputError, match="box: expected one that the prior has mass in"):
        TruncatedPrior(SQUARE, disc, box=[[2, 2], [3, 3]])
    with pytest.raises(InputError, match="box: expected every lower end below"):
        TruncatedPrior(SQUARE, disc, box=[[0, 1], [1, 1]])


def test_a_wrong_membership_function_is_named():
    with pytest.raises(InputError, match="inside: expected shape"):
        TruncatedPrior(SQUARE, lambda phi: phi > 0)


def test_draws_that_are_asked_for_again_cost_nothing_and_cannot_be_spoilt():
    asked = []

    def inside(phi):
        asked.append(len(phi))
        return phi.square().sum(1) <= 1

    prior = TruncatedPrior(BoxPrior([-1, -1], [1, 1]), inside)
    first = prior.sample(300, seed=1)
    count = len(asked)
    first_again = prior.sample(300, seed=1)
    assert len(asked) == count
    assert torch.equal(first, first_again)
    first_again.zero_()
    assert torch.equal(prior.sample(300, seed=1), first)
    assert not torch.equal(prior.sample(300, seed=2), first)
    for seed in range(3, 9):
        prior.sample(300, seed=seed)
    count = len(asked)
    assert torch.equal(prior.sample(300, seed=1), first)
    assert len(asked) > count, "no more than a few are kept"
