"""The standardisation of inputs."""

import math

import pytest
import torch

from eande.networks.standardizer import Standardizer


def test_a_constant_feature_is_left_alone():
    out = Standardizer(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0]))(
        torch.tensor([[1.0, 4.0]])
    )
    assert out.tolist() == [[0.0, 1.0]]


def test_a_limit_brings_in_what_is_far():
    standardizer = Standardizer(
        torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]), torch.tensor([3.0, math.inf])
    )
    z = standardizer(torch.tensor([[5.0, 1e6], [-7e6, -2.0], [7.0, 0.0]]))
    assert z[:, 1].tolist() == [1e6, -2.0, 0.0]
    assert z[0, 0] == 2
    assert z[1, 0].item() == pytest.approx(-3 - math.log(3.5e6 - 2), rel=1e-4)
    assert z[2, 0] == 3
