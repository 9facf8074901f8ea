"""Standardised inputs: location zero and scale one, whatever the units of the data."""

import torch
from torch import Tensor, nn


class Standardizer(nn.Module):
    """Subtract a stored mean and divide by a stored scale.

    Args:
        mean: location, of a shape that broadcasts against the data's.
        scale: spread; entries that are zero (a constant feature) count as one.
        limit: beyond so many scales values grow logarithmically, for distributions with heavy
            tails; infinite for the entries of others.
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
