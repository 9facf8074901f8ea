"""The common benchmark: its simulators, its reference files, its score, and the study at toy size."""

import bz2
import json
import zipfile

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eande.cli.app import app
from eande.diagnostics.distances import c2st
from eande.foundations.checks import InputError
from eande.simulators.sbibm import TASKS, read_reference

N = 40_000


def draws(task, phi):
    rng = np.random.default_rng(0)
    return TASKS[task].simulator(np.tile(np.asarray(phi, dtype=np.float32), (N, 1)), rng)


def near(found, expected, spread):
    """Within five standard errors of a mean of N."""
    np.testing.assert_array_less(
        np.abs(found - np.asarray(expected)), 5 * np.asarray(spread) / np.sqrt(N) + 1e-12
    )


def test_moments_of_the_gaussian_tasks():
    phi = np.linspace(-0.5, 0.5, 10)
    y = draws("gaussian_linear", phi)
    near(y.mean(0), phi, np.sqrt(0.1))
    near(((y - phi) ** 2).mean(0), 0.1, 0.1 * np.sqrt(2))
    y = draws("gaussian_mixture", [3, -4])
    near(y.mean(0), [3, -4], 1)
    near(((y - [3, -4]) ** 2).mean(0), 0.505, 1.2)
    near((np.abs(y - [3, -4]).max(1) < 0.3).mean(), 0.5 * 0.9973**2 + 0.5 * 0.2358**2, 0.5)


def test_two_moons_is_a_crescent():
    y = draws("two_moons", [0.3, 0.5]) - np.array([-0.8, 0.2]) / np.sqrt(2) - [0.25, 0]
    radius = np.linalg.norm(y, axis=1)
    near(radius.mean(), 0.1, 0.01)
    near(radius.std(), 0.01, 0.01)
    assert (y[:, 0] > -1e-6).all()
    near(np.arctan2(y[:, 1], y[:, 0]).std(), np.pi / np.sqrt(12), 1)
    mirrored = draws(
        "two_moons", [-0.5, -0.3]
    )  # the other mode: same sum up to its sign, same difference
    near(mirrored.mean(0), draws("two_moons", [0.3, 0.5]).mean(0), 0.1)


def test_slcp_is_four_draws_of_one_normal_law():
    phi = [0.7, -2.9, -1.0, -0.9, 0.6]
    y = draws("slcp", phi).reshape(N, 4, 2)
    covariance = np.cov(y.reshape(-1, 2).T)
    expected = np.array([[1.0, np.tanh(0.6) * 0.81], [np.tanh(0.6) * 0.81, 0.81**2]])
    np.testing.assert_allclose(y.mean((0, 1)), phi[:2], atol=0.02)
    np.testing.assert_allclose(covariance, expected, atol=0.03)
    assert abs(np.corrcoef(y[:, 0, 0], y[:, 1, 0])[0, 1]) < 0.03


def test_the_generalised_linear_model_counts_spikes():
    y = draws("bernoulli_glm", [0.4] + [0.0] * 9)
    rate = 1 / (1 + np.exp(-0.4))
    near(y[:, 0].mean(), 100 * rate, 10 * np.sqrt(rate * (1 - rate)))
    near(y[:, 0].var(), 100 * rate * (1 - rate), 100 * rate)
    # The mean of the sums is Xᵀσ(Xφ), X the ones and the delayed stimulus.
    phi = np.array([0.4, *np.linspace(-1, 1, 9)], dtype=np.float32)
    stimulus = np.random.RandomState(42).randn(100)
    design = np.stack(
        [
            np.ones(100),
            *(np.concatenate([np.zeros(delay), stimulus[: 100 - delay]]) for delay in range(9)),
        ],
        axis=1,
    )
    rates = 1 / (1 + np.exp(-design @ phi))
    near(
        draws("bernoulli_glm", phi).mean(0),
        design.T @ rates,
        np.sqrt((design**2).T @ (rates * (1 - rates))),
    )
    phi = TASKS["bernoulli_glm"].prior.sample(20_000, seed=0)
    assert phi[:, 0].var().item() == pytest.approx(2, rel=0.05)


def write_wheel(path, task="two_moons", count=100):
    phi = TASKS[task].prior.sample(1, seed=0)
    y = TASKS[task].simulator(phi.numpy(), np.random.default_rng(0))
    samples = TASKS[task].prior.sample(count, seed=1)

    def text(rows):
        header = ",".join(f"column_{i}" for i in range(rows.shape[1]))
        return "\n".join([header, *(",".join(map(str, row)) for row in rows.tolist())]).encode()

    with zipfile.ZipFile(path, "w") as wheel:
        for number in (1, 2):
            folder = f"sbibm/tasks/{task}/files/num_observation_{number}"
            wheel.writestr(f"{folder}/observation.csv", text(y))
            wheel.writestr(f"{folder}/true_parameters.csv", text(phi))
            wheel.writestr(
                f"{folder}/reference_posterior_samples.csv.bz2", bz2.compress(text(samples))
            )
    return path


def test_references_are_read_from_the_wheel(tmp_path):
    found = read_reference(write_wheel(tmp_path / "a.whl"), "two_moons", 2)
    torch.testing.assert_close(found.samples, TASKS["two_moons"].prior.sample(100, seed=1))
    torch.testing.assert_close(found.parameters, TASKS["two_moons"].prior.sample(1, seed=0)[0])
    assert found.observation.shape == (2,)


def test_what_is_no_wheel_is_said(tmp_path):
    (tmp_path / "text.whl").write_text("not a zip file")
    for path, number in (
        (tmp_path / "missing.whl", 1),
        (tmp_path / "text.whl", 1),
        (write_wheel(tmp_path / "a.whl"), 11),
    ):
        with pytest.raises(InputError, match=r"wheel: expected the file sbibm-1\.1\.0"):
            read_reference(path, "two_moons", number)
    with pytest.raises(InputError, match="task: expected one of"):
        read_reference(tmp_path / "a.whl", "three_moons", 1)


def test_the_two_sample_score_knows_equal_from_different():
    first, second = (
        torch.randn(600, 2, generator=torch.Generator().manual_seed(0)),
        torch.randn(600, 2, generator=torch.Generator().manual_seed(1)),
    )
    assert abs(c2st(first, second) - 0.5) < 0.05
    # Shifted by two standard deviations: the best classifier is right Φ(1) = 84 % of the time.
    assert c2st(first, second + torch.tensor([2.0, 0.0])) == pytest.approx(0.841, abs=0.03)
    with pytest.raises(InputError, match=r"samples: expected shape \(n, 2\)"):
        c2st(first, second[:, :1])
    with pytest.raises(InputError, match="expected finite float32 numbers"):
        c2st(first, second / 0)
    with pytest.raises(InputError, match="every column to vary, got a constant one at index 1"):
        c2st(first * torch.tensor([1.0, 0.0]), second)
    with pytest.raises(InputError, match="at least 5, got 3 and 600"):
        c2st(first, second[:3])


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
