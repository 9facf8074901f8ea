"""The networks of our own.

Shapes, gradients, periodic axes, the choice by the shape of the data.
"""

import pytest
import torch
from torch import nn

from eande.foundations.checks import InputError
from eande.networks.choose import default_encoder, describe_network, make_network
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet

NETWORKS = [
    (ResidualMLP(3, 4), (3,)),
    (ResidualMLP(6, 4, normalization="batch", activation="silu"), (2, 3)),
    (ResidualMLP(3, 4, blocks=0, normalization="layer"), (3,)),
    (ResNet(2, 4, dimensions=1, width=4), (2, 70)),
    (ResNet(2, 4, dimensions=2, width=4, stem="narrow", periodic=(0,)), (2, 9, 12)),
    (ResNet(2, 4, dimensions=2, width=8, depth=34, normalization="group"), (2, 33, 40)),
]


@pytest.mark.parametrize(
    ("network", "shape"),
    NETWORKS,
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "x".join(map(str, x)),
)
def test_every_network_keeps_the_contract(network, shape):
    x = torch.randn(5, *shape)
    network.eval()
    assert network(x).shape == (5, 4)
    again = make_network(describe_network(network)).eval()
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(x), network(x))
    assert torch.allclose(network(x[:1]), network(x)[:1], atol=1e-5)
    network.train()
    network(x).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_a_periodic_axis_makes_shifts_invisible():
    torch.manual_seed(0)
    ring = ResNet(2, 4, dimensions=2, width=4, stem="narrow", periodic=(0,)).eval()
    open_ended = ResNet(2, 4, dimensions=2, width=4, stem="narrow").eval()
    open_ended.load_state_dict(ring.state_dict())
    x = torch.randn(3, 2, 16, 12)
    shifted = x.roll(8, dims=2)  # the total stride of a narrow stem
    with torch.no_grad():
        assert torch.allclose(ring(shifted), ring(x), atol=1e-4)
        assert not torch.allclose(open_ended(shifted), open_ended(x), atol=1e-2)


def test_the_default_encoder_follows_the_shape():
    assert isinstance(default_encoder((7,), 4), ResidualMLP)
    assert default_encoder((2, 100), 4).settings["dimensions"] == 1
    assert default_encoder((2, 100), 4, width=128).settings["width"] == 16, "128 in the last stage"
    two = default_encoder((2, 30, 30), 4)
    assert (two.settings["dimensions"], two.settings["depth"], two.settings["stem"]) == (
        2,
        18,
        "narrow",
    )
    assert describe_network(nn.Linear(1, 1)) is None


CASES = {
    "no default encoder": (
        lambda: default_encoder((1, 2, 3, 4), 8),
        r"y: expected data of shape \(d,\), .* pass encoder=",
    ),
    "resnet": (
        lambda: ResNet(1, 2, dimensions=3),
        "expected dimensions 1 or 2 and depth 18 or 34, got 3 and 18",
    ),
    "periodic": (
        lambda: ResNet(1, 2, dimensions=1, periodic=(1,)),
        r"periodic: expected axes out of \(0,\), got \(1,\)",
    ),
    "normalization": (
        lambda: ResidualMLP(1, 2, normalization="instance"),
        "normalization: expected one of 'batch', 'layer', 'none', got 'instance'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]
