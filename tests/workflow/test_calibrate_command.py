"""The step that calibrates: what it takes, and what the steps after it take."""

import json

import pytest
import torch

import eande
from eande.foundations.checks import InputError
from eande.similarities.calibrated import Calibrated
from eande.workflow.calibrate import take_calibrate, undo_calibrate
from eande.workflow.folder import run_folder
from eande.workflow.steps import (
    Context,
    checking,
    parts,
    take_diagnose,
    take_fit,
    take_sample,
    take_simulate,
    the_model,
)
from eande.workflow.study import read_study
from helpers.small_studies import write_study
from helpers.stores import damage

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning"),
]

# Far too long for so few simulations: its posteriors are too narrow.
OVER_FITTED = """
n = 120
held_out = 0.4
settings = eande.FitSettings(
    epochs=150,
    batch_size=32,
    learning_rate=1e-2,
    select_by="last",
    similarity=eande.Mixture(heads=4),
    normalizer_draws=500,
    device="cpu",
)
"""
# The same as arrays, whose simulator nobody has.
WITHOUT_SIMULATOR = """
_phi = prior.sample(n, seed=1)
_y = simulator(_phi.numpy(), np.random.default_rng(1))
simulations = eande.Simulations.from_arrays(_phi, _y)
del simulator
"""


def context_of(path):
    study = read_study(path)
    return Context(study, run_folder(study), progress=False)


@pytest.mark.slow
def test_later_steps_take_the_calibrated_model_until_it_is_undone(tmp_path):
    context = context_of(write_study(tmp_path, more=OVER_FITTED))
    take_simulate(context)
    take_fit(context)
    (narrow,) = take_sample(context, n=2_000)
    take_diagnose(context)
    taken = take_calibrate(context)
    assert "posteriors were too narrow (exponent" in taken.text
    assert taken.content["exponent"] < 0.8
    assert taken.content["simulations"] == 300
    assert json.loads(taken.paths[1].read_text()) == json.loads(json.dumps(taken.content))
    assert isinstance(the_model(context).similarity, Calibrated)
    (wide,) = take_sample(context, n=2_000)
    assert wide.content["std"][0] > 1.2 * narrow.content["std"][0]
    assert not take_diagnose(context).again
    assert take_calibrate(context).again
    assert take_calibrate(context, n=400).content["simulations"] == 400
    assert take_calibrate(context).content["simulations"] == 400
    assert "again as it was fitted" in undo_calibrate(context).text
    assert "not calibrated" in undo_calibrate(context).text
    assert not isinstance(the_model(context).similarity, Calibrated)


def test_another_fit_is_not_calibrated_by_the_former_one(tmp_path):
    context = context_of(write_study(tmp_path, more=OVER_FITTED))
    take_simulate(context)
    take_fit(context)
    take_calibrate(context, n=100)
    taken = take_fit(context, {"epochs": 100})
    assert "the calibration was of another model" in taken.text
    assert not isinstance(the_model(context).similarity, Calibrated)
    take_calibrate(context, n=100)
    assert isinstance(the_model(context).similarity, Calibrated)
    assert "another model" not in take_fit(context, {"epochs": 100}).text


def test_the_fresh_simulations_train_and_check_nothing(tmp_path):
    context = context_of(write_study(tmp_path, more=OVER_FITTED))
    take_simulate(context)
    take_fit(context)
    take_calibrate(context, n=100)
    (store,) = (context.folder.path / "calibration").iterdir()
    fresh = eande.Simulations.open(store).phi
    for part in parts(context):
        assert not torch.isin(fresh[:, 0], part.phi[:, 0]).any()


def test_fresh_simulations_that_are_damaged_are_made_again(tmp_path):
    context = context_of(write_study(tmp_path, more=OVER_FITTED))
    take_simulate(context)
    take_fit(context, {"epochs": 2})
    first = take_calibrate(context, n=100)
    (store,) = (context.folder.path / "calibration").iterdir()
    damage(store)
    again = take_calibrate(context, n=100)
    assert again.again
    assert again.content == first.content


def test_without_a_simulator_half_of_what_is_held_out_calibrates_and_half_checks(tmp_path):
    context = context_of(write_study(tmp_path, more=f"{OVER_FITTED}\nn = 250{WITHOUT_SIMULATOR}"))
    take_fit(context)
    _, held_out = parts(context)
    assert len(checking(context)) == len(held_out) == 100
    assert take_calibrate(context).content["simulations"] == 50
    left = checking(context)
    assert len(left) == 50
    assert take_calibrate(context).again
    take_diagnose(context)
    assert json.loads(context.folder.diagnosis.read_text())["held_out"] == 50
    with pytest.raises(InputError, match="expected a study with a simulator"):
        take_calibrate(context, n=100)


def test_too_few_held_out_to_calibrate_by_are_refused(tmp_path):
    more = f"{OVER_FITTED}\nn = 60\nheld_out = 0.3{WITHOUT_SIMULATOR}"
    context = context_of(write_study(tmp_path, more=more))
    take_fit(context, {"epochs": 2})
    with pytest.raises(
        InputError, match=r"at least 40 parameters held out .* got 18: set held_out"
    ):
        take_calibrate(context)


def test_a_model_is_needed_first(tmp_path):
    context = context_of(write_study(tmp_path))
    take_simulate(context, n=50)
    with pytest.raises(InputError, match=r"type: eande fit point.py"):
        take_calibrate(context)
