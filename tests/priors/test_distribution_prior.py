"""Priors that wrap a torch distribution."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.distributions import (
    Categorical,
    Distribution,
    Gamma,
    Independent,
    LogNormal,
    MixtureSameFamily,
    Normal,
    Pareto,
    Uniform,
    constraints,
)

import eande
from eande.foundations.checks import InputError
from eande.foundations.seeds import global_seed
from eande.priors.distribution import DistributionPrior


def test_draws_of_a_precise_distribution_stay_inside_when_rounded():
    low = torch.tensor([2000.1, 0.1], dtype=torch.float64)
    prior = DistributionPrior(Independent(Uniform(low, low + 1), 1))
    phi = prior.sample(200_000, seed=0)
    with global_seed(0, "prior"):
        exact = prior.distribution.sample(torch.Size([200_000]))
    assert not prior.contains(exact.float()).all(), "the case is not hard enough"
    assert prior.contains(phi).all()
    assert (phi.double() - exact).abs().max() < 2e-4


def test_a_distribution_that_declares_no_support_is_judged_by_its_density():
    class Disc(torch.distributions.Distribution):
        """Uniform on the unit disc; torch's own ``support`` raises NotImplementedError for it."""

        def __init__(self):
            super().__init__(event_shape=torch.Size([2]), validate_args=False)

        def sample(self, sample_shape=()):
            angle = 2 * torch.pi * torch.rand(sample_shape)
            radius = torch.rand(sample_shape).sqrt()
            return radius.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)

        def log_prob(self, value):
            return torch.where(value.norm(dim=-1) <= 1, -np.log(np.pi), -torch.inf)

    prior = DistributionPrior(Disc())
    points = torch.tensor([[0.5, 0.5], [1.0, 1.0]])
    assert prior.contains(points).tolist() == [True, False]
    assert prior.log_prob(points).tolist() == pytest.approx([-np.log(np.pi), -np.inf])


def test_densities_leave_the_global_generator_alone():
    prior = DistributionPrior(Independent(Normal(torch.zeros(2), torch.ones(2)), 1))
    state = torch.get_rng_state()
    prior.log_prob(torch.zeros(3, 2))
    prior.contains(torch.zeros(3, 2))
    assert torch.equal(torch.get_rng_state(), state)


CASES = {
    "batched prior": (
        lambda: eande.DistributionPrior(Normal(torch.zeros(2), torch.ones(2))),
        r"expected a Distribution with event shape \(D,\)",
    ),
    "deep prior": (
        lambda: eande.DistributionPrior(
            Independent(Normal(torch.zeros(2, 2), torch.ones(2, 2)), 2)
        ),
        r"got event shape \(2, 2\)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]


class Mixed(Distribution):
    """A positive, an unbounded and a bounded number."""

    arg_constraints: ClassVar = {}
    support = constraints.stack([constraints.positive, constraints.real, constraints.unit_interval])

    def __init__(self):
        super().__init__(event_shape=torch.Size([3]))

    def sample(self, shape=()):
        normal = torch.randn(*shape, 3)
        return torch.stack([normal[..., 0].exp(), normal[..., 1], normal[..., 2].sigmoid()], dim=-1)


NONE = -torch.inf
LAWS = {
    "log-normal": (Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1), [0, 0]),
    "gamma": (Independent(Gamma(torch.ones(2), torch.ones(2)), 1), [0, 0]),
    "Pareto": (Independent(Pareto(torch.tensor([1.0, 3.0]), torch.ones(2)), 1), [1, 3]),
    "normal": (Independent(Normal(torch.zeros(2), torch.ones(2)), 1), [NONE, NONE]),
    "uniform": (Independent(Uniform(torch.zeros(2), torch.ones(2)), 1), [NONE, NONE]),
    "one of each": (Mixed(), [0, NONE, NONE]),
    "mixture": (
        MixtureSameFamily(
            Categorical(torch.ones(2)), Independent(LogNormal(torch.zeros(2, 2), 1.0), 1)
        ),
        [0, 0],
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_support_tells_which_parameters_lie_on_a_half_line(name):
    law, expected = LAWS[name]
    assert DistributionPrior(law).half_lines().tolist() == expected


def test_nothing_is_known_of_a_support_that_is_not_declared():
    prior = eande.SamplerPrior(lambda n, seed: torch.rand(n, 2))
    assert prior.half_lines() is None
    assert eande.BoxPrior([0, 0], [1, 1]).half_lines().tolist() == [NONE, NONE]
