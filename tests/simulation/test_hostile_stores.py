"""Whatever lies in the place of a store's file or folder is refused at once, in a line."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import eande
from helpers.stores import simulate

FILES = (
    "zarr.json",
    "phi/zarr.json",
    "y/zarr.json",
    "phi/c/1/0",
    "y/c/1/0",
    "commits/00000001.json",
)


def as_folder(file):
    file.mkdir()


def as_device(file):
    file.symlink_to("/dev/zero")


def as_loop(file):
    file.symlink_to(file)


def as_huge(file):
    file.touch()
    os.truncate(file, 40 * 2**30)


KINDS = {
    "pipe": os.mkfifo,
    "device": as_device,
    "folder": as_folder,
    "loop": as_loop,
    "huge": as_huge,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "s.zarr"
    simulate(45, path)
    return path


@pytest.fixture
def path(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "s.zarr"))


@contextlib.contextmanager
def refusing(*kinds):
    """Expect one line, soon."""
    # The process's own time, for a busy machine is no hang; what waits would wait for ever.
    began = time.process_time()
    with pytest.raises(kinds or eande.InputError) as caught:
        yield caught
    assert time.process_time() - began < 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_refused_at_once(path, name, kind):
    file = path / name
    file.unlink()
    KINDS[kind](file)
    with refusing() as caught:
        _ = eande.Simulations.open(path).y[:]
    assert name in str(caught.value)
    if "zarr.json" in name:
        with refusing():
            eande.Store(path).check()
        with refusing():
            simulate(60, path)
    else:
        assert list(eande.Store(path).check()) == [1]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
@pytest.mark.parametrize("name", ["locks/store", "locks/00000005"])
def test_a_lock_that_is_no_file_is_refused_at_once(path, name, kind):
    (path / name).unlink(missing_ok=True)
    KINDS[kind](path / name)
    with refusing(eande.InputError, eande.SimulationError) as caught:
        simulate(60, path)
    assert "s.zarr" in str(caught.value)


@contextlib.contextmanager
def without_privileges():
    """Root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", [*FILES, "commits", "phi/c/1", "y/c/1"])
def test_what_may_not_be_read_is_said(original, name):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(shutil.copytree(original, f"{folder}/s.zarr"))
        (path / name).chmod(0)
        with refusing() as caught, without_privileges():
            _ = eande.Simulations.open(path).y[:]
        assert "Permission denied" in str(caught.value)
        assert name in str(caught.value)
        (path / name).chmod(0o755)


def test_records_that_may_be_listed_and_not_read_are_not_missing(original):
    """Without the right to enter their folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(shutil.copytree(original, f"{folder}/s.zarr"))
        (path / "commits").chmod(0o444)
        with refusing() as caught, without_privileges():
            eande.Simulations.open(path)
        assert "Permission denied" in str(caught.value)
        (path / "commits").chmod(0o755)


def test_folders_that_are_links_are_not_written_through(path, tmp_path):
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    elsewhere = tmp_path / "elsewhere"
    for name in ("phi", "phi/c", "y", "y/c", "commits", "locks"):
        (path / name).rename(elsewhere)
        (path / name).symlink_to(elsewhere)
        with refusing() as caught:
            simulate(60, path)
        assert f"{name}: expected a folder of the store, got a symbolic link" in str(caught.value)
        (path / name).unlink()
        elsewhere.rename(path / name)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("array", ["phi", "y"])
def test_nothing_behind_a_block_that_is_a_link_is_removed(path, tmp_path, array):
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("0", "thesis.tex"):
        (precious / name).write_text("x")
    (path / array / "c" / "5").symlink_to(precious)
    with refusing() as caught:
        simulate(60, path)
    assert f"{array}/c/5: expected a folder of the store, got a symbolic link" in str(caught.value)
    assert sorted(file.name for file in precious.iterdir()) == ["0", "thesis.tex"]
    assert all(file.read_text() == "x" for file in precious.iterdir())


def test_more_data_than_memory_are_said_in_a_line(tmp_path):
    """With a limit on the address space, in a process of its own."""
    code = f"""
import resource, eande, numpy as np
path = {str(tmp_path / "s.zarr")!r}
box = eande.BoxPrior([-1], [1])
def large(phi, rng):
    return np.zeros((len(phi), 1_000_000), dtype=np.float32)
stored = eande.simulate(large, box, 200, store=path, block_size=5, progress=False)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, now + 2**28))
try:
    stored.y[:]
except eande.InputError as error:
    print(error)
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "y: expected data that fit into memory, got 800000000 bytes" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_a_record_of_another_plan_is_refused(path):
    shutil.copy(path / "commits/00000001.json", path / "commits/00000007.json")
    for call in (lambda: eande.Simulations.open(path), lambda: eande.Store(path).check()):
        with refusing() as caught:
            call()
        assert "expected records of 5 blocks" in str(caught.value)


@pytest.mark.parametrize("folder", ["phi", "y", "commits"])
def test_strays_behind_a_link_are_nobodys(path, tmp_path, folder):
    outside = tmp_path / "outside"
    shutil.move(path / folder, outside)
    (path / folder).symlink_to(outside)
    stray = outside / "0.1.deadbeef.tmp"
    stray.write_text("precious")
    with contextlib.suppress(eande.InputError):
        simulate(45, path)
    assert stray.read_text() == "precious"
