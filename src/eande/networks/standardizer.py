"""Standardised inputs: location zero and scale one, whatever the units of the data.

Numbers that span decades are bent first: they grow linearly near an origin and as their logarithm
far from it, on either side. That is one to one, and a ratio of densities is the same in all such
coordinates: no Jacobian belongs to it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Standardizer(nn.Module):
    """Subtract a stored mean and divide by a stored scale; bend where asked, and do so again.

    With u = (x − mean) / scale and its limit L,

        b(u) = u  for |u| ≤ L,      ±(L + log(1 + |u| − L))  beyond,

    and the result is (b − centre) / spread. For L = 1 the second is 1 + log |u|: with the origin at
    the end of a half-line, a logarithm of all but what is smaller than the scale.

    Args:
        mean: location, of a shape that broadcasts against the data's.
        scale: spread; entries that are zero (a constant feature) count as one.
        limit: beyond so many scales values grow logarithmically; infinite for the entries that are
            not bent. None bends none.
        centre: location of what was bent, None for zero.
        spread: its spread, None for one.
        weight: what the result is multiplied by at last: less than one for numbers that tell
            nothing. None for one. How far out a datum lies is measured before.
        largest: how far from zero the farthest standardised number seen in training lies; None
            where nobody knows.
    """

    # What a file holds of one; the first two always.
    NAMES = ("mean", "scale", "limit", "centre", "spread", "weight")

    mean: Tensor
    scale: Tensor
    limit: Tensor | None
    centre: Tensor | None
    spread: Tensor | None
    weight: Tensor | None

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor,
        limit: Tensor | None = None,
        centre: Tensor | None = None,
        spread: Tensor | None = None,
        weight: Tensor | None = None,
        *,
        largest: float | None = None,
    ) -> None:
        super().__init__()
        self.largest = largest
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", _as_scale(scale))
        self.register_buffer("limit", None if limit is None else limit.float())
        self.register_buffer("centre", None if centre is None else centre.float())
        self.register_buffer("spread", None if spread is None else _as_scale(spread))
        self.register_buffer("weight", None if weight is None else weight.float())

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Standardizer":
        """Make one from its tensors, as a file holds them."""
        optional = [tensors.get(name) for name in cls.NAMES[2:]]
        return cls(tensors["mean"], tensors["scale"], *optional)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise and weigh ``x``."""
        z = self._standardized(x)
        return z if self.weight is None else z * self.weight

    def _standardized(self, x: Tensor) -> Tensor:
        z = (x - self.mean) / self.scale
        if self.limit is not None:
            beyond = (z.abs() - self.limit).clamp(min=0)
            z = torch.where(beyond > 0, z.sign() * (self.limit + beyond.log1p()), z)
        if self.centre is not None:
            z = z - self.centre
        return z if self.spread is None else z / self.spread

    def farthest(self, x: Tensor) -> Tensor:
        """Return how far from zero the farthest number of each datum (m, …) lies, (m,).

        What is missing (NaN) is not looked at.
        """
        return self._standardized(x).abs().nan_to_num(0.0).flatten(1).amax(1)

    def reach(self, x: Tensor) -> Tensor:
        """Return how many times farther out than all that was seen each datum (m, …) lies, (m,).

        As the networks see it, that is, after bending. Zero where nobody knows what was seen.
        """
        if self.largest is None:
            return x.new_zeros(len(x))
        # No less than a scale: data that never varied were not seen to be anywhere in particular.
        return self.farthest(x) / max(self.largest, 1.0)


def _as_scale(spread: Tensor) -> Tensor:
    return torch.where(spread > 0, spread, 1.0).float()
