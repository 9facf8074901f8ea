"""The networks: residual MLPs for vectors and parameters, ResNets for fields on a line or a grid.

They end in R^n; the similarity puts their output where it belongs (the cosine on the unit sphere). Every network here
keeps the arguments it was made with in ``settings``, so that a file can make it again.

References:
    Jiang, Lu and Willett, *Embed and Emulate* (residual MLPs and the projection head);
    He et al., *Deep Residual Learning for Image Recognition*, 2016.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.core.checks import InputError, check_choice, check_count, show_shape

NORMALIZATIONS = ("batch", "layer", "none")
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


class ResidualMLP(nn.Module):
    """Linear layer, residual blocks (linear – norm – activation – linear – norm, plus skip), linear layer, and a linear skip over all.

    The network starts as a linear map of its input, through the skip. On the sphere that matters: a closed curve of data whose embedding
    starts beside the origin instead of around it can stay folded for ever in low dimension.

    Args:
        inputs: size of the (flattened) input.
        outputs: size n of the output.
        width: size of the hidden layers.
        blocks: number of residual blocks.
        normalization: ``"batch"`` (the paper's), ``"layer"`` or ``"none"``.
        activation: ``"relu"`` (the paper's), ``"silu"`` or ``"tanh"``.

    Example:
        >>> ResidualMLP(3, 8)(torch.zeros(5, 3)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self, inputs: int, outputs: int, *, width: int = 256, blocks: int = 3, normalization: str = "none", activation: str = "relu"
    ) -> None:
        super().__init__()
        for name, size in {"inputs": inputs, "outputs": outputs, "width": width}.items():
            check_count(name, size, 1)
        check_count("blocks", blocks, 0)
        check_choice("normalization", normalization, NORMALIZATIONS)
        check_choice("activation", activation, tuple(_ACTIVATIONS))
        self.settings: dict[str, Any] = {
            "inputs": inputs, "outputs": outputs, "width": width, "blocks": blocks, "normalization": normalization, "activation": activation,
        }  # fmt: skip
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*(_ResidualBlock(width, normalization, activation) for _ in range(blocks)))
        self.activation = _ACTIVATIONS[activation]()
        self.last = nn.Linear(width, outputs)
        self.skip = nn.Linear(inputs, outputs, bias=False)
        nn.init.zeros_(self.last.weight)
        # Not zero: the centre of the data must have a direction too.
        nn.init.normal_(self.last.bias, std=1e-2)
        nn.init.orthogonal_(self.skip.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, …) to (batch, n), the input flattened."""
        x = x.flatten(1)
        return self.last(self.activation(self.blocks(self.first(x)))) + self.skip(x)


class _ResidualBlock(nn.Module):
    def __init__(self, width: int, normalization: str, activation: str) -> None:
        super().__init__()
        norms: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": lambda _: nn.Identity()}
        norm = norms[normalization]
        last = nn.Linear(width, width)
        if normalization == "none":
            # Nothing tames the sum of many branches here, so each block starts as the identity.
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.branch = nn.Sequential(nn.Linear(width, width), norm(width), _ACTIVATIONS[activation](), last, norm(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class ResNet(nn.Module):
    """A ResNet-18 or -34 for fields on a line (channels, length) or a grid (channels, height, width), with a projection head.

    Axes named in ``periodic`` wrap around: the network then commutes with shifts along them (by multiples of its total
    stride), and its pooled output does not change under them.

    Args:
        channels: number of channels of the input.
        outputs: size n of the output.
        dimensions: 1 for a line, 2 for a grid.
        depth: 18 or 34.
        width: channels of the first stage; the four stages have 1, 2, 4 and 8 times as many.
        periodic: which spatial axes wrap around, counted from 0.
        stem: ``"wide"`` (7 × 7, stride 2, then pooling) or ``"narrow"`` (3 × 3, full resolution) for small fields.
        normalization: ``"batch"`` (the paper's) or ``"group"``, which has no batch statistics.

    Example:
        >>> ResNet(11, 128, dimensions=2, width=8, periodic=(0,))(torch.zeros(2, 11, 36, 50)).shape
        torch.Size([2, 128])
    """

    def __init__(
        self,
        channels: int,
        outputs: int,
        *,
        dimensions: int = 2,
        depth: int = 18,
        width: int = 64,
        periodic: Sequence[int] = (),
        stem: str = "wide",
        normalization: str = "batch",
    ) -> None:
        super().__init__()
        stages = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
        if dimensions not in (1, 2) or depth not in stages:
            raise InputError(f"ResNet: expected dimensions 1 or 2 and depth 18 or 34, got {dimensions} and {depth}")
        if any(axis not in range(dimensions) for axis in periodic):
            raise InputError(f"periodic: expected axes out of {tuple(range(dimensions))}, got {tuple(periodic)}")
        check_choice("stem", stem, ("wide", "narrow"))
        check_choice("normalization", normalization, ("batch", "group"))
        self.settings: dict[str, Any] = {
            "channels": channels, "outputs": outputs, "dimensions": dimensions, "depth": depth, "width": width, "periodic": list(periodic),
            "stem": stem, "normalization": normalization,
        }  # fmt: skip
        wraps = tuple(axis in periodic for axis in range(dimensions))
        self.stem = _Stem(channels, width, stem == "wide", wraps, normalization)
        blocks: list[nn.Module] = []
        size = width
        for stage, count in enumerate(stages[depth]):
            for i in range(count):
                wider = width * 2**stage
                blocks.append(_ConvolutionBlock(size, wider, 2 if i == 0 and stage > 0 else 1, wraps, normalization))
                size = wider
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, outputs))
        self.skip = nn.Linear(size, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, *space) to (batch, n)."""
        features = self.blocks(self.stem(x)).flatten(2)
        with full_precision(x.device):
            pooled = features.float().mean(-1)
            return self.head(pooled) + self.skip(pooled)


class _Convolution(nn.Module):
    """A convolution that pads by wrapping around along periodic axes and with zeros along the others."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, wraps: tuple[bool, ...]) -> None:
        super().__init__()
        self.wraps, self.amount = wraps, kernel // 2
        convolution: type[nn.Conv1d | nn.Conv2d] = nn.Conv1d if len(wraps) == 1 else nn.Conv2d
        padding = tuple(0 if wrap else self.amount for wrap in wraps)
        self.convolution = convolution(inputs, outputs, kernel, stride, padding=padding, bias=False)  # type: ignore[arg-type]
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(_wrap(x, self.amount, self.wraps))


def _wrap(x: Tensor, amount: int, wraps: tuple[bool, ...]) -> Tensor:
    """Continue periodic axes on both sides; concatenating keeps the memory format, which circular padding does not."""
    for axis, wrap in enumerate(wraps, start=2):
        if wrap and amount > 0:
            size = x.shape[axis]
            x = torch.cat([x.narrow(axis, size - amount, amount), x, x.narrow(axis, 0, amount)], dim=axis)
    return x


def _norm(kind: str, channels: int, dimensions: int) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(min(8, channels), channels)
    return nn.BatchNorm1d(channels) if dimensions == 1 else nn.BatchNorm2d(channels)


class _Stem(nn.Module):
    def __init__(self, inputs: int, outputs: int, wide: bool, wraps: tuple[bool, ...], normalization: str) -> None:
        super().__init__()
        self.wraps = wraps
        self.convolution = _Convolution(inputs, outputs, 7 if wide else 3, 2 if wide else 1, wraps)
        self.norm = _norm(normalization, outputs, len(wraps))
        padding = tuple(0 if wrap else 1 for wrap in wraps)
        self.pool = (nn.MaxPool1d if len(wraps) == 1 else nn.MaxPool2d)(3, 2, padding) if wide else None

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.convolution(x)))
        return x if self.pool is None else self.pool(_wrap(x, 1, self.wraps))


class _ConvolutionBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, wraps: tuple[bool, ...], normalization: str) -> None:
        super().__init__()
        dimensions = len(wraps)
        self.branch = nn.Sequential(
            _Convolution(inputs, outputs, 3, stride, wraps),
            _norm(normalization, outputs, dimensions),
            nn.ReLU(),
            _Convolution(outputs, outputs, 3, 1, wraps),
            _norm(normalization, outputs, dimensions),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(_Convolution(inputs, outputs, 1, stride, wraps), _norm(normalization, outputs, dimensions))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.skip(x))


def default_encoder(shape: Sequence[int], outputs: int, *, width: int = 256, blocks: int = 3, normalization: str = "none") -> nn.Module:
    """Choose an encoder by the shape of one datum, a vector, a line with channels, or a grid with channels; its last layers have that width."""
    if len(shape) == 1:
        return ResidualMLP(shape[0], outputs, width=width, blocks=blocks, normalization=normalization)
    if len(shape) in (2, 3):
        # A wide stem divides the resolution by four before the first block: too much for small fields.
        stem = "wide" if min(shape[1:]) >= 64 else "narrow"
        return ResNet(shape[0], outputs, dimensions=len(shape) - 1, width=max(1, width // 8), stem=stem)
    raise InputError(f"y: expected data of shape (d,), (channels, length) or (channels, height, width), got {show_shape(shape)}; pass encoder=")


_NETWORKS: dict[str, Callable[..., nn.Module]] = {"ResidualMLP": ResidualMLP, "ResNet": ResNet}


def describe_network(network: nn.Module) -> dict[str, Any] | None:
    """Return name and settings of one of our networks, None for a user's."""
    name = type(network).__name__
    return {"name": name, "settings": network.settings} if _NETWORKS.get(name) is type(network) else None


def make_network(description: dict[str, Any]) -> nn.Module:
    """Make the network that :func:`describe_network` described."""
    check_choice("network in the file", description["name"], tuple(_NETWORKS))
    return _NETWORKS[description["name"]](**description["settings"])


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context without mixed precision, for the last layers: a sharp posterior multiplies their error by 1/τ."""
    return torch.autocast(device.type, enabled=False)


class Standardizer(nn.Module):
    """Subtract a stored mean and divide by a stored scale.

    Args:
        mean: location, of a shape that broadcasts against the data's.
        scale: spread; entries that are zero (a constant feature) count as one.
        limit: beyond so many scales numbers grow like their logarithm, for laws with heavy tails; infinite for the entries of others.
    """

    mean: Tensor
    scale: Tensor
    limit: Tensor | None

    def __init__(self, mean: Tensor, scale: Tensor, limit: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", torch.where(scale > 0, scale, 1.0).float())
        self.register_buffer("limit", None if limit is None else limit.float())

    def forward(self, x: Tensor) -> Tensor:
        """Standardise ``x``."""
        z = (x - self.mean) / self.scale
        if self.limit is None:
            return z
        beyond = (z.abs() - self.limit).clamp(min=0)
        return z.sign() * (z.abs() - beyond + beyond.log1p())
