"""Standardised inputs: location zero and scale one, whatever the units of the data."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Standardizer(nn.Module):
    """Subtract a stored mean and divide by a stored scale.

    Args:
        mean: location, of a shape that broadcasts against the data's.
        scale: spread; entries that are zero (a constant feature) count as one.
        limit: beyond so many scales values grow logarithmically, for distributions with heavy
            tails; infinite for the entries of others.
        largest: how many scales from the mean the farthest number seen in training lies; None where
            nobody knows.
    """

    mean: Tensor
    scale: Tensor
    limit: Tensor | None

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor,
        limit: Tensor | None = None,
        largest: float | None = None,
    ) -> None:
        super().__init__()
        self.largest = largest
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", torch.where(scale > 0, scale, 1.0).float())
        self.register_buffer("limit", None if limit is None else limit.float())

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Standardizer":
        """Make one from its tensors, as a file holds them."""
        return cls(tensors["mean"], tensors["scale"], tensors.get("limit"))

    def forward(self, x: Tensor) -> Tensor:
        """Standardise ``x``."""
        z = (x - self.mean) / self.scale
        if self.limit is None:
            return z
        beyond = (z.abs() - self.limit).clamp(min=0)
        return z.sign() * (z.abs() - beyond + beyond.log1p())

    def reach(self, x: Tensor) -> Tensor:
        """Return how many times farther out than all that was seen each datum (m, …) lies, (m,).

        Zero where nobody knows what was seen.
        """
        if self.largest is None:
            return x.new_zeros(len(x))
        z = ((x - self.mean) / self.scale).abs().flatten(1).amax(1)
        # No less than a scale: data that never varied were not seen to be anywhere in particular.
        return z / max(self.largest, 1.0)
