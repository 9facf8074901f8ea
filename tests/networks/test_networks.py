"""The networks of our own.

Shapes, gradients, periodic axes, the choice by the shape of the data.
"""

import pytest
import torch
from torch import nn

from eande.foundations.checks import InputError
from eande.networks.choose import default_encoder, describe_network, make_network
from eande.networks.convolutional import Convolutional
from eande.networks.deep_set import DeepSet
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet

NETWORKS = [
    (ResidualMLP(3, 4), (3,)),
    (ResidualMLP(6, 4, normalization="batch", activation="silu"), (2, 3)),
    (ResidualMLP(3, 4, blocks=0, normalization="layer"), (3,)),
    (ResidualMLP(3, 4, gaps=True), (3,)),
    (DeepSet(2, 4), (9, 2)),
    (DeepSet(1, 4, width=8, features=3, blocks=0), (9,)),
    (DeepSet(2, 4, gaps=True), (9, 2)),
    (Convolutional((2, 70), 4, width=4), (2, 70)),
    (Convolutional((1, 5), 4, width=4), (5,)),
    (Convolutional((2, 300), 4, width=4, places=False), (2, 300)),
    (Convolutional((2, 9, 40), 4, width=4, hidden=8), (2, 9, 40)),
    (Convolutional((1, 300), 4, gaps=True), (1, 300)),
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
    for shape in ((2, 100), (2, 30, 30)):
        made = default_encoder(shape, 4, width=128)
        assert isinstance(made, Convolutional)
        assert made.settings["shape"] == list(shape)
        assert made.settings["width"] == 16
    assert describe_network(nn.Linear(1, 1)) is None


@pytest.mark.parametrize(
    ("word", "shape", "kind"),
    [
        ("vector", (7,), ResidualMLP),
        ("vector", (3, 7), ResidualMLP),
        ("series", (70,), Convolutional),
        ("series", (2, 70), Convolutional),
        ("grid", (9, 12), Convolutional),
        ("grid", (2, 9, 12), Convolutional),
        ("set", (20,), DeepSet),
        ("set", (20, 3), DeepSet),
    ],
)
def test_a_word_says_what_the_data_are(word, shape, kind):
    for gaps in (False, True):
        made = default_encoder(shape, 4, word, gaps=gaps).eval()
        assert type(made) is kind
        x = torch.randn(5, *shape)
        assert made(x).shape == (5, 4)
        x[:, 0] = torch.nan
        assert made(x).isfinite().all().item() is gaps


@pytest.mark.parametrize("shape", [(20,), (20, 3)])
def test_the_order_of_a_set_means_nothing_and_its_spread_does(shape):
    torch.manual_seed(0)
    network = default_encoder(shape, 4, "set").eval()
    for parameter in network.parameters():
        # At the beginning the head is linear, and much is zero.
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(5, *shape)
    with torch.no_grad():
        out = network(x)
        assert torch.allclose(network(x[:, torch.randperm(20)]), out, atol=1e-4)
        mean = x.mean(1, keepdim=True)
        assert not torch.allclose(network(mean + 2 * (x - mean)), out, atol=1e-2)


def test_what_lies_in_a_gap_is_not_seen_but_where_it_is():
    torch.manual_seed(0)
    network = ResidualMLP(3, 4, gaps=True)
    x = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 0.0, 2.0]])
    out = network(x)
    assert not torch.allclose(out[0], out[1], atol=1e-3)


def test_a_series_knows_where_it_is_and_how_large():
    """What a pooled network with normalisation cannot tell."""
    torch.manual_seed(0)
    network = Convolutional((1, 64), 4)
    x = torch.randn(3, 1, 64)
    with torch.no_grad():
        assert not torch.allclose(network(x.roll(16, 2)), network(x), atol=1e-2)
        assert not torch.allclose(network(3 * x), network(x), atol=1e-2)


CASES = {
    "no default encoder": (
        lambda: default_encoder((1, 2, 3, 4), 8),
        r"y: expected data of shape \(d,\), .* pass encoder=",
    ),
    "no such word": (
        lambda: default_encoder((3,), 8, "sets"),
        "encoder: expected one of 'vector', 'series', 'grid', 'set', got 'sets'",
    ),
    "no set": (
        lambda: default_encoder((3, 4, 5), 8, "set"),
        r"encoder: expected data of shape \(elements,\) or \(elements, columns\) for 'set', got",
    ),
    "another length": (
        lambda: Convolutional((1, 8), 2)(torch.zeros(2, 1, 9)),
        r"encoder: expected data of shape \(1, 8\), got \(1, 9\)",
    ),
    "other columns": (
        lambda: DeepSet(2, 2)(torch.zeros(2, 5, 3)),
        r"encoder: expected sets of shape \(elements, 2\), got \(5, 3\)",
    ),
    "five axes": (
        lambda: Convolutional((1, 2, 3, 4), 2),
        r"expected a shape \(channels, length\) or \(channels, height, width\), got \(1, 2, 3, 4\)",
    ),
    "no flag": (
        lambda: Convolutional((1, 8), 2, places="yes"),
        "places: expected True or False, got 'yes'",
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
