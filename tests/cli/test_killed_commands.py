"""Commands that are killed at any moment: the same command goes on, to the same result."""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import xarray
from typer.testing import CliRunner

import eande
from eande.cli.app import app
from helpers.processes import wait_until
from helpers.small_studies import write_study

SLOWER = """
import time
_fast = simulator

def simulator(phi, rng):
    time.sleep(0.05)
    return _fast(phi, rng)

n = 1500
"""
STEPS = ("simulate", "fit", "calibrate", "sample", "diagnose", "report")


def start(step, study):
    command = [sys.executable, "-W", "ignore", "-m", "eande", step, str(study)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(step, study):
    process = start(step, study)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"{step}: {out}{err}"


def finish_here(step, study):
    done = CliRunner().invoke(app, [step, str(study)])
    assert done.exit_code == 0, done.output


def result_of(study):
    """What a run found: numbers, without dates."""
    folder = study.parent / "runs" / study.stem
    calibrated = folder / "calibrated.eande"
    model = eande.load(calibrated if calibrated.exists() else folder / "model.eande")
    samples = xarray.open_dataset(folder / "samples" / "observed.nc")
    report = json.loads((folder / "report.json").read_text())
    return {
        "phi": eande.Simulations.open(folder / "simulations.zarr").phi,
        "weights": torch.cat([x.flatten() for x in model.state_dict().values()]),
        "samples": np.stack([samples["a"], samples["b"]]),
        "diagnosis": json.loads((folder / "diagnosis.json").read_text()),
        "verdicts": report["verdicts"],
    }


def rounds_of(study):
    """What rounds found: numbers, without dates."""
    folder = study.parent / "runs" / study.stem / "rounds"
    (record,) = (folder / "rounds").glob("rounds-*.json")
    rounds = [
        {name: value for name, value in one.items() if not name.startswith("seconds")}
        for one in json.loads(record.read_text())["rounds"]
    ]
    report = json.loads((folder / "report.json").read_text())
    samples = xarray.open_dataset(folder / "samples" / "observed.nc")
    return rounds, report["verdicts"], samples["a"].values.tolist()


def check_same(one, other):
    assert torch.equal(one["phi"], other["phi"])
    assert torch.equal(one["weights"], other["weights"])
    assert (one["samples"] == other["samples"]).all()
    assert one["diagnosis"] == other["diagnosis"]
    assert one["verdicts"] == other["verdicts"]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # as of a process of its own
@pytest.mark.usefixtures("undrawn")
def test_a_run_killed_in_two_of_its_steps_ends_with_the_same_result(tmp_path):
    """While it simulates, and while it fits.

    What is not killed runs in this process, which has imported all that it needs.
    """
    more = f"{SLOWER}\nn = 800"
    whole = write_study(tmp_path / "whole", more=more)
    finish_here("run", whole)
    killed = write_study(tmp_path / "killed", more=more)
    folder = tmp_path / "killed" / "runs" / "point"
    for reached in ("simulations.zarr/commits/*", "training/*/main.safetensors"):
        process = start("run", killed)
        assert wait_until(lambda reached=reached: any(folder.glob(reached)), 60)
        assert process.poll() is None
        process.kill()
        process.communicate()
    assert not (folder / "model.eande").exists()
    finish_here("run", killed)
    check_same(result_of(killed), result_of(whole))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "moments"),
    [
        pytest.param(("run",), np.linspace(0.2, 1, 10)),
        pytest.param(STEPS, np.linspace(0.2, 1, 10)),
    ],
    ids=["run", "each"],
)
def test_commands_killed_and_run_again_complete_with_the_same_result(steps, moments, tmp_path):
    """Moments are shares of what a command takes."""
    whole = write_study(tmp_path / "whole", more=SLOWER)
    lengths = {}
    for step in steps:
        began = time.monotonic()
        finish(step, whole)
        lengths[step] = time.monotonic() - began
    expected = result_of(whole)
    killed = write_study(tmp_path / "killed", more=SLOWER)
    ended = 0
    for step in steps:
        for share in moments:
            process = start(step, killed)
            time.sleep(lengths[step] * share)
            ended += process.poll() is None
            process.kill()
            process.communicate()
        finish(step, killed)
    assert ended > 0, "no command was still at work when it was killed"
    check_same(result_of(killed), expected)


@pytest.mark.slow
def test_rounds_killed_and_run_again_complete_with_the_same_result(tmp_path):
    whole = write_study(tmp_path / "whole", more=SLOWER)
    began = time.monotonic()
    finish("rounds", whole)
    length = time.monotonic() - began
    killed = write_study(tmp_path / "killed", more=SLOWER)
    ended = 0
    for share in np.linspace(0.2, 1, 10):
        process = start("rounds", killed)
        time.sleep(length * share)
        ended += process.poll() is None
        process.kill()
        process.communicate()
    finish("rounds", killed)
    assert ended > 0, "no command was still at work when it was killed"
    assert rounds_of(killed) == rounds_of(whole)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_says_so_and_goes_on(number, tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        study = write_study(tmp_path, more=SLOWER.replace("0.05", "0.3"))
        process = start("simulate", study)
        store = tmp_path / "runs" / "point" / "simulations.zarr" / "commits"
        until = time.monotonic() + 60
        while not (store.exists() and len(list(store.iterdir())) > 1):
            assert time.monotonic() < until, "nothing was simulated"
            time.sleep(0.01)
        # Not while a block is written: in the simulator, which takes most of the time.
        time.sleep(0.15)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert re.search("the same (call|command) goes on", err), err
    assert 0 < len(eande.Simulations.open(store.parent)) < 1500
    finish("simulate", study)
    # Whatever was stopped in the middle of a simulation is no failed one.
    simulations = eande.Simulations.open(store.parent)
    assert len(simulations) == 1500
    assert len(simulations.failures) == 0
