"""The default encoder for data of a shape, and networks described in files and made again.

Every network of ours keeps the arguments of its constructor in ``settings``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from eande.foundations.checks import InputError, check_choice, show_shape
from eande.foundations.documents import make_from_settings
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet


def default_encoder(
    shape: Sequence[int],
    outputs: int,
    *,
    width: int = 256,
    blocks: int = 3,
    normalization: str = "none",
    activation: str = "relu",
    linear_skip: bool = True,
) -> nn.Module:
    """Choose an encoder by the shape of one datum.

    A vector gets a residual MLP, a line or a grid with channels a ResNet-18 whose last stage has
    ``width`` channels; the arguments after it are for the MLP alone.
    """
    if len(shape) == 1:
        return ResidualMLP(
            shape[0],
            outputs,
            width=width,
            blocks=blocks,
            normalization=normalization,
            activation=activation,
            linear_skip=linear_skip,
        )
    if len(shape) in (2, 3):
        # A wide stem divides the resolution by four before the first block, too much for small
        # fields.
        stem = "wide" if min(shape[1:]) >= 64 else "narrow"
        channels = max(1, width // 8)
        return ResNet(shape[0], outputs, dimensions=len(shape) - 1, width=channels, stem=stem)
    raise InputError(
        "y: expected data of shape (d,), (channels, length) or (channels, height, width), got "
        f"{show_shape(shape)}; pass encoder="
    )


_NETWORKS: dict[str, type[nn.Module]] = {"ResidualMLP": ResidualMLP, "ResNet": ResNet}


@dataclass
class NetworkDescription:
    """One of our networks as a file describes it.

    Args:
        name: of its class.
        settings: the arguments of its constructor.
    """

    name: str
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        """Refuse the names of other classes."""
        check_choice("network in the file", self.name, tuple(_NETWORKS))


def describe_network(network: nn.Module) -> NetworkDescription | None:
    """Return name and settings of one of our networks, None for a user's."""
    if type(network) not in _NETWORKS.values() or not isinstance(network, ResidualMLP | ResNet):
        return None
    return NetworkDescription(type(network).__name__, network.settings)


def make_network(description: NetworkDescription) -> nn.Module:
    """Make the network that :func:`describe_network` described."""
    kind = _NETWORKS[description.name]
    return make_from_settings(f"settings of the {description.name}", kind, description.settings)


def outline_network(description: NetworkDescription) -> nn.Module:
    """Make the same without memory, on the device "meta": all its tensors have is a shape."""
    with torch.device("meta"), _NothingDrawn():
        return make_network(description)


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the first weights of torch's own layers, which take most of the time."""

    _DRAWING = frozenset(
        (
            nn.init.kaiming_uniform_,
            nn.init.uniform_,
            nn.init.constant_,
            Tensor.uniform_,
            Tensor.fill_,
            Tensor.zero_,
        )
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in self._DRAWING:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
