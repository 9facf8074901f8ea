"""Files that are damaged, foreign or of another version are refused with what was found."""

import pytest
import torch
from safetensors.torch import save_file

import eande
from eande.foundations.checks import InputError
from eande.foundations.files import read_tensors, write_tensors
from eande.priors.box import BoxPrior
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
        InputError, match="expected file format 7 or older, got 99: written by a newer eande"
    ):
        eande.load(saved)


def test_a_file_cannot_name_other_classes(saved):
    rewritten(saved, lambda document, _: document["encoder"].update(name="system"))
    with pytest.raises(
        InputError,
        match=r"network in the file: expected one of .*'ResidualMLP', 'ResNet', got 'system'",
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
