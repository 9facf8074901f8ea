"""The maximum, the modes and the search for them."""

import pytest
import torch

from eande.inference.search import climb
from helpers.exact_posteriors import box_model, linear_gaussian_model


def test_the_maximum_and_the_modes_are_found():
    posterior = box_model().posterior([1.0])
    assert torch.allclose(posterior.map().abs(), torch.ones(2), atol=0.02)
    summary = posterior.summary(samples=4_000)
    assert len(summary.modes) == 2
    assert {tuple(mode.phi.sign().tolist()) for mode in summary.modes} == {(1.0, 1.0), (-1.0, -1.0)}
    assert summary.modes[0].weight == pytest.approx(0.5, abs=0.05)
    assert (summary.lower < summary.mean).all()
    assert (summary.mean < summary.upper).all()
    assert "mode at" in str(summary)
    assert "a " in str(summary)


def test_a_single_bump_is_one_mode():
    model = linear_gaussian_model()
    summary = model.posterior([0.3]).summary(samples=2_000)
    assert len(summary.modes) == 1
    assert summary.modes[0].weight == 1


def test_climbing_respects_the_edge():
    ends = climb(
        lambda x: torch.where((x <= 1).all(1), x.sum(1), -torch.inf),
        torch.zeros(3, 2),
        torch.ones(2),
    )
    assert (ends > 0.95).all()
    assert (ends <= 1).all()
