"""Observations far outside the simulated data: a posterior, and a warning with it."""

import warnings

import pytest
import torch

import eande
from eande.foundations.checks import EandeWarning
from eande.inference.ensemble import ensemble
from helpers import linear_task
from helpers.models import quick_fit

FAR = "times as far from the mean of the simulated data as any of them"


@pytest.fixture(scope="module")
def model(few_simulations):
    return quick_fit(few_simulations, eande.BoxPrior([-1, -1], [1, 1]), epochs=4)


@pytest.mark.parametrize("times", [10, 100])
def test_an_observation_far_outside_is_warned_about_once(model, few_simulations, times):
    far = times * few_simulations.y.abs().amax(0)
    with pytest.warns(EandeWarning, match=FAR) as caught:
        model.posteriors(torch.stack([far, far, torch.zeros(2)]), draws=100)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert float(str(caught[0].message).split()[1]) == pytest.approx(times, rel=0.2)
    with pytest.warns(EandeWarning, match=FAR):
        model.posterior(far, draws=100)


def test_held_out_data_are_not_warned_about(model):
    held_out = eande.simulate(linear_task.linear, model.prior, 2_000, seed=9, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.posteriors(held_out.y, draws=100)


def test_heavy_tails_are_not_warned_about():
    """One of n + 1 like data is the farthest out with probability 1/(n + 1): 1/501 here."""
    stream = torch.Generator().manual_seed(0)
    phi = 2 * torch.rand(1_000, 1, generator=stream) - 1
    y = phi + torch.zeros(1_000, 3).cauchy_(generator=stream)
    simulations = eande.Simulations.from_arrays(phi, y)
    model = quick_fit(simulations[:500], eande.BoxPrior([-1], [1]), epochs=1)
    alarms = 0
    for datum in y[500:]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.posterior(datum, draws=100)
        alarms += any(FAR in str(one.message) for one in caught)
    assert alarms <= 5


def test_the_warning_survives_a_file_and_an_ensemble(model, tmp_path):
    model.save(tmp_path / "model.safetensors")
    loaded = eande.load(tmp_path / "model.safetensors")
    for other in (loaded, ensemble([model, model])):
        with pytest.warns(EandeWarning, match=FAR):
            other.posterior([50.0, 50.0], draws=100)


def test_a_warm_start_knows_how_far_its_own_data_reach(model, few_simulations):
    wide = eande.Simulations.from_arrays(few_simulations.phi, 20 * few_simulations.y)
    settings = eande.FitSettings(
        similarity=model.similarity.trained, embedding_dimension=4, epochs=1, device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = eande.fit(wide, model.prior, warm_start=model, settings=settings, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.posteriors(wide.y[:10], draws=100)
