"""The prior in a saved model."""

import json

import pytest
import torch
from torch import nn
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
)

import eande
from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.priors.box import BoxPrior
from eande.priors.convert import prior_from_description
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.similarities.cosine import Cosine
from helpers.models import Function

DISTRIBUTIONS = [
    Independent(Normal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])), 1),
    Independent(Uniform(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])), 1),
    MultivariateNormal(torch.tensor([0.0, 1.0]), torch.tensor([[2.0, 0.3], [0.3, 1.0]])),
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
def test_priors_come_back(distribution):
    prior = DistributionPrior(distribution, names=["u", "v"])
    again = prior_from_description(json.loads(json.dumps(prior.describe())), None)
    phi = prior.sample(20, seed=0)
    assert torch.equal(again.sample(20, seed=0), phi)
    assert torch.allclose(again.log_prob(phi), prior.log_prob(phi))
    assert again.names == ("u", "v")


def test_double_priors_come_back_as_double():
    prior = DistributionPrior(
        Independent(Normal(torch.zeros(2).double(), torch.ones(2).double()), 1)
    )
    again = prior_from_description(json.loads(json.dumps(prior.describe())), None)
    assert torch.equal(again.sample(20, seed=0), prior.sample(20, seed=0))


def test_another_prior_than_the_stored_one_is_refused(tmp_path):
    model = trivial_model(BoxPrior([-1, -1], [1, 1]))
    model.save(tmp_path / "m.eande")
    given = {"encoder": Function(lambda y: y), "emulator": model.emulator}
    with pytest.raises(
        InputError, match="expected the prior it was trained under, or none, got another"
    ):
        eande.load(tmp_path / "m.eande", prior=BoxPrior([-9, -9], [9, 9]), **given)
    assert (
        eande.load(tmp_path / "m.eande", prior=BoxPrior([-1, -1], [1, 1]), **given).prior.dimension
        == 2
    )


def trivial_model(prior):
    return EmbedAndEmulate(
        Function(lambda y: y),
        nn.Linear(prior.dimension, 2),
        Cosine(0.5),
        prior,
        y_shape=(2,),
        embedding_dimension=2,
    )


def test_priors_that_cannot_be_stored_are_asked_for_again(tmp_path):
    mixture = MixtureSameFamily(
        Categorical(torch.ones(2)), MultivariateNormal(torch.randn(2, 2), torch.eye(2))
    )
    path = tmp_path / "m.eande"
    for prior in (DistributionPrior(mixture), SamplerPrior(lambda n, seed: torch.zeros(n, 2))):
        trivial_model(prior).save(path)
        given = {"encoder": Function(lambda y: y), "emulator": nn.Linear(2, 2)}
        with pytest.raises(
            InputError, match="expected prior=, the prior it was trained under, got None"
        ):
            eande.load(path, **given)
        assert eande.load(path, prior=prior, **given).prior is prior


def test_an_empirical_prior_is_stored_with_its_draws(tmp_path):
    prior = EmpiricalPrior(torch.randn(30, 2))
    trivial_model(prior).save(tmp_path / "m.eande")
    loaded = eande.load(
        tmp_path / "m.eande", encoder=Function(lambda y: y), emulator=nn.Linear(2, 2)
    )
    assert torch.equal(loaded.prior.draws, prior.draws)
