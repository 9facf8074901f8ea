"""The commands: what they print, how they end."""

import json
import os
import re
import resource
import subprocess
import sys

import distributed
import pytest
from typer.testing import CliRunner

import eande
from eande.cli.app import app
from helpers.command_line import refused
from helpers.small_studies import write_study

pytestmark = pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")


def done(*arguments, code=0):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.thorough
def test_a_study_from_the_first_command_to_the_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path)
    assert "next: eande fit point.py" in done("simulate", "point.py")
    said = done("fit", "point.py", "epochs=30")
    assert "nats about the parameters" in said
    assert "runs/point/model.eande" in said
    assert "next: eande diagnose point.py" in done("sample", "point.py", "-n", "500")
    assert "next: eande report point.py" in done("diagnose", "point.py")
    done("report", "point.py")
    assert (tmp_path / "runs" / "point" / "report.html").stat().st_size > 50_000
    assert "next: eande sample point.py" in done("calibrate", "point.py", "-n", "150")
    assert "calibrated.eande: a model\n" in done("info", "runs/point/calibrated.eande")
    assert "the model is again as it was fitted" in done("calibrate", "point.py", "--undo")
    for path in ("point.py", "runs/point", "runs/point/simulations.zarr"):
        assert f"{path}: a " in done("info", path)
    assert "runs/point" in done("info", ".")
    for name, what in (
        ("samples/observed.nc", "samples"),
        ("samples/observed.json", "a summary of samples"),
        ("diagnosis.json", "a diagnosis"),
        ("report.json", "a report"),
        ("report.html", "a report"),
    ):
        assert f"{name}: {what}\n" in done("info", f"runs/point/{name}")
    assert "500 draw" in done("info", "runs/point/samples/observed.nc")
    assert "5 members" not in done("info", "runs/point/model.eande")


@pytest.mark.thorough
def test_run_takes_all_steps_and_for_machines_prints_json(tmp_path):
    study = write_study(tmp_path)
    lines = [json.loads(line) for line in done("run", study, "-n", "250", "--json").splitlines()]
    assert [line["step"] for line in lines] == ["simulate", "fit", "sample", "diagnose", "report"]
    assert lines[0]["simulations"] == 250
    assert lines[1]["score"] > 0
    again = [json.loads(line) for line in done("run", study, "-n", "250", "--json").splitlines()]
    assert [line["there"] for line in again] == [True] * 5
    assert again[4] == lines[4] | {"there": True}


@pytest.mark.filterwarnings("ignore:.*simulations failed")
def test_info_says_why_simulations_failed(tmp_path):
    failing = """
    def simulator(phi, rng):
        y = np.tile(phi, 2)
        y[phi[:, 0] > 0.5] = np.nan
        return y
    """
    done("simulate", write_study(tmp_path, more=failing), "-n", "60")
    said = done("info", tmp_path / "runs" / "point" / "simulations.zarr")
    assert re.search(r"failed +\d+\n  reasons +\d+ × ", said)


def test_a_damaged_store_names_the_command_that_mends_it(tmp_path):
    study = write_study(tmp_path)
    done("simulate", study)
    path = tmp_path / "runs" / "point" / "simulations.zarr"
    whole = eande.Simulations.open(path).y[:]
    os.truncate(path / "y/c/1/0", 50)
    assert "eande simulate STUDY --redo damaged" in refused("fit", str(study))
    assert "there already" not in done("simulate", study, "--redo", "damaged")
    assert (eande.Simulations.open(path).y[:] == whole).all()
    assert "there already" in done("simulate", study)


@pytest.mark.filterwarnings("ignore:.*simulations failed")
def test_what_failed_is_tried_again(tmp_path):
    failing = f"""
    from pathlib import Path

    def simulator(phi, rng):
        if not Path({str(tmp_path / "mended")!r}).exists():
            raise ValueError("no licence")
        return np.tile(phi, 2)
    """
    study = write_study(tmp_path, more=failing)
    said = done("simulate", study, "-n", "40", code=1)
    assert "(eande simulate STUDY --redo failed) tries the failed ones again" in said
    (tmp_path / "mended").touch()
    assert "40 simulations of" in done("simulate", study, "-n", "40", "--redo", "failed")


def test_fewer_simulations_than_there_are_are_refused_in_words_of_the_command(tmp_path):
    study = str(write_study(tmp_path))
    done("simulate", study, "-n", "60")
    said = refused("simulate", study, "-n", "20")
    assert "n: expected at least 60, what" in said
    assert "without -n all of them are taken, and --run FOLDER starts another run" in said
    assert "Simulations.open" not in said


@pytest.mark.thorough
def test_run_says_that_nothing_was_sampled_without_an_observation(tmp_path):
    study = write_study(tmp_path, more="observed = None")
    said = done("run", study, "-n", "220", "epochs=5")
    assert "not sampled: no observation; observed = … in point.py gives one" in said
    assert (tmp_path / "runs" / "point" / "report.html").exists()


@pytest.mark.thorough
def test_worker_processes_simulate_the_same(tmp_path):
    for name, options in (("one", ()), ("two", ("--workers", "2"))):
        done("simulate", write_study(tmp_path / name), "-n", "200", *options)
    one, two = (
        eande.Simulations.open(tmp_path / name / "runs" / "point" / "simulations.zarr").y[:]
        for name in ("one", "two")
    )
    assert (one == two).all()


def test_new_writes_a_study_once(tmp_path):
    path = tmp_path / "study.py"
    assert f"next: eande run {path}" in done("new", path)
    assert "expected a new file" in refused("new", str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing.py"], "got nothing at"),
        (["simulate", "point.py", "-n", "0"], "should be greater than or equal to 1"),
        (["simulate", "point.py", "--workers", "2", "--dask", "x"], "--workers or --dask"),
        (["fit", "point.py", "epochs"], "expected KEY=VALUE"),
        (["info", "some.json"], "some.json, of something else"),
        (["fit", "point.py"], "type: eande simulate point.py"),
        (["sample", "point.py", "--observed", "nothing.npy"], "got nothing at"),
        (["info", "nothing"], "expected a study, run, store or model, got nothing"),
        (["info", "."], "a folder of something else"),
        (["new", "study.py", "--from", "nothing"], "expected a folder"),
        (["simulate", "point.py", "--run", "point.py"], "is a file"),
        (["calibrate", "point.py"], "type: eande simulate point.py"),
        (["rounds", "point.py", "-n", "70"], "simulations: expected a whole number of at least 80"),
        (["rounds", "point.py", "epocs=3"], "epocs: expected a setting of FitSettings"),
        (["run", "point.py", "encoder=set"], "what the study file says: write encoder = … there"),
    ],
)
def test_silly_arguments_are_refused_in_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path)
    (tmp_path / "some.json").write_text('{"study": "of something else"}')
    said = refused(*arguments)
    assert message in said
    assert "Traceback" not in said


def test_a_dask_cluster_that_is_not_there_is_said(tmp_path):
    study = write_study(tmp_path)
    said = refused("simulate", str(study), "--dask", "nonsense://nowhere")
    assert "expected the address of a scheduler" in said
    with pytest.raises(ValueError, match="No global client"):
        distributed.get_client()


def test_an_error_is_one_line_and_with_debug_its_trace(tmp_path):
    path = write_study(tmp_path, more="1 / 0")
    said = refused("simulate", str(path))
    assert said.startswith("Error: point.py, line")
    assert "ZeroDivisionError: division by zero" in said
    result = CliRunner().invoke(app, ["simulate", str(path), "--debug"])
    assert isinstance(result.exception.__cause__, ZeroDivisionError)


def test_what_nobody_expected_is_one_line_too(tmp_path, monkeypatch):
    def surprise(*_):
        raise RuntimeError("sizes\n  differ")

    monkeypatch.setattr("eande.workflow.look.look_at", surprise)
    said = done("info", tmp_path, code=1)
    assert said.strip() == "Error: RuntimeError: sizes differ (--debug shows where)"
    result = CliRunner().invoke(app, ["info", str(tmp_path), "--debug"])
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.thorough
def test_a_simulator_that_always_fails_ends_with_code_1(tmp_path):
    path = write_study(tmp_path, more="def simulator(phi, rng):\n    raise ValueError('no')")
    said = done("simulate", path, "-n", "20", code=1)
    assert "ValueError: no" in said
    assert "Traceback" not in said


def test_doctor_says_what_is_there():
    said = done("doctor")
    assert "torch 2." in said
    found = json.loads(done("doctor", "--json"))
    assert found["versions"]["torch"]
    assert set(found["extras"]) == {"simulators", "scale", "sbi", "arviz"}


def test_doctor_names_the_command_that_installs_what_is_missing(monkeypatch):
    monkeypatch.setattr("eande.cli.doctor.find_spec", lambda name: None)
    assert "[ ] sbi, for the baselines and the bridge to sbi: pip install 'embed-and" in done(
        "doctor"
    )


def test_help_comes_at_once():
    """By the time of its own processor, for a busy machine is no slow command."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "eande", "--help"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5
    for command in ("new", "simulate", "fit", "calibrate", "rounds", "report", "run", "doctor"):
        assert command in said
