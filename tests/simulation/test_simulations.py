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


INDICES = {
    "a text": ("ab", "expected a slice or a list of indices, got 'ab'"),
    "None": (None, "expected a slice or a list of indices, got None"),
    "one number": (3, "expected a slice or a list of indices, got 3; one datum is"),
    "fractions": ([0.5], r"expected a slice or a list of indices, got \[0.5\]"),
    "beyond the end": ([0, 9], "expected indices of 4 rows, got 0 to 9"),
    "before the beginning": ([-5], "expected indices of 4 rows, got -5 to -5"),
    "too few truth values": ([True, False], "expected a slice or a list of indices"),
    "a slice of words": (slice("a"), "expected a slice or a list of indices"),
}


@pytest.mark.parametrize(("index", "message"), INDICES.values(), ids=INDICES)
def test_an_index_that_is_none_is_refused_in_a_line(index, message):
    with pytest.raises(InputError, match=f"^index: {message}"):
        numbered()[index]


def numbered():
    rows = np.arange(4.0)[:, None]
    return Simulations.from_arrays(rows, rows)


@pytest.mark.parametrize(
    "index",
    [
        slice(None, None, -1),
        slice(1, 3),
        [3, 0],
        range(2),
        np.array([2, -1]),
        np.array([True, False, True, False]),
        [],
    ],
)
def test_indices_choose_what_they_choose_of_an_array(index):
    expected = np.arange(4.0)[index if not isinstance(index, list) else np.array(index, int)]
    assert numbered()[index].phi[:, 0].tolist() == expected.tolist()


@pytest.mark.parametrize("groups", [[None] * 4, torch.eye(2).to_sparse(), [[1], [1, 2], 3, 4]])
def test_groups_that_cannot_be_compared_are_refused(groups):
    rows = np.arange(4.0)[:, None]
    with pytest.raises(InputError, match=r"^groups: expected one number or text per simulation"):
        Simulations.from_arrays(rows, rows, groups=groups)
