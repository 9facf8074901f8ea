"""ResNets, for fields on a line or a grid.

Reference:
    He et al., *Deep Residual Learning for Image Recognition*, 2016.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.foundations.checks import InputError, check_choice
from eande.networks.precision import full_precision


class ResNet(nn.Module):
    """A ResNet-18 or -34 with a projection head, for fields on a line or a grid.

    Inputs have shape (batch, channels, length) or (batch, channels, height, width).

    Axes named in ``periodic`` wrap around: the network then commutes with shifts along them (by
    multiples of its total stride), and its pooled output does not change under them.

    Args:
        channels: number of channels of the input.
        outputs: size n of the output.
        dimensions: 1 for a line, 2 for a grid.
        depth: 18 or 34.
        width: channels of the first stage; the four stages have 1, 2, 4 and 8 times as many.
        periodic: which spatial axes wrap around, counted from 0.
        stem: ``"wide"`` (7 × 7, stride 2, then pooling) or ``"narrow"`` (3 × 3, full resolution)
            for small fields.
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
            raise InputError(
                "ResNet: expected dimensions 1 or 2 and depth 18 or 34, "
                f"got {dimensions} and {depth}"
            )
        if any(axis not in range(dimensions) for axis in periodic):
            raise InputError(
                f"periodic: expected axes out of {tuple(range(dimensions))}, got {tuple(periodic)}"
            )
        check_choice("stem", stem, ("wide", "narrow"))
        check_choice("normalization", normalization, ("batch", "group"))
        self.settings: dict[str, Any] = {
            "channels": channels,
            "outputs": outputs,
            "dimensions": dimensions,
            "depth": depth,
            "width": width,
            "periodic": list(periodic),
            "stem": stem,
            "normalization": normalization,
        }
        wraps = tuple(axis in periodic for axis in range(dimensions))
        self.stem = _Stem(channels, width, stem == "wide", wraps, normalization)
        blocks: list[nn.Module] = []
        size = width
        for stage, count in enumerate(stages[depth]):
            for i in range(count):
                wider = width * 2**stage
                blocks.append(
                    _ConvolutionBlock(
                        size, wider, 2 if i == 0 and stage > 0 else 1, wraps, normalization
                    )
                )
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
    """A convolution padded by wrapping around along periodic axes, with zeros along the others."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, wraps: tuple[bool, ...]
    ) -> None:
        super().__init__()
        self.wraps = wraps
        self.amount = kernel // 2
        convolution: Any = nn.Conv1d if len(wraps) == 1 else nn.Conv2d
        padding = tuple(0 if wrap else self.amount for wrap in wraps)
        self.convolution: nn.Conv1d | nn.Conv2d = convolution(
            inputs, outputs, kernel, stride, padding=padding, bias=False
        )
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(_wrap(x, self.amount, self.wraps))


def _wrap(x: Tensor, amount: int, wraps: tuple[bool, ...]) -> Tensor:
    """Continue periodic axes on both sides.

    Concatenating keeps the memory format, which circular padding does not.
    """
    for axis, wrap in enumerate(wraps, start=2):
        if wrap and amount > 0:
            size = x.shape[axis]
            x = torch.cat(
                [x.narrow(axis, size - amount, amount), x, x.narrow(axis, 0, amount)], dim=axis
            )
    return x


def _norm(kind: str, channels: int, dimensions: int) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(min(8, channels), channels)
    return nn.BatchNorm1d(channels) if dimensions == 1 else nn.BatchNorm2d(channels)


class _Stem(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, wide: bool, wraps: tuple[bool, ...], normalization: str
    ) -> None:
        super().__init__()
        self.wraps = wraps
        self.convolution = _Convolution(inputs, outputs, 7 if wide else 3, 2 if wide else 1, wraps)
        self.norm = _norm(normalization, outputs, len(wraps))
        padding = tuple(0 if wrap else 1 for wrap in wraps)
        self.pool = (
            (nn.MaxPool1d if len(wraps) == 1 else nn.MaxPool2d)(3, 2, padding) if wide else None
        )

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.convolution(x)))
        return x if self.pool is None else self.pool(_wrap(x, 1, self.wraps))


class _ConvolutionBlock(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, stride: int, wraps: tuple[bool, ...], normalization: str
    ) -> None:
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
            self.skip = nn.Sequential(
                _Convolution(inputs, outputs, 1, stride, wraps),
                _norm(normalization, outputs, dimensions),
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.skip(x))
