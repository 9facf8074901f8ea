"""The tasks of the public benchmark: moments and shapes of what they simulate."""

import numpy as np
import pytest
import torch
from scipy import stats

from eande.foundations.checks import InputError
from eande.simulators.sbibm import TASKS, _design, _distractors, read_reference
from eande.simulators.sbibm_dynamics import infected_shares, log_animals
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


def test_raw_spikes_have_the_rates_of_the_linear_model():
    phi = np.array([0.4, *np.linspace(-1, 1, 9)], dtype=np.float32)
    spikes = draws("bernoulli_glm_raw", phi)
    assert set(np.unique(spikes)) == {0, 1}
    rates = 1 / (1 + np.exp(-_design() @ phi))
    near(spikes.mean(0), rates, np.sqrt(rates * (1 - rates)))


def test_distractors_are_a_mixture_of_t_distributions_around_slcp():
    phi = [0.7, -2.9, -1.0, -0.9, 0.6]
    centres, factors, order = _distractors()
    y = np.empty((N, 100))
    y[:, order] = draws("slcp_distractors", phi)
    assert y[:, :8].mean(0).reshape(4, 2) == pytest.approx(np.tile(phi[:2], (4, 1)), abs=0.03)
    noise = y[:, 8:]
    # Whatever is linear in them has a mixture of t-distributions in one dimension; a sum of all
    # has it only if the 92 share one χ².
    for weights in (np.eye(92)[0], np.eye(92)[91], np.ones(92)):
        scales = np.linalg.norm(factors.transpose(0, 2, 1) @ weights, axis=1)

        def law(x, weights=weights, scales=scales):
            return stats.t.cdf(x[:, np.newaxis], 2, centres @ weights, scales).mean(1)

        assert stats.kstest(noise @ weights, law).pvalue > 1e-4


def test_tests_of_an_epidemic_are_binomial():
    phi = [0.6, 0.15]
    y = draws("sir", phi)
    share = infected_shares(np.array([phi], dtype=np.float32))[0]
    near(y.mean(0), 1000 * share, np.sqrt(1000 * share * (1 - share)) + 1e-3)
    variance = 1000 * share * (1 - share)
    near(y.var(0), variance, np.sqrt(2) * variance + np.sqrt(variance))


def test_counts_of_animals_have_log_normal_noise():
    phi = [0.7, 0.1, 0.9, 0.1]
    y = np.log(draws("lotka_volterra", phi))
    near(y.mean(0), log_animals(np.array([phi], dtype=np.float32))[0], 0.1)
    near(y.var(0), 0.01, np.sqrt(2) * 0.01)


def test_half_a_step_changes_nothing_beside_the_noise():
    phi = TASKS["sir"].prior.sample(2_000, seed=0).numpy()
    shares = infected_shares(phi)
    finer = infected_shares(phi, steps=340)
    assert (np.abs(shares - finer) < 0.01 * np.sqrt(finer * (1 - finer) / 1000)).all()
    phi = TASKS["lotka_volterra"].prior.sample(2_000, seed=0).numpy()
    np.testing.assert_allclose(log_animals(phi), log_animals(phi, steps=600), atol=0.01 * 0.1)


@pytest.mark.parametrize("task", TASKS)
def test_the_same_stream_gives_the_same_data(task):
    phi = TASKS[task].prior.sample(50, seed=0).numpy()
    first, again, other = (
        TASKS[task].simulator(phi, np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_references_are_read_from_the_wheel(tmp_path):
    found = read_reference(write_wheel(tmp_path / "a.whl"), "two_moons", 2)
    torch.testing.assert_close(found.samples, TASKS["two_moons"].prior.sample(100, seed=1))
    torch.testing.assert_close(found.parameters, TASKS["two_moons"].prior.sample(1, seed=0)[0])
    assert found.observation.shape == (2,)
    for task, folder, length in (
        ("slcp_distractors", "slcp", 100),
        ("bernoulli_glm_raw", "bernoulli_glm", 100),
    ):
        found = read_reference(write_wheel(tmp_path / f"{task}.whl", task), task, 1)
        assert found.observation.shape == (length,)
        torch.testing.assert_close(found.samples, TASKS[folder].prior.sample(100, seed=1))


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
