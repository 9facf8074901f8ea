"""Checkpoints carry a format number, and those of another are refused."""

import pytest

import eande
from eande.foundations.files import read_tensors, write_tensors
from eande.training.checkpoints import FORMAT
from helpers.small_fits import fit

pytestmark = pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")


def test_a_checkpoint_has_a_format_number(tmp_path):
    fit(checkpoint=tmp_path)
    document, _ = read_tensors(tmp_path / "main.safetensors", "checkpoint")
    assert document["format"] == FORMAT == 4


@pytest.mark.parametrize("other", [1, FORMAT + 1, None])
def test_a_checkpoint_of_another_format_is_refused_in_one_line(tmp_path, other):
    """Files of format 1 had no number."""
    fit(checkpoint=tmp_path)
    path = tmp_path / "main.safetensors"
    document, tensors = read_tensors(path, "checkpoint")
    del document["format"]
    if other is not None:
        document["format"] = other
    # An older file may have another fingerprint, too: the format is what must be told.
    document["fingerprint"] = {}
    write_tensors(path, "checkpoint", document, tensors)
    before = path.read_bytes()
    with pytest.raises(eande.InputError) as caught:
        fit(checkpoint=tmp_path)
    assert str(caught.value) == (
        f"{path}: expected a checkpoint of format {FORMAT}, got {other or 1}, of another version "
        "of eande: use another folder, or delete it to begin anew"
    )
    assert path.read_bytes() == before
    fit(checkpoint=tmp_path / "another")
    path.unlink()
    fit(checkpoint=tmp_path)
    assert read_tensors(path, "checkpoint")[0]["format"] == FORMAT
