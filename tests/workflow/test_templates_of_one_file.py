"""``eande new --from`` one file of all simulations: a study that runs."""

import re

import numpy as np
import pandas as pd
import pytest
import xarray
from typer.testing import CliRunner

import eande
from eande.cli.app import app
from eande.foundations.checks import InputError
from eande.workflow.study import read_study
from eande.workflow.template import write_template
from helpers.command_line import refused

RNG = np.random.default_rng(0)
PHI = RNG.uniform(size=(60, 2))
Y = PHI.sum(1, keepdims=True) + 0.1 * RNG.normal(size=(60, 5))


def as_csv(folder):
    names = ["rate", "size", *(f"day{i}" for i in range(1, 6))]
    frame = pd.DataFrame(np.hstack([PHI, Y]), columns=names)
    frame.to_csv(folder / "runs.csv")
    return folder / "runs.csv"


def as_npz(folder):
    np.savez(folder / "runs.npz", theta=PHI, x=Y, time=np.arange(5))
    return folder / "runs.npz"


def as_npz_of_columns(folder):
    np.savez(folder / "runs.npz", rate=PHI[:, 0], size=PHI[:, 1], level=Y)
    return folder / "runs.npz"


def as_netcdf(folder):
    dataset = xarray.Dataset(
        {
            "rate": ("run", PHI[:, 0]),
            "size": ("run", PHI[:, 1]),
            "level": (("run", "day"), Y),
            "depth": ("day", np.arange(5.0)),
        }
    )
    dataset.to_netcdf(folder / "runs.nc", engine="h5netcdf")
    return folder / "runs.nc"


def as_store(folder):
    prior = eande.BoxPrior([0, 0], [1, 1], names=["rate", "size"])
    eande.simulate(made_alike, prior, n=60, store=folder / "runs.zarr", progress=False)
    return folder / "runs.zarr"


def made_alike(phi, rng):
    return phi.sum(1, keepdims=True) + 0.1 * rng.normal(size=(len(phi), 5))


@pytest.mark.parametrize("write", [as_csv, as_npz, as_npz_of_columns, as_netcdf, as_store])
def test_a_study_of_one_file_reads_it(write, tmp_path):
    path = write_template(tmp_path / "study.py", write(tmp_path))
    study = read_study(path)
    assert len(study.simulations) == 60
    assert study.simulations.y_shape == (5,)
    named = None if write is as_npz else ("rate", "size")
    assert study.simulations.names == named
    if write is not as_store:
        assert np.allclose(study.simulations.phi, PHI)
        assert np.allclose(study.simulations.y, Y)
    text = path.read_text()
    assert "60 simulations in runs." in text
    # A box in which the parameters lie, but not much larger.
    box = eval(re.search(r"# prior = (eande.BoxPrior.*)", text)[1])
    assert box.names == (named or ("phi1", "phi2"))
    assert box.contains(study.simulations.phi).all()
    assert box.log_prob(study.simulations.phi).min() > -2 * np.log(1.1)
    assert "numbers of shape (5,)" in text
    # Neatly laid out: what formatters would make of it.
    assert "\n\n\n" not in text


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_the_command_takes_a_table_and_the_study_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    as_csv(tmp_path)
    done = CliRunner().invoke(app, ["new", "study.py", "--from", "runs.csv"])
    assert done.exit_code == 0, done.output
    assert "next: eande run study.py" in done.output
    done = CliRunner().invoke(app, ["fit", "study.py", "epochs=2", "width=8"])
    assert done.exit_code == 0, done.output
    assert "trained on 54 simulations" in done.output


def test_a_box_is_the_prior_where_parameters_fill_one_evenly(tmp_path):
    rng = np.random.default_rng(4)
    even = rng.uniform([0, 10], [1, 30], size=(400, 2))
    for phi, prior in (
        (even, "BoxPrior"),
        (even**2, "NoneType"),
        (np.stack([even[:, 0], 20 * even[:, 0] + rng.normal(size=400)], axis=1), "NoneType"),
    ):
        frame = pd.DataFrame(np.hstack([phi, phi]), columns=["a", "b", "y1", "y2"])
        frame.to_csv(tmp_path / "runs.csv", index=False)
        (tmp_path / "study.py").unlink(missing_ok=True)
        study = read_study(write_template(tmp_path / "study.py", tmp_path / "runs.csv"))
        assert type(study.prior).__name__ == prior


def test_parameters_can_be_named(tmp_path):
    frame = pd.DataFrame(np.hstack([PHI, Y[:, :2]]), columns=["a", "b", "low", "high"])
    frame.insert(0, "date", "1978-01-22")
    frame.to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(InputError, match="--parameters A,B names the parameters"):
        write_template(tmp_path / "study.py", tmp_path / "runs.csv")
    path = write_template(tmp_path / "study.py", tmp_path / "runs.csv", ["a", "b"])
    study = read_study(path)
    assert study.simulations.names == ("a", "b")
    # A column of texts is no data.
    assert study.simulations.y_shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--from runs.xlsx", "expected a folder, a store, or a file of simulations, one of .csv"),
        ("--from runs.csv --parameters speed", "parameters: expected columns of"),
        ("--from runs.npz", "expected parameters as phi or theta, or as arrays of one number"),
        ("--from runs.npz --parameters speed", "parameters: expected names in"),
        ("--from runs.nc", "expected data that can be read"),
        ("--from nothing.csv", "nothing.csv, where nothing is"),
        ("--parameters rate", "parameters: expected --from"),
    ],
)
def test_what_holds_no_simulations_is_refused_in_one_line(
    arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    as_csv(tmp_path)
    (tmp_path / "runs.xlsx").write_bytes(b"")
    (tmp_path / "runs.nc").write_bytes(b"nonsense")
    np.savez(tmp_path / "runs.npz", field=np.ones((3, 4)))
    assert message in refused("new", "study.py", *arguments.split())
    assert not (tmp_path / "study.py").exists()
