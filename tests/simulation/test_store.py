"""A store holds what memory would, and grows."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

import eande
from eande.simulation.store import zarr_store
from eande.simulation.store.commits import CommitRecord
from helpers.stores import BLOCK, BOX, assert_same, noisy, simulate


@pytest.fixture
def expected():
    return eande.simulate(noisy, BOX, 45, block_size=BLOCK, progress=False)


def test_a_store_holds_what_memory_would_and_is_plain_zarr(tmp_path, expected):
    stored = simulate(45, tmp_path / "s.zarr")
    assert_same(stored, expected)
    assert_same(eande.Simulations.open(tmp_path / "s.zarr"), expected)
    group = zarr.open_group(tmp_path / "s.zarr", mode="r")
    assert np.array_equal(group["y"][:45], expected.y.numpy())
    assert np.isnan(group["y"][45:]).all()
    assert np.array_equal(group["phi"][:45], expected.phi.numpy())
    assert len(list((tmp_path / "s.zarr" / "locks").iterdir())) == 1  # those of blocks are gone


def test_an_extension_keeps_what_is_there_and_starts_a_new_block(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    before = {file: file.read_bytes() for file in path.rglob("c/*/**/*") if file.is_file()}
    longer = simulate(80, path)
    assert len(longer) == 80
    assert torch.equal(longer.y[:45], expected.y)
    assert all(file.read_bytes() == content for file, content in before.items())
    assert_same(simulate(80, path), longer)
    # Where the first extent is a whole number of blocks, extending is the same as asking for all at
    # once.
    simulate(50, tmp_path / "t.zarr")
    assert_same(
        simulate(80, tmp_path / "t.zarr"),
        eande.simulate(noisy, BOX, 80, block_size=BLOCK, progress=False),
    )


def test_nothing_is_simulated_twice(tmp_path):
    calls = []

    def counting(phi, rng):
        calls.append(len(phi))
        return noisy(phi, rng)

    for n in (20, 20, 45, 45):
        eande.simulate(
            counting, BOX, n, store=tmp_path / "s.zarr", block_size=BLOCK, progress=False
        )
    assert calls == [10, 10, 10, 10, 5]


def test_a_reader_notices_that_the_store_was_simulated_again(tmp_path):
    """Rows that failed take no room in a shard: when they succeed later, all others move."""
    switch = tmp_path / "broken"
    switch.touch()

    def moody(phi, rng):
        if switch.exists() and phi[0] > 0:
            raise RuntimeError("moody")
        return np.full(20_000, phi[0])

    path = tmp_path / "s.zarr"
    with pytest.warns(eande.EandeWarning, match="moody"):
        before = eande.simulate(
            eande.each(moody), BOX, 10, store=path, failure_limit=0.9, progress=False
        )
    unverified = eande.Simulations.open(path, verify=False)
    assert torch.equal(
        before.y[:, 0] if isinstance(before.y, torch.Tensor) else before.y[:][:, 0],
        before.phi[:, 0],
    )
    assert len(unverified.y[:]) == len(before)
    switch.unlink()
    eande.simulate(eande.each(moody), BOX, 10, store=path, redo="failed", progress=False)
    for reader in (before, unverified):
        with pytest.raises(eande.InputError, match="got another file: open the store again"):
            _ = reader.y[:]


def test_a_part_of_one_row_is_a_part(tmp_path):
    stored = simulate(20, tmp_path / "s.zarr")
    large, small = stored.split(0.05, seed=0)
    assert small.y[:].shape == (1, 3)
    assert len(large.y[:]) == 19


@pytest.mark.parametrize("path", ["s3://bucket/x", 5, "nul\0byte"])
def test_what_is_no_name_of_a_folder(path):
    for call in (lambda: simulate(5, path), lambda: eande.Simulations.open(path)):
        with pytest.raises(eande.InputError, match="store: expected the name of a folder, got"):
            call()


def test_a_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    simulate(5, "~/s.zarr")
    assert (tmp_path / "s.zarr" / "zarr.json").exists()


def test_nothing_is_deleted_that_is_not_ours(tmp_path):
    for name in ("phi", "y"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "run1.npy").write_text("precious")
    with pytest.raises(eande.InputError, match="expected a store or an empty folder"):
        simulate(20, tmp_path / "mine")
    assert len(list((tmp_path / "mine").rglob("run1.npy"))) == 2


def test_a_complete_store_needs_no_writing(tmp_path, expected, monkeypatch):
    simulate(45, tmp_path / "s.zarr")

    def refuse(*_args, **_kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(zarr_store.Lock, "acquire", refuse)
    assert_same(simulate(45, tmp_path / "s.zarr"), expected)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EROFS, eande.InputError),
        (errno.EACCES, eande.InputError),
        (errno.ENOSPC, eande.SimulationError),
    ],
)
def test_a_disk_that_cannot_be_written_is_said_in_a_line(
    tmp_path, expected, monkeypatch, number, kind
):
    path = tmp_path / "s.zarr"
    whole = CommitRecord.write
    count = []

    def failing(self, layout):
        count.append(self.block)
        if len(count) == 3:
            raise OSError(number, os.strerror(number))
        whole(self, layout)

    monkeypatch.setattr(CommitRecord, "write", failing)
    with pytest.raises(kind, match=f"{path.name}.*{os.strerror(number)}") as caught:
        simulate(45, path)
    assert "\n" not in str(caught.value)
    assert len(eande.Simulations.open(path)) == 20
    assert_same(simulate(45, path), expected)
