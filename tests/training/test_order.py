"""Numbers in no order are noticed, and others are not taken for such."""

import numpy as np
import pytest

import eande
from eande.foundations.checks import EandeWarning
from eande.training.order import has_no_order, look_like_sets


def waiting_times(phi, rng):
    return rng.wald(phi[:, :1], 1.0, size=(len(phi), 40))


def growing(phi, rng):
    return phi[:, :1] * np.linspace(1, 1.5, 40) + rng.standard_normal((len(phi), 40))


def noisier(phi, rng):
    return phi[:, :1] + np.linspace(1, 1.5, 40) * rng.standard_normal((len(phi), 40))


def wandering(phi, rng):
    noise = rng.standard_normal((len(phi), 41))
    return phi[:, :1] + noise[:, 1:] + 0.3 * noise[:, :-1]


def tilted(phi, rng):
    """On average over the prior all numbers have the same law."""
    return (phi[:, :1] - 1.25) * np.linspace(-1, 1, 40) + rng.standard_normal((len(phi), 40))


def louder(phi, rng):
    """As are these, whose spread follows the parameter at some places and flees it at others."""
    exponent = np.where(np.arange(40) % 2, 1, -1)
    return (phi[:, :1] / 1.25) ** exponent * rng.standard_normal((len(phi), 40))


@pytest.mark.parametrize(
    ("simulator", "hint"),
    [
        (waiting_times, True),
        (growing, False),
        (noisier, False),
        (wandering, False),
        (tilted, False),
        (louder, False),
    ],
)
def test_numbers_in_no_order_are_noticed(simulator, hint):
    prior = eande.BoxPrior([0.5], [2], names=["a"])
    simulations = eande.simulate(simulator, prior, 400, seed=0, progress=False)
    assert look_like_sets(simulations) == hint


def test_a_number_for_each_parameter_is_no_set():
    """As in benchmarks: parameters of one law, and a number of each."""
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(400, 10))
    y = phi + rng.normal(size=(400, 10))
    assert not look_like_sets(eande.Simulations.from_arrays(phi, y))


def test_numbers_in_no_order_are_rarely_taken_for_ordered():
    """One in a thousand for each of five tests: here three of 200 at most."""
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(200, 100, 2))
    found = [has_no_order(rng.exponential(size=(100, 12)) * np.exp(one[:, :1]), one) for one in phi]
    assert sum(found) >= 197


def test_what_is_alike_throughout_or_short_or_few_gets_no_hint():
    phi = np.random.default_rng(1).normal(size=(100, 1))
    for y in (np.ones((100, 30)), np.random.default_rng(0).normal(size=(100, 5))):
        assert not look_like_sets(eande.Simulations.from_arrays(phi, y))
    few = eande.Simulations.from_arrays(phi[:20], np.random.default_rng(0).normal(size=(20, 30)))
    assert not look_like_sets(few)


@pytest.mark.parametrize(("encoder", "warned"), [(None, 1), ("vector", 0), ("set", 0)])
def test_fit_warns_of_a_set_unless_it_is_told_what_the_data_are(encoder, warned, recwarn):
    prior = eande.BoxPrior([0.5], [2], names=["a"])
    simulations = eande.simulate(waiting_times, prior, 100, seed=0, progress=False)
    settings = eande.FitSettings(epochs=1, width=8, blocks=1, device="cpu")
    eande.fit(simulations, prior, encoder=encoder, settings=settings, progress=False)
    told = [str(one.message) for one in recwarn if issubclass(one.category, EandeWarning)]
    assert sum("encoder='set' learns more" in text for text in told) == warned
    assert all(one.filename == __file__ for one in recwarn if "learns more" in str(one.message))


def test_fit_says_which_encoder_it_makes(capsys):
    prior = eande.BoxPrior([0.5], [2], names=["a"])
    simulations = eande.simulate(growing, prior, 100, seed=0, progress=False)
    settings = eande.FitSettings(epochs=1, width=8, blocks=1, device="cpu")
    with pytest.warns(EandeWarning):  # That so short a fit has learned nothing.
        eande.fit(simulations, prior, settings=settings)
    said = " ".join(capsys.readouterr().out.split())
    assert "encoder: a residual MLP: data of shape (40,) are taken for a vector" in said
