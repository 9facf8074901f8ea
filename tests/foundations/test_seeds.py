"""Seeds: one stream for every step of the path."""

from eande.foundations.seeds import derive_seed


def test_seeds_depend_on_every_step_of_the_path():
    seeds = {derive_seed(s, a, b) for s in range(3) for a in ("x", "y") for b in range(3)}
    assert len(seeds) == 18
    assert all(0 <= seed < 2**63 for seed in seeds)
