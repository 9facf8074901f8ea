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


def test_beyond_one_scale_numbers_are_their_logarithm_and_standardised_again():
    centre = torch.tensor([3.0])
    spread = torch.tensor([2.0])
    made = Standardizer(torch.zeros(1), torch.tensor([1e-6]), torch.ones(1), centre, spread)
    x = torch.tensor([[1e-3], [1e3], [-1e3], [5e-7], [0.0]])
    expected = [1 + math.log(1e3), 1 + math.log(1e9), -1 - math.log(1e9), 0.5, 0.0]
    assert made(x)[:, 0].tolist() == pytest.approx([(z - 3) / 2 for z in expected], rel=1e-5)
    again = Standardizer.of(made.state_dict())
    assert torch.equal(again(x), made(x))


def test_bending_is_one_to_one_with_a_gradient_everywhere():
    made = Standardizer(torch.zeros(2), torch.ones(2), torch.tensor([1.0, math.inf]))
    x = torch.linspace(-1e4, 1e4, 2_001).unsqueeze(1).repeat(1, 2).requires_grad_()
    z = made(x)
    assert (z.diff(dim=0) > 0).all()
    z.sum().backward()
    assert x.grad.isfinite().all()
    assert (x.grad > 0).all()


def test_how_far_out_data_lie_is_told_as_the_networks_see_them():
    made = Standardizer(torch.zeros(1), torch.ones(1), torch.ones(1), largest=1 + math.log(1e4))
    assert made.reach(torch.tensor([[1e4], [2e4]])).tolist() == pytest.approx([1, 1.07], abs=0.01)
    assert made.reach(torch.tensor([[-1e30]])).item() > 3
