"""Commands that are killed at any moment: the same command goes on, to the same result."""

import json
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import xarray

import eande
from helpers.small_studies import write_study

SLOWER = """
import time
_fast = simulator

def simulator(phi, rng):
    time.sleep(0.05)
    return _fast(phi, rng)

n = 1500
"""
STEPS = ("simulate", "fit", "sample", "diagnose", "report")


def start(step, study):
    command = [sys.executable, "-W", "ignore", "-m", "eande", step, str(study)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(step, study):
    process = start(step, study)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, f"{step}: {out}{err}"


def result_of(study):
    """What a run found: numbers, without dates."""
    folder = study.parent / "runs" / study.stem
    model = eande.load(folder / "model.eande")
    samples = xarray.open_dataset(folder / "samples" / "observed.nc")
    report = json.loads((folder / "report.json").read_text())
    return {
        "phi": eande.Simulations.open(folder / "simulations.zarr").phi,
        "weights": torch.cat([x.flatten() for x in model.state_dict().values()]),
        "samples": np.stack([samples["a"], samples["b"]]),
        "diagnosis": json.loads((folder / "diagnosis.json").read_text()),
        "verdicts": report["verdicts"],
    }


def check_same(one, other):
    assert torch.equal(one["phi"], other["phi"])
    assert torch.equal(one["weights"], other["weights"])
    assert (one["samples"] == other["samples"]).all()
    assert one["diagnosis"] == other["diagnosis"]
    assert one["verdicts"] == other["verdicts"]


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, marks=pytest.mark.thorough),
        pytest.param(10, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("steps", [STEPS, ("run",)], ids=["step by step", "run"])
def test_each_command_killed_and_run_again_completes_with_the_same_result(steps, kills, tmp_path):
    whole = write_study(tmp_path / "whole", more=SLOWER)
    lengths = {}
    for step in steps:
        began = time.monotonic()
        finish(step, whole)
        lengths[step] = time.monotonic() - began
    expected = result_of(whole)
    moments = random.Random(0)
    killed = write_study(tmp_path / "killed", more=SLOWER)
    ended = 0
    for step in steps:
        for _ in range(kills):
            process = start(step, killed)
            # Most of a short command is the import of torch: the rest is what is to be hit.
            time.sleep(lengths[step] * moments.uniform(0.3, 1.0))
            ended += process.poll() is None
            process.kill()
            process.communicate()
        finish(step, killed)
    assert ended > 0, "no command was still at work when it was killed"
    check_same(result_of(killed), expected)


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
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == (130 if number == signal.SIGINT else 143), err
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert re.search("the same (call|command) goes on", err), err
    assert 0 < len(eande.Simulations.open(store.parent)) < 1500
    finish("simulate", study)
    assert len(eande.Simulations.open(store.parent)) == 1500
