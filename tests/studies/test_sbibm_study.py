"""The study of the public benchmark."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from eande.cli.app import app
from eande.foundations.checks import InputError
from eande.simulators.sbibm import TASKS
from eande.studies.sbibm.page import write_page
from eande.studies.sbibm.published import BUDGETS, METHODS, PUBLISHED, published
from eande.studies.sbibm.study import cells_of
from helpers.wheels import write_wheel


def reproduce(*options):
    return CliRunner().invoke(app, ["reproduce", "sbibm", *map(str, options)])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_the_study_runs_at_toy_size_and_resumes(tmp_path):
    wheel = write_wheel(tmp_path / "a.whl", "slcp_distractors")
    arguments = ["--size", "toy", "--task", "slcp_distractors", "--wheel", wheel]
    arguments += ["--output", tmp_path, "--pages", tmp_path / "pages"]
    done = reproduce(*arguments)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "sbibm.json").read_text())
    (run,) = content["runs"]
    assert run["method"] == "eande"
    assert len(run["scores"]) == 2
    assert all(0 <= score <= 1 for score in run["scores"])
    assert run["peak_mb"] >= 0
    assert "| slcp_distractors | 0." in (tmp_path / "pages" / "sbibm.md").read_text()
    again = reproduce(*arguments)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "sbibm.json").read_text()) == content


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_parts_of_several_machines_become_one_file(tmp_path):
    wheel = write_wheel(tmp_path / "a.whl")
    common = ["--size", "toy", "--task", "two_moons", "--wheel", wheel]
    for seed, folder in ((0, "one"), (1, "two")):
        done = reproduce(*common, "--seed", seed, "--output", tmp_path / folder)
        assert done.exit_code == 0, done.output
    done = reproduce("--size", "toy", "--output", tmp_path / "one", "--add", tmp_path / "two")
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "one" / "sbibm.json").read_text())
    assert [run["seed"] for run in content["runs"]] == [0, 1]
    lowest, highest = sorted(run["median"] for run in content["runs"])
    page = (tmp_path / "one" / "sbibm.md").read_text()
    assert f"{lowest:.3f}–{highest:.3f}" in page
    (tmp_path / "one" / "sbibm.md").unlink()
    assert reproduce("--size", "toy", "--output", tmp_path / "one", "--page").exit_code == 0
    assert (tmp_path / "one" / "sbibm.md").read_text() == page
    for options in (["--page"], ["--add", tmp_path / "nothing"]):
        assert reproduce("--size", "toy", "--output", tmp_path / "none", *options).exit_code == 2


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Maximum number of epochs:UserWarning")
def test_the_baseline_gets_the_same_simulations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wheel = write_wheel(tmp_path / "a.whl")
    arguments = ["--size", "toy", "--task", "two_moons", "--wheel", wheel, "--output", tmp_path]
    done = reproduce(*arguments, "--baseline")
    assert done.exit_code == 0, done.output
    (run,) = json.loads((tmp_path / "sbibm.json").read_text())["runs"]
    assert run["method"] == "npe"
    assert len(run["scores"]) == 2
    assert run["provenance"]["versions"]["sbi"]
    # No folder of sbi's own logs.
    assert {path.name for path in tmp_path.iterdir()} <= {
        "a.whl",
        "sbibm.json",
        "sbibm.md",
        ".sbibm.json.lock",
    }


@pytest.mark.thorough
def test_the_study_needs_none_of_the_extras(tmp_path):
    wheel = write_wheel(tmp_path / "a.whl")
    absent = ["zarr", "dask", "distributed", "arviz_base", "arviz_stats", "sbi", "zuko", "numba"]
    absent += ["sklearn", "xarray", "h5py", "google_crc32c"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent})); from eande.cli.app import app; "
        f"app(['reproduce', 'sbibm', '--size', 'toy', '--task', 'two_moons', "
        f"'--wheel', {str(wheel)!r}, '--output', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "sbibm.json").read_text())["runs"]


def test_cells_are_what_the_size_says():
    cells = cells_of("paper")
    assert len(cells) == 10 * (3 + 3 + 1)
    assert len(cells_of("paper", baseline=True)) == 10 * 2
    (cell,) = cells_of("paper", tasks=["sir"], budgets=[100_000])
    assert (cell.method, cell.task, cell.simulations, cell.seed) == ("eande", "sir", 100_000, 0)
    for options, message in (
        ({"tasks": ["three_moons"]}, "task: expected one of 'two_moons',"),
        ({"budgets": [7]}, "simulations: expected one of '1000',"),
        ({"budgets": [100_000], "baseline": True}, "simulations: expected one of '1000',"),
    ):
        with pytest.raises(InputError, match=message):
            cells_of("paper", **options)
    with pytest.raises(InputError, match="size: expected one of 'paper'"):
        cells_of("huge")


def test_published_medians_are_there_for_every_task():
    assert set(PUBLISHED) == set(TASKS)
    assert published("sir", "NPE-PFN", 10_000) == 0.536
    assert published("slcp_distractors", "NPE-PFN", 10_000) is None
    assert published("slcp_distractors", "NPE ensemble", 1_000) is None
    assert published("sir", "NPE", 77) is None
    for task in TASKS:
        for method in ("NPE", "NRE"):
            assert all(published(task, method, budget) is not None for budget in BUDGETS)


def test_the_page_has_means_of_ten_tasks_and_of_nine(tmp_path):
    runs = [
        {
            "method": method,
            "task": task,
            "simulations": 10_000,
            "seed": seed,
            "seconds_training": 10.0,
            "peak_mb": 100.0,
            "scores": [0.5],
            "samples": 10_000,
            "median": (0.5 if task != "slcp_distractors" else 0.9) + 0.1 * seed,
            "resampled": [3] if task == "sir" and method == "npe" else [],
        }
        for method, seeds in (("eande", 2), ("npe", 1))
        for task in TASKS
        for seed in range(seeds)
    ]
    write_page(runs, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines()}
    nine = [published(task, "NPE-PFN", 10_000) for task in TASKS if task != "slcp_distractors"]
    pfn = f"{sum(nine) / 9:.3f}"
    assert pfn == "0.656"
    ten = lines["mean of the ten"].split(" | ")
    without = lines["mean without slcp_distractors"].split(" | ")
    assert ten[1:4] == ["0.590", "", "–"]
    assert without[1:4] == ["0.550", "", pfn]
    # NPE run here.
    column = 3 + len(METHODS)
    assert [ten[column], without[column]] == ["0.540", "0.500"]
    assert (
        "| sir | 0.550 | 0.500–0.600 | 0.536 | 0.538 | 0.630 | 0.776 | 0.500 | 100 MB | 100 MB |"
        in page
    )
    assert "sir at 10,000, seed 0, observations 3." in page
    # Without one of the tasks there is no mean of ours.
    write_page(runs[2:], tmp_path / "page.md")
    assert "| mean of the ten | – |" in (tmp_path / "page.md").read_text()
