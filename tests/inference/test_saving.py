"""Saved models: they come back as they were, and saving leaves no debris."""

import json
import zipfile

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import eande
from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.similarities.dot import Dot
from helpers.models import quick_fit

BOX = BoxPrior([-1, -1], [1, 1], names=["a", "b"])


def simulations(prior=BOX):
    return eande.simulate(
        lambda phi, rng: phi + 0.2 * rng.standard_normal(phi.shape), prior, 300, seed=0
    )


@pytest.fixture(scope="module")
def model():
    return quick_fit(simulations(), BOX, epochs=15)


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "model.eande"
    model.save(path)
    return path


def same(first, second):
    phi = BOX.sample(50, seed=0)
    y = [0.1, -0.2]
    return torch.equal(first.posterior(y).log_ratio(phi), second.posterior(y).log_ratio(phi))


def test_a_saved_model_comes_back(model, saved):
    loaded = eande.load(saved)
    assert same(model, loaded)
    assert loaded.history == model.history
    assert loaded.prior.names == ("a", "b")
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize(
    "options", [{"similarity": "dot"}, {"temperature": "learn"}, {"normalization": "batch"}]
)
def test_other_models_come_back(options, tmp_path):
    model = quick_fit(simulations(), BOX, epochs=15, **options)
    model.save(tmp_path / "m.eande")
    assert same(model, eande.load(tmp_path / "m.eande"))


def test_the_file_holds_no_pickle(saved):
    raw = saved.read_bytes()
    assert not zipfile.is_zipfile(saved), "torch.save writes zip files of pickles"
    size = int.from_bytes(raw[:8], "little")
    assert json.loads(raw[8 : 8 + size])["__metadata__"]["eande"] == "model"
    assert b"ctorch" not in raw


def test_a_network_of_ones_own_is_asked_for_again(tmp_path):
    def encoder():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))

    model = quick_fit(simulations(), BOX, encoder=encoder(), epochs=15)
    path = tmp_path / "m.eande"
    model.save(path)
    with pytest.raises(
        InputError, match="expected encoder=, the module it was trained with, got None"
    ):
        eande.load(path)
    with pytest.raises(
        InputError,
        match=r"encoder\.0\.bias: expected \(17,\), got \(16,\) in the file; "
        r"is it the same network",
    ):
        eande.load(path, encoder=nn.Sequential(nn.Linear(2, 17), nn.ReLU(), nn.Linear(17, 4)))
    assert same(model, eande.load(path, encoder=encoder()))


def test_saving_replaces_in_one_step_and_leaves_no_debris(model, tmp_path, monkeypatch):
    path = tmp_path / "m.eande"
    model.save(path)
    before = path.read_bytes()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eande.foundations.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert load_file(path)


def test_a_similarity_of_ones_own_is_not_stored_as_another(tmp_path):
    class Sharper(Dot):
        def factor(self):
            return 5 * super().factor()

    model = EmbedAndEmulate(
        ResidualMLP(2, 4), ResidualMLP(2, 4), Sharper(4), BOX, y_shape=(2,), embedding_dimension=4
    )
    with pytest.raises(
        InputError,
        match="similarity: expected a class with a name of its own to store in a file, "
        "got Sharper: give it name = ",
    ):
        model.save(tmp_path / "m.eande")


def test_another_network_with_weights_of_the_same_shapes_is_refused(few_simulations, tmp_path):
    def network(activation):
        return nn.Sequential(nn.Linear(2, 16), activation, nn.Linear(16, 4))

    quick_fit(few_simulations, BOX, encoder=network(nn.ReLU()), epochs=5).save(tmp_path / "m.eande")
    eande.load(tmp_path / "m.eande", encoder=network(nn.ReLU()))
    with pytest.raises(
        InputError,
        match="expected the encoder it was trained with, got one that computes something else",
    ):
        eande.load(tmp_path / "m.eande", encoder=network(nn.Tanh()))


def test_loading_leaves_the_given_network_alone(few_simulations, tmp_path):
    torch.manual_seed(0)
    mine = nn.Linear(2, 4)
    quick_fit(few_simulations, BOX, encoder=mine, epochs=5).save(tmp_path / "m.eande")
    before = mine.weight.clone()
    eande.load(tmp_path / "m.eande", encoder=mine)
    assert torch.equal(mine.weight, before)
    assert mine.weight.requires_grad
