"""What the command line refuses, in one line and before any work."""

import subprocess

import pytest
from typer.testing import CliRunner

from eande.cli.app import app
from eande.foundations import provenance
from helpers.command_line import refused


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a result file, got something damaged"),
        ("[]", "expected a result file, got a list"),
        ("{}", "expected a field `study`, got none"),
    ],
)
def test_damaged_result_files_are_refused_before_any_work(content, message, tmp_path):
    arguments = ("--size", "toy", "--output", str(tmp_path))
    for study, name in (("synthetic", "synthetic"), ("lorenz96", "lorenz96-search")):
        (tmp_path / f"{name}.json").write_text(content)
        assert message in refused("reproduce", study, *arguments)
        assert (tmp_path / f"{name}.json").read_text() == content


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
    (tmp_path / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.provenance()["commit"] is None


def test_silly_arguments_get_a_clear_line():
    for arguments in (
        ["reproduce", "lorenz96", "--method", "magic"],
        ["reproduce", "synthetic", "--size", "huge"],
        ["reproduce", "synthetic", "--seeds", "0"],
        ["reproduce", "nothing"],
    ):
        assert refused(*arguments)
    assert "Reproduce a table or figure" in CliRunner().invoke(app, ["--help"]).output
