"""Sources and views: a window reads the window."""

import numpy as np
import pytest
import torch

import eande
from eande.foundations.checks import InputError
from eande.foundations.seeds import generator
from eande.simulation.read.sources import Rows
from eande.simulation.read.views import draw_view
from helpers.counted_reads import Counting


def test_a_source_behaves_as_the_tensor_it_stands_for():
    y = torch.randn(6, 10, 3)
    source = Counting(y.numpy())
    for index in (
        slice(None),
        slice(1, 4),
        [0, 5],
        torch.tensor([2, 2]),
        np.array([1]),
        3,
        torch.tensor([True, False] * 3),
    ):
        assert torch.equal(source[index], y[index])
    assert torch.equal(source.subset(torch.tensor([4, 1]))[:], y[[4, 1]])
    assert torch.equal(torch.as_tensor(np.asarray(source)), y)
    assert source.shape == y.shape
    with pytest.raises(eande.InputError, match="y: expected one index"):
        _ = source[0, 1]
    with pytest.raises(
        eande.InputError,
        match="starts: expected windows of length 4 inside 10 entries, got starts from 0 to 7",
    ):
        Rows(source, torch.tensor([0, 1])).windows(torch.tensor([0, 7]), 4)


def test_a_window_reads_the_window_and_is_the_same_from_disk_and_memory():
    y = torch.randn(6, 100, 3)
    source = Counting(y.numpy())
    index = torch.tensor([3, 1, 5])
    view = eande.Compose(eande.RandomWindow(7), eande.Roll())
    seen = draw_view(view, Rows(source, index), 0, 1)
    assert source.numbers == [3 * 7 * 3]
    assert torch.equal(seen, draw_view(view, Rows(y, index), 0, 1))
    assert torch.equal(
        eande.RandomWindow(7)(y[index], generator(4)),
        eande.RandomWindow(7)(Rows(source, index), generator(4)),
    )


def test_windows_come_from_everywhere_and_are_contiguous():
    y = torch.arange(20.0).expand(4_000, 20)
    seen = eande.RandomWindow(5)(y, generator(0))
    assert torch.equal(seen.diff(dim=1), torch.ones(4_000, 4))
    starts = torch.bincount(seen[:, 0].long(), minlength=16)
    assert len(starts) == 16
    assert starts.min() > 180  # 250 each on average, standard deviation 15


def test_roll_turns_rings_together():
    y = torch.randn(50, 2, 12)
    seen = eande.Roll(sections=(3, 9))(y, generator(0))
    shifts = set()
    for before, after in zip(y, seen, strict=True):
        shift = next(s for s in range(3) if torch.equal(before[:, :3].roll(s, 1), after[:, :3]))
        assert torch.equal(before[:, 3:].roll(3 * shift, 1), after[:, 3:])
        shifts.add(shift)
    assert shifts == {0, 1, 2}
    first = eande.Roll(axis=0)(y.transpose(1, 2), generator(0))
    assert first.shape == (50, 12, 2)


CASES = {
    "composed of numbers": (
        lambda: eande.Compose(3),
        r"views: expected a function of \(y, generator\), got 3",
    ),
    "long window": (
        lambda: eande.RandomWindow(9)(torch.zeros(2, 5, 3), generator(0)),
        "RandomWindow: expected a length of at most 5, .* got 9",
    ),
    "roll axis": (
        lambda: eande.Roll(2)(torch.zeros(2, 5, 3), generator(0)),
        r"Roll: expected an axis of data of shape \(5, 3\), got 2",
    ),
    "roll sections": (
        lambda: eande.Roll(sections=(2, 2))(torch.zeros(2, 5), generator(0)),
        "Roll: expected sections that add up to 5",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]
