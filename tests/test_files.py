"""Models on disk: no pickle, no surprise, one line for every damage."""

import json
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file
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
from conftest import Function, quick_fit
from eande.foundations.checks import InputError, check_same
from eande.foundations.files import read_tensors, replacing, write_json, write_tensors
from eande.inference.loading import prior_from_description
from eande.inference.model import EmbedAndEmulate
from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.similarities.similarities import Cosine

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
    phi, y = BOX.sample(50, seed=0), [0.1, -0.2]
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


def test_a_truncated_file_is_refused_at_every_length(saved):
    raw = saved.read_bytes()
    for length in (0, 4, 8, 100, len(raw) // 2, len(raw) - 1):
        saved.write_bytes(raw[:length])
        with pytest.raises(
            InputError,
            match="expected an eande model, got a file that is damaged or of another format",
        ):
            eande.load(saved)


def test_an_edited_file_is_refused(saved):
    raw = bytearray(saved.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    for position in (len(raw) - 3, 8 + size + 5, raw.find(b"epoch")):
        edited = bytearray(raw)
        edited[position] ^= 1
        saved.write_bytes(bytes(edited))
        with pytest.raises(
            InputError,
            match=r"the file was changed after it was written|damaged or of another format",
        ):
            eande.load(saved)


def test_foreign_files_are_refused(tmp_path, saved):
    path = tmp_path / "foreign"
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'echo harm'\ntR.")
    with pytest.raises(InputError, match="damaged or of another format"):
        eande.load(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(
        InputError, match="expected an eande model, got a safetensors file of other origin"
    ):
        eande.load(path)
    torch.save({"a": 1}, path)
    with pytest.raises(InputError, match="damaged or of another format"):
        eande.load(path)
    write_tensors(path, "checkpoint", {}, {"x": torch.zeros(1)})
    with pytest.raises(InputError, match="expected an eande model, got checkpoint"):
        eande.load(path)
    with pytest.raises(InputError, match="expected a file, got nothing there"):
        eande.load(tmp_path / "missing")
    with pytest.raises(InputError, match="expected a file, got a folder"):
        eande.load(tmp_path)


def rewritten(path, change):
    document, tensors = read_tensors(path, "model")
    change(document, tensors)
    write_tensors(path, "model", document, tensors)


def test_a_file_that_does_not_fit_names_the_leaf(saved):
    rewritten(saved, lambda _, tensors: tensors.pop("model.emulator.first.bias"))
    with pytest.raises(
        InputError,
        match=r"emulator\.first\.bias: expected \(32,\), got nothing of that name in the file",
    ):
        eande.load(saved)


def test_a_newer_format_is_refused(saved):
    rewritten(saved, lambda document, _: document.update(format=99))
    with pytest.raises(
        InputError, match="expected file format 4 or older, got 99: written by a newer eande"
    ):
        eande.load(saved)


def test_a_file_cannot_name_other_classes(saved):
    rewritten(saved, lambda document, _: document["encoder"].update(name="system"))
    with pytest.raises(
        InputError,
        match="network in the file: expected one of 'ResidualMLP', 'ResNet', got 'system'",
    ):
        eande.load(saved)
    rewritten(saved, lambda document, _: document["encoder"].update(name="ResidualMLP"))
    wicked = {
        "kind": "distribution",
        "names": ["a"],
        "distribution": {"name": "__builtins__", "arguments": {}},
    }
    rewritten(saved, lambda document, _: document.update(prior=wicked))
    with pytest.raises(
        InputError,
        match="expected one of torch's own distributions in the file, got '__builtins__'",
    ):
        eande.load(saved)


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
        match=r"encoder\.0\.bias: expected \(17,\), got \(16,\) in the file; is it the same network",
    ):
        eande.load(path, encoder=nn.Sequential(nn.Linear(2, 17), nn.ReLU(), nn.Linear(17, 4)))
    assert same(model, eande.load(path, encoder=encoder()))


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


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "folder" / "file"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
        assert not path.exists()
        assert len(list(path.parent.iterdir())) == 2
    assert path.read_bytes() == b"first"
    with pytest.raises(RuntimeError, match="in the middle"), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError("in the middle")
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_a_document_that_json_cannot_hold_leaves_the_old_one(tmp_path):
    path = tmp_path / "r.json"
    write_json(path, {"a": [1, 2]})
    assert path.read_text() == '{\n "a": [\n  1,\n  2\n ]\n}\n'
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [1, 2]}
    assert list(tmp_path.iterdir()) == [path]


NESTED = {"seed": 0, "settings": {"epochs": 3, "rate": float("nan"), "deep": {"shape": (1, 2)}}}


def refusal(found, expected=NESTED):
    with pytest.raises(InputError) as caught:
        check_same("run/", expected, found, what="a checkpoint", remedy="use another folder")
    return str(caught.value)


def test_the_same_call_is_the_same_after_a_detour_through_json():
    found = json.loads(json.dumps(NESTED))
    check_same("run/", NESTED, found, what="a checkpoint", remedy="use another folder")


def test_another_call_is_refused_by_its_first_difference_alone():
    settings = NESTED["settings"]
    deeper = {**settings, "deep": {"shape": [1, 3]}}
    assert refusal({**NESTED, "settings": deeper}) == (
        "run/: expected a checkpoint with settings.deep.shape [1, 2], got one with [1, 3]; "
        "use another folder"
    )
    assert "with seed 0, got one with '0';" in refusal({**NESTED, "seed": "0"})
    assert "with seed 0, got one without;" in refusal({"settings": settings})
    assert "without settings.new, got one with 1;" in refusal(
        {**NESTED, "settings": {**settings, "new": 1}}
    )
    assert "with seed None, got one without;" in refusal({}, {"seed": None})
