"""The fingerprint of a fit changes with everything that matters and with nothing else."""

import pytest
import torch
from torch import nn

import eande
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.priors.draws import SamplerPrior
from eande.simulation.read.simulations import Simulations
from eande.training.build import Networks
from eande.training.prepare import call_fingerprint

BOX = BoxPrior([-1, -1], [1, 1])


def fingerprint(simulations, prior=BOX, views=None, validation=None, similarity="mixture", **given):
    settings = eande.FitSettings(similarity=similarity)
    return call_fingerprint(simulations, prior, settings, views, Networks(**given), validation)


def test_a_fingerprint_changes_with_everything_that_matters(few_simulations):
    own = fingerprint(few_simulations)
    swapped = Simulations.from_arrays(few_simulations.phi[:, [1, 0]], few_simulations.y)
    turned = Simulations.from_arrays(few_simulations.phi, few_simulations.y[:, [1, 0]])
    grouped = Simulations(few_simulations.phi, few_simulations.y, few_simulations.groups // 2)
    others = [
        fingerprint(swapped),
        fingerprint(turned),
        fingerprint(grouped),
        fingerprint(few_simulations, BoxPrior([-1, -1], [1, 2])),
        fingerprint(few_simulations, SamplerPrior(lambda n, seed: BOX.sample(n, seed=seed))),
        fingerprint(few_simulations, SamplerPrior(lambda n, seed: 0.1 * BOX.sample(n, seed=seed))),
        fingerprint(few_simulations, views=lambda y, _: 2 * y),
        fingerprint(few_simulations, views=lambda y, _: 3 * y),
        fingerprint(few_simulations, encoder=ResidualMLP(2, 4)),
        fingerprint(few_simulations, encoder=ResidualMLP(2, 4)),
        fingerprint(few_simulations, validation=0.2),
        fingerprint(few_simulations, validation=few_simulations[:50]),
        fingerprint(few_simulations, similarity=eande.Cosine(0.05)),
        fingerprint(few_simulations, similarity=eande.Cosine(0.1)),
        fingerprint(few_simulations, similarity=eande.Cosine(0.05, learn=True)),
        fingerprint(few_simulations, similarity=eande.Mixture(heads=3)),
    ]
    texts = [str(one) for one in (own, *others)]
    assert len(set(texts)) == len(texts)
    assert fingerprint(few_simulations) == own
    assert fingerprint(few_simulations, similarity=eande.Mixture()) == own


def test_a_fingerprint_does_not_depend_on_the_number_of_threads(few_simulations):
    threads = torch.get_num_threads()
    large = Simulations(torch.rand(200_000, 3), torch.rand(200_000, 2), torch.arange(200_000))
    try:
        torch.set_num_threads(2)
        two = large.fingerprint()
    finally:
        torch.set_num_threads(threads)
    assert large.fingerprint() == two


@pytest.mark.parametrize("part", ["encoder", "emulator"])
def test_a_network_that_computes_something_else_is_another_call(few_simulations, part):
    """Tanh for ReLU: the same weights of the same shapes."""
    first = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4))
    other = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4))
    other.load_state_dict(first.state_dict())
    found = [
        call_fingerprint(
            few_simulations, BOX, eande.FitSettings(), None, Networks(**{part: network}), 0.1
        )
        for network in (first, first, other)
    ]
    assert found[0] == found[1]
    assert found[0][part] != found[2][part]


def with_dropout(share):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(share), nn.Linear(8, 4))


def with_momentum(momentum):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 4))


class Shy(nn.Linear):
    """Does something of its own in training only, which nothing but its output shows."""

    def __init__(self, factor):
        super().__init__(2, 4)
        self.factor = factor

    def forward(self, x):
        return super().forward(self.factor * x if self.training else x)


def shy(factor):
    torch.manual_seed(0)
    return Shy(factor)


@pytest.mark.parametrize("make", [with_dropout, with_momentum, shy])
def test_a_network_that_differs_in_training_only_is_another_one(few_simulations, make):
    own = fingerprint(few_simulations, encoder=make(0.1))
    assert fingerprint(few_simulations, encoder=make(0.1)) == own
    assert fingerprint(few_simulations, encoder=make(0.9)) != own


class Rarely:
    def __init__(self, share, factor):
        self.share = share
        self.factor = factor

    def __call__(self, y, generator):
        return y if torch.rand(1, generator=generator) > self.share else self.factor * y


def test_a_view_that_seldom_does_something_is_known_by_its_settings(few_simulations):
    own = fingerprint(few_simulations, views=Rarely(1e-9, -1))
    assert fingerprint(few_simulations, views=Rarely(1e-9, -1)) == own
    assert fingerprint(few_simulations, views=Rarely(1e-9, 0)) != own
    windows = eande.Compose(eande.RandomWindow(2), Rarely(1e-9, -1))
    others = eande.Compose(eande.RandomWindow(2), Rarely(1e-9, 0))
    assert fingerprint(few_simulations, views=windows) != fingerprint(few_simulations, views=others)
