"""The uniform prior on a box."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eande
from eande.foundations.checks import InputError
from eande.priors.box import BoxPrior


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4),
    st.floats(1e-3, 1e6),
    st.integers(0, 2**31),
)
def test_a_box_contains_its_draws(low, width, seed):
    low = torch.tensor(low)
    high = low + width
    if (low < high).all():
        prior = BoxPrior(low, high)
        assert prior.contains(prior.sample(50, seed=seed)).all()


def test_densities_of_whole_and_of_double_numbers_are_right():
    assert BoxPrior([0, 0], [3, 3]).log_prob(torch.tensor([[1, 1]])).item() == pytest.approx(
        -2 * np.log(3)
    )
    assert BoxPrior([0.1], [0.9]).contains(torch.tensor([[0.1], [0.9]], dtype=torch.float64)).all()


CASES = {
    "names text": (
        lambda: eande.BoxPrior([0, 1], [1, 2], names="ab"),
        "names: expected a list of 2 names, got 'ab'",
    ),
    "box too fine for float32": (
        lambda: eande.BoxPrior([1e8 - 1], [1e8 + 1]),
        r"high: expected every entry above low \(in float32\)",
    ),
    "box upside down": (
        lambda: eande.BoxPrior([0, 1], [1, 0]),
        "high: expected every entry above low",
    ),
    "box with inf": (
        lambda: eande.BoxPrior([0, 1], [1, torch.inf]),
        "high: expected finite float32 numbers",
    ),
    "box of other sizes": (
        lambda: eande.BoxPrior([0, 1], [1]),
        r"high: expected shape \(2,\), got \(1,\)",
    ),
    "names": (
        lambda: eande.BoxPrior([0, 1], [1, 2], names=["a"]),
        "names: expected 2 different names",
    ),
    "twice the same name": (
        lambda: eande.BoxPrior([0, 1], [1, 2], names=["a", "a"]),
        "names: expected 2 different names",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]
