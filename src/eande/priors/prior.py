"""Priors: what the parameters may be before any data are seen.

A box is the usual one and scales itself. Any torch Distribution with event shape (D,) comes in as
it is. And a prior may be known through draws only (parameters from somebody else's ensemble, or a
law that lives on a surface and has no density): it can be sampled, so the ratio, its normaliser and
posterior samples all exist; only ``log_prob`` does not.

A kind of prior is one class in one file of this folder: everything the rest of the library asks of
a prior is a method here, and a file that is read finds the class by its ``kind``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from eande.foundations.checks import InputError


class Prior(ABC):
    """A law of parameters φ in R^D: draws always, a density where there is one.

    Attributes:
        dimension: D.
        names: one per parameter.
        has_density: whether ``log_prob`` exists.
        distinct_draws: how many different draws there are; None for a continuous law.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Prior]]] = {}
    has_density: bool = True
    distinct_draws: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Make the class known under its ``kind``, by which files name it."""
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            Prior.kinds[cls.kind] = cls

    def __init__(self, dimension: int, names: Sequence[str] | None) -> None:
        if isinstance(names, str):
            raise InputError(f"names: expected a list of {dimension} names, got the text {names!r}")
        if names is not None and (len(names) != dimension or len(set(names)) != dimension):
            raise InputError(f"names: expected {dimension} different names, got {list(names)}")
        self.dimension = dimension
        self.names = (
            tuple(names) if names is not None else tuple(f"phi{i + 1}" for i in range(dimension))
        )

    @abstractmethod
    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters, shape (n, D), on the CPU; the same seed gives the same draws."""

    @abstractmethod
    def log_prob(self, phi: Tensor) -> Tensor:
        """Return the log density, shape (n,), minus infinity outside the support."""

    @abstractmethod
    def contains(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies in the support, (n,); True where the support is unknown."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a file needs to make this prior again, as JSON-ready values."""

    @classmethod
    @abstractmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> Prior | None:
        """Make the prior a file describes; None where it has to be handed over again."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what a file stores beside the description."""
        return {}

    def sample_evenly(self, n: int, *, first: int, seed: int) -> Tensor:
        """Return ``n`` parameters, from the ``first`` on, of a low-discrepancy sequence, (n, D)."""
        raise InputError(
            f"design: expected 'random' for a {type(self).__name__}, got 'even': only a BoxPrior "
            "can be filled evenly"
        )

    def location_and_scale(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and standard deviation per parameter if the prior knows them exactly."""
        return None

    def unconstrain(self, phi: Tensor) -> Tensor:
        """Map parameters to coordinates without edges, where samplers move; the identity here."""
        return phi

    def constrain(self, x: Tensor) -> Tensor:
        """Map unconstrained coordinates back to parameters."""
        return x

    def unconstrained_log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of unconstrained coordinates, up to a constant, float64, (n,)."""
        return self.log_prob(x).double()
