"""An encoder for Lorenz 96: a ResNet on the ring."""

import torch
from torch import Tensor, nn

from eande.core.networks import ResNet


class RingGrid(nn.Module):
    """Lay states (m, time, K + K·J) out as fields of 1 + J channels (u and its fast variables) on a grid of time × K places.

    Neighbours on the grid are the physical ones, and shifting the ring shifts the grid.

    Args:
        slow: K.
        fast: J.

    Example:
        >>> RingGrid(36, 10)(torch.zeros(2, 250, 396)).shape
        torch.Size([2, 11, 250, 36])
    """

    def __init__(self, slow: int = 36, fast: int = 10) -> None:
        super().__init__()
        self.slow, self.fast = slow, fast

    def forward(self, y: Tensor) -> Tensor:
        """Rearrange; channels are last in memory, which convolutions like."""
        u, v = y[..., : self.slow].unsqueeze(-1), y[..., self.slow :].unflatten(-1, (self.slow, self.fast))
        return torch.cat([u, v], dim=-1).permute(0, 3, 1, 2)


def lorenz96_encoder(outputs: int, *, slow: int = 36, fast: int = 10, depth: int = 34, width: int = 64) -> nn.Module:
    """Make the paper's encoder for windows (time, K + K·J): a ResNet on the grid of time × places, periodic in place.

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
