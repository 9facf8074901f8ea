"""Posterior mass above the true parameters: against sums written out, and uniform with ties."""

import pytest
import torch
from scipy import stats

from eande.inference.levels import mass_above, tied


def written_out(values, own, weights, own_weight, share):
    """Return the mass above, summed by hand."""
    higher = sum(w for v, w in zip(values, weights, strict=True) if v > own)
    level = sum(w for v, w in zip(values, weights, strict=True) if v == own)
    return (higher + share * (level + own_weight)) / (sum(weights) + own_weight)


def test_the_mass_is_the_sum_written_out():
    values, weights = [3.0, 1.0, 2.0, 2.0, 5.0], [0.1, 0.4, 0.2, 0.6, 0.3]
    for own in (0.0, 1.0, 2.0, 4.0, 5.0, 6.0):
        for own_weight, share in ((0.0, 0.5), (0.7, 0.2)):
            found = mass_above(
                torch.tensor(values),
                torch.tensor(own),
                torch.tensor(weights, dtype=torch.float64),
                own_weight=own_weight,
                ties=share,
            )
            assert found.item() == pytest.approx(
                written_out(values, own, weights, own_weight, share)
            )


def test_data_share_draws_and_exponents_share_values():
    stream = torch.Generator().manual_seed(0)
    own, ties, own_weight = torch.rand(3, 4, generator=stream, dtype=torch.float64)
    weights = torch.rand(4, 50, generator=stream, dtype=torch.float64)
    for values in (
        torch.rand(4, 50, generator=stream),
        torch.rand(1, 50, generator=stream),
        torch.rand(50, generator=stream),
    ):
        together = mass_above(values, own, weights, own_weight=own_weight, ties=ties)
        alone = [
            mass_above(row, own[i], weights[i], own_weight=own_weight[i], ties=ties[i])
            for i, row in enumerate(values.expand(4, 50))
        ]
        torch.testing.assert_close(together, torch.stack(alone))
    # Many exponents: one value at the true parameters, one set of values, weights (T, N).
    many = mass_above(values, own[0], weights, own_weight=own_weight)
    alone = [mass_above(values, own[0], weights[i], own_weight=own_weight[i]) for i in range(4)]
    torch.testing.assert_close(many, torch.stack(alone))


def test_equal_weights_are_counts():
    values = torch.tensor([1.0, 2.0, 2.0, 3.0])
    assert mass_above(values, torch.tensor(2.0)).item() == (1 + 2 / 2) / 4
    assert (
        mass_above(values, torch.tensor(2.0), own_weight=1.0, ties=0.25).item() == (1 + 3 / 4) / 5
    )


def test_what_lies_outside_the_support_counts_as_lower():
    values = torch.tensor([-torch.inf, 1.0, 2.0])
    weights = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    assert mass_above(values, torch.tensor(1.5), weights).item() == 0.5


def levels_of_a_plateau(*, ties, rounding=0.0, equal=tied):
    """Return levels among draws of a density with two plateaus of mass ½ each."""
    stream = torch.Generator().manual_seed(0)
    draws, own = torch.rand(2_000, 20, generator=stream), torch.rand(2_000, generator=stream)
    noise = rounding * torch.randn(2_000, 20, generator=stream)
    chance = torch.rand(2_000, generator=stream, dtype=torch.float64)
    return mass_above(
        (draws > 0.5).float() + 10 + noise,
        (own > 0.5).float() + 10,
        own_weight=1.0,
        ties=chance if ties is None else ties,
        equal=equal,
    )


@pytest.mark.parametrize("rounding", [0.0, 1e-6])
def test_levels_of_tied_densities_are_uniform(rounding):
    levels = levels_of_a_plateau(ties=None, rounding=rounding)
    assert stats.kstest(levels.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5])
def test_one_share_of_ties_for_all_is_not_uniform(share):
    """The sibling that fails; half of every tie is right in the mean, and there alone."""
    levels = levels_of_a_plateau(ties=share)
    assert stats.kstest(levels.numpy(), "uniform").pvalue < 1e-6
    # The standard error of the mean is under 0.01.
    assert (abs(levels.mean() - 0.5) < 0.03) == (share == 0.5)


def test_ties_broken_by_rounding_are_not_uniform_where_rounding_leans_to_one_side():
    """A sibling: exact equality takes scores that differ by rounding for higher ones."""
    leaning = {"values": torch.full((1_000, 20), 1 + 1e-6), "own": torch.ones(1_000)}
    chance = torch.rand(1_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert stats.kstest(mass_above(**leaning, ties=chance).numpy(), "uniform").pvalue > 1e-3
    broken = mass_above(**leaning, ties=chance, equal=torch.eq)
    assert stats.kstest(broken.numpy(), "uniform").pvalue < 1e-6
