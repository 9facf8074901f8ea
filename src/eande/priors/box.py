"""The uniform distribution on a box, the usual prior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_shape,
    show,
)
from eande.foundations.documents import as_document
from eande.foundations.seeds import generator
from eande.priors.prior import Between, Prior, even_points, listed


class BoxPrior(Prior):
    """The uniform distribution on a box.

    Args:
        low: lower corner, shape (D,).
        high: upper corner, shape (D,), above ``low`` in every coordinate.
        names: one name per parameter.

    Example:
        >>> prior = BoxPrior([-15, -15], [15, 15], names=["F1", "F2"])
        >>> prior.sample(3, seed=0).shape
        torch.Size([3, 2])
        >>> prior.contains(torch.tensor([[0.0, 20.0]]))
        tensor([False])
    """

    kind = "box"

    def __init__(self, low: Any, high: Any, *, names: Sequence[str] | None = None) -> None:
        self.low = as_float_tensor("low", low).detach().cpu()
        self.high = as_float_tensor("high", high).detach().cpu()
        check_shape("low", self.low, ("D",))
        check_count("length of low", len(self.low), 1)
        check_shape("high", self.high, tuple(self.low.shape))
        check_finite("low", self.low)
        check_finite("high", self.high)
        if not (self.low < self.high).all():
            raise InputError(
                "high: expected every entry above low (in float32), "
                f"got low {show(low)} and high {show(high)}"
            )
        if not torch.isfinite(self.high - self.low).all():
            raise InputError(
                "high: expected a width that float32 can hold, "
                f"got low {show(low)} and high {show(high)}"
            )
        self._edges: dict[torch.device, tuple[Tensor, Tensor]] = {}
        super().__init__(len(self.low), names)

    def __repr__(self) -> str:
        """Return the sides by name, in a line."""
        ends = zip(self.names, self.low.tolist(), self.high.tolist(), strict=True)
        return (
            f"BoxPrior({listed([f'{name}=({low:.4g}, {high:.4g})' for name, low, high in ends])})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the copies on devices: another process may have other devices."""
        return self.__dict__ | {"_edges": {}}

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters.

        Example:
            >>> prior = BoxPrior([0, 10], [1, 20])
            >>> prior.contains(prior.sample(5, seed=0)).all()
            tensor(True)
        """
        self._check_draws(n, seed)
        return self._stretch(torch.rand(n, self.dimension, generator=generator(seed, "prior")))

    def sample_evenly(self, n: int, *, first: int, seed: int) -> Tensor:
        """Return part of a scrambled Sobol sequence, which fills the box more evenly than draws.

        Every single point is uniform on the box.
        """
        return self._quantiles(even_points(self.dimension, n, first=first, seed=seed))

    def given(self, rest: Sequence[int], values: Tensor) -> Prior:
        """Return the box of the others: they do not depend on what is given."""
        places = list(rest)
        names = [self.names[i] for i in places]
        return BoxPrior(self.low[places], self.high[places], names=names)

    def between(self, low: Tensor, high: Tensor) -> Between:
        """Return the uniform distribution on what both boxes have in common."""
        low = low.maximum(self.low)
        high = high.minimum(self.high)
        if not (low < high).all():
            raise InputError("box: expected one that the prior has mass in, got one beside it")
        common = BoxPrior(low, high)
        share = (high.double() - low.double()) / (self.high.double() - self.low.double())
        return Between(lambda n, seed: common.sample(n, seed=seed), share.log().sum().item())

    def _quantiles(self, levels: Tensor) -> Tensor:
        """Map points of the unit cube to the box."""
        return self._stretch(levels.float())

    def _stretch(self, uniform: Tensor) -> Tensor:
        """Map the unit cube to the box."""
        # Rounding may carry the sum past the upper corner by one unit in the last place.
        return torch.minimum(self.low + uniform * (self.high - self.low), self.high)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Return minus the log volume inside the box, minus infinity outside.

        Example:
            >>> BoxPrior([0.0], [4.0]).log_prob([[1.0], [5.0]])
            tensor([-1.3863,    -inf])
        """
        phi = self._as_points("phi", phi)
        inside = self.contains(phi)
        log_volume = (self.high.double() - self.low.double()).log().sum().item()
        return torch.where(inside, -log_volume, -torch.inf).to(torch.result_type(phi, 1.0))

    def contains(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies in the box, edges included.

        Example:
            >>> BoxPrior([0.0], [4.0]).contains([[1.0], [4.0], [5.0]])
            tensor([ True,  True, False])
        """
        phi = self._as_points("phi", phi)
        low, high = self._edges_on(phi.device)
        # In the precision of the edges: a number that rounds to an edge lies on it.
        phi = phi.to(low.dtype)
        return ((phi >= low) & (phi <= high)).all(-1)

    def _edges_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the corners on a device, copied there once: a copy to a GPU synchronises."""
        if device not in self._edges:
            self._edges[device] = (self.low.to(device), self.high.to(device))
        return self._edges[device]

    def location_and_scale(self) -> tuple[Tensor, Tensor]:
        """Return the centre and the standard deviation, width / √12."""
        return (self.low + self.high) / 2, (self.high - self.low) / 12**0.5

    def half_lines(self) -> Tensor:
        """Return minus infinity: no side of a box is a half-line."""
        return torch.full((self.dimension,), -torch.inf)

    def unconstrain(self, phi: Tensor) -> Tensor:
        """Map the box to coordinates in which the prior is the standard normal distribution."""
        phi = self._as_points("phi", phi)
        low, high = self._edges_on(phi.device)
        uniform = ((phi - low) / (high - low)).clamp(1e-7, 1 - 1e-7)
        z: Tensor = torch.special.ndtri(uniform)
        return z

    def constrain(self, x: Tensor) -> Tensor:
        """Map standard normal coordinates back into the box."""
        x = self._as_points("x", x)
        low, high = self._edges_on(x.device)
        return torch.minimum(low + torch.special.ndtr(x) * (high - low), high)

    def unconstrained_log_prob(self, x: Tensor) -> Tensor:
        """Return the standard normal log density, in float64."""
        square = self._as_points("x", x).double().square().sum(1)
        return -(square + self.dimension * math.log(2 * math.pi)) / 2

    def describe(self) -> dict[str, Any]:
        """Return the corners and names."""
        return {
            "kind": self.kind,
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "names": list(self.names),
        }

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> "BoxPrior":
        """Make the box that a file describes."""
        known = as_document("prior", description, _Description)
        return cls(known.low, known.high, names=known.names)


@dataclass
class _Description:
    """What a file holds of a box."""

    low: list[float]
    high: list[float]
    names: list[str]
