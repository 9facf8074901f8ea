r"""A prior cut off: what of another prior lies in a region R.

    p_R(φ) = p(φ) 1[φ ∈ R] / p(R)

The region is a membership function of the user's, or a :class:`Region`, which tells how deep inside
a point lies and which files can hold. Truncating again intersects, so that regions are nested: a
draw of the wider prior that lies in the narrower region is a draw of the narrower prior, exactly.

Draws are made by rejection: those of the outer prior that lie inside. Where a box is given, it is
part of the region, and where the outer prior can be drawn from within a box (:meth:`Prior.between`:
boxes, products, and independent laws whose quantiles torch knows) its draws come from there. So
they are exact in any case; where the region is too small for that, they are refused after a hundred
million tries, and not made in another way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    calling,
    check_function,
    check_shape,
    show_shape,
)
from eande.foundations.discovery import register
from eande.foundations.documents import as_document
from eande.foundations.seeds import derive_seed
from eande.priors.convert import as_prior, prior_from_description
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Between, Prior

# Draws of the outer prior at once, and in all before a call gives up.
_FEWEST_AT_ONCE = 256
_MOST_AT_ONCE = 200_000
_MOST_TRIED = 100_000_000
# The mass of the region is measured by as many draws inside, or as many tries, whatever comes
# first; by fewer draws than this it is not known well enough for anything.
_INSIDE = 10_000
_TRIED_FOR_MASS = 5_000_000
_FEWEST_INSIDE = 50
# Draws that are kept with their number and seed, for whoever asks for the same again: training does
# at every validation. So many times, of so many numbers at most.
_KEPT = 4
_LARGEST_KEPT = 1_000_000
# Of the stream of tries by which the mass is measured.
_SEED_OF_MASS = 0


class Region(ABC):
    """A region that files can hold: it is described by values for JSON and by tensors.

    Attributes:
        kind: the name of the class in files.
        kinds: all classes by that name.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Region]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the class under its ``kind``, the name it has in files."""
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            register(Region.kinds, cls.kind, cls)

    def __call__(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies inside, (n,)."""
        return self.depth(phi) >= 0

    @abstractmethod
    def depth(self, phi: Tensor) -> Tensor:
        """Return how deep inside each φ lies, in nats, (n,): zero on the edge, negative outside."""

    @abstractmethod
    def describe(self) -> dict[str, Any] | None:
        """Return what a file needs to make it again, or None where no file can hold it."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a file stores beside the description."""

    @classmethod
    @abstractmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> Region:
        """Make the region that a file describes."""


class _Measured(NamedTuple):
    """What is known of the region by draws inside.

    Args:
        log_mass: log p(R).
        error: its standard error.
        mean: of the parameters inside, (D,).
        scale: their standard deviations, (D,).
    """

    log_mass: float
    error: float
    mean: Tensor
    scale: Tensor


class TruncatedPrior(Prior):
    """A prior restricted to a region, and normalised there.

    Args:
        prior: the outer one; of a truncated one the region becomes the intersection.
        inside: ``inside(phi) -> (n,)`` booleans for parameters (n, D), the same for a point
            whatever others it comes with.
        box: lower and upper corner (2, D) of a box that the region lies in: what lies beyond is cut
            off, too. It is where draws are made, so that a small region costs fewer tries.

    Attributes:
        outer: the prior that nothing was cut off.
        regions: all membership functions, the first truncation's first.
        log_mass: log p(R), the share of the outer prior's mass that is kept.
        log_mass_error: its standard error.

    Example:
        >>> square = eande.BoxPrior([-1, -1], [1, 1], names=["east", "north"])
        >>> disc = TruncatedPrior(square, lambda phi: phi.square().sum(1) <= 1)
        >>> disc
        TruncatedPrior(79% of BoxPrior(east=(-1, 1), north=(-1, 1)))
        >>> (disc.sample(100, seed=0).norm(dim=1) <= 1).all()
        tensor(True)
        >>> abs(disc.log_mass - math.log(torch.pi / 4)) < 4 * disc.log_mass_error
        True
    """

    kind = "truncated"

    def __init__(self, prior: Any, inside: Callable[[Tensor], Any], *, box: Any = None) -> None:
        outer = as_prior(prior)
        check_function("inside", inside, "phi")
        regions: tuple[Callable[[Tensor], Any], ...] = (inside,)
        edges = None if box is None else as_float_tensor("box", box).detach().cpu()
        if edges is not None:
            check_shape("box", edges, (2, outer.dimension))
            if not (edges[0] < edges[1]).all():
                raise InputError("box: expected every lower end below its upper end, got others")
        names = outer.names
        if isinstance(outer, TruncatedPrior):
            regions = (*outer.regions, inside)
            edges = _intersection(outer.box, edges)
            outer = outer.outer
        self._set(outer, regions, edges, names)
        self._measured = self._measure()

    def _set(
        self,
        outer: Prior,
        regions: tuple[Callable[[Tensor], Any], ...],
        box: Tensor | None,
        names: Sequence[str],
    ) -> None:
        super().__init__(outer.dimension, names)
        self.outer = outer
        self.regions = regions
        self.box = box
        self.has_density = outer.has_density
        self.integrates = outer.integrates
        self._finite: EmpiricalPrior | None = None
        self._kept: tuple[tuple[tuple[int, int], Tensor], ...] = ()
        if outer.distinct_draws is not None:
            draws = outer.sample(outer.distinct_draws, seed=0)
            draws = draws[self.contains(draws)]
            if not len(draws):
                raise _too_small("none", outer.distinct_draws)
            self._finite = EmpiricalPrior(draws)
            self.distinct_draws = len(draws)
        self._between: Between | None = None
        if box is not None:
            self._between = outer.between(*box)

    def _measure(self) -> _Measured:
        """Measure the region's mass, and where its parameters lie, by rejection."""
        if self._finite is not None:
            assert self.outer.distinct_draws is not None
            found = self._finite.draws
            log_mass = math.log(len(found) / self.outer.distinct_draws)
            return _Measured(log_mass, 0.0, found.mean(0), found.std(0, correction=0))
        parts: list[Tensor] = []
        tried = inside = 0
        for batch in range(_TRIED_FOR_MASS // _INSIDE):
            parts.append(self._tried(_INSIDE, _SEED_OF_MASS, batch))
            tried += _INSIDE
            inside += len(parts[-1])
            if inside >= _INSIDE:
                break
        if inside < _FEWEST_INSIDE:
            raise _too_small(str(inside), tried)
        share = inside / tried
        log_box = 0.0 if self._between is None else self._between.log_mass
        found = torch.cat(parts).double()
        return _Measured(
            log_mass=log_box + math.log(share),
            error=((1 - share) / inside) ** 0.5,
            mean=found.mean(0).float(),
            scale=found.std(0).float(),
        )

    def _tried(self, n: int, seed: int, batch: int) -> Tensor:
        """Return those of ``n`` draws of the outer prior, or of it within the box, that are in."""
        own = derive_seed(seed, "tried", batch)
        draw = self._between.draw if self._between is not None else self._draw_outer
        phi = draw(n, own)
        return phi[self.contains(phi)]

    def _draw_outer(self, n: int, seed: int) -> Tensor:
        return self.outer.sample(n, seed=seed)

    @property
    def log_mass(self) -> float:
        """Log p(R), the share of the outer prior's mass that is kept."""
        return self._measured.log_mass

    @property
    def log_mass_error(self) -> float:
        """The standard error of log p(R)."""
        return self._measured.error

    @property
    def acceptance(self) -> float:
        """The share of the draws made for it that lie inside: of the outer prior, or in the box.

        Example:
            >>> half = TruncatedPrior(eande.BoxPrior([0], [1]), lambda phi: phi[:, 0] < 0.5)
            >>> boxed = TruncatedPrior(half.outer, half.regions[0], box=[[0], [0.5]])
            >>> abs(half.acceptance - 0.5) < 0.02, boxed.acceptance > 0.999
            (True, True)
        """
        log_box = 0.0 if self._between is None else self._between.log_mass
        return math.exp(self.log_mass - log_box)

    def __repr__(self) -> str:
        """Return how much of what is kept, in a line."""
        return f"TruncatedPrior({percent(math.exp(self.log_mass))} of {self.outer!r})"

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters by rejection.

        Example:
            >>> half = TruncatedPrior(eande.BoxPrior([0], [1]), lambda phi: phi[:, 0] < 0.5)
            >>> half.sample(1_000, seed=0).max() < 0.5
            tensor(True)
        """
        self._check_draws(n, seed)
        if self._finite is not None:
            return self._finite.sample(n, seed=seed)
        for seeded, kept in self._kept:
            if seeded == (n, seed):
                return kept.clone()
        phi = self._drawn(n, seed)
        if phi.numel() <= _LARGEST_KEPT:
            self._kept = (*self._kept[1 - _KEPT :], ((n, seed), phi))
        return phi.clone()

    def _drawn(self, n: int, seed: int) -> Tensor:
        parts = [torch.empty(0, self.dimension)]
        missing, batch, tried = n, 0, 0
        while missing > 0:
            if tried > _MOST_TRIED:
                raise _too_small(f"{n - missing} of {n}", tried)
            size = math.ceil(1.1 * missing / self.acceptance)
            size = min(max(size, _FEWEST_AT_ONCE), _MOST_AT_ONCE)
            parts.append(self._tried(size, seed, batch)[:missing])
            missing -= len(parts[-1])
            tried += size
            batch += 1
        return torch.cat(parts)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Return the outer log density less log p(R), minus infinity outside the region.

        Example:
            >>> half = TruncatedPrior(eande.BoxPrior([0], [1]), lambda phi: phi[:, 0] < 0.5)
            >>> half.log_prob([[0.2], [0.7]])
            tensor([0.7..., -inf])
        """
        phi = self._as_points("phi", phi)
        value = self.outer.log_prob(phi) - self.log_mass
        return torch.where(self.contains(phi), value, -torch.inf)

    def contains(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies in the outer prior's support and in the region.

        Example:
            >>> half = TruncatedPrior(eande.BoxPrior([0], [1]), lambda phi: phi[:, 0] < 0.5)
            >>> half.contains([[0.2], [0.7], [-1.0]])
            tensor([ True, False, False])
        """
        points = self._as_points("phi", phi).detach()
        flat = points.reshape(-1, self.dimension)
        inside = self.outer.contains(flat)
        if self.box is not None:
            low, high = self.box.to(flat.device)
            # In the precision of the corners, as in a BoxPrior.
            rounded = flat.to(low.dtype)
            inside = inside & ((rounded >= low) & (rounded <= high)).all(-1)
        # The last region is the smallest.
        for region in reversed(self.regions):
            left = inside.nonzero()[:, 0]
            if not len(left):
                break
            inside[left] = _inside(region, flat[left])
        return inside.reshape(points.shape[:-1])

    def depth(self, phi: Tensor) -> Tensor:
        """Return how deep inside all regions each φ lies, in nats, (n,).

        Infinite where a region is a plain function, which does not tell.

        Example:
            >>> half = TruncatedPrior(eande.BoxPrior([0], [1]), lambda phi: phi[:, 0] < 0.5)
            >>> half.depth([[0.2]])
            tensor([inf], dtype=torch.float64)
        """
        phi = self._as_points("phi", phi).detach()
        depth = torch.full(phi.shape[:-1], torch.inf, dtype=torch.float64, device=phi.device)
        for region in self.regions:
            if isinstance(region, Region):
                depth = depth.minimum(region.depth(phi))
        return depth

    def location_and_scale(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the parameters inside."""
        return self._measured.mean, self._measured.scale

    def half_lines(self) -> Tensor | None:
        """Return what the outer prior says: the region may reach to the ends of its half-lines."""
        return self.outer.half_lines()

    def unconstrain(self, phi: Tensor) -> Tensor:
        """Map parameters to the outer prior's unconstrained coordinates."""
        return self.outer.unconstrain(phi)

    def constrain(self, x: Tensor) -> Tensor:
        """Map the outer prior's unconstrained coordinates back to parameters."""
        return self.outer.constrain(x)

    def unconstrained_log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of the coordinates, minus infinity outside, in float64."""
        value = self.outer.unconstrained_log_prob(x) - self.log_mass
        return torch.where(self.contains(self.outer.constrain(x)), value, -torch.inf)

    def describe(self) -> dict[str, Any]:
        """Return outer prior and regions; None for the regions where one is a function."""
        regions = [
            region.describe() if isinstance(region, Region) else None for region in self.regions
        ]
        return {
            "kind": self.kind,
            "outer": self.outer.describe(),
            "regions": None if None in regions else regions,
            "log_mass": self.log_mass,
            "log_mass_error": self.log_mass_error,
            "names": list(self.names),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return those of the outer prior and of the regions, and what was measured."""
        found = {f"outer.{name}": x for name, x in self.outer.tensors().items()}
        found |= {"mean": self._measured.mean, "scale": self._measured.scale}
        if self.box is not None:
            found["box"] = self.box
        for number, region in enumerate(self.regions):
            if isinstance(region, Region):
                found |= {f"region.{number}.{name}": x for name, x in region.tensors().items()}
        return found

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> TruncatedPrior | None:
        """Make the prior a file describes; None where the user has to pass it again."""
        known = as_document("prior", description, _Description)
        outer = prior_from_description(known.outer, _under("outer", tensors))
        if outer is None or known.regions is None:
            return None
        if isinstance(outer, TruncatedPrior):
            raise InputError("prior: expected an outer prior that is not truncated, got one")
        regions = []
        for number, described in enumerate(known.regions):
            kind = as_document("prior", described, _Kind).kind
            if kind not in Region.kinds:
                raise InputError(
                    f"prior: expected one of {', '.join(map(repr, Region.kinds))} as region in the "
                    f"file, got {kind!r}; where it is a class of your own, import it first"
                )
            own = _under(f"region.{number}", tensors)
            regions.append(Region.kinds[kind].from_description(described, own))
        for name in ("mean", "scale"):
            if name not in tensors:
                raise InputError(f"prior: expected the tensor prior.{name}, got none")
            check_shape(f"prior.{name}", tensors[name], (outer.dimension,))
        box = tensors.get("box")
        if box is not None:
            check_shape("prior.box", box, (2, outer.dimension))
        made = cls.__new__(cls)
        made._set(outer, tuple(regions), box, known.names)
        made._measured = _Measured(
            known.log_mass, known.log_mass_error, tensors["mean"], tensors["scale"]
        )
        return made


@dataclass
class _Kind:
    """What all descriptions of regions have."""

    kind: str


@dataclass
class _Description:
    """What a file holds of a truncated prior; no regions where one cannot be held."""

    outer: dict[str, Any]
    regions: list[dict[str, Any]] | None
    log_mass: float
    log_mass_error: float
    names: list[str]


def _intersection(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the box that lies in both; None stands for no box."""
    if one is None or other is None:
        return other if one is None else one
    return torch.stack([one[0].maximum(other[0]), one[1].minimum(other[1])])


def _inside(region: Callable[[Tensor], Any], phi: Tensor) -> Tensor:
    """Ask a membership function; one of a user's is handed parameters on the CPU."""
    if isinstance(region, Region):
        return region(phi)
    call = partial(region, phi.cpu())
    with calling("inside", call, shape=show_shape(phi.shape)):
        found = call()
    inside = torch.as_tensor(found, device=phi.device)
    check_shape("inside", inside, (len(phi),))
    return inside.bool()


def _under(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a part, by their names in it."""
    prefix = f"{part}."
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


def percent(share: float) -> str:
    """Return a share in per cent, by two digits.

    Example:
        >>> percent(0.00123), percent(0.999)
        ('0.12%', '100%')
    """
    return f"{100 * share:.2g}%" if share < 0.995 else "100%"


def _too_small(inside: str, tried: int) -> InputError:
    return InputError(
        f"inside: expected a region that holds enough of the prior to be drawn from, got {inside} "
        f"of {tried:,} draws inside; a box around it (box=) saves tries"
    )
