"""Priors that cannot be, and draws that cannot be asked for: refused in a line."""

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Independent, Poisson

import eande

BOX = eande.BoxPrior([-1], [1])
REFUSED = {
    "a box too wide for float32": (
        lambda: eande.BoxPrior([-3e38], [3e38]),
        "high: expected a width that float32 can hold",
    ),
    "no parameters": (lambda: eande.BoxPrior([], []), "length of low: expected a whole number"),
    "draws of no parameters": (
        lambda: eande.EmpiricalPrior(np.zeros((3, 0))),
        "number of parameters: expected a whole number of at least 1, got 0",
    ),
    "no draws": (
        lambda: eande.EmpiricalPrior(np.zeros((0, 2))),
        "number of prior draws: expected a whole number of at least 1, got 0",
    ),
    "a sampler that is none": (
        lambda: eande.SamplerPrior(5),
        r"sampler: expected a function of \(n, seed\), got 5",
    ),
    "a discrete distribution": (
        lambda: eande.DistributionPrior(Independent(Poisson(torch.ones(2)), 1)),
        "prior: expected a continuous Distribution, got the discrete Independent",
    ),
    "a distribution of coins": (
        lambda: eande.DistributionPrior(Independent(Bernoulli(torch.ones(2) / 2), 1)),
        "prior: expected a continuous Distribution",
    ),
    "a distribution that is none": (
        lambda: eande.DistributionPrior(5),
        "distribution: expected a torch Distribution, got 5",
    ),
    "names that are a number": (
        lambda: eande.BoxPrior([0], [1], names=5),
        "names: expected a list of 1 names, got 5",
    ),
    "a number of draws in words": (lambda: BOX.sample("x", seed=0), "n: expected a whole number"),
    "fewer than no draws": (lambda: BOX.sample(-1, seed=0), "n: expected a whole number"),
    "more draws than memory": (
        lambda: BOX.sample(10**12, seed=0),
        "n: expected what fits into .* GB of memory, got 1000000000000, which take 4,000 GB",
    ),
    "a seed in words": (lambda: BOX.sample(1, seed="x"), "seed: expected a whole number"),
    "a negative seed": (lambda: BOX.sample(1, seed=-1), "seed: expected a whole number"),
    "points of another dimension": (
        lambda: BOX.log_prob([[0.0, 1.0]]),
        r"phi: expected shape \(n, 1\), got \(1, 2\)",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_in_a_line(call, message):
    with pytest.raises(eande.InputError, match=f"^{message}") as caught:
        call()
    assert "\n" not in str(caught.value)


def test_lists_are_points_too():
    assert BOX.contains([[0.0], [2.0]]).tolist() == [True, False]
    assert BOX.log_prob([[0.0], [2.0]]).exp().tolist() == [0.5, 0.0]


def test_a_sampler_of_other_arguments_is_named_as_code_of_the_users():
    with pytest.raises(eande.UserCodeError, match=r"prior sampler: raised TypeError .* with n 2"):
        eande.SamplerPrior(lambda: 0)
