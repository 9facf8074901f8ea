"""The default encoder for data of a shape, and networks described in files and made again.

Every network of ours keeps the arguments of its constructor in ``settings``.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from eande.foundations.checks import InputError, check_choice, show_shape
from eande.foundations.documents import make_from_settings
from eande.networks.convolutional import Convolutional
from eande.networks.deep_set import DeepSet
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet

# What ``encoder=`` may be called by, and the number of axes of a datum.
ENCODERS = {"vector": (1,), "series": (1, 2), "grid": (2, 3), "set": (1, 2)}
_BY_AXES = {1: "vector", 2: "series", 3: "grid"}


def kind_of_data(shape: Sequence[int], encoder: str | None = None) -> str:
    """Return what data of a shape are: what they are called, or else what their shape says.

    Args:
        shape: of one datum.
        encoder: ``"vector"``, ``"series"``, ``"grid"`` or ``"set"``; None goes by the shape, which
            tells no set from a series.
    """
    if encoder is None:
        if len(shape) not in _BY_AXES:
            raise InputError(
                "y: expected data of shape (d,), (channels, length) or (channels, height, width), "
                f"got {show_shape(shape)}; pass encoder="
            )
        return _BY_AXES[len(shape)]
    check_choice("encoder", encoder, tuple(ENCODERS))
    if encoder != "vector" and len(shape) not in ENCODERS[encoder]:
        expected = {
            "series": "(length,) or (channels, length)",
            "grid": "(height, width) or (channels, height, width)",
            "set": "(elements,) or (elements, columns)",
        }[encoder]
        raise InputError(
            f"encoder: expected data of shape {expected} for {encoder!r}, got data of shape "
            f"{show_shape(shape)}"
        )
    return encoder


def encoder_in_words(shape: Sequence[int], encoder: nn.Module | str | None = None) -> str:
    """Say which encoder data of a shape get, and why.

    Args:
        shape: of one datum.
        encoder: a network, or what the data are; None goes by the shape.

    Example:
        >>> encoder_in_words((14,))
        'a residual MLP: data of shape (14,) are taken for a vector; encoder= says otherwise'
        >>> encoder_in_words((60,), "series")
        "convolutions, for encoder='series'"
    """
    if isinstance(encoder, nn.Module):
        return f"your own, {type(encoder).__name__}"
    kind = kind_of_data(shape, encoder)
    network = {"vector": "a residual MLP", "set": "a deep set"}.get(kind, "convolutions")
    if encoder is not None:
        return f"{network}, for encoder={encoder!r}"
    taken = f"data of shape {show_shape(shape)} are taken for a {kind}"
    return f"{network}: {taken}; encoder= says otherwise"


def default_encoder(
    shape: Sequence[int],
    outputs: int,
    encoder: str | None = None,
    *,
    width: int = 256,
    blocks: int = 3,
    normalization: str = "none",
    activation: str = "relu",
    linear_skip: bool = True,
    places: bool = True,
    gaps: bool = False,
) -> nn.Module:
    """Make the encoder of data of a shape.

    A vector gets a residual MLP, a series or a grid convolutions, a set a deep set.

    Args:
        shape: of one datum: (d,), (channels, length), (channels, height, width); of a series or a
            grid of one channel also without it; of a set (elements, columns) or (elements,).
        outputs: size n of the output.
        encoder: what the data are, as :func:`kind_of_data` takes it.
        width: of a residual MLP; convolutions begin with an eighth of it.
        blocks: of a residual MLP, as are the next three.
        normalization: of a vector's.
        activation: of a vector's.
        linear_skip: of a vector's.
        places: whether that of a series or a grid knows where things are.
        gaps: whether NaN stands for what is missing.
    """
    kind = kind_of_data(shape, encoder)
    if kind == "vector":
        return ResidualMLP(
            math.prod(shape),
            outputs,
            width=width,
            blocks=blocks,
            normalization=normalization,
            activation=activation,
            linear_skip=linear_skip,
            gaps=gaps,
        )
    if kind == "set":
        columns = shape[1] if len(shape) == 2 else 1
        return DeepSet(columns, outputs, width=max(1, width // 2), gaps=gaps)
    axes = 1 if kind == "series" else 2
    whole = tuple(shape) if len(shape) > axes else (1, *shape)
    narrow = max(1, width // 8)
    return Convolutional(whole, outputs, width=narrow, hidden=width, places=places, gaps=gaps)


_NETWORKS: dict[str, type[nn.Module]] = {
    "Convolutional": Convolutional,
    "DeepSet": DeepSet,
    "ResidualMLP": ResidualMLP,
    "ResNet": ResNet,
}


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
    if type(network) not in _NETWORKS.values():
        return None
    settings: Any = network.settings
    return NetworkDescription(type(network).__name__, settings)


def make_network(description: NetworkDescription) -> nn.Module:
    """Make the network that :func:`describe_network` described."""
    kind = _NETWORKS[description.name]
    return make_from_settings(f"settings of the {description.name}", kind, description.settings)


def outline_network(description: NetworkDescription) -> nn.Module:
    """Make the same without memory, on the device "meta": all its tensors have is a shape."""
    with without_memory():
        return make_network(description)


@contextmanager
def without_memory() -> Iterator[None]:
    """Make networks whose tensors have a shape and nothing else, in no time."""
    with torch.device("meta"), _NothingDrawn():
        yield


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
