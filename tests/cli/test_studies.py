"""The studies from the command line, at toy size."""

import json
import re

import pytest
from typer.testing import CliRunner

from eande.cli.app import app
from eande.studies.lorenz96.search import STAGES
from helpers.command_line import refused

pytestmark = pytest.mark.thorough


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_the_synthetic_study_runs_at_toy_size(tmp_path):
    arguments = ["reproduce", "synthetic", "--size", "toy", "--seeds", "1"]
    arguments += ["--output", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "synthetic.json").read_text())
    assert len(content["runs"]) == 4
    assert {"date", "commit", "versions", "hardware"} <= content["provenance"].keys()
    assert {cell["paper_l1"] for cell in content["cells"]} == {0.032, 0.041, 0.049, 0.055}
    for name in (
        "synthetic-l1.png",
        "synthetic-posterior-kappa2.png",
        "synthetic-posterior-kappa8.png",
    ):
        assert (tmp_path / name).stat().st_size > 10_000
    # What is missing is run; what is there is shown, and not lost.
    missing = content["runs"].pop()
    (tmp_path / "synthetic.json").write_text(json.dumps(content))
    assert CliRunner().invoke(app, arguments).exit_code == 0
    completed = json.loads((tmp_path / "synthetic.json").read_text())["runs"]
    assert len(completed) == 4
    assert all(run in completed for run in content["runs"])
    assert completed[-1]["l1"] == missing["l1"]


def lorenz96(part, folder, *further):
    arguments = ["reproduce", "lorenz96", "--size", "toy", "--device", "cpu", "--only", part]
    done = CliRunner().invoke(app, [*arguments, "--output", str(folder), *further])
    assert done.exit_code == 0, done.output
    return done.output


def page(folder):
    lorenz96("page", folder, "--pages", str(folder / "pages"))
    return (folder / "pages" / "lorenz96.md").read_text()


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_the_lorenz96_study_searches_and_compares_at_toy_size(tmp_path, monkeypatch):
    assert {name: set(values) for name, values in STAGES["paper"][1:4]} == {
        "steps": {150, 300, 600, 1_200, 2_000},
        "view_weight": {0.0, 0.2, 0.4, 0.6, 0.8, 1.0},
        "embedding_dimension": {128, 256, 512},
    }
    stages = {"temperature": (1e-2, 3e-2, 1e-1), "view_weight": (0.0, 0.2)}
    monkeypatch.setitem(STAGES, "paper", list(stages.items()))
    lorenz96("search", tmp_path, "--method", "paper", "--system", "cited")
    path = tmp_path / "lorenz96-search.json"
    content = json.loads(path.read_text())
    tried = [run["settings"]["recipe"]["settings"] for run in content["runs"]]
    for setting, values in stages.items():
        assert {one[setting] for one in tried} == set(values)
    assert {run["seed"] for run in content["runs"]} == {1_000, 1_001}
    # What was tried is not tried again, and what is missing is.
    content["runs"].pop()
    path.write_text(json.dumps(content))
    said = lorenz96("search", tmp_path, "--method", "paper", "--system", "cited")
    assert said.count("held out") == 1
    lorenz96(
        "paper", tmp_path, "--system", "cited", "--seeds", "1", "--method", "E&E (the paper's)"
    )
    (run,) = json.loads((tmp_path / "lorenz96-paper.json").read_text())["runs"]
    assert run["settings"]["terms"]["simulations"] == 24
    assert run["fresh"]["regions"]["all"]["data"] == 20
    written = page(tmp_path)
    assert "### paper, b = 10, size toy" in written
    assert written.count("**") == 2, "one setting was chosen"
    assert re.search(r"\| E&E \(the paper's\) \| 1 \|", written)
    assert "Not run yet: NRE-C (the paper's), NPE-C (the paper's)." in written
    pictures = list((tmp_path / "pages").glob("lorenz96-paper-b10-*.png"))
    assert len(pictures) == 3
    assert all(picture.stat().st_size > 10_000 for picture in pictures)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
@pytest.mark.filterwarnings("ignore")  # of sbi and what it uses
def test_exponents_are_found_by_folds_or_by_fresh_simulations(tmp_path):
    rows = ("E&E", "E&E, 500 simulations more")
    methods = [word for row in rows for word in ("--method", row)]
    lorenz96("calibrated", tmp_path, "--system", "printed", "--seeds", "1", *methods)
    runs = json.loads((tmp_path / "lorenz96-calibrated.json").read_text())["runs"]
    exponents = {(run["method"], run["calibration"]): run.get("exponent") for run in runs}
    assert exponents["E&E", "none"] is None
    assert exponents["E&E", "cross-fitted"] > 0
    assert exponents[rows[1], "fresh"] > 0
    written = page(tmp_path)
    assert "What differs: the one row that says so, with further simulations." in written
    assert "E&E, uncalibrated" in written


def test_runs_on_file_that_were_made_in_another_way_are_refused(tmp_path):
    arguments = ("--system", "cited", "--seeds", "1", "--method", "E&E (the paper's)")
    lorenz96("paper", tmp_path, *arguments)
    path = tmp_path / "lorenz96-paper.json"
    content = json.loads(path.read_text())
    content["runs"][0]["settings"]["recipe"]["settings"]["temperature"] = 0.5
    path.write_text(json.dumps(content))
    said = refused(
        *("reproduce", "lorenz96", "--size", "toy", "--device", "cpu", "--only", "paper"),
        *("--output", str(tmp_path), *arguments),
    )
    assert "temperature 0.03, view_weight 0.2" in said
    assert "got one with steps 600, temperature 0.5" in said
    assert json.loads(path.read_text()) == content


@pytest.mark.slow
def test_a_search_of_two_processes_is_that_of_one(tmp_path):
    for workers in ("1", "2"):
        folder = tmp_path / workers
        lorenz96("search", folder, "--method", "ours", "--system", "cited", "--workers", workers)
    first, second = (
        json.loads((tmp_path / workers / "lorenz96-search.json").read_text())["runs"]
        for workers in ("1", "2")
    )
    assert {(run["trial"], run["seed"]): run["score"] for run in first} == {
        (run["trial"], run["seed"]): run["score"] for run in second
    }


def test_a_row_whose_search_was_not_run_is_refused(tmp_path):
    said = refused(
        *("reproduce", "lorenz96", "--size", "small", "--device", "cpu"),
        *("--output", str(tmp_path), "--only", "best"),
    )
    assert "expected a folder with the search of paper, turned for b = 10, size small" in said
    for part in ("best", "search"):
        silly = ("--only", part, "--method", "magic", "--output", str(tmp_path))
        said = refused("reproduce", "lorenz96", "--size", "toy", "--device", "cpu", *silly)
        assert "method: expected one of" in said


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
@pytest.mark.parametrize("part", ["timing", "training"])
def test_the_times_of_the_lorenz96_study_are_measured_at_toy_size(part, tmp_path):
    lorenz96(part, tmp_path)
    content = json.loads((tmp_path / f"lorenz96-{part}.json").read_text())
    if part == "timing":
        assert (
            content["seconds_by_number_of_phi"]["1000"]
            < 10 * content["seconds_by_number_of_phi"]["10000"]
        )
    else:
        assert min(content["seconds_with_one_view"], content["seconds_with_two_views"]) > 0
    assert len(page(tmp_path).splitlines()) > 11
