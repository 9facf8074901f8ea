"""The tasks of the public benchmark: moments and shapes of what they simulate."""

import numpy as np
import pytest
import torch

from eande.foundations.checks import InputError
from eande.simulators.sbibm import TASKS, read_reference
from helpers.wheels import write_wheel

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
