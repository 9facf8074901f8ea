"""Simulations from arrays, and their splits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eande
from eande.foundations.checks import InputError
from eande.simulation.read.simulations import Simulations


def test_arrays_of_any_make_are_taken():
    phi = np.arange(6.0).reshape(3, 2)
    frame = pytest.importorskip("pandas").DataFrame(phi)
    for array in (frame, phi.astype(">f8"), phi.tolist(), torch.tensor(phi).requires_grad_()):
        taken = Simulations.from_arrays(array, array)
        assert torch.equal(taken.phi, torch.tensor(phi).float())
        assert not taken.y.requires_grad
    assert torch.equal(
        Simulations.from_arrays(phi[::-1], phi[::-1]).phi, torch.tensor(phi).float().flip(0)
    )


def test_a_split_is_a_partition():
    simulations = Simulations.from_arrays(torch.arange(50.0).unsqueeze(1), torch.zeros(50, 1))
    large, small = simulations.split(0.2, seed=0)
    assert len(small) == 10
    assert sorted([*large.phi[:, 0].tolist(), *small.phi[:, 0].tolist()]) == list(range(50))


@given(
    groups=st.lists(st.integers(0, 12), min_size=4, max_size=60).filter(
        lambda ids: len(set(ids)) > 1
    ),
    seed=st.integers(0, 5),
)
def test_a_split_never_puts_a_parameter_on_both_sides(groups, seed):
    phi = torch.tensor(groups).unsqueeze(1).float()
    data = torch.arange(len(groups)).unsqueeze(1).float()
    large, small = eande.Simulations.from_arrays(phi, data, groups=groups).split(0.3, seed=seed)
    assert not set(large.phi.flatten().tolist()) & set(small.phi.flatten().tolist())
    assert (
        sorted([*large.y.flatten().tolist(), *small.y.flatten().tolist()])
        == data.flatten().tolist()
    )


CASES = {
    "masked": (
        lambda: eande.Simulations.from_arrays(
            np.ones((2, 1)), np.ma.masked_equal([[1.0], [2.0]], 2)
        ),
        "y: expected numbers, got 1 masked",
    ),
    "failed phi": (
        lambda: eande.Simulations.from_arrays(np.ones((3, 2)), np.ones((3, 1)), failed_phi=[[1.0]]),
        r"failed_phi: expected shape \(m, 2\)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]
