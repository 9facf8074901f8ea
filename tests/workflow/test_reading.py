"""What data are taken for: a hint where their numbers have no order, and none where they have."""

import numpy as np
import pytest

import eande
from eande.workflow.reading import has_no_order, taken_for


def waiting_times(phi, rng):
    return rng.wald(phi[:, :1], 1.0, size=(len(phi), 40))


def growing(phi, rng):
    return phi[:, :1] * np.linspace(1, 1.5, 40) + rng.standard_normal((len(phi), 40))


def noisier(phi, rng):
    return phi[:, :1] + np.linspace(1, 1.5, 40) * rng.standard_normal((len(phi), 40))


def wandering(phi, rng):
    noise = rng.standard_normal((len(phi), 41))
    return phi[:, :1] + noise[:, 1:] + 0.3 * noise[:, :-1]


@pytest.mark.parametrize(
    ("simulator", "hint"),
    [(waiting_times, True), (growing, False), (noisier, False), (wandering, False)],
)
def test_numbers_in_no_order_are_noticed(simulator, hint):
    prior = eande.BoxPrior([0.5], [2], names=["a"])
    simulations = eande.simulate(simulator, prior, 400, seed=0, progress=False)
    assert ("encoder = 'set'" in taken_for(simulations)) == hint


def test_numbers_in_no_order_are_rarely_taken_for_ordered():
    """One in a thousand for each of three tests: here one of 200 at most."""
    rng = np.random.default_rng(0)
    found = [has_no_order(rng.exponential(size=(100, 12))) for _ in range(200)]
    assert sum(found) >= 198


def test_what_is_alike_throughout_or_short_or_few_gets_no_hint():
    phi = np.zeros((100, 1))
    for y in (np.ones((100, 30)), np.random.default_rng(0).normal(size=(100, 5))):
        assert taken_for(eande.Simulations.from_arrays(phi, y)) == ""
    few = eande.Simulations.from_arrays(phi[:20], np.random.default_rng(0).normal(size=(20, 30)))
    assert taken_for(few) == ""


def test_two_axes_are_said_to_be_a_series():
    y = np.zeros((4, 8, 8))
    said = taken_for(eande.Simulations.from_arrays(np.zeros((4, 1)), y))
    assert "taken for series of 8 channels (encoder = 'grid' for images" in said
