"""Simulations of all rounds: what is used, for what, and where it lies."""

import numpy as np
import pytest
import torch
from scipy import stats

import eande
from eande.foundations.checks import InputError
from eande.priors.truncated import TruncatedPrior
from eande.sequential.pool import HELD_OUT, Pool
from eande.simulation.read.joined import JoinedSource, join
from eande.simulation.read.parts import Failures
from eande.simulation.read.simulations import Simulations
from helpers.linear_task import BOX, linear


def disc(radius):
    return lambda phi: phi.square().sum(1) <= radius**2


@pytest.fixture(scope="module")
def priors():
    wide = TruncatedPrior(BOX, disc(0.8))
    return [BOX, wide, TruncatedPrior(wide, disc(0.4))]


@pytest.fixture(scope="module")
def rounds(priors):
    made = [
        eande.simulate(linear, prior, 2_000, seed=seed, progress=False)
        for seed, prior in enumerate(priors)
    ]
    failed = Failures(priors[0].sample(500, seed=9), ("no mesh",) * 500)
    first = made[0]
    made[0] = Simulations(first.phi, first.y, first.groups, failed, first.names)
    return made


def rows(simulations):
    return {tuple(row) for row in simulations.phi.tolist()}


def pooled(rounds, **options):
    pool = Pool(3, **({"reuse": True} | options))
    for made in rounds:
        pool.add(made)
    return pool


def test_a_simulation_has_its_role_for_ever(rounds, priors):
    pool = Pool(3, reuse=True)
    fitted, held = set(), set()
    for made, prior in zip(rounds, priors, strict=True):
        pool.add(made)
        now_fitted, now_held = (rows(part) for part in pool.inside(prior))
        fitted |= now_fitted
        held |= now_held
        assert not fitted & held
    share = len(held) / (len(held) + len(fitted))
    assert share == pytest.approx(HELD_OUT, abs=4 * (0.09 / 5_000) ** 0.5)


def test_what_is_used_lies_inside_and_all_of_it(rounds, priors):
    fitted, held_out = pooled(rounds).inside(priors[2])
    assert priors[2].contains(fitted.phi).all()
    inside = sum(int(priors[2].contains(made.phi).sum()) for made in rounds)
    assert len(fitted) + len(held_out) == inside > 2_300
    failed = int(priors[2].contains(rounds[0].failures.phi).sum())
    assert len(fitted.failures) + len(held_out.failures) == failed
    assert len(fitted.groups.unique()) == len(fitted)
    alone, _ = pooled(rounds, reuse=False).inside(priors[2])
    assert rows(alone) < rows(fitted)
    assert rows(alone) <= rows(rounds[2])


def test_older_simulations_inside_are_draws_of_the_present_prior(rounds, priors):
    """Of a wrong alarm the chance is 1 in 1,000; regions that are not nested are found out."""
    fitted, _ = pooled(rounds).inside(priors[2])
    radius = fitted.phi.norm(dim=1).numpy()
    assert stats.kstest((radius / 0.4) ** 2, "uniform").pvalue > 1e-3
    # As if the wide region had come last: its part in the narrow one is denser.
    wide, _ = pooled(rounds).inside(priors[1])
    assert stats.kstest((wide.phi.norm(dim=1).numpy() / 0.8) ** 2, "uniform").pvalue < 1e-6


def test_data_of_stores_and_of_memory_are_joined_where_they_lie(tmp_path):
    stored = eande.simulate(linear, BOX, 30, store=tmp_path / "a.zarr", seed=1, progress=False)
    memory = eande.simulate(linear, BOX, 20, seed=2, progress=False)
    both = join([stored[5:], memory])
    assert isinstance(both.y, JoinedSource)
    expected = torch.cat([stored.y[5:], memory.y])
    assert torch.equal(both.y[:], expected)
    assert torch.equal(both.y[torch.tensor([44, 3, 25])], expected[[44, 3, 25]])
    chosen = both[torch.tensor([30, 2])]
    assert torch.equal(chosen.y[:], expected[[30, 2]])
    starts = torch.tensor([1, 0])
    windows = chosen.y.windows(torch.tensor([0, 1]), starts, 1)
    assert torch.equal(windows[:, 0], torch.stack([expected[30, 1], expected[2, 0]]))
    assert both.fingerprint() == join([stored[5:], memory]).fingerprint()
    assert both.fingerprint() != join([stored[4:-1], memory]).fingerprint()
    nothing = both[torch.zeros(50).nonzero()[:, 0]]
    assert nothing.fingerprint() != chosen.fingerprint()
    assert len(both.groups.unique()) == len(both)


def test_replicates_stay_together_when_joined():
    phi = np.repeat(np.eye(2), 2, axis=0)
    made = Simulations.from_arrays(phi, np.ones((4, 3)), groups=[7, 7, 9, 9])
    assert join([made, made]).groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_data_of_two_shapes_are_not_joined():
    parts = [Simulations.from_arrays(np.ones((4, 2)), np.ones((4, n))) for n in (3, 5)]
    with pytest.raises(InputError, match=r"expected data of one shape, got \(3,\) and \(5,\)"):
        join(parts)
