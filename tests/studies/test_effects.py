"""Effects between methods: their sign, and how often their intervals hold the truth."""

import numpy as np

from eande.studies.lorenz96.effects import effect


def runs(values, measure):
    return [{"seed": seed, "per_datum": {measure: list(row)}} for seed, row in enumerate(values)]


def test_less_distance_and_more_log_ratio_are_better():
    rng = np.random.default_rng(0)
    low = rng.normal(0.0, 1.0, size=(5, 100))
    for measure, verdict in (("log_ratio", "worse"), ("mmd2_0.05_100", "better")):
        found = effect(runs(low, measure), runs(low + 1, measure), measure)
        assert (found.verdict, found.seeds) == (verdict, 5)
        assert found.won == (5 if verdict == "better" else 0)
        assert abs(found.mean) - 1 < 1e-9, "datum by datum: what both share is no noise"


def test_runs_of_other_seeds_are_not_compared():
    mine = runs(np.zeros((3, 4)), "crps")
    theirs = [run | {"seed": run["seed"] + 2} for run in runs(np.ones((3, 4)), "crps")]
    assert effect(mine, theirs, "crps").seeds == 1
    assert effect(mine[:1], theirs, "crps") is None


def test_the_interval_holds_no_effect_about_as_often_as_it_says():
    """Seeds differ from each other, as networks do; of eight seeds it is a little too narrow."""
    rng = np.random.default_rng(1)
    held = []
    for _ in range(200):
        seeds = rng.normal(0, 0.3, size=(8, 1))
        found = effect(
            runs(seeds + rng.normal(size=(8, 50)), "crps"), runs(np.zeros((8, 50)), "crps"), "crps"
        )
        held.append(found.low <= 0 <= found.high)
    assert 0.86 <= np.mean(held) <= 0.99
