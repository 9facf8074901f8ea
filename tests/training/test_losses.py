"""The losses equal their formulas."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from eande.foundations.seeds import generator
from eande.similarities.cosine import Cosine
from eande.training.losses import LOSSES, inter_domain_info_nce, view_info_nce


def test_losses_equal_their_formulas():
    f, g, h = (
        nn.functional.normalize(
            torch.randn(6, 3, generator=torch.Generator().manual_seed(s), dtype=torch.float64),
            dim=1,
        )
        for s in range(3)
    )
    tau = 0.3

    def formula(a, b):  # rows of a pick among rows of b
        return -np.mean(
            [
                math.log(
                    math.exp(a[i] @ b[i] / tau) / sum(math.exp(a[i] @ b[j] / tau) for j in range(6))
                )
                for i in range(6)
            ]
        )

    score = Cosine(tau).score
    losses = inter_domain_info_nce(f, g, score)
    assert losses.phi_y.item() == pytest.approx(formula(f, g), rel=1e-6)
    assert losses.y_phi.item() == pytest.approx(formula(g, f), rel=1e-6)
    for name, expected in (
        ("symmetric", formula(f, g) + formula(g, f)),
        ("phi_y", formula(f, g)),
        ("y_phi", formula(g, f)),
    ):
        assert LOSSES[name](losses).item() == pytest.approx(expected, rel=1e-6)
    assert view_info_nce(f, h, score).item() == pytest.approx(formula(f, h), rel=1e-6)


def test_without_its_push_the_emulator_is_only_drawn_to_the_data():
    """Same value of L_ΦY, same gradient for the encoder.

    The emulator's is that of minus the matching scores.
    """
    gradients = {}
    for push in (True, False):
        f, g, failed = (
            torch.randn(m, 3, dtype=torch.float64, generator=generator(i)).requires_grad_()
            for i, m in enumerate((5, 5, 2))
        )
        phi_y, y_phi = inter_domain_info_nce(
            f, g, lambda a, b: a @ b.T, failed=failed, push_emulator=push
        )
        gradients[push] = (
            phi_y.detach(),
            y_phi.detach(),
            *torch.autograd.grad(phi_y, [f, g, failed], allow_unused=True),
        )
    value, other, to_f, to_g, to_failed = gradients[False]
    torch.testing.assert_close((value, other, to_f), gradients[True][:3])
    torch.testing.assert_close(to_g, -f.detach() / 5)
    assert to_failed is None
    assert not torch.allclose(gradients[True][3], to_g)


def test_failed_parameters_are_candidates_of_the_datum_only():
    f, g, failed = (torch.randn(m, 3, generator=generator(i)) for i, m in enumerate((5, 5, 4)))
    scores = f @ torch.cat([g, failed]).T
    by_datum = (scores.logsumexp(1) - scores[range(5), range(5)]).mean()
    by_parameter = ((f @ g.T).logsumexp(0) - scores[range(5), range(5)]).mean()
    phi_y, y_phi = inter_domain_info_nce(f, g, lambda a, b: a @ b.T, failed=failed)
    torch.testing.assert_close(phi_y, by_datum)
    torch.testing.assert_close(y_phi, by_parameter)
