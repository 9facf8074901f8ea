"""Encoders for Lorenz 96: convolutions on the ring."""

import torch
from torch import Tensor, nn

from eande.networks.resnet import ResNet


class RingGrid(nn.Module):
    """Arrange states (m, time, K + K·J) as fields of 1 + J channels on a grid of time × K places.

    The channels are u and its fast variables. Neighbours on the grid are the physical ones, and
    shifting the ring shifts the grid.

    Args:
        slow: K.
        fast: J.

    Example:
        >>> RingGrid(36, 10)(torch.zeros(2, 250, 396)).shape
        torch.Size([2, 11, 250, 36])
    """

    def __init__(self, slow: int = 36, fast: int = 10) -> None:
        super().__init__()
        self.slow = slow
        self.fast = fast

    def forward(self, y: Tensor) -> Tensor:
        """Rearrange; channels are last in memory, the faster layout for convolutions."""
        u = y[..., : self.slow].unsqueeze(-1)
        v = y[..., self.slow :].unflatten(-1, (self.slow, self.fast))
        return torch.cat([u, v], dim=-1).permute(0, 3, 1, 2)


def lorenz96_encoder(
    outputs: int, *, slow: int = 36, fast: int = 10, depth: int = 34, width: int = 64
) -> nn.Module:
    """Make the paper's encoder for windows (time, K + K·J).

    A ResNet on the grid of time × places, periodic in place.

    Args:
        outputs: n, the embedding dimension.
        slow: K.
        fast: J.
        depth: 18 or 34 (the paper's).
        width: channels of the first stage.
    """
    network = ResNet(1 + fast, outputs, dimensions=2, depth=depth, width=width, periodic=(1,))
    # Fast and slow variables differ in size: each channel is standardised.
    encoder = nn.Sequential(RingGrid(slow, fast), nn.BatchNorm2d(1 + fast, affine=False), network)
    return encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class SmallRingEncoder(nn.Module):
    """A small convolutional encoder of the same fields, for a few CPU cores.

    Three strided layers, then mean and standard deviation over the grid.

    Args:
        outputs: n, the embedding dimension.
        slow: K.
        fast: J.
        width: channels of the first layer; the others have two and four times as many.

    Example:
        >>> SmallRingEncoder(64)(torch.zeros(2, 250, 396)).shape
        torch.Size([2, 64])
    """

    def __init__(self, outputs: int, *, slow: int = 36, fast: int = 10, width: int = 16) -> None:
        super().__init__()
        self.grid = RingGrid(slow, fast)
        self.norm = nn.BatchNorm2d(1 + fast, affine=False)
        layers: list[nn.Module] = []
        for inputs, channels, kernel, stride in (
            (1 + fast, width, (5, 3), (5, 1)),
            (width, 2 * width, (3, 3), 2),
            (2 * width, 4 * width, (3, 3), 2),
        ):
            layers += [
                nn.Conv2d(inputs, channels, kernel, stride, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(8 * width, 256), nn.ReLU(), nn.Linear(256, outputs))

    def forward(self, y: Tensor) -> Tensor:
        """Map windows (m, time, K + K·J) to (m, n)."""
        fields = self.norm(self.grid(y))
        # The ring goes on past its end.
        features = self.layers(torch.cat([fields, fields[..., :2]], dim=-1)).flatten(2)
        return self.head(torch.cat([features.mean(-1), features.std(-1)], dim=1))
