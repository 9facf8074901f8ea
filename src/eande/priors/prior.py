"""Priors: what the parameters may be before any data are seen.

Three kinds are enough. A box is the usual one and scales itself. Any torch Distribution with event
shape (D,) comes in as it is. And a prior may be known through draws only (parameters from somebody
else's ensemble, or a law that lives on a surface and has no density): it can be sampled, so the
ratio, its normaliser and posterior samples all exist; only ``log_prob`` does not.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from eande.foundations.checks import InputError


class Prior(ABC):
    """A law of parameters φ in R^D: draws always, a density where there is one."""

    has_density: bool = True

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
        """Return whether each φ lies in the support, shape (n,); True throughout where the support is unknown."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a file needs to make this prior again, as JSON-ready values."""

    def sample_evenly(self, n: int, *, first: int, seed: int) -> Tensor:
        """Return parameters ``first`` … ``first + n − 1`` of an endless sequence that fills the prior more evenly than draws do, shape (n, D)."""
        raise InputError(
            f"design: expected 'random' for a {type(self).__name__}, got 'even': only a BoxPrior can be filled evenly"
        )

    def location_and_scale(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean and standard deviation per parameter if the prior knows them exactly."""
        return None
