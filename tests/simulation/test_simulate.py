"""Running a simulator."""

import numpy as np
import pytest
import torch

import eande
from eande.foundations.checks import InputError
from eande.priors.box import BoxPrior
from eande.simulation.run.blocks import SimulationError, each
from eande.simulation.simulate import simulate
from helpers.small_fits import PRIOR

BOX = BoxPrior([-1, -1], [1, 1])


def test_simulate_depends_on_seed_and_block_size_alone():
    prior = BoxPrior([0], [1])
    noisy = each(lambda phi, rng: phi + rng.normal(size=3))
    first, again, other = (
        simulate(noisy, prior, 25, seed=seed, block_size=10) for seed in (0, 0, 1)
    )
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y, other.y)
    longer = simulate(noisy, prior, 40, seed=0, block_size=10)
    assert torch.equal(longer.y[:20], first.y[:20]), (
        "whole blocks stay as they are when there are more"
    )


def test_a_simulator_may_change_its_argument_and_reuse_its_output():
    buffer = np.zeros((10, 2), dtype=np.float32)

    def careless(phi, rng):
        buffer[:] = phi
        phi *= 2
        return buffer

    simulations = simulate(careless, BOX, 20, seed=0, block_size=10)
    assert simulations.phi.abs().max() <= 1
    assert torch.equal(simulations.y, simulations.phi)


def test_failures_are_said_when_they_happen():
    calls = []

    def failing(phi, rng):
        calls.append(len(phi))
        return phi * np.nan

    with pytest.raises(
        SimulationError,
        match=r"1000 of 1000 simulations failed, more than failure_limit=0.5 allows: 1000 × "
        r"NaN in the data",
    ):
        simulate(failing, BOX, 5_000, block_size=1_000)
    assert calls == [1_000]


CASES = {
    "simulator word": (
        lambda: eande.simulate("s", PRIOR, 5),
        r"simulator: expected a function of \(phi, rng\), got 's'",
    ),
    "simulate nothing": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 0),
        "n: expected a whole number of at least 1, got 0",
    ),
    "simulator's shape": (
        lambda: eande.simulate(lambda phi, rng: phi[:1], PRIOR, 5),
        "simulator output: expected first axis 5",
    ),
    "simulator's scalars": (
        lambda: eande.simulate(lambda phi, rng: phi[:, 0], PRIOR, 5),
        r"at least one axis per datum, got shape \(5,\)",
    ),
    "simulator's words": (
        lambda: eande.simulate(lambda phi, rng: [["a"]] * 5, PRIOR, 5),
        "expected real numbers in an array or tensor, got <U1",
    ),
    "simulator's nothing": (
        lambda: eande.simulate(lambda phi, rng: None, PRIOR, 5),
        "expected real numbers in an array or tensor, got object",
    ),
    "simulator's complex": (
        lambda: eande.simulate(lambda phi, rng: phi + 1j, PRIOR, 5),
        "expected real numbers in an array or tensor, got complex",
    ),
    "simulator's tuple": (
        lambda: eande.simulate(lambda phi, rng: (phi, 1), PRIOR, 5),
        "expected an array or tensor, got a tuple of unequal parts",
    ),
    "simulator's single numbers": (
        lambda: eande.simulate(lambda phi, rng: phi.sum(1), PRIOR, 5),
        r"got shape \(5,\); return y\[:, None\]",
    ),
    "a huge block": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, block_size=10**9),
        "block_size: expected a whole number of at most 1000000, got",
    ),
    "n that is true": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, True),
        "n: expected a whole number of at least 1, got True",
    ),
    "each of nothing": (lambda: eande.each(3), r"each: expected a function of \(phi, rng\), got 3"),
    "executor": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, executor="dask"),
        "executor: expected None, a number of processes or an",
    ),
    "no workers": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, executor=0),
        "executor: expected a whole number of at least 1, got 0",
    ),
    "timeout": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, timeout=-1),
        "timeout: expected a finite number above 0, got -1",
    ),
    "redo without store": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, redo="damaged"),
        "redo: expected None without a store",
    ),
    "seed of simulate": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, seed=-1),
        "seed: expected a whole number of at least 0, got -1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]


def test_what_does_not_fit_into_memory_is_refused_after_the_first_block():
    calls = []

    def large(phi, rng):
        calls.append(len(phi))
        return np.zeros((len(phi), 100_000))

    with pytest.raises(InputError, match=r"n: expected simulations that fit into .* store=…"):
        simulate(large, BOX, 10_000_000, block_size=2, progress=False)
    assert len(calls) <= 1
    with pytest.raises(InputError, match=r"n: expected simulations that fit into .* store=…"):
        simulate(large, BOX, 10**12, progress=False)
    assert len(calls) <= 1
