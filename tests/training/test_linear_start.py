"""A linear start: where a problem is linear, the model is nearly right before any training."""

import math

import numpy as np
import pytest
import torch

import eande
from eande.training.build import Networks, build_model
from eande.training.linear import LinearFit
from eande.training.settings import FitSettings

PRIOR = eande.DistributionPrior(
    torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
)
MATRIX = np.array([[1, 0], [0, 1], [1, 1], [1, -1], [0.5, 2]])
# Mean information of the five numbers, ½ log det(1 + AᵀA / σ²).
EXACT = 2.98


def five_numbers(phi, rng):
    return phi @ MATRIX.T + 0.5 * rng.standard_normal((len(phi), 5))


def nothing(phi, rng):
    return rng.standard_normal((len(phi), 5))


def started(simulator, n, seed):
    simulations = eande.simulate(simulator, PRIOR, n, seed=seed, progress=False)
    settings = FitSettings(device="cpu", seed=seed, start="linear").resolved(n)
    return build_model(simulations, None, PRIOR, settings, Networks(), start=0)


def mean_log_ratio(model, simulator):
    fresh = eande.simulate(simulator, PRIOR, 400, seed=99, progress=False)
    with torch.no_grad():
        f = model.embed_all(fresh.y)
        positive = model.similarity.paired_score(f, model.emulate_all(fresh.phi))
        draws = model.emulate_all(PRIOR.sample(20_000, seed=1))
        normalizer = model.similarity.score(f, draws).logsumexp(1) - math.log(len(draws))
    return (positive - normalizer).mean().item()


@pytest.mark.parametrize(("n", "least"), [(50, 2.5), (100, 2.7), (1_000, 2.9)])
def test_five_linear_numbers_need_no_training(n, least):
    found = [mean_log_ratio(started(five_numbers, n, seed), five_numbers) for seed in range(3)]
    assert min(found) > least
    assert max(found) < EXACT + 0.05


@pytest.mark.parametrize("n", [30, 300])
def test_data_that_say_nothing_start_at_the_prior(n):
    assert abs(mean_log_ratio(started(nothing, n, 0), nothing)) < 0.02


def test_the_regression_is_least_squares_where_data_are_many_and_noise_is_small():
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.standard_normal((5_000, 2)))
    x = z @ torch.from_numpy(MATRIX.T) + 0.1 * torch.from_numpy(rng.standard_normal((5_000, 5)))
    found = LinearFit.of(x, z)
    exact = torch.linalg.lstsq(x - x.mean(0), z - z.mean(0)).solution.T
    torch.testing.assert_close(found.weights, exact, atol=3e-3, rtol=0)
    left = z - z.mean(0) - (x - x.mean(0)) @ exact.T
    torch.testing.assert_close(found.residual, torch.cov(left.T), atol=1e-4, rtol=0.02)


def test_fewer_simulations_than_numbers_are_shrunk_and_finite():
    rng = np.random.default_rng(0)
    found = LinearFit.of(
        torch.from_numpy(rng.standard_normal((20, 300))),
        torch.from_numpy(rng.standard_normal((20, 30))),
    )
    assert torch.isfinite(found.weights).all()
    assert torch.linalg.eigvalsh(found.residual).min() > 0


@pytest.mark.parametrize(
    "options",
    [{"similarity": "cosine"}, {"linear_skip": False}, {"encoder": torch.nn.Linear(5, 16)}],
)
def test_other_networks_and_similarities_are_refused_in_one_line(options):
    simulations = eande.simulate(five_numbers, PRIOR, 100, progress=False)
    encoder = options.pop("encoder", None)
    settings = FitSettings(device="cpu", start="linear", **options)
    with pytest.raises(
        eande.InputError, match=r"start: expected 'random' but for networks of ours"
    ):
        eande.fit(simulations, PRIOR, encoder=encoder, settings=settings, progress=False)


def test_a_fit_from_a_linear_start_keeps_what_it_began_with():
    simulations = eande.simulate(five_numbers, PRIOR, 100, progress=False)
    settings = FitSettings(device="cpu", start="linear", epochs=40, validate_every=2)
    model = eande.fit(simulations, PRIOR, settings=settings, progress=False)
    assert mean_log_ratio(model, five_numbers) > 2.6
    with pytest.raises(eande.InputError, match=r"start: expected 'random' with warm_start="):
        eande.fit(simulations, PRIOR, warm_start=model, settings=settings, progress=False)
