"""The weight of a member is the mean over all that was drawn to find it."""

from typing import NamedTuple

import torch
from torch import Tensor

from eande.inference.nearby import _weighed_by, weigh_members
from helpers.sharp_gaussians import box, gaussian

SPREAD = 2.0


class Lognormal(NamedTuple):
    """A guide whose draws have weights of mean 1, and now and then a large one."""

    rows: int

    def draw(self, n: int, seed: int) -> Tensor:
        stream = torch.Generator().manual_seed(seed)
        return torch.randn(self.rows, n, 1, generator=stream, dtype=torch.float64)

    def weigh(self, scores: "Lognormal", x: Tensor) -> "Drawn":
        return Drawn(SPREAD * x[:, :, 0] - SPREAD**2 / 2)

    def of(self, rows: Tensor) -> "Lognormal":
        return Lognormal(len(rows))


class Drawn(NamedTuple):
    log_weight: Tensor


def test_draws_that_brought_a_large_weight_are_not_left_out():
    """To stop where draws look effective, or to take those that do, would be too low by 0.03.

    The mean of all rows has an error of 0.003.
    """
    guide = Lognormal(4_000)
    found = _weighed_by(guide, guide, 0)
    assert (found.effective_draws < 100).double().mean() > 0.5
    assert abs(found.log_value.exp().mean().item() - 1) < 0.012


def test_data_that_are_not_looked_at_together_share_no_random_numbers():
    """One datum 32 times, of which 16 are looked at together: errors of two are independent."""
    model, _ = gaussian(box(4), 0.02)
    f = model.embed_all(torch.full((32, 4), 0.1))
    bank = model.prior_bank(model.prior, 2_000)
    (found,) = weigh_members([model], [f], [bank], fewest=25).normalizers
    assert found.log_value[0] != found.log_value[16]
    assert (found.log_value[0] - found.log_value[16]).abs() < 5 * found.error[[0, 16]].norm()
