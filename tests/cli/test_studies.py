"""The studies from the command line, at toy size."""

import json
import re

import pytest
from typer.testing import CliRunner

from eande.cli.app import app
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


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_the_lorenz96_study_runs_at_toy_size(tmp_path):
    arguments = [
        "reproduce",
        "lorenz96",
        "--size",
        "toy",
        "--device",
        "cpu",
        "--output",
        str(tmp_path),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "lorenz96-main.json").read_text())
    assert [run["method"] for run in content["runs"]] == [
        "plain",
        "anchored",
        "calibrated",
        "aimed",
        "ensemble",
    ]
    assert content["runs"][3]["calibration"]["regions"]["all"]["data"] == 20
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    # Runs that are there are shown, not repeated.
    assert "trained in" not in again.output
    assert json.loads((tmp_path / "lorenz96-main.json").read_text()) == content
    content["settings"]["epochs"] = 3
    (tmp_path / "lorenz96-main.json").write_text(json.dumps(content))
    said = refused(*arguments)
    assert "expected a result file with settings.epochs 2, got one with 3" in said
    page = CliRunner().invoke(
        app, [*arguments, "--only", "page", "--pages", str(tmp_path / "pages")]
    )
    assert page.exit_code == 0, page.output
    written = (tmp_path / "pages" / "lorenz96.md").read_text()
    assert "| ensemble | 1 |" in written
    assert re.search(
        r"of counts in cells and of radii: plain \S+ and \S+, anchored \S+ and \S+,", written
    ), "both tests, for every method"
    assert (tmp_path / "pages" / "lorenz96-main-posteriors.png").stat().st_size > 10_000
    assert all(len(run["per_datum"]["mmd2_0.05_100"]) == 3 for run in content["runs"])
    assert (tmp_path / "lorenz96-main-posterior.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
@pytest.mark.parametrize("part", ["symmetry", "normalizer", "timing", "training"])
def test_the_other_parts_of_the_lorenz96_study_run_at_toy_size(part, tmp_path):
    arguments = [
        "reproduce",
        "lorenz96",
        "--size",
        "toy",
        "--device",
        "cpu",
        "--only",
        part,
        "--output",
        str(tmp_path),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / f"lorenz96-{part}.json").read_text())
    if part == "timing":
        assert (
            content["seconds_by_number_of_phi"]["1000"]
            < 10 * content["seconds_by_number_of_phi"]["10000"]
        )
    elif part == "training":
        assert min(content["seconds_with_one_view"], content["seconds_with_two_views"]) > 0
    else:
        assert {run["variant"] for run in content["runs"]} == set(content["settings"]["variants"])
    page = CliRunner().invoke(
        app,
        [
            "reproduce",
            "lorenz96",
            "--only",
            "page",
            "--output",
            str(tmp_path),
            "--pages",
            str(tmp_path / "pages"),
        ],
    )
    assert page.exit_code == 0, page.output
    assert len((tmp_path / "pages" / "lorenz96.md").read_text().splitlines()) > 11
    assert list((tmp_path / "pages").glob("*.png")) or part == "training"
