"""Priors: the distribution of the parameters before any data are seen.

The usual prior is uniform on a box. Any torch Distribution with event shape (D,) is accepted as it
is. And a prior may be known through draws only (parameters of an existing ensemble, or a
distribution on a surface, which has no density): it can be sampled, so the ratio, its normaliser
and posterior samples all exist; only ``log_prob`` does not.

A kind of prior is one class in one file of this folder: everything the rest of the library asks of
a prior is a method here, and loading a file finds the class by its ``kind``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    as_names,
    check_count,
    check_fits,
    check_plain,
    check_seed,
    show_shape,
)
from eande.foundations.discovery import register
from eande.foundations.seeds import derive_seed

# A Sobol sequence of torch has no more points.
_LONGEST_SEQUENCE = 2**30
# In a line of text, so many parameters are told.
_MOST_LISTED = 6
# And of each so many letters.
_LONGEST_LISTED = 60


class Between(NamedTuple):
    """A prior within a box.

    Args:
        draw: ``draw(n, seed) -> (n, D)``: draws of the prior that lie in the box. Rounding to
            float32 may carry one beyond by a unit in the last place.
        log_mass: log of the share of the prior's mass that does.
    """

    draw: Callable[[int, int], Tensor]
    log_mass: float


class Prior(ABC):
    """A distribution of parameters φ in R^D: draws always, a density where there is one.

    Attributes:
        kind: the name of the class in files.
        kinds: all classes by that name.
        dimension: D.
        names: one per parameter.
        has_density: whether ``log_prob`` exists.
        integrates: whether that is known to be the log of what integrates to one; not of a
            Distribution of a user's, nor of one on a surface.
        distinct_draws: how many different draws there are; None for a continuous distribution.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Prior]]] = {}
    has_density: bool = True
    integrates: bool = True
    distinct_draws: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the class under its ``kind``, the name it has in files."""
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            register(Prior.kinds, cls.kind, cls)

    def __init__(self, dimension: int, names: Sequence[str] | None) -> None:
        check_count("number of parameters", dimension, 1)
        self.dimension = dimension
        if names is None:
            names = default_names(dimension)
        self.names = as_names("names", names, dimension)

    def __repr__(self) -> str:
        """Return kind and names, in a line."""
        return f"{type(self).__name__}({listed(self.names)})"

    @property
    def own_names(self) -> tuple[str, ...] | None:
        """The names that were given, None where they are the default ones: phi1, phi2 and so on."""
        return None if self.names == default_names(self.dimension) else self.names

    def _check_draws(self, n: Any, seed: Any) -> None:
        """Refuse a number of draws or a seed that cannot be, before anything is drawn."""
        check_count("n", n, 0)
        check_seed("seed", seed)
        check_fits("n", n, 4 * self.dimension)

    def _as_points(self, name: str, phi: Any) -> Tensor:
        """Return parameters (…, D) as a tensor: float64 stays, all else becomes float32."""
        if isinstance(phi, Tensor) and phi.dtype == torch.float64:
            check_plain(name, phi)
        else:
            phi = as_float_tensor(name, phi)
        if phi.ndim < 2 or phi.shape[-1] != self.dimension:
            raise InputError(
                f"{name}: expected shape {show_shape(('n', self.dimension))}, "
                f"got {show_shape(phi.shape)}"
            )
        return phi

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
        """Return what a file needs to make this prior again, as values for JSON."""

    @classmethod
    @abstractmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> Prior | None:
        """Make the prior a file describes; None where the user has to pass it again."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a file stores beside the description."""
        return {}

    def sample_evenly(self, n: int, *, first: int, seed: int) -> Tensor:
        """Return ``n`` parameters, from the ``first`` on, of a low-discrepancy sequence, (n, D)."""
        raise InputError(
            f"design: expected 'random' for a {type(self).__name__}, got 'even': only a BoxPrior "
            "and a ProductPrior can be filled evenly"
        )

    def between(self, low: Tensor, high: Tensor) -> Between | None:
        """Return the prior within a box, None where it is drawn from by rejection only.

        Args:
            low: lower corner (D,), perhaps beyond the support.
            high: upper corner (D,).
        """
        return None

    def given(self, rest: Sequence[int], values: Tensor) -> Prior | None:
        """Return the law of some parameters given the others, None where it is not known.

        Args:
            rest: the places of those parameters.
            values: of all; theirs are not looked at, (D,).
        """
        return None

    def location_and_scale(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and standard deviation per parameter, None where they are not known."""
        return None

    def half_lines(self) -> Tensor | None:
        """Return where the half-line begins that is the support of each parameter, (D,).

        Minus infinity for a parameter of other support, None where nothing is known of any. Those
        on a half-line go to the emulator through their logarithm.
        """
        return None

    def unconstrain(self, phi: Tensor) -> Tensor:
        """Map parameters to unconstrained coordinates, in which samplers move.

        The identity unless a prior overrides it, together with the two methods below.
        """
        return self._as_points("phi", phi)

    def constrain(self, x: Tensor) -> Tensor:
        """Map unconstrained coordinates back to parameters."""
        return self._as_points("x", x)

    def unconstrained_log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of unconstrained coordinates, shape (n,), in float64.

        It integrates to one: samplers mix draws of the prior with others.
        """
        return self.log_prob(self._as_points("x", x)).double()


def default_names(dimension: int) -> tuple[str, ...]:
    """Return the names of parameters that nobody named."""
    return tuple(f"phi{i + 1}" for i in range(dimension))


def listed(texts: Sequence[str]) -> str:
    """Return a list in a line, of many the first ones and how many there are.

    Example:
        >>> listed(["a", "b"]), listed([str(i) for i in range(20)])
        ('a, b', '0, 1, 2, 3, 4, 5, … (20 in all)')
    """
    shown = [
        text if len(text) <= _LONGEST_LISTED else f"{text[:_LONGEST_LISTED]}…"
        for text in texts[:_MOST_LISTED]
    ]
    if len(texts) > _MOST_LISTED:
        shown.append(f"… ({len(texts)} in all)")
    return ", ".join(shown)


def even_points(dimension: int, n: int, *, first: int, seed: int) -> Tensor:
    """Return part of a scrambled Sobol sequence in the unit cube, (n, D), in float64.

    Args:
        dimension: D.
        n: how many points.
        first: the number of the first.
        seed: of the scrambling.
    """
    check_count("first", first, 0, _LONGEST_SEQUENCE)
    check_count("n", n, 1, _LONGEST_SEQUENCE - first)
    check_seed("seed", seed)
    scramble = derive_seed(seed, "even") % 2**31
    sequence = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=scramble)
    return sequence.fast_forward(first).draw(n, dtype=torch.float64)
