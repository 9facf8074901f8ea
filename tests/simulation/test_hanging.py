"""Simulations that hang or end their process cost only themselves."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import eande
from eande.simulation.run import workers
from eande.simulation.run.blocks import Job
from toys import noisy, one

BOX = eande.BoxPrior([-1, -1], [1, 1])


def simulate(simulator, n=60, **options):
    return eande.simulate(simulator, BOX, n, **{"block_size": 8, "progress": False, **options})


def test_a_hanging_simulation_is_cut_off_and_costs_only_itself():
    expected = simulate(eande.each(one), 40)
    highest = expected.phi[:, 0].max().item()

    def hanging(phi, rng):
        if phi[0] == highest:
            time.sleep(1_000)
        return one(phi, rng)

    with pytest.warns(eande.EandeWarning, match=r"took longer than 0.5 s"):
        done = simulate(eande.each(hanging), 40, executor=2, timeout=0.5)
    assert set(done.failures.reasons) == {"took longer than 0.5 s"}
    assert torch.equal(done.y, expected.y[expected.phi[:, 0] < highest])
    with pytest.warns(eande.EandeWarning, match="timeout is not enforced here"):
        simulate(noisy, timeout=1.0)


def test_a_program_that_hangs_is_cut_off_with_the_simulation_that_ran_it(tmp_path):
    def hanging(phi, rng):
        process = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pid").write_text(str(process.pid))
        process.wait()

    with (
        pytest.warns(eande.EandeWarning, match="took longer"),
        pytest.raises(eande.SimulationError, match=r"none of 1 .* took longer than 0.5 s"),
    ):
        simulate(eande.each(hanging), 1, executor=1, timeout=0.5, failure_limit=1.0)
    for _ in range(100):
        status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the program still runs")


def test_a_simulation_that_kills_its_process_costs_only_itself():
    highest = simulate(noisy, 16).phi[:, 0].max().item()

    def crashing(phi, rng):
        if phi[0] == highest:
            os.kill(os.getpid(), signal.SIGSEGV)
        return one(phi, rng)

    def crashing_batch(phi, rng):
        if (phi[:, 0] == highest).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return noisy(phi, rng)

    for simulator, code in (
        (eande.each(crashing), -signal.SIGSEGV),
        (crashing_batch, -signal.SIGKILL),
    ):
        with pytest.warns(eande.EandeWarning, match="killed its process"):
            done = simulate(simulator, 16, executor=1)
        assert done.failures.reasons == (f"killed its process 3 times (exit code {code})",)
        assert done.failures.phi[0, 0] == highest
        assert len(done) == 15


def test_a_worker_killed_by_somebody_is_replaced_and_nothing_is_lost(tmp_path):
    def slow(phi, rng):
        (tmp_path / f"{os.getpid()}.pid").touch()
        time.sleep(0.05)
        return noisy(phi, rng)

    def kill_one():
        while not (found := list(tmp_path.glob("*.pid"))):
            time.sleep(0.01)
        os.kill(int(found[0].stem), signal.SIGKILL)

    with ThreadPoolExecutor(1) as other:
        killing = other.submit(kill_one)
        done = simulate(slow, 160, executor=2)
        killing.result()
    assert len(list(tmp_path.glob("*.pid"))) == 3
    assert torch.equal(done.y, simulate(noisy, 160).y)


def gone(pid):
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


RUNS_PROGRAMS = """
import subprocess, sys, time, ctypes, os, eande
from pathlib import Path
def hanging(phi, rng):
    Path(sys.argv[1], str(os.getpid())).touch()
    for _ in range(2):
        Path(sys.argv[1], str(subprocess.Popen(["sleep", "1000"]).pid)).touch()
    # Inside a C function, with the lock of the interpreter held.
    ctypes.PyDLL(None).sleep(1000)
box = eande.BoxPrior([-1, -1], [1, 1])
eande.simulate(eande.each(hanging), box, 4, executor=1, progress=False)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_programs_end_with_the_main_process(tmp_path, ending):
    process = subprocess.Popen([sys.executable, "-c", RUNS_PROGRAMS, str(tmp_path)])
    while len(list(tmp_path.iterdir())) < 3:
        time.sleep(0.02)
        assert process.poll() is None
    time.sleep(0.2)
    process.send_signal(ending)
    process.wait()
    for _ in range(100):
        if all(gone(file.name) for file in tmp_path.iterdir()):
            return
        time.sleep(0.05)
    pytest.fail("something still runs")


def test_a_worker_has_no_child_that_the_simulator_did_not_start():
    def waiting(phi, rng):
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return phi
        raise RuntimeError("a child")

    assert len(simulate(eande.each(waiting), 8, executor=1, timeout=20.0)) == 8


def test_a_simulator_that_closes_the_standard_files_does_no_harm(tmp_path):
    def closing(phi, rng):
        os.close(1)
        os.close(2)
        os.write(os.open(os.devnull, os.O_WRONLY), b"words")
        return phi

    path = tmp_path / "s.zarr"
    stored = simulate(eande.each(closing), 24, store=path, executor=1, timeout=10.0)
    assert len(stored) == 24
    assert torch.equal(stored.y[:], stored.phi)
    assert eande.Store(path).check() == {}


class Stuck:
    """A store in which writing takes forever, or ends the process."""

    def __init__(self, then):
        self.then = then

    def record(self, block):
        return None

    @contextlib.contextmanager
    def writing(self, block):
        yield True

    def write(self, block, outcome):
        self.then()


def sleep_on():
    time.sleep(1_000)


def leave_a_child():
    """A child that holds everything open when its parent dies."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
        os._exit(0)
    os._exit(3)


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (sleep_on, "took over 0.5 s and died 3 times while writing"),
        (leave_a_child, r"died 3 times while writing \(exit code 3\)"),
    ],
)
def test_a_worker_that_is_stuck_while_writing_is_ended(monkeypatch, then, message):
    monkeypatch.setattr(workers, "_SECONDS_TO_WRITE", 0.5)
    pool = workers.Workers(1, 5.0, noisy, functools.partial(Stuck, then))
    began = time.monotonic()
    try:
        with pytest.raises(eande.SimulationError, match=message):
            pool.submit(Job(0, torch.zeros(3, 2).numpy(), 0)).result()
    finally:
        pool.close()
    assert time.monotonic() - began < 25
