"""Which weights decay."""

import pytest
import torch
from torch import nn

import eande
from eande.training.state import TrainingState
from helpers.linear_task import BOX
from helpers.models import quick_fit

FACTOR = 1 - 1e-2 * 0.5


def model_of(similarity):
    model = nn.Module()
    model.encoder = nn.Sequential(nn.Conv1d(1, 3, 3), nn.BatchNorm1d(3), nn.Linear(5, 4))
    model.emulator = nn.Linear(2, 4)
    model.similarity = similarity
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    return model


@pytest.mark.parametrize("similarity", [eande.Cosine(), eande.Mixture(3, dimension=4)])
@pytest.mark.parametrize("decayed", ["all", "matrices"])
def test_biases_decay_only_where_all_weights_do(similarity, decayed):
    """A step along a gradient of zero leaves the decay alone to be seen."""
    model = model_of(similarity)
    state = TrainingState.begin(
        model, learning_rate=1e-2, weight_decay=0.5, decayed=decayed, ema=None
    )
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state.optimizer.step()
    shrunk = {name: x.flatten()[0].item() / 2 for name, x in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            expected = 1.0  # shrinking a log temperature to zero means nothing
        elif parameter.ndim > 1 or decayed == "all":
            expected = FACTOR
        else:
            expected = 1.0
        assert shrunk[name] == pytest.approx(expected, abs=1e-6), name
    assert {x.ndim for x in model.parameters()} >= {1, 2, 3}


@pytest.mark.parametrize("decayed", ["all", "matrices"])
def test_a_fit_decays_what_it_was_told_to(few_simulations, decayed):
    encoder = nn.Linear(2, 4)
    with torch.no_grad():
        encoder.bias.fill_(5.0)
    model = quick_fit(
        few_simulations,
        BOX,
        encoder=encoder,
        epochs=1,
        steps_per_epoch=100,
        weight_decay=100.0,
        ema=None,
        decayed=decayed,
    )
    bias = model.encoder.bias
    # 100 steps of at most the learning rate, 1e-3, move a weight that does not decay by 0.1.
    assert (bias.abs() < 0.5).all() if decayed == "all" else ((bias - 5).abs() < 0.2).all()
    assert model.encoder.weight.abs().max() < 0.1


def test_another_word_is_refused():
    message = "decayed: expected one of 'matrices', 'all', got 'biases'"
    with pytest.raises(eande.InputError, match=message):
        eande.FitSettings(decayed="biases")
