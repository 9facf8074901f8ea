"""Distances between samples, densities and embeddings."""

import math

import numpy as np
import pytest
import torch

from eande.diagnostics.distances import best_rotation, l1_distance, linear_r2, squared_mmd
from eande.foundations.seeds import generator
from eande.studies.lorenz96.ring import reference_samples


def test_distances_know_the_truth():
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # determinant −1
    assert torch.allclose(best_rotation(x, x @ rotation.T), rotation, atol=1e-9)
    assert linear_r2(x, 3 * x @ rotation + 1) == pytest.approx(1)
    assert linear_r2(x, torch.randn(500, 2, generator=torch.Generator().manual_seed(1))) < 0.1
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(2))
    assert l1_distance(logits, logits + 5).max() < 1e-6


def test_squared_mmd_is_the_printed_sum():
    x, y = (torch.randn(m, 2, generator=generator(m)) for m in (5, 7))

    def kernel(a, b):
        return math.exp(-((a - b) ** 2).sum().item() / (2 * 0.3**2))

    expected = (
        sum(kernel(a, b) for a in x for b in x) / 25
        + sum(kernel(a, b) for a in y for b in y) / 49
        - 2 * sum(kernel(a, b) for a in x for b in y) / 35
    )
    assert squared_mmd(x, y, [0.3]).item() == pytest.approx(expected, rel=1e-5)


def test_the_floor_of_the_mmd_is_two_over_m():
    values = [
        squared_mmd(
            *(reference_samples(10.0, 100, 2 * i + j) / 15 for j in range(2)), [0.01]
        ).item()
        for i in range(40)
    ]
    assert np.mean(values) == pytest.approx(0.0197, rel=0.03)
