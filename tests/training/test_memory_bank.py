"""The memory bank of negatives."""

import math

import pytest
import torch
from torch import nn

from eande.foundations.checks import InputError
from eande.similarities.cosine import Cosine
from eande.training.losses import inter_domain_info_nce
from helpers.linear_task import BOX, LINEAR_FIT, average_variation
from helpers.models import quick_fit


def test_a_memory_bank_adds_negatives_and_masks_its_own():
    from eande.training.negatives import MemoryBank

    score = Cosine(0.5).score
    f, g = (
        nn.functional.normalize(
            torch.randn(4, 3, generator=torch.Generator().manual_seed(s)), dim=1
        )
        for s in (0, 1)
    )
    groups = torch.arange(4)
    bank = MemoryBank(8, 3)
    bank.push(f, g, groups)
    # A bank that holds exactly the batch adds, once masked, the other rows a second time.
    phi_y, _ = inter_domain_info_nce(f, g, score, groups=groups, bank=bank)
    matrix = score(f, g)
    doubled = torch.cat([matrix, matrix.masked_fill(torch.eye(4, dtype=torch.bool), -math.inf)], 1)
    assert phi_y.item() == pytest.approx(
        (doubled.logsumexp(1) - matrix.diagonal()).mean().item(), rel=1e-6
    )
    unmasked, _ = inter_domain_info_nce(f, g, score, groups=groups + 100, bank=bank)
    assert unmasked > phi_y + 0.05
    with pytest.raises(
        InputError, match="groups: expected the group ids of the batch with a memory bank"
    ):
        inter_domain_info_nce(f, g, score, bank=bank)
    bank.push(f, g, groups + 4)
    bank.push(f, g, groups + 8)
    assert bank.groups.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.thorough
def test_training_with_a_memory_bank_learns(linear_simulations):
    model = quick_fit(linear_simulations, BOX, **LINEAR_FIT | {"memory_bank": 500})
    assert average_variation(model) < 0.2
