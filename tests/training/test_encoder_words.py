"""Encoders by name in ``fit``: sets, series and grids, and numbers that are missing."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import EandeWarning
from eande.simulation.read.simulations import Simulations
from eande.simulators.exact_problems import Gaps, NormalDraws
from eande.training.build import Networks, build_model
from eande.training.prepare import check_axes
from eande.training.settings import FitSettings
from helpers.models import quick_fit

BOX = eande.BoxPrior([-1, -1], [1, 1])


def divergence(model, problem, phi, y):
    """Mean Kullback–Leibler divergence of the exact posterior from a model's, in nats."""
    with torch.no_grad():
        draws = model.emulate_all(problem.prior.sample(10_000, seed=5))
        f = model.embed_all(y)
        normalizer = model.similarity.score(f, draws).double().logsumexp(1) - math.log(len(draws))
        score = model.similarity.paired_score(f, model.emulate_all(phi)).double()
    return (problem.log_ratio(phi, y) - score + normalizer).mean().item()


def pairs(problem, n, seed):
    phi = problem.prior.sample(n, seed=seed)
    return phi, torch.from_numpy(problem(phi.numpy(), np.random.default_rng(seed)))


def test_a_hundred_draws_as_a_set_are_nearly_right_before_training():
    """The exact posterior is 4.2 nats from the prior; a vector's network has 3 of them at most."""
    problem = NormalDraws()
    phi, y = pairs(problem, 600, 0)
    settings = FitSettings(device="cpu", start="linear").resolved(600)
    model = build_model(
        Simulations.from_arrays(phi, y), None, problem.prior, settings, Networks("set"), start=0
    )
    assert model.y_standardizer.mean.shape == (1,)
    assert divergence(model, problem, *pairs(problem, 200, 1)) < 0.5


@pytest.mark.parametrize(
    ("word", "shape"),
    [("set", (6,)), ("set", (6, 2)), ("series", (12,)), ("grid", (4, 5)), ("vector", (2, 3))],
)
def test_a_word_trains_is_saved_and_is_part_of_the_fingerprint(word, shape, tmp_path):
    phi = BOX.sample(60, seed=0)
    y = phi[:, :1].reshape(60, *[1] * len(shape)) + torch.randn(60, *shape)
    simulations = Simulations.from_arrays(phi, y)
    model = quick_fit(simulations, BOX, epochs=1, encoder=word)
    model.save(tmp_path / "model")
    again = eande.load(tmp_path / "model")
    assert torch.equal(again.embed_all(y), model.embed_all(y))
    if word == "set":
        assert torch.allclose(model.embed_all(y.flip(1)), model.embed_all(y), atol=1e-4)


def test_a_word_and_none_are_different_calls(few_simulations, tmp_path):
    options = {"settings": FitSettings(epochs=1, device="cpu"), "progress": False}
    options["checkpoint"] = tmp_path / "run"
    with pytest.warns(eande.EandeWarning):
        eande.fit(few_simulations, BOX, encoder="set", **options)
    with pytest.raises(eande.InputError, match="encoder"):
        eande.fit(few_simulations, BOX, encoder="vector", **options)


@pytest.mark.parametrize(
    "members",
    [pytest.param(1, marks=pytest.mark.thorough), pytest.param(2, marks=pytest.mark.slow)],
)
def test_gaps_are_learned_from_and_observed(members, tmp_path):
    problem = Gaps()
    phi, y = pairs(problem, 3_000, 0)
    simulations = Simulations.from_arrays(phi, y, missing=True)
    settings = FitSettings(
        missing="mask",
        start="linear",
        epochs=40,
        batch_size=250,
        validate_every=10,
        width=64,
        blocks=1,
        normalizer_draws=1_000,
        device="cpu",
    )
    model = eande.fit(
        simulations, problem.prior, settings=settings, members=members, progress=False
    )
    fresh = pairs(problem, 500, 1)
    # The prior is 1.75 nats away, and where gaps are zeros and nothing tells of them it is 0.36.
    assert divergence(model, problem, *fresh) < 0.2
    assert model.takes_gaps
    model.save(tmp_path / "model")
    again = eande.load(tmp_path / "model")
    observed = fresh[1][:3]
    assert observed.isnan().any()
    expected = [one.log_normalizer for one in model.posteriors(observed, draws=500)]
    assert [one.log_normalizer for one in again.posteriors(observed, draws=500)] == expected
    observed[0, 0] = torch.inf
    with pytest.raises(eande.InputError, match=r"y: .* got 1 NaN or inf, .* index \(0, 0\)"):
        model.posteriors(observed, draws=500)
    nothing = model.posterior(torch.full((4,), torch.nan), draws=5_000)
    assert nothing.effective_draws > 2_500, "where all is missing, nearly the prior"
    assert model.posterior(torch.zeros(4), draws=5_000).effective_draws < 1_500


def test_gaps_are_refused_where_nothing_was_said_of_them(few_simulations):
    y = few_simulations.y.clone()
    y[3, 1] = torch.nan
    with pytest.raises(eande.InputError, match=r"y: expected finite .*got 1 NaN or inf"):
        Simulations.from_arrays(few_simulations.phi, y)
    gappy = Simulations.from_arrays(few_simulations.phi, y, missing=True)
    message = r"simulations: expected data without NaN, got 1: FitSettings\(missing='mask'\)"
    with pytest.raises(eande.InputError, match=message):
        eande.fit(gappy, BOX, progress=False)
    with pytest.raises(eande.InputError, match="validation: expected data without NaN"):
        eande.fit(few_simulations, BOX, validation=gappy, progress=False)
    masked = FitSettings(missing="mask", device="cpu", epochs=1)
    with pytest.raises(eande.InputError, match=r"missing: expected an encoder .*gaps = True"):
        eande.fit(gappy, BOX, encoder=nn.Linear(2, 16), settings=masked, progress=False)
    model = quick_fit(few_simulations, BOX, epochs=1)
    with pytest.raises(eande.InputError, match=r"y: expected finite"):
        model.posterior(y[3])
    with pytest.raises(eande.InputError, match="its encoder takes no gaps"):
        eande.fit(gappy, BOX, warm_start=model, settings=masked, progress=False)
    y[0, 0] = torch.inf
    with pytest.raises(eande.InputError, match=r"y: expected finite"):
        Simulations.from_arrays(few_simulations.phi, y, missing=True)


@pytest.mark.parametrize(
    ("shape", "word", "said"),
    [
        ((60, 2), None, "a series of 60 channels"),
        ((60, 2), "series", "a series of 60 channels"),
        ((2, 60), None, None),
        ((60, 2), "set", None),
        ((60, 2), "vector", None),
        ((60,), "series", None),
        ((16, 16, 3), None, "a grid of 16 channels"),
        ((3, 16, 16), None, None),
        ((60, 2), "grid", None),
        ((60,), None, None),
        ((60, 2), nn.Flatten(), None),
    ],
)
def test_channels_that_come_last_are_told(shape, word, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_axes(shape, word)
    told = [str(one.message) for one in caught]
    assert [said in text for text in told] == ([True] if said else [])


def test_a_fit_tells_that_channels_come_last():
    phi = BOX.sample(60, seed=0)
    y = phi[:, :1, None] + torch.randn(60, 12, 2, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EandeWarning)
        quick_fit(Simulations.from_arrays(phi, y), BOX, epochs=1, quiet=False)
    assert any("move them to the front" in str(one.message) for one in caught)
