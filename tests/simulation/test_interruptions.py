"""Runs that are killed, interrupted or share a store."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import eande
from helpers.stores import BOX, assert_same, noisy

pytestmark = pytest.mark.thorough

SLOW = """
import sys, time, numpy as np, eande
def slow(phi, rng):
    open(sys.argv[2], "a").write("x")
    time.sleep(0.02)
    return np.concatenate([phi, phi**2], axis=1)[:, :3] + 0.1 * rng.standard_normal((len(phi), 3))
executor = None if sys.argv[3] == "None" else int(sys.argv[3])
eande.simulate(
    slow,
    eande.BoxPrior([-1, -1], [1, 1]),
    int(sys.argv[4]),
    store=sys.argv[1],
    block_size=10,
    executor=executor,
    progress=False,
)
"""


def start(path, n, executor=None):
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(path), str(path) + ".log", str(executor), str(n)],
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes):
    errors = [process.communicate()[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), errors


def commits(path):
    return len(list(Path(path).glob("commits/*.json")))


@pytest.mark.parametrize("executor", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_a_run_killed_again_and_again_ends_as_if_it_never_was(tmp_path, executor):
    path = tmp_path / "s.zarr"
    rng = random.Random(executor)
    kills = 0
    while kills < (5 if executor is None else 3):
        process = start(path, 1200, executor)
        before = commits(path)
        while commits(path) == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.2)
        kills += process.poll() is None
        process.kill()
        process.communicate()
        assert before < commits(path) < 120, "a kill came too late to test anything"
    finish(start(path, 1200, executor))
    expected = eande.simulate(noisy, BOX, 1200, block_size=10, progress=False)
    assert_same(eande.Simulations.open(path), expected)
    assert eande.Store(path).check() == {}
    # No more than what was in flight at each kill has been done twice.
    in_flight = 1 if executor is None else executor
    assert 120 <= len(Path(str(path) + ".log").read_text()) <= 120 + kills * in_flight


def test_two_processes_fill_one_store_together(tmp_path):
    path = tmp_path / "s.zarr"
    finish(start(path, 600), start(path, 600))
    assert_same(
        eande.Simulations.open(path), eande.simulate(noisy, BOX, 600, block_size=10, progress=False)
    )
    assert len(Path(str(path) + ".log").read_text()) == 60


def test_ctrl_c_finishes_the_blocks_in_flight_and_says_how_to_go_on(tmp_path):
    path = tmp_path / "s.zarr"
    process = start(path, 2000)
    while commits(path) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert process.returncode != 0
    assert (
        f"simulations are in {path}; the same call goes on from there" in message.splitlines()[-1]
    )
    assert len(Path(str(path) + ".log").read_text()) == commits(path)


RUNS_A_PROGRAM = """
import subprocess, sys, eande
def program(phi, rng):
    subprocess.run(["sleep", "0.05"], check=True)
    return phi
prior = eande.BoxPrior([-1, -1], [1, 1])
eande.simulate(
    eande.each(program), prior, 200, store=sys.argv[1], block_size=4, progress=False
)
"""


def test_ctrl_c_in_a_terminal_makes_no_failures(tmp_path):
    """It reaches the programs that a simulator runs, too.

    What they then fail to do is not their parameters' fault.
    """
    path = tmp_path / "s.zarr"
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS_A_PROGRAM, str(path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while commits(path) < 2:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate()
    assert "the same call goes on from there" in message.splitlines()[-1]
    assert commits(path) >= 2
    assert len(eande.Simulations.open(path).failures) == 0


def test_a_worker_of_a_dask_cluster_may_be_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "s.zarr"

    def slow(phi, rng):
        time.sleep(0.05)
        return noisy(phi, rng)

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        killed = []

        def kill_twice():
            for moment in (8, 30):
                while commits(path) < moment:
                    time.sleep(0.01)
                worker = random.Random(moment).choice(list(cluster.workers.values()))
                killed.append(worker.pid)
                os.kill(worker.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_twice)
        killer.start()
        stored = eande.simulate(
            slow, BOX, 800, store=path, block_size=10, executor=client, progress=False
        )
        killer.join()
    assert len(set(killed)) == 2
    assert_same(stored, eande.simulate(noisy, BOX, 800, block_size=10, progress=False))
    assert eande.Store(path).check() == {}


def test_trying_all_of_many_failed_blocks_again_needs_few_file_handles(tmp_path):
    """As many blocks as a process may open files."""
    code = f"""
import resource, numpy as np, eande, warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
def broken(phi, rng):
    raise RuntimeError("broken")
def mended(phi, rng):
    return phi
box = eande.BoxPrior([0], [1])
path = {str(tmp_path / "s.zarr")!r}
mended.__qualname__ = "broken"
try:
    eande.simulate(broken, box, 200, store=path, block_size=1, failure_limit=1.0, progress=False)
except (eande.InputError, eande.SimulationError) as error:
    print(error)
again = eande.simulate(mended, box, 200, store=path, block_size=1, redo="failed", progress=False)
print(len(again))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["200"], done.stderr[-2_000:]
