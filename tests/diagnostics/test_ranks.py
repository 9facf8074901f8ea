"""Ranks, levels and coverage.

They are silent about what is right, loud about what is wrong, and exact for any number of draws.
"""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from eande.diagnostics.ranks import weigh
from eande.diagnostics.uniformity import uniformity

# The toys and their faults are those of the benchmark.
_spec = importlib.util.spec_from_file_location(
    "diagnostics_benchmark", Path(__file__).parents[2] / "benchmarks" / "diagnostics.py"
)
benchmark = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(benchmark)
weighed = benchmark.weighed
alarms = benchmark.alarms
# Which check must see which fault; 300 data, 1,000 draws.
MUST_SEE = {
    "too wide": ["ranks", "coverage"],
    "too narrow": ["ranks", "coverage", "TARP"],
    "shifted": ["ranks"],
    "one mode lost": ["ranks", "coverage", "TARP", "log ratio"],
    "the prior": ["log ratio"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("draws", [2, 5, 300])
def test_ranks_of_the_exact_ratio_are_uniform_for_any_number_of_draws(draws):
    # Draws of their own for every datum.
    found = [weighed("exact", 1, draws, seed=seed) for seed in range(1_500)]
    for ranks in zip(
        *(torch.cat([*one.ranks[0:1].T, one.level, one.tarp]).tolist() for one in found),
        strict=True,
    ):
        assert stats.kstest(ranks, "uniform").pvalue > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("fault", MUST_SEE)
def test_every_fault_raises_the_alarms_it_must(fault):
    repeats = 8
    found = [alarms(weighed(fault, 300, 1_000, seed=seed)) for seed in range(repeats)]
    for check in MUST_SEE[fault]:
        assert sum(one[check] for one in found) > repeats / 2


@pytest.mark.thorough
def test_the_exact_posterior_raises_no_more_alarms_than_promised():
    found = [alarms(weighed("exact", 200, 300, seed=seed), level=0.05) for seed in range(60)]
    for check in ("ranks", "coverage", "TARP"):
        # 60 chances of 5 %: more than 9 would happen once in a thousand times.
        assert sum(one[check] for one in found) <= 9
    assert not any(one["log ratio"] for one in found)


def test_uniformity_keeps_its_level_and_its_band():
    rng = np.random.default_rng(0)
    found = [uniformity(rng.uniform(size=80)) for _ in range(600)]
    assert 0.02 < np.mean([one.p_value < 0.05 for one in found]) < 0.08
    inside = [
        ((one.below >= one.band[:, 0]) & (one.below <= one.band[:, 1])).all() for one in found
    ]
    assert 0.92 < np.mean(inside) < 0.98
    assert uniformity(rng.beta(1.4, 1.4, size=500)).p_value < 0.01


def test_ranks_far_from_uniform_have_a_p_value_far_under_that_of_any_simulated_set():
    assert uniformity(np.zeros(500)).p_value < 1e-50


@pytest.mark.thorough
def test_draws_as_few_as_the_data_raise_no_false_alarms():
    """Ranks among the same draws, of parameters that the data say nothing about."""
    rng = np.random.default_rng(0)
    ranks = [
        np.searchsorted(np.sort(rng.uniform(size=300)), rng.uniform(size=300)) / 300
        for _ in range(300)
    ]
    assert np.mean([uniformity(one).p_value < 0.05 for one in ranks]) > 0.12
    assert np.mean([uniformity(one, draws=300).p_value < 0.05 for one in ranks]) < 0.08
    assert uniformity(rng.beta(3, 3, size=300), draws=300).p_value < 0.01


def weigh_alone(scores, own, drawn, phi, **options):
    generator = torch.Generator().manual_seed(1)
    references = drawn[torch.randint(len(drawn), (len(phi),), generator=generator)]
    chance = torch.rand(len(phi), generator=generator).double()
    return weigh(scores, own, drawn, phi, references, chance, **options)


def test_a_posterior_no_draw_comes_near_has_moments():
    drawn = torch.linspace(-1, 1, 1_000).unsqueeze(1)
    found = weigh_alone(torch.full((1, 1_000), -800.0), torch.zeros(1), drawn, torch.zeros(1, 1))
    assert found.mean.item() == pytest.approx(0, abs=1e-6)
    assert found.effective_draws.item() == pytest.approx(1_000)
    assert found.divergence.isfinite().all()


def test_distances_of_large_and_of_constant_parameters_keep_their_digits():
    generator = torch.Generator().manual_seed(0)
    drawn, phi = (
        torch.cat([1e4 + torch.rand(n, 1, generator=generator), torch.ones(n, 1)], dim=1)
        for n in (5_000, 300)
    )
    found = weigh_alone(torch.zeros(300, 5_000), torch.zeros(300), drawn, phi)
    assert uniformity(found.tarp).p_value > 0.01


def test_regions_are_of_the_highest_density_under_any_prior():
    """The prior itself, a Gaussian: the level of φ is the mass within |φ|."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(100_000, 1, generator=generator)
    phi = torch.tensor([[0.0], [1.0], [-2.0]])
    log_density = [torch.distributions.Normal(0.0, 1.0).log_prob(x)[:, 0] for x in (drawn, phi)]
    found = weigh_alone(
        torch.zeros(3, 100_000), torch.zeros(3), drawn, phi, densities=tuple(log_density)
    )
    assert torch.allclose(
        found.level, torch.tensor([0.0, 0.683, 0.954], dtype=torch.float64), atol=0.005
    )


def test_marginal_divergence_and_moments_are_the_exact_ones():
    """A Gaussian posterior of standard deviation 0.1 in a box of width 2."""
    drawn = torch.rand(200_000, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    scores = -(drawn.T / 0.1).square() / 2
    found = weigh(
        scores,
        torch.zeros(1),
        drawn,
        torch.zeros(1, 1),
        torch.zeros(1, 1),
        torch.ones(1, dtype=torch.float64) / 2,
    )
    exact = math.log(2 / (0.1 * math.sqrt(2 * math.pi * math.e)))
    assert found.divergence.item() == pytest.approx(exact, abs=0.03)
    assert found.deviation.item() == pytest.approx(0.1, rel=0.02)
    assert found.mean.item() == pytest.approx(0, abs=0.003)
    assert found.log_ratio.item() == pytest.approx(
        math.log(2 / (0.1 * math.sqrt(2 * math.pi))), abs=0.02
    )
