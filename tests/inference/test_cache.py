"""What a model keeps between posteriors, and when it is stale."""

import copy

import pytest
import torch
from torch import nn

import eande
from eande.networks.mlp import ResidualMLP

PRIOR = eande.BoxPrior([-1], [1])
Y = torch.tensor([0.3])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return eande.EmbedAndEmulate(
        ResidualMLP(1, 4, width=8, blocks=1),
        ResidualMLP(1, 4, width=8, blocks=1),
        eande.Dot(4),
        PRIOR,
        y_shape=(1,),
        embedding_dimension=4,
    ).requires_grad_(False)


def log_c(model):
    return model.posterior(Y).log_normalizer


def assign_weights(model):
    weights = {name: 3 * x for name, x in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)


def replace_parameter(model):
    layer = model.emulator.skip
    layer.weight = nn.Parameter(3 * layer.weight, requires_grad=False)


def replace_layer(model):
    model.emulator.skip = nn.Linear(1, 4, bias=False).requires_grad_(False)


def replace_buffer(model):
    model.phi_standardizer.scale = torch.tensor(0.2)


def write_in_place(model):
    model.emulator.skip.weight.mul_(3)


@pytest.mark.parametrize(
    "change", [assign_weights, replace_parameter, replace_layer, replace_buffer, write_in_place]
)
def test_a_change_of_weights_makes_the_bank_stale(model, change):
    before = log_c(model)
    assert model.prior_bank(PRIOR, 10_000) is model.prior_bank(PRIOR, 10_000), "it is kept"
    change(model)
    fresh = log_c(copy.deepcopy(model))
    assert abs(fresh - before) > 1e-4, "the change must matter for the test to mean anything"
    assert log_c(model) == pytest.approx(fresh, abs=1e-6)


def test_copies_and_models_of_another_similarity_keep_nothing_of_it(model):
    bank = model.prior_bank(PRIOR, 100)
    assert copy.deepcopy(model).prior_bank(PRIOR, 100) is not bank
    assert model.with_similarity(eande.Dot(4)).prior_bank(PRIOR, 100) is not bank
    assert model.prior_bank(PRIOR, 100) is bank
