"""Damage is found, named and repaired on request."""

import json
import os
import shutil

import pytest
import torch
import zarr

import eande
from helpers.stores import BLOCK, BOX, assert_same, flip, noisy, simulate


@pytest.fixture
def expected():
    return eande.simulate(noisy, BOX, 45, block_size=BLOCK, progress=False)


DAMAGE = {
    "bit of y": lambda path: flip(path / "y/c/1/0", 17),
    "bit of phi": lambda path: flip(path / "phi/c/1/0", 5),
    "bit of a record": lambda path: flip(path / "commits/00000001.json", 40),
    "y cut short": lambda path: os.truncate(path / "y/c/1/0", 50),
    "y empty": lambda path: os.truncate(path / "y/c/1/0", 0),
    "y missing": lambda path: (path / "y/c/1/0").unlink(),
    "phi missing": lambda path: (path / "phi/c/1/0").unlink(),
    "y of another block": lambda path: shutil.copy(path / "y/c/2/0", path / "y/c/1/0"),
    "phi of another block": lambda path: shutil.copy(path / "phi/c/2/0", path / "phi/c/1/0"),
    "record of another block": lambda path: shutil.copy(
        path / "commits/00000002.json", path / "commits/00000001.json"
    ),
    "record emptied": lambda path: os.truncate(path / "commits/00000001.json", 0),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_named_and_repaired_on_request(tmp_path, expected, damage):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    damage(path)
    assert list(eande.Store(path).check()) == [1]
    with pytest.raises(
        eande.InputError, match=r"got (block 1 damaged|a damaged one).*redo='damaged'"
    ):
        eande.Simulations.open(path).y[:]
    assert_same(simulate(45, path, redo="damaged"), expected)
    assert eande.Store(path).check() == {}


def test_damage_is_found_by_reading_a_window_and_not_looked_for_if_not_wanted(tmp_path):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    flip(path / "y/c/1/0", 17)
    assert torch.isfinite(eande.Simulations.open(path).y[torch.arange(10)]).all()  # another block
    with pytest.raises(eande.InputError, match="block 1 damaged"):
        _ = eande.Simulations.open(path).y[12]
    assert torch.isfinite(eande.Simulations.open(path, verify=False).y[:]).all()


def test_foreign_files_in_a_store_do_no_harm(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(20, path)
    (path / ".DS_Store").touch()
    (path / "commits" / "._00000000.json").write_text("x")
    assert_same(simulate(45, path), expected)


def test_a_store_that_lost_the_description_of_its_data_keeps_the_data(tmp_path):
    simulate(40, tmp_path / "s")
    (tmp_path / "s" / "y" / "zarr.json").rename(tmp_path / "kept")
    pieces = sorted((tmp_path / "s" / "y").rglob("*"))
    with pytest.raises(
        eande.InputError,
        match=r"expected y/zarr.json beside the blocks that are complete, got none",
    ):
        simulate(80, tmp_path / "s")
    assert sorted((tmp_path / "s" / "y").rglob("*")) == pieces
    (tmp_path / "kept").rename(tmp_path / "s" / "y" / "zarr.json")
    assert len(simulate(80, tmp_path / "s")) == 80


def test_a_store_that_lost_its_description_is_left_alone(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    description = (path / "zarr.json").read_text()
    (path / "zarr.json").unlink()
    with pytest.raises(eande.InputError, match=r"or without its zarr.json"):
        simulate(45, path)
    (path / "zarr.json").write_text(description)
    assert_same(simulate(45, path), expected)
    (path / "y" / "zarr.json").unlink()
    with pytest.raises(
        eande.InputError, match=r"expected whole array metadata, got none at .*y/zarr.json"
    ):
        eande.Simulations.open(path)


def test_copies_of_records_are_no_records(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    shutil.copy(path / "commits/00000000.json", path / "commits/00000000 (copy).json")
    assert_same(simulate(45, path), expected)


def test_folders_that_are_no_store(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("x")
    with pytest.raises(
        eande.InputError, match="store: expected the name of a folder, got the file"
    ):
        simulate(5, tmp_path / "file")
    with pytest.raises(
        eande.InputError,
        match=r"store: expected a store or an empty folder, got .*folder with other things in it",
    ):
        simulate(5, tmp_path / "folder")
    for name, got in (
        ("file", "a file"),
        ("folder", "a folder of something else"),
        ("nothing", "nothing there"),
    ):
        with pytest.raises(eande.InputError, match=f"expected an eande store, got {got}"):
            eande.Simulations.open(tmp_path / name)
    zarr.create_group(tmp_path / "other.zarr")
    with pytest.raises(eande.InputError, match=r"expected an eande store, got a zarr.json without"):
        eande.Simulations.open(tmp_path / "other.zarr")


def test_a_store_of_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "s.zarr"
    simulate(20, path)
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["eande"]["format"] = 99
    (path / "zarr.json").write_text(json.dumps(metadata))
    for call in (lambda: eande.Simulations.open(path), lambda: simulate(20, path)):
        with pytest.raises(
            eande.InputError,
            match="expected a store of format 2 or older, got format 99: it was written by a "
            "newer version",
        ):
            call()
    (path / "zarr.json").write_text("{")
    with pytest.raises(eande.InputError, match=r"zarr.json: expected the metadata of an"):
        eande.Simulations.open(path)
