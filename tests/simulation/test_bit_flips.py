"""No single bit of a store can change and give other simulations."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import eande

FILES = (
    "zarr.json",
    "phi/zarr.json",
    "y/zarr.json",
    "commits/00000000.json",
    "phi/c/0/0",
    "y/c/0/0",
)
BOX = eande.BoxPrior([-1], [1])


def odd(phi, rng):
    return np.where(phi > 0.8, np.nan, np.concatenate([phi, phi**2], axis=1))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "s.zarr"
    with pytest.warns(eande.EandeWarning, match="NaN"):
        eande.simulate(odd, BOX, 18, store=path, block_size=4, progress=False)
    return path


def content(path):
    stored = eande.Simulations.open(path)
    return (stored.phi, stored.y[:], stored.failures.phi, stored.failures.reasons)


def same(one, other):
    return one[3] == other[3] and all(
        torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("every", [41, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_in_a_line_or_changes_nothing(path, name, every):
    expected = content(path)
    whole = (path / name).read_bytes()
    refused = []
    for bit in range(0, 8 * len(whole), every):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (path / name).write_bytes(flipped)
        try:
            assert same(content(path), expected), f"bit {bit} of {name} gave other simulations"
            assert eande.Store(path).check() == {}
        except eande.InputError as error:
            refused.append(str(error))
    assert refused
    assert not any("\n" in line for line in refused)


def change(file, edit):
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))


def fewer(document):
    document["attributes"]["eande"]["extents"] = [6]


@pytest.mark.parametrize(
    ("name", "edit"), [("zarr.json", fewer), ("phi/zarr.json", lambda d: d["shape"].append(1))]
)
def test_metadata_that_were_changed_are_refused(path, name, edit):
    change(path / name, edit)
    for call in (
        lambda: eande.Simulations.open(path),
        lambda: eande.Store(path).check(),
        lambda: eande.simulate(odd, BOX, 30, store=path, progress=False),
    ):
        with pytest.raises(eande.InputError, match=r"expected the checksum stored with it"):
            call()


OLD = Path(__file__).parents[1] / "data" / "format4" / "store.zarr"


def shorter(document):
    document["attributes"]["eande"]["extents"] = [10]


def longer(document):
    document["attributes"]["eande"]["extents"] = [24]


def uneven(document):
    document["attributes"]["eande"]["extents"] = [18]


def smaller_blocks(document):
    document["attributes"]["eande"]["block_size"] = 5


def no_blocks(document):
    document["attributes"]["eande"]["block_size"] = 0


def shrinking(document):
    document["attributes"]["eande"]["extents"] = [20, 10]


def wider(document):
    document["shape"][1] = 3


def more_rows(document):
    document["shape"][0] = 25


def odd_pieces(document):
    document["codecs"][0]["configuration"]["chunk_shape"][0] = 3


def doubles(document):
    document["data_type"] = "float64"


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("zarr.json", shorter),
        ("zarr.json", longer),
        ("zarr.json", uneven),
        ("zarr.json", smaller_blocks),
        ("zarr.json", no_blocks),
        ("zarr.json", shrinking),
        ("phi/zarr.json", wider),
        ("phi/zarr.json", more_rows),
        ("y/zarr.json", wider),
        ("y/zarr.json", odd_pieces),
        ("y/zarr.json", doubles),
    ],
)
def test_a_store_of_format_1_must_fit_together(tmp_path, name, edit):
    path = Path(shutil.copytree(OLD, tmp_path / "s.zarr"))
    assert len(eande.Simulations.open(path)) == 20
    change(path / name, edit)
    for call in (lambda: eande.Simulations.open(path), lambda: eande.Store(path).check()):
        try:
            found = call()
        except eande.InputError as error:
            found = {"refused": str(error)}
        assert isinstance(found, dict)
        assert found
        assert not any("\n" in line for line in found.values())


def test_a_store_of_format_1_is_extended_and_gets_checksums(tmp_path):
    path = Path(shutil.copytree(OLD, tmp_path / "s.zarr"))
    before = eande.Simulations.open(path).in_memory()
    store = eande.Store(path)
    store._extend(30)
    after = eande.Simulations.open(path)
    assert torch.equal(before.y, after.y[:])
    assert eande.Store(path).about.format == 2
    for name in ("zarr.json", "phi/zarr.json", "y/zarr.json"):
        document = json.loads((path / name).read_text())
        assert len(document["attributes"]["eande"]["sha256"]) == 64
