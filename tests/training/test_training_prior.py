"""The prior of the training: whether the parameters are draws of it."""

import threading

import pytest
import torch

from eande.foundations.checks import EandeWarning
from eande.foundations.seeds import generator
from eande.priors.box import BoxPrior
from eande.priors.draws import SamplerPrior
from eande.simulation.read.simulations import Simulations
from eande.training.prepare import training_prior
from helpers.models import quick_fit

BOX = BoxPrior([-1, -1], [1, 1])


def correlated(n):
    first = torch.rand(n, 1, generator=generator(0)) * 2 - 1
    return torch.cat(
        [first, torch.where(torch.rand(n, 1, generator=generator(1)) < 0.5, first, -first)], dim=1
    )


@pytest.mark.parametrize(
    ("phi", "where"),
    [
        (BOX.sample(1_000, seed=0) / 3, "in phi"),
        (BOX.sample(1_000, seed=0).abs() * torch.tensor([-1.0, 1.0]), "in phi"),
        (torch.zeros(200, 2), "in phi"),
        (correlated(5_000), "in their joint distribution"),
    ],
    ids=["a ninth of the box", "a quarter of it", "all the same", "only together"],
)
def test_parameters_that_are_no_draws_of_the_prior_are_noticed(phi, where):
    simulations = Simulations.from_arrays(phi, torch.zeros(len(phi), 1))
    with pytest.warns(EandeWarning, match=f"do not look like draws of the prior \\({where}"):
        training_prior(BOX, simulations, None)


def test_draws_of_the_prior_are_taken_for_such():
    """Also where they are evenly spaced, few, replicated, or partly failed."""
    side = torch.linspace(-1, 1, 41)[1::2]
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    )
    torch.manual_seed(0)
    drawn = BOX.sample(2_000, seed=1)
    good = drawn[:, 0] < 0.3
    for prior, phi, options in (
        (BOX, BOX.sample(20_000, seed=0), {}),
        (BOX, BOX.sample_evenly(512, first=0, seed=0), {}),
        (BOX, torch.cartesian_prod(side, side), {}),
        (BOX, BOX.sample(3, seed=0), {}),
        (
            BOX,
            torch.cat([torch.zeros(500, 2), BOX.sample(200, seed=2)]),
            {"groups": [0] * 500 + list(range(1, 201))},
        ),
        (BOX, drawn[good], {"failed_phi": drawn[~good]}),
        (normal, normal.sample((5_000,)), {}),
    ):
        training_prior(
            prior, Simulations.from_arrays(phi, torch.zeros(len(phi), 1), **options), None
        )


def test_replicates_do_not_make_their_parameters_likelier():
    phi = torch.cat([torch.zeros(150, 2), BOX.sample(50, seed=0)])
    groups = [0] * 150 + list(range(1, 51))
    prior = training_prior(
        None, Simulations.from_arrays(phi, torch.zeros(200, 1), groups=groups), None
    )
    assert len(prior.draws) == 51


def test_a_prior_that_cannot_be_copied_is_shared(few_simulations):
    lock = threading.Lock()

    def sampler(n, seed):
        with lock:
            return BOX.sample(n, seed=seed)

    prior = SamplerPrior(sampler)
    assert quick_fit(few_simulations, prior, epochs=2).prior is prior
    assert quick_fit(few_simulations, prior, epochs=2, ema=None).prior is prior
