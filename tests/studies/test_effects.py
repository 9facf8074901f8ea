"""Effects between methods: their sign, and how often their intervals hold the truth."""

import math

import numpy as np
import pytest

from eande.studies.lorenz96.effects import effect, simulations_needed


def runs(values, measure):
    return [{"seed": seed, "per_datum": {measure: list(row)}} for seed, row in enumerate(values)]


def test_less_distance_and_more_log_ratio_are_better():
    rng = np.random.default_rng(0)
    low = rng.normal(0.0, 1.0, size=(5, 100))
    for measure, mean, verdict in (("log_ratio", -1, "worse"), ("mmd2_0.05_100", 1, "better")):
        found = effect(runs(low, measure), runs(low + 1, measure), measure)
        assert (found.verdict, found.seeds) == (verdict, 5)
        assert found.won == (5 if verdict == "better" else 0)
        assert found.mean == pytest.approx(mean), "datum by datum: what both share is no noise"


def test_runs_of_other_seeds_are_not_compared():
    mine = runs(np.zeros((3, 4)), "crps")
    theirs = [run | {"seed": run["seed"] + 2} for run in runs(np.ones((3, 4)), "crps")]
    found = effect(mine, theirs, "crps")
    assert found.seeds == 1
    assert math.isinf(found.high)
    assert found.verdict == "undecided", "one seed says nothing of others"
    assert effect(mine[:1], theirs, "crps") is None


@pytest.mark.parametrize("between_seeds", [0.05, 1.0])
def test_the_interval_holds_no_effect_as_often_as_it_says(between_seeds):
    """Five seeds of fifty data; seeds differ little, or more than data do."""
    rng = np.random.default_rng(1)
    held = []
    for _ in range(1_000):
        values = rng.normal(0, between_seeds, size=(5, 1)) + rng.normal(size=(5, 50))
        found = effect(runs(values, "crps"), runs(np.zeros((5, 50)), "crps"), "crps")
        held.append(found.low <= 0 <= found.high)
    assert abs(np.mean(held) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 1_000)


def scored(*scores):
    """Make runs of one row, a mean log ratio per seed."""
    return [{"seed": seed, "mean_log_ratio": score} for seed, score in enumerate(scores)]


def test_simulations_needed_are_where_the_curve_crosses():
    curve = {250: scored(1.0, 1.0), 500: scored(2.0, 2.0), 1_000: scored(3.0, 3.0)}
    found = simulations_needed(scored(2.5, 2.5), curve)
    assert found.simulations == pytest.approx(500 * math.sqrt(2)), "half way in log N"
    assert (found.low, found.high) == pytest.approx((found.simulations, found.simulations))
    assert simulations_needed(scored(0.5, 0.5), curve).simulations == 250
    assert math.isinf(simulations_needed(scored(3.5, 3.5), curve).simulations)
    assert simulations_needed([], curve) is None


def test_a_curve_that_falls_is_made_monotone():
    curve = {250: scored(1.0), 500: scored(0.2), 1_000: scored(3.0)}
    needed = simulations_needed(scored(2.0), curve).simulations
    assert needed == pytest.approx(500 * math.sqrt(2)), "it is 1 at 500, too"


def test_the_interval_of_simulations_needed_knows_of_seeds_that_never_get_there():
    curve = {250: scored(1.0, 1.0, 1.0), 500: scored(3.0, 1.0, 1.0)}
    found = simulations_needed(scored(1.5, 1.5, 1.5), curve)
    assert 250 < found.simulations < 500
    assert found.low < found.simulations
    assert math.isinf(found.high)
