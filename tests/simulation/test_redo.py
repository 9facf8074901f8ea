"""What is simulated again takes the place of what is there in one step, and never before."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

import eande
from eande.foundations import files
from eande.simulation.store import zarr_store
from helpers.stores import BOX, flip

BLOCK = 10
N = 45


class Moody:
    """Fails where the first parameter is high, as long as a file is there."""

    def __init__(self, switch, *, always=False):
        self._switch = switch
        self._always = always

    def __call__(self, phi, rng):
        if self._switch.exists() and (self._always or (phi[:, 0] > 0.7).any()):
            raise RuntimeError(self._switch.read_text())
        return phi + 0.1 * rng.standard_normal((len(phi), 2))


@pytest.fixture
def switch(tmp_path):
    switch = tmp_path / "broken"
    switch.write_text("the licence server is down")
    return switch


def simulate(simulator, path, **options):
    options = {"block_size": BLOCK, "progress": False, "failure_limit": 1.0, **options}
    return eande.simulate(simulator, BOX, N, store=path, **options)


@pytest.fixture
def path(tmp_path, switch):
    """A store with some failures."""
    path = tmp_path / "s.zarr"
    with pytest.warns(eande.EandeWarning, match="licence server"):
        simulate(Moody(switch), path)
    return path


def by_parameters(simulations):
    return {
        tuple(phi.tolist()): y for phi, y in zip(simulations.phi, simulations.y[:], strict=True)
    }


def assert_kept(before, after):
    """Whatever was there is there, bit for bit."""
    now = by_parameters(after)
    for phi, y in by_parameters(before).items():
        assert torch.equal(now[phi], y)


def test_good_rows_survive_a_simulator_that_now_fails(path, switch):
    before = eande.Simulations.open(path).in_memory()
    assert 0 < len(before.failures) < N
    switch.write_text("the disk is full")
    with pytest.warns(eande.EandeWarning, match="the disk is full"):
        after = simulate(Moody(switch, always=True), path, redo="failed")
    assert_kept(before, after)
    assert len(after) == len(before)
    assert set(after.failures.reasons) == {"RuntimeError: the disk is full"}


def test_only_failed_rows_are_run_again_each_with_its_own_stream(path, switch):
    before = eande.Simulations.open(path).in_memory()
    switch.unlink()
    calls = []

    class Watched(Moody):
        def __call__(self, phi, rng):
            calls.append(len(phi))
            return super().__call__(phi, rng)

    Watched.__qualname__ = "Moody"
    after = simulate(Watched(switch), path, redo="failed")
    assert calls == [1] * len(before.failures)
    assert len(after) == N
    assert_kept(before, after)
    one_by_one = eande.simulate(
        eande.each(lambda phi, rng: phi + 0.1 * rng.standard_normal(2)),
        BOX,
        N,
        block_size=BLOCK,
        progress=False,
    )
    truth = by_parameters(one_by_one)
    now = by_parameters(after)
    for phi in before.failures.phi:
        assert torch.equal(now[tuple(phi.tolist())], truth[tuple(phi.tolist())])
    assert eande.Store(path).check() == {}
    plain = zarr.open_group(path, mode="r")["y"][:N]
    assert np.array_equal(plain, after.y[:].numpy())


class Killed(BaseException):
    """Stands for a process that ends there and then."""


@pytest.mark.parametrize("redo", ["failed", "damaged"])
def test_a_kill_at_any_step_leaves_the_old_block_or_the_new(path, switch, redo, monkeypatch):
    before = eande.Simulations.open(path).in_memory()
    if redo == "damaged":
        flip(path / "y/c/1/0", 3)
    switch.unlink()
    ended = False
    for steps in range(200):
        left = [steps]

        def then_die(function, left=left):
            def wrapped(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return function(*args, **kwargs)

            return wrapped

        with monkeypatch.context() as patch:
            patch.setattr(files, "sync", then_die(files.sync))
            patch.setattr(zarr_store, "sync", then_die(zarr_store.sync))
            patch.setattr(files.os, "fsync", then_die(files.os.fsync))
            patch.setattr(Path, "replace", then_die(Path.replace))
            patch.setattr(Path, "unlink", then_die(Path.unlink))
            try:
                after = simulate(Moody(switch), path, redo=redo)
                ended = True
            except Killed:
                pass
        if ended:
            break
        if redo == "failed":
            now = eande.Simulations.open(path)
            assert_kept(before, now)
            assert len(now) + len(now.failures) == N
            assert eande.Store(path).check() == {}
        else:
            assert set(eande.Store(path).check()) <= {1}
    assert steps > 5
    assert len(after) == N if redo == "failed" else len(after) > len(before)
    assert eande.Store(path).check() == {}
    assert not list(path.rglob("*.tmp"))
    assert all("next" not in file.read_text() for file in path.glob("commits/*.json"))


def contents(path):
    """Return the bytes of every file of a store."""
    files = (file for file in path.rglob("*") if file.is_file() and "locks" not in file.parts)
    return {file.relative_to(path): file.read_bytes() for file in files}


def half_of_the_record(path):
    file = path / "commits" / "00000001.json"
    file.write_bytes(file.read_bytes()[:50])


DAMAGE = {
    "data": lambda path: flip(path / "y/c/1/0", 40),
    "index": lambda path: flip(path / "y/c/1/0", -1),
    "no data": lambda path: (path / "y/c/1/0").unlink(),
    "parameters": lambda path: flip(path / "phi/c/1/0", 3),
    "record": half_of_the_record,
}


class Wide(Moody):
    """Data of several pieces a block; in a bad mood it raises, or gives data of another shape."""

    def __init__(self, switch, *, shape=8_000):
        super().__init__(switch, always=True)
        self._shape = shape

    def __call__(self, phi, rng):
        if self._switch.exists() and self._shape != 8_000:
            return np.zeros((len(phi), self._shape))
        phi = super().__call__(phi, rng)
        return np.repeat(phi, 4_000, axis=1) + rng.standard_normal((len(phi), 8_000))


@pytest.mark.parametrize(
    ("damage", "shape", "executor"),
    [*((damage, shape, None) for damage in DAMAGE for shape in (8_000, 7)), ("data", 8_000, 2)],
)
def test_a_simulator_that_fails_leaves_a_damaged_block_to_be_brought_back(
    tmp_path, switch, damage, shape, executor
):
    path = tmp_path / "s.zarr"
    switch.unlink()
    before = simulate(Wide(switch, shape=shape), path).in_memory()
    whole = contents(path)
    DAMAGE[damage](path)
    damaged = contents(path)
    switch.write_text("the licence server is down")
    with pytest.raises(eande.SimulationError, match=r"block 1 stays as it is, damaged: ") as caught:
        simulate(Wide(switch, shape=shape), path, redo="damaged", executor=executor)
    reason = "data of shape" if shape == 7 else "the licence server is down"
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(path) == damaged
    switch.unlink()
    after = simulate(Wide(switch, shape=shape), path, redo="damaged")
    assert torch.equal(after.y[:], before.y)
    assert contents(path) == whole


@pytest.mark.parametrize("damage", ["data", "parameters", "record"])
def test_what_failed_before_may_fail_again_in_a_damaged_block(path, switch, damage):
    before = eande.Simulations.open(path).in_memory()
    DAMAGE[damage](path)
    with pytest.warns(eande.EandeWarning, match="licence server"):
        after = simulate(Moody(switch), path, redo="damaged")
    assert torch.equal(after.y[:], before.y)
    assert torch.equal(after.phi, before.phi)
    assert after.failures.reasons == before.failures.reasons
    assert eande.Store(path).check() == {}


def test_where_neither_record_nor_data_can_be_read_a_block_is_simulated_anew(path, switch):
    """Whether its rows had failed is lost, too."""
    DAMAGE["record"](path)
    DAMAGE["data"](path)
    with pytest.warns(eande.EandeWarning, match="licence server"):
        simulate(Moody(switch, always=True), path, redo="damaged")
    assert eande.Store(path).check() == {}


def test_failed_rows_of_a_damaged_block_are_not_run_before_it_is_mended(path, switch):
    flip(path / "y/c/1/0", 3)
    assert 1 in eande.Store(path).check()
    switch.unlink()
    with pytest.raises(eande.InputError, match=r"got block 1 damaged .*redo='damaged'"):
        simulate(Moody(switch), path, redo="failed")


def test_a_reader_that_opened_the_old_version_is_told(path, switch):
    before = eande.Simulations.open(path)
    switch.unlink()
    simulate(Moody(switch), path, redo="failed")
    with pytest.raises(eande.InputError, match="got another file: open the store again"):
        _ = before.y[:]
    assert len(eande.Simulations.open(path).y[:]) == N


def test_readers_see_the_old_block_or_the_new_while_it_is_replaced(path, switch):
    before = len(eande.Simulations.open(path))
    switch.unlink()
    problems = []
    seen = set()
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            try:
                simulations = eande.Simulations.open(path)
                damaged = eande.Store(path).check()
            except Exception as error:
                problems.append(error)
                return
            seen.add(len(simulations))
            problems.extend(damaged.values())

    watcher = threading.Thread(target=watch)
    watcher.start()
    simulate(Moody(switch), path, redo="failed")
    stop.set()
    watcher.join()
    assert problems == []
    assert all(before <= number <= N for number in seen)


REDO = """
import sys, time, eande
from pathlib import Path
class Moody:
    def __call__(self, phi, rng):
        with open(sys.argv[2], "a") as log:
            log.write(f"{len(phi)}\\n")
        time.sleep(0.02)
        if Path(sys.argv[3]).exists() and (phi[:, 0] > 0).any():
            raise RuntimeError("down")
        return phi
import warnings
warnings.simplefilter("ignore")
options = {} if len(sys.argv) < 5 else {"redo": sys.argv[4]}
done = eande.simulate(
    Moody(), eande.BoxPrior([-1, -1], [1, 1]), 60, store=sys.argv[1], block_size=5,
    failure_limit=1.0, progress=False, **options
)
print(len(done), len(done.failures))
"""


def start(path, log, switch, *redo):
    arguments = [sys.executable, "-c", REDO, path, log, switch, *redo]
    return subprocess.Popen(
        [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "mended",
    [pytest.param(True, marks=pytest.mark.thorough), pytest.param(False, marks=pytest.mark.slow)],
)
def test_several_processes_run_each_failed_row_once(tmp_path, switch, mended):
    path = tmp_path / "s.zarr"
    start(path, tmp_path / "first", switch).communicate()
    failed = len(eande.Simulations.open(path).failures)
    if mended:
        switch.unlink()
    processes = [start(path, tmp_path / "again", switch, "failed") for _ in range(2)]
    for process in processes:
        out, error = process.communicate()
        assert process.returncode == 0, error
        assert out.split() == (["60", "0"] if mended else [str(60 - failed), str(failed)])
    runs = len((tmp_path / "again").read_text().split())
    # A process that starts when another has ended a block whose rows failed again tries them again.
    assert (runs == failed) if mended else (runs >= failed)
    assert eande.Store(path).check() == {}
