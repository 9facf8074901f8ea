"""Few samples of each of many posteriors are no excuse for proposals that miss them."""

from types import SimpleNamespace

import pytest
import torch

from eande.inference.guide import Weighted
from eande.inference.samplers.guided import Found, samples_among
from eande.inference.samplers.rejection import _exact_bound


def drawn_with(log_weight):
    n = len(log_weight)
    phi = torch.arange(float(n)).view(1, n, 1)
    return Weighted(phi, log_weight.unsqueeze(0), torch.zeros(1, n).double())


@pytest.mark.parametrize(("spread", "enough"), [(0.3, True), (4.0, False)])
def test_a_sample_is_taken_only_where_proposals_are_effective(spread, enough):
    """The largest of five hundred weights is accepted in any case, were it the only one."""
    stream = torch.Generator().manual_seed(0)
    log_weight = spread * torch.randn(512, generator=stream, dtype=torch.float64)
    found = Found(None, log_weight, 1, 512)
    samples = samples_among(drawn_with(log_weight), found, 1, seed=0)
    assert (samples is not None) == enough


@pytest.mark.parametrize("exact", [-1_000.0, 0.0, 1_000.0])
def test_a_rigorous_bound_leaves_room_for_rounding(exact):
    posterior = SimpleNamespace(bound=lambda: exact)
    assert _exact_bound(posterior, from_prior=True) > exact
