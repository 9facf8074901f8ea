"""Rounds that are stopped at any moment come to the same result."""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eande
from eande.foundations.checks import InputError
from eande.foundations.files import digest_file
from helpers import rounds_runs
from helpers.rounds_runs import make, observe, simulator

Y = observe([0.5, -0.3])
RUN = """
import json, sys
import torch
torch.set_num_threads(1)
import eande
from helpers.rounds_runs import make, observe, fingerprint
eande.rounds, eande.fit  # their imports take as long as two rounds
print("begun", flush=True)
model, info = make(observe([0.5, -0.3]), checkpoint=sys.argv[1], block_size=50)
print(json.dumps(fingerprint(model, info)), flush=True)
"""


def start(folder):
    """A process that makes rounds, and has begun to."""
    tests = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r}){RUN}", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begun\n", process.stderr.read()
    return process


def finish(process):
    shown, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(shown)


def killed_at_random(folder, kills, seed):
    """Kill runs at random moments, begin anew where one has ended, and return all their ends."""
    chance = random.Random(seed)
    ends = []
    done = 0
    while done < kills:
        process = start(folder)
        try:
            process.wait(timeout=chance.uniform(0.02, 2.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            done += 1
        else:
            ends.append(finish(process))
            shutil.rmtree(folder)
    ends.append(end_of(folder))
    return ends


def end_of(folder):
    """What the same rounds come to in this process, which has imported all that they need."""
    model, info = make(Y, checkpoint=str(folder), block_size=50)
    return json.loads(json.dumps(rounds_runs.fingerprint(model, info)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return end_of(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.thorough
def test_some_kills_change_nothing(tmp_path, undisturbed):
    assert all(end == undisturbed for end in killed_at_random(tmp_path / "run", 2, seed=1))


@pytest.mark.slow
def test_fifty_kills_change_nothing(tmp_path, undisturbed):
    ends = killed_at_random(tmp_path / "run", 50, seed=2)
    assert all(end == undisturbed for end in ends)
    print(f"50 kills, {len(ends)} runs that came to their end: all identical")


class Counted:
    """A simulator that counts what it is asked for."""

    def __init__(self):
        self.settings = {}
        self.simulated = 0

    def __call__(self, phi, rng):
        self.simulated += len(phi)
        return simulator(phi, rng)


def test_the_same_call_does_nothing_twice(tmp_path, monkeypatch):
    counted = Counted()
    folder = tmp_path / "run"
    model, info = make(Y, simulator=counted, checkpoint=folder)
    made = counted.simulated
    monkeypatch.setattr("eande.sequential.folder.fit", None)
    monkeypatch.setattr("eande.sequential.rounds.judge", None)
    again, info_again = make(Y, simulator=counted, checkpoint=folder)
    assert counted.simulated == made == info.simulations
    assert rounds_runs.fingerprint(again, info_again) == rounds_runs.fingerprint(model, info)
    # What it took is that of the first time.
    assert [one.seconds_fitting for one in info_again.rounds] == [
        one.seconds_fitting for one in info.rounds
    ]


def test_a_checkpoint_changes_no_result(tmp_path):
    kept = make(Y, checkpoint=tmp_path / "run")
    assert rounds_runs.fingerprint(*kept) == rounds_runs.fingerprint(*make(Y))


def test_another_observation_begins_with_the_same_first_round(tmp_path):
    counted = Counted()
    folder = tmp_path / "run"
    make(Y, simulator=counted, checkpoint=folder, rounds=2, simulations=400)
    assert counted.simulated == 400
    other = observe([-0.8, 1.0])
    model, info = make(other, simulator=counted, checkpoint=folder, rounds=2, simulations=400)
    assert counted.simulated == 600
    assert len(list((folder / "fits").iterdir())) == 3
    alone = make(other, rounds=2, simulations=400)
    assert rounds_runs.fingerprint(model, info) == rounds_runs.fingerprint(*alone)


def test_simulations_go_where_they_are_asked_to(tmp_path):
    make(Y, checkpoint=tmp_path / "run", store=tmp_path / "data", rounds=2, simulations=200)
    stores = sorted((tmp_path / "data").iterdir())
    assert [len(eande.Simulations.open(store)) for store in stores] == [100, 100]
    assert not (tmp_path / "run" / "simulations").exists()


def test_the_table_lies_beside_the_models(tmp_path):
    _, info = make(Y, checkpoint=tmp_path / "run", rounds=2, simulations=200)
    (table,) = (tmp_path / "run").glob("rounds-*.json")
    assert json.loads(table.read_text()) == json.loads(json.dumps(info.describe()))


def test_a_damaged_end_of_a_round_is_refused_in_a_line(tmp_path):
    folder = tmp_path / "run"
    make(Y, checkpoint=folder, rounds=2, simulations=200)
    end = min((folder / "ends").iterdir())
    content = bytearray(end.read_bytes())
    content[-1] ^= 1
    end.write_bytes(content)
    with pytest.raises(InputError, match="expected the checksum stored with it") as caught:
        make(Y, checkpoint=folder, rounds=2, simulations=200)
    assert "\n" not in str(caught.value)


def test_a_prior_that_no_file_can_hold_is_cut_off_again(tmp_path):
    def draw(n, seed):
        return np.random.default_rng(seed).uniform(-2, 2, (n, 2))

    prior = eande.SamplerPrior(draw, names=["a", "b"])
    options = {"prior": prior, "checkpoint": tmp_path / "run", "rounds": 2, "simulations": 400}
    model, info = make(Y, **options)
    assert info.rounds[1].log_mass < -0.5
    ends = [digest_file(path) for path in sorted((tmp_path / "run" / "ends").iterdir())]
    assert len(ends) == 1
    assert rounds_runs.fingerprint(*make(Y, **options)) == rounds_runs.fingerprint(model, info)
