"""Studies that are stopped: their processes end with them, and what is complete is kept."""

import json
import os
import signal
import subprocess
import sys

import pytest

from helpers.processes import alive, children, wait_until

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _interruptible():
    """What a shell starts in the background ignores SIGINT, and so would all that tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(folder, *options, processes=2):
    command = [sys.executable, "-W", "ignore", "-m", "eande", "reproduce", "synthetic"]
    options = ["--size", "toy", "--processes", str(processes), "--output", str(folder), *options]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def workers(process):
    """The processes that have begun to work: a session of their own is what they begin with."""
    listed = children(process.pid)
    return [pid for pid in listed if leads_a_session(pid)]


def leads_a_session(pid):
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:  # it ended since it was listed
        return False


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
)
def test_the_processes_of_a_study_end_with_it(tmp_path, number):
    process = start(tmp_path, "--seeds", "9")
    assert wait_until(lambda: len(children(process.pid)) >= 2, 60)
    # Children that have not begun end as well, but these are the ones that would work on.
    wait_until(lambda: len(workers(process)) >= 2, 60)
    started = children(process.pid)
    process.send_signal(number)
    output = process.communicate(timeout=10)
    assert wait_until(lambda: not alive(started), 5), "they live on"
    if number == signal.SIGTERM:
        assert process.returncode == 143
    if number != signal.SIGKILL:
        assert process.returncode in (1, 130, 143)
        assert "Traceback" not in "".join(output)


@pytest.mark.slow
def test_a_study_that_is_stopped_keeps_what_is_complete_and_goes_on(tmp_path):
    process = start(tmp_path, "--seeds", "1", processes=1)
    path = tmp_path / "synthetic.json"
    assert wait_until(path.exists, 60)
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 143
    kept = json.loads(path.read_text())["runs"]
    assert 1 <= len(kept) < 4
    going_on = start(tmp_path, "--seeds", "1")
    said = going_on.communicate(timeout=120)
    assert going_on.returncode == 0, said
    runs = json.loads(path.read_text())["runs"]
    assert len(runs) == 4
    assert all(run in runs for run in kept)


@pytest.mark.slow
def test_two_studies_with_one_output_keep_all_runs(tmp_path):
    both = [start(tmp_path, "--seeds", "1", "--first-seed", str(i), processes=1) for i in (0, 1)]
    said = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    runs = json.loads((tmp_path / "synthetic.json").read_text())["runs"]
    assert len({(run["kappa"], run["redundant"], run["seed"]) for run in runs}) == 8


def test_a_study_whose_process_is_killed_says_so_in_one_line(tmp_path):
    process = start(tmp_path, "--seeds", "1")
    assert wait_until(lambda: len(workers(process)) >= 2, 60)
    os.kill(workers(process)[0], signal.SIGKILL)
    output = "".join(process.communicate(timeout=30))
    assert process.returncode == 1
    assert "a process of the study was killed" in " ".join(output.replace("│", " ").split())
    assert "Traceback" not in output
