"""The default encoder of series and grids: small, and with the plain statistics of the data."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.foundations.checks import InputError, check_count, check_flag, show_shape
from eande.networks.gaps import with_gaps
from eande.networks.mlp import ResidualMLP
from eande.networks.pooling import moments
from eande.networks.precision import full_precision

_CONVOLUTIONS: dict[int, Callable[..., nn.Conv1d | nn.Conv2d]] = {1: nn.Conv1d, 2: nn.Conv2d}
_MEANS: dict[int, Callable[..., Tensor]] = {1: functional.avg_pool1d, 2: functional.avg_pool2d}
# Of a line and of a grid: the kernel of the first layer; places along an axis that are left of the
# data at the end of the convolutions; the same where they are averaged over, and of local means.
_KERNELS = {1: 7, 2: 5}
_LAST_PLACES = {1: 8, 2: 3}
_MEAN_PLACES = {1: 64, 2: 12}
# A stage has so many channels at most, in widths of the first.
_MOST_CHANNELS = 2
# Nobody trains larger ones, and a file that asks for one is damaged.
_WIDEST = 2**12
_LARGEST_DATUM = 2**31


class Convolutional(nn.Module):
    """Convolutions that halve the data, statistics of their layers, and a residual MLP of these.

    What the MLP gets: mean and log standard deviation of linear filters of the data, by which
    stationary series differ; the same of the last layer; all of the last layer and local means of
    the data, which know where they are. There is no normalisation, which would take away the size
    of the data or mix the data of a batch, and the deep layers begin small: at first the network is
    a linear map of plain statistics, and a thousand simulations train it.

    Args:
        shape: of one datum, (channels, length) or (channels, height, width).
        outputs: size n of the output.
        width: channels of the first layer; later ones have twice as many.
        hidden: width of the MLP.
        places: whether the MLP gets what knows where it is. Data that are alike everywhere, such as
            a stationary series, are better off without: most of its numbers, and all noise.
        gaps: whether NaN stands for what is missing; the network then sees where, by as many
            further channels.

    Example:
        >>> Convolutional((2, 64), 8)(torch.zeros(5, 2, 64)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        *,
        width: int = 16,
        hidden: int = 128,
        places: bool = True,
        gaps: bool = False,
    ) -> None:
        super().__init__()
        space = [int(size) for size in shape[1:]]
        if len(space) not in _CONVOLUTIONS:
            raise InputError(
                "Convolutional: expected a shape (channels, length) or (channels, height, width), "
                f"got {show_shape(shape)}"
            )
        for size in shape:
            check_count("shape", size, 1, at_most=_LARGEST_DATUM)
        check_count("channels", shape[0], 1, at_most=_WIDEST)
        check_count("width", width, 1, at_most=_WIDEST)
        check_flag("places", places)
        check_flag("gaps", gaps)
        self.settings: dict[str, Any] = {
            "shape": [int(size) for size in shape],
            "outputs": int(outputs),
            "width": int(width),
            "hidden": int(hidden),
            "places": places,
            "gaps": gaps,
        }
        self.shape = tuple(self.settings["shape"])
        self.places = places
        self.gaps = gaps
        dimensions = len(space)
        channels = 2 * self.shape[0] if gaps else self.shape[0]
        kernel = _KERNELS[dimensions]
        convolution = _CONVOLUTIONS[dimensions]
        self.filters = convolution(channels, width, kernel, padding=kernel // 2)
        stages: list[nn.Module] = []
        size = width
        left = space
        fewest = _LAST_PLACES if places else _MEAN_PLACES
        while max(left) > fewest[dimensions]:
            larger = min(2 * size, _MOST_CHANNELS * width)
            stages.append(_Halving(size, larger, dimensions))
            size = larger
            left = [-(-n // 2) for n in left]
        self.stages = nn.Sequential(*stages)
        self.mean_of = [-(-n // _MEAN_PLACES[dimensions]) for n in space]
        # Of the first layer and the last.
        self.moments = 2 * (width + size)
        pooled = self.moments
        if places:
            means = math.prod(-(-n // k) for n, k in zip(space, self.mean_of, strict=True))
            pooled += math.prod(left) * size + channels * means
        self.head = ResidualMLP(pooled, outputs, width=hidden, blocks=1)

    def features(self, x: Tensor) -> Tensor:
        """Return the statistics of data (batch, channels, *space), moments first, (batch, …)."""
        if tuple(x.shape[1:]) == self.shape[1:] and self.shape[0] == 1:
            x = x.unsqueeze(1)
        if tuple(x.shape[1:]) != self.shape:
            raise InputError(
                f"encoder: expected data of shape {show_shape(self.shape)}, got "
                f"{show_shape(x.shape[1:])}"
            )
        if self.gaps:
            x = with_gaps(x, 1)
        filtered = self.filters(x)
        last = self.stages(filtered).float().flatten(2)
        found = [moments(filtered.float().flatten(2)), moments(last)]
        if self.places:
            means = _MEANS[len(self.shape) - 1](x, self.mean_of, ceil_mode=True)
            found += [last.flatten(1), means.float().flatten(1)]
        return torch.cat(found, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, *space) to (batch, n)."""
        features = self.features(x)
        with full_precision(x.device):
            out: Tensor = self.head(features)
            return out


class _Halving(nn.Module):
    """A convolution that halves the places, and a residual one after it."""

    def __init__(self, inputs: int, outputs: int, dimensions: int) -> None:
        super().__init__()
        convolution = _CONVOLUTIONS[dimensions]
        self.halve = convolution(inputs, outputs, 3, stride=2, padding=1)
        self.branch = convolution(outputs, outputs, 3, padding=1)
        # As in a residual MLP without normalisation: the branch begins at zero.
        for parameter in self.branch.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.halve(x))
        return x + functional.silu(self.branch(x))
