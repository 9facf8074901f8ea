"""The study of the public benchmark."""

import json

import pytest
from typer.testing import CliRunner

from eande.cli.app import app
from helpers.wheels import write_wheel

pytestmark = pytest.mark.thorough


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_the_study_runs_at_toy_size_and_resumes(tmp_path):
    write_wheel(tmp_path / "a.whl")
    arguments = [
        "reproduce",
        "sbibm",
        "--size",
        "toy",
        "--task",
        "two_moons",
        "--wheel",
        str(tmp_path / "a.whl"),
        "--output",
        str(tmp_path),
    ]
    arguments += ["--pages", str(tmp_path / "pages")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "sbibm.json").read_text())
    (run,) = content["runs"]
    assert len(run["scores"]) == 2
    assert all(0 <= score <= 1 for score in run["scores"])
    assert "| two_moons | 200 |" in (tmp_path / "pages" / "sbibm.md").read_text()
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "sbibm.json").read_text()) == content
    silly = CliRunner().invoke(app, ["reproduce", "sbibm", "--task", "three_moons"])
    assert silly.exit_code == 2
    assert "expected one of 'two_moons'," in " ".join(silly.output.split())
