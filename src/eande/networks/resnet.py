"""ResNets, for fields on a line or a grid.

Reference:
    He et al., *Deep Residual Learning for Image Recognition*, 2016.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.foundations.checks import InputError, check_choice, check_count
from eande.networks.precision import full_precision

# Layers by the number of spatial axes.
_CONVOLUTIONS: dict[int, Callable[..., nn.Conv1d | nn.Conv2d]] = {1: nn.Conv1d, 2: nn.Conv2d}
_POOLS: dict[int, Callable[..., nn.Module]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d}
_BATCH_NORMS: dict[int, Callable[[int], nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}
# Nobody trains a wider one, and a file that asks for one is damaged.
_WIDEST = 2**16


class ResNet(nn.Module):
    """A ResNet-18 or -34 with a projection head, for fields on a line or a grid.

    Data have the shape (channels, length) or (channels, height, width). Axes named in ``periodic``
    wrap around: the network then is equivariant under shifts along them (by multiples of its total
    stride), and its pooled output is invariant.

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
        for name, size in {"channels": channels, "outputs": outputs, "width": width}.items():
            check_count(name, size, 1, at_most=_WIDEST)
        stages = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
        if dimensions not in (1, 2) or depth not in stages:
            raise InputError(
                "ResNet: expected dimensions 1 or 2 and depth 18 or 34, got "
                f"{dimensions} and {depth}"
            )
        if any(axis not in range(dimensions) for axis in periodic):
            raise InputError(
                f"periodic: expected axes out of {tuple(range(dimensions))}, got {tuple(periodic)}"
            )
        check_choice("stem", stem, ("wide", "narrow"))
        check_choice("normalization", normalization, ("batch", "group"))
        self.settings: dict[str, Any] = {
            "channels": int(channels),
            "outputs": int(outputs),
            "dimensions": int(dimensions),
            "depth": int(depth),
            "width": int(width),
            "periodic": [int(axis) for axis in periodic],
            "stem": stem,
            "normalization": normalization,
        }
        wraps = tuple(axis in periodic for axis in range(dimensions))
        self.stem = _Stem(channels, width, stem == "wide", wraps, normalization)
        blocks: list[nn.Module] = []
        size = width
        for stage, count in enumerate(stages[depth]):
            stage_size = width * 2**stage
            for i in range(count):
                stride = 2 if i == 0 and stage > 0 else 1
                blocks.append(_ConvolutionBlock(size, stage_size, stride, wraps, normalization))
                size = stage_size
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
    """A convolution with circular padding along periodic axes and zeros along the others."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, wraps: tuple[bool, ...]
    ) -> None:
        super().__init__()
        self.wraps = wraps
        self.amount = kernel // 2
        convolution = _CONVOLUTIONS[len(wraps)]
        padding = tuple(0 if wrap else self.amount for wrap in wraps)
        self.convolution = convolution(inputs, outputs, kernel, stride, padding=padding, bias=False)
        # Without memory there is nothing to draw, and torch would load a second's worth of modules.
        if not self.convolution.weight.is_meta:
            nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(_wrap(x, self.amount, self.wraps))


def _wrap(x: Tensor, amount: int, wraps: tuple[bool, ...]) -> Tensor:
    """Continue periodic axes on both sides by ``amount`` entries.

    Concatenation keeps the memory format, which torch's circular padding does not.
    """
    for axis, wrap in enumerate(wraps, start=2):
        if wrap and amount > 0:
            before = x.narrow(axis, x.shape[axis] - amount, amount)
            after = x.narrow(axis, 0, amount)
            x = torch.cat([before, x, after], dim=axis)
    return x


def _norm(kind: str, channels: int, dimensions: int) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(min(8, channels), channels)
    return _BATCH_NORMS[dimensions](channels)


class _Stem(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, wide: bool, wraps: tuple[bool, ...], normalization: str
    ) -> None:
        super().__init__()
        self.wraps = wraps
        kernel = 7 if wide else 3
        stride = 2 if wide else 1
        self.convolution = _Convolution(inputs, outputs, kernel, stride, wraps)
        self.norm = _norm(normalization, outputs, len(wraps))
        self.pool: nn.Module | None = None
        if wide:
            self.pool = _POOLS[len(wraps)](3, 2, padding=tuple(0 if wrap else 1 for wrap in wraps))

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
