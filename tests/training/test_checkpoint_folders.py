"""The folder of a fit's checkpoints: where it is, who may use it, and what may lie in it."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import eande
from eande.foundations import files
from eande.foundations.files import StorageError, replacing
from helpers.limits import files_of_at_most
from helpers.small_fits import PHI, PRIOR, Y, fit, small

pytestmark = pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")


class Counting(nn.Linear):
    """Counts its training steps."""

    steps = 0

    def forward(self, x):
        type(self).steps += self.training and torch.is_grad_enabled()
        return super().forward(x)


@pytest.fixture
def counting():
    Counting.steps = 0
    torch.manual_seed(0)
    return Counting(3, 4)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    model = fit(checkpoint="~/runs/one")
    assert (tmp_path / "home" / "runs" / "one" / "main.safetensors").exists()
    seen = []
    fit(checkpoint="~/runs/one", callback=seen.append)
    assert seen == [], "it was done"
    model.save("~/models/one.eande")
    assert eande.load("~/models/one.eande").y_shape == (3,)
    assert (tmp_path / "home" / "models" / "one.eande").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_relative_folder_stays_where_it_was_when_the_fit_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    fit(checkpoint="run", callback=lambda _: os.chdir(tmp_path / "elsewhere"))
    assert (tmp_path / "run" / "main.safetensors").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_the_first_step(tmp_path, counting):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for folder in (tmp_path / "file" / "run", tmp_path / "loop"):
        with pytest.raises(StorageError, match=r"could not be written \(.*\)") as caught:
            fit(checkpoint=folder, encoder=counting)
        assert "\n" not in str(caught.value)
    assert Counting.steps == 0
    assert (tmp_path / "file").read_text() == "mine"


def full(*_args):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_refused_before_the_first_step(tmp_path, counting, monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        fit(checkpoint=tmp_path / "run", encoder=counting)
    assert Counting.steps == 0
    assert list((tmp_path / "run").iterdir()) == []


def checkpoint_bytes(tmp_path, **options):
    """Return how many bytes the checkpoint of a fit has."""
    fit(checkpoint=tmp_path / "measured", **options)
    return (tmp_path / "measured" / "main.safetensors").stat().st_size


def test_a_disk_with_room_for_less_than_a_checkpoint_is_refused_before_the_first_step(
    tmp_path, counting
):
    settings = small(width=128, blocks=1, ema=0.9, memory_bank=2_000)
    size = checkpoint_bytes(tmp_path, settings=settings)
    assert size > 500_000
    with (
        files_of_at_most(size // 2),
        pytest.raises(StorageError, match=r"main.safetensors: could not be written") as caught,
    ):
        fit(checkpoint=tmp_path / "run", settings=settings, encoder=counting)
    assert "\n" not in str(caught.value)
    assert Counting.steps == 0
    assert [file.name for file in (tmp_path / "run").iterdir()] in ([], ["lock"])
    with files_of_at_most(3 * size):
        fit(checkpoint=tmp_path / "run", settings=settings, encoder=counting)
    assert Counting.steps > 0


def test_all_files_of_the_short_starts_find_room_or_none_begins(tmp_path, counting):
    settings = small(restarts=4, width=128, epochs=3)
    size = checkpoint_bytes(tmp_path, settings=settings, encoder=counting)
    Counting.steps = 0
    with (
        files_of_at_most(4 * size),
        pytest.raises(StorageError, match=r"start-0.safetensors: could not be written"),
    ):
        fit(checkpoint=tmp_path / "run", settings=settings, encoder=counting)
    assert Counting.steps == 0


def test_a_fit_that_has_ended_needs_no_room(tmp_path):
    fit(checkpoint=tmp_path, settings=small(width=128, blocks=1))
    seen = []
    with files_of_at_most(8_192):
        fit(checkpoint=tmp_path, settings=small(width=128, blocks=1), callback=seen.append)
    assert seen == []


@pytest.mark.parametrize("members", [1, 3])
def test_the_room_reserved_is_about_what_a_checkpoint_takes(tmp_path, members, monkeypatch):
    reserved = []
    real = files._reserve

    def note(file, room):
        reserved.append(room)
        real(file, room)

    monkeypatch.setattr(files, "_reserve", note)
    settings = small(width=128, blocks=1, ema=0.9, memory_bank=20, epochs=3)
    fit(checkpoint=tmp_path, settings=settings, members=members)
    size = next(tmp_path.rglob("main.safetensors")).stat().st_size
    # Of the lock, then of every member: those that are still to come, and one more.
    expected = [0, *(size * (left + 1) for left in range(members, 0, -1))]
    assert len(reserved) == len(expected)
    for found, wanted in zip(reserved[1:], expected[1:], strict=True):
        assert wanted <= found <= 1.2 * wanted


def test_a_disk_that_fills_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    settings = small(epochs=4, validate_every=1, checkpoint_seconds=0)
    kept = []

    def fill(record):
        if record["epoch"] == 3:
            kept.append((tmp_path / "main.safetensors").read_bytes())
            monkeypatch.setattr(files.os, "fsync", full)

    with pytest.raises(StorageError, match="No space left on device"):
        fit(checkpoint=tmp_path, settings=settings, callback=fill)
    monkeypatch.undo()
    assert [(tmp_path / "main.safetensors").read_bytes()] == kept
    seen = []
    fit(checkpoint=tmp_path, settings=settings, callback=seen.append)
    assert [record["epoch"] for record in seen] == [3, 4]


def test_the_unfinished_file_of_a_living_process_stays(tmp_path):
    with replacing(tmp_path / "main.safetensors") as file:
        file.write(b"half")
        file.flush()
        (theirs,) = tmp_path.glob("*.tmp")
        dead = tmp_path / "main.safetensors.1.0123abcd.tmp"
        dead.write_text("of a dead process")
        fit(checkpoint=tmp_path)
        assert theirs.exists()
        assert not dead.exists()


def test_a_folder_is_used_by_one_fit_at_a_time(tmp_path):
    told = []

    def second(_record):
        with pytest.raises(eande.InputError) as caught:
            fit(checkpoint=tmp_path)
        told.append(str(caught.value))

    fit(checkpoint=tmp_path, callback=second)
    assert told == [
        f"checkpoint: expected a folder of its own, got {tmp_path}: another fit is using this "
        "folder"
    ]
    fit(checkpoint=tmp_path)


def test_fits_in_threads_on_one_folder_end_or_are_refused(tmp_path):
    ended = []

    def one():
        try:
            ended.append(fit(checkpoint=tmp_path, settings=small(epochs=5, checkpoint_seconds=0)))
        except eande.InputError as error:
            ended.append(error)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [str(error) for error in ended if isinstance(error, eande.InputError)]
    assert len(ended) == 6
    assert len(refused) < 6
    assert all("another fit is using this folder" in error for error in refused)


HOLDING = """
    import sys, time, warnings
    import torch, eande

    warnings.simplefilter("ignore")
    phi = torch.rand(40, 2)

    def wait(record):
        print("running", flush=True)
        time.sleep(60)

    eande.fit(
        eande.Simulations.from_arrays(phi, phi),
        settings=eande.FitSettings(epochs=2, device="cpu", normalizer_draws=100),
        checkpoint=sys.argv[1],
        callback=wait,
        progress=False,
    )
"""


@pytest.mark.thorough
def test_a_killed_process_frees_its_folder(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(HOLDING), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "running\n"
        with pytest.raises(eande.InputError, match="another fit is using this folder"):
            fit(checkpoint=tmp_path)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    fit(checkpoint=tmp_path)


def as_pipe(path):
    os.mkfifo(path)


def as_folder(path):
    path.mkdir()


def as_loop(path):
    path.symlink_to(path)


def as_device(path):
    path.symlink_to("/dev/zero")


def as_zeros(path):
    with path.open("wb") as file:
        file.truncate(40 * 10**9)


STRANGE = {
    as_pipe: "expected a file, got a pipe",
    as_folder: "expected a file, got a folder",
    as_loop: "expected a file that can be read, got Too many levels of symbolic links",
    as_device: "expected a file, got a device",
    as_zeros: "got a file that is damaged or of another format",
}


@pytest.mark.parametrize("name", ["main", "start-0", "search", "random-both-300-0", "model"])
@pytest.mark.parametrize("make", STRANGE)
def test_what_is_no_file_of_ours_is_refused_at_once(tmp_path, make, name):
    path = tmp_path / f"{name}.safetensors"
    make(path)
    options = {"restarts": 2 if name == "start-0" else 1}
    if name in ("search", "random-both-300-0"):
        options = {"epochs": None, "start": "random", "repulsion": "both", "max_steps": 300}
    settings = small(**options)
    read = {"model": lambda: eande.load(path)}
    begin = time.monotonic()
    with pytest.raises(eande.InputError, match=STRANGE[make]) as caught:
        read.get(name, lambda: fit(checkpoint=tmp_path, settings=settings))()
    assert time.monotonic() - begin < 5
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_large_checkpoint_of_zeros_is_refused_before_it_is_read(tmp_path):
    """The header of a checkpoint, and 40 GB of a tensor that no run has."""
    fit(checkpoint=tmp_path)
    path = tmp_path / "main.safetensors"
    grow(path, "best.x", 40 * 10**9)
    with pytest.raises(eande.InputError, match="bytes on the disk instead of"):
        fit(checkpoint=tmp_path)


def grow(path: Path, name, more):
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    end = max(entry["data_offsets"][1] for key, entry in header.items() if key[0] != "_")
    header[name] = {"dtype": "U8", "shape": [more], "data_offsets": [end, end + more]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end + more)


def test_every_datum_in_memory_belongs_to_the_fit(tmp_path):
    """Of 3,000 data, one in the middle is another."""
    phi = PRIOR.sample(3_000, seed=0)
    y = torch.randn(3_000, 3, generator=torch.Generator().manual_seed(0))
    fit(phi, y, checkpoint=tmp_path)
    y[1_501] += 1
    with pytest.raises(eande.InputError, match="a checkpoint of this very fit with simulations"):
        fit(phi, y, checkpoint=tmp_path)


def test_a_view_of_few_data_belongs_to_the_fit(tmp_path):
    """The views differ for data of a large first entry, not for the first four."""
    y = Y.clone()
    y[:, 0] = torch.arange(40.0)
    fit(PHI, y, views=lambda y, _: y, checkpoint=tmp_path)
    with pytest.raises(eande.InputError, match="a checkpoint of this very fit with views"):
        fit(PHI, y, views=lambda y, _: torch.where(y > 20, 0, y), checkpoint=tmp_path)
