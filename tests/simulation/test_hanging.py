"""Simulations that hang or end their process cost only themselves."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import eande
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
