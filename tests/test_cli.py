"""The command line, at toy size."""

import json
import re
import subprocess

import pytest
from typer.testing import CliRunner

from eande.cli.app import app
from eande.studies import records


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_the_synthetic_study_runs_at_toy_size(tmp_path):
    done = CliRunner().invoke(
        app, ["reproduce", "synthetic", "--size", "toy", "--seeds", "1", "--output", str(tmp_path)]
    )
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
    # Another seed is added; what is there is shown, and not lost.
    more = ["reproduce", "synthetic", "--size", "toy", "--seeds", "2", "--output", str(tmp_path)]
    assert CliRunner().invoke(app, more).exit_code == 0
    both = json.loads((tmp_path / "synthetic.json").read_text())["runs"]
    assert len(both) == 8
    assert all(run in both for run in content["runs"])


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


def refused(*arguments):
    """Run a command that must be refused, and return what it said in one line."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    return " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a result file, got something damaged"),
        ("[]", "expected a result file, got a list"),
        ("{}", "expected a result file with study"),
    ],
)
def test_damaged_result_files_are_refused_before_any_work(content, message, tmp_path):
    arguments = ("--size", "toy", "--output", str(tmp_path))
    for study, name in (("synthetic", "synthetic"), ("lorenz96", "lorenz96-main")):
        (tmp_path / f"{name}.json").write_text(content)
        assert message in refused("reproduce", study, *arguments)
        assert (tmp_path / f"{name}.json").read_text() == content


def test_damaged_pictures_are_refused_before_the_training(tmp_path):
    (tmp_path / "lorenz96-main-pictures.npz").write_bytes(b"nonsense")
    assert "pictures.npz: expected arrays, got something damaged" in refused(
        "reproduce", "lorenz96", "--size", "toy", "--output", str(tmp_path)
    )
    assert not (tmp_path / "lorenz96-main.json").exists()


def test_a_page_is_not_replaced_by_nothing(tmp_path):
    page = tmp_path / "lorenz96.md"
    page.write_text("a page")
    said = refused(
        "reproduce",
        "lorenz96",
        "--only",
        "page",
        "--output",
        str(tmp_path / "nowhere"),
        "--pages",
        str(tmp_path),
    )
    assert "expected a folder with results of the study" in said
    assert page.read_text() == "a page"


def test_an_output_that_is_a_file_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    for study in ("synthetic", "lorenz96", "sbibm"):
        assert "is a file" in refused("reproduce", study, "--output", str(tmp_path / "file"))


def test_a_copy_in_another_repository_names_no_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("EANDE_COMMIT", raising=False)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "records.py").write_text("")
    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))
    assert records.provenance()["commit"] is None


def test_silly_arguments_get_a_clear_line():
    for arguments in (
        ["reproduce", "lorenz96", "--method", "magic"],
        ["reproduce", "synthetic", "--size", "huge"],
        ["reproduce", "synthetic", "--seeds", "0"],
        ["reproduce", "nothing"],
    ):
        assert refused(*arguments)
    assert "Reproduce a table or figure" in CliRunner().invoke(app, ["--help"]).output
