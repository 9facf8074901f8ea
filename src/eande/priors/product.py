"""Independent parameters of mixed kinds, by name.

    p(φ) = Π_d p_d(φ_d)

Each parameter keeps its own support, and each has the coordinate that suits it: the standard normal
one of its quantiles where it is uniform, its logarithm where it lies on a half-line, itself else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from eande.foundations.checks import InputError, as_float_tensor, show, show_shape
from eande.foundations.documents import as_document
from eande.foundations.seeds import derive_seed
from eande.priors.box import BoxPrior
from eande.priors.distribution import (
    DistributionPrior,
    Stored,
    describe_distribution,
    make_distribution,
)
from eande.priors.prior import Between, Prior, even_points, listed

# Half the distance of neighbouring numbers in torch's Sobol sequences, which begin at zero, where a
# quantile may be infinite.
_HALF_A_STEP = 2.0**-31


class ProductPrior(Prior):
    """Independent parameters, each with a law of its own.

    Args:
        parameters: by name, in the order of φ: a torch Distribution of one number, or a pair
            ``(low, high)`` for the uniform distribution.

    Attributes:
        marginals: the laws by name, each a Distribution or a pair.

    Example:
        >>> from torch.distributions import LogNormal, Normal
        >>> prior = ProductPrior(R0=LogNormal(1.1, 0.5), shift=Normal(0.0, 2.0), share=(0, 1))
        >>> prior
        ProductPrior(R0=LogNormal(loc=1.1, scale=0.5), shift=Normal(loc=0, scale=2), share=(0, 1))
        >>> prior.names, prior.sample(3, seed=0).shape
        (('R0', 'shift', 'share'), torch.Size([3, 3]))
        >>> prior.contains([[1.0, -5.0, 0.5], [-1.0, -5.0, 0.5]])
        tensor([ True, False])
    """

    kind = "product"

    # Positional-only, so that a parameter may have any name.
    def __init__(self, /, **parameters: Any) -> None:
        if not parameters:
            raise InputError(
                "ProductPrior: expected at least one parameter, such as R0=LogNormal(1.0, 0.5), "
                "got none"
            )
        super().__init__(len(parameters), list(parameters))
        self._parts = tuple(_part(name, given) for name, given in parameters.items())
        self.marginals: dict[str, Distribution | tuple[float, float]] = {
            name: (part.low.item(), part.high.item()) if isinstance(part, BoxPrior) else given
            for part, (name, given) in zip(self._parts, parameters.items(), strict=True)
        }
        self.integrates = all(part.integrates for part in self._parts)
        # Where the half-line begins of every part that lies on one, None for the others.
        ends = [part.half_lines() for part in self._parts]
        self._begins = [None if end is None or end == -torch.inf else end.item() for end in ends]

    def __repr__(self) -> str:
        """Return the law of every parameter, in a line."""
        laws = [
            f"{name}={_show_law(law)}"
            for name, law in zip(self.names, self.marginals.values(), strict=True)
        ]
        return f"ProductPrior({listed(laws)})"

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters.

        Example:
            >>> prior = ProductPrior(rate=(0, 1), delay=(5, 10))
            >>> prior.contains(prior.sample(5, seed=0)).all()
            tensor(True)
        """
        self._check_draws(n, seed)
        seeds = [derive_seed(seed, "parameter", d) for d in range(self.dimension)]
        drawn = [part.sample(n, seed=own) for part, own in zip(self._parts, seeds, strict=True)]
        return torch.cat(drawn, dim=1)

    def sample_evenly(self, n: int, *, first: int, seed: int) -> Tensor:
        """Return the quantiles of part of a scrambled Sobol sequence.

        Every single point is a draw of the prior; torch must know all quantiles.
        """
        levels = even_points(self.dimension, n, first=first, seed=seed) + _HALF_A_STEP
        columns = zip(self._parts, levels.split(1, dim=1), strict=True)
        return torch.cat([part._quantiles(level) for part, level in columns], dim=1)

    def given(self, rest: Sequence[int], values: Tensor) -> Prior:
        """Return the product of the others: they do not depend on what is given."""
        names = [self.names[i] for i in rest]
        return ProductPrior(**{name: self.marginals[name] for name in names})

    def between(self, low: Tensor, high: Tensor) -> Between | None:
        """Return every parameter's law in its own interval, None where one has no quantiles."""
        ends = zip(self._parts, low.split(1), high.split(1), strict=True)
        found = [part.between(*interval) for part, *interval in ends]
        parts = [one for one in found if one is not None]
        if len(parts) < self.dimension:
            return None

        def draw(n: int, seed: int) -> Tensor:
            seeds = [derive_seed(seed, "parameter", d) for d in range(self.dimension)]
            columns = zip(parts, seeds, strict=True)
            return torch.cat([part.draw(n, own) for part, own in columns], dim=1)

        return Between(draw, sum(part.log_mass for part in parts))

    def log_prob(self, phi: Tensor) -> Tensor:
        """Return the sum of the log densities, minus infinity outside the support.

        Example:
            >>> ProductPrior(rate=(0, 2), delay=(5, 10)).log_prob([[1.0, 7.0], [1.0, 4.0]])
            tensor([-2.3026,    -inf])
        """
        each = [part.log_prob(column) for part, column in self._columns("phi", phi)]
        return torch.stack(each).sum(0)

    def contains(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies in the support: every parameter in its own.

        Example:
            >>> ProductPrior(rate=(0, 2), delay=(5, 10)).contains([[1.0, 7.0], [1.0, 4.0]])
            tensor([ True, False])
        """
        each = [part.contains(column) for part, column in self._columns("phi", phi)]
        return torch.stack(each).all(0)

    def _columns(self, name: str, values: Tensor) -> zip[tuple[Prior, Tensor]]:
        """Return every parameter's law with its own column (…, 1) of values (…, D)."""
        return zip(self._parts, self._as_points(name, values).split(1, dim=-1), strict=True)

    def location_and_scale(self) -> tuple[Tensor, Tensor] | None:
        """Return means and standard deviations, None where one is infinite or not known."""
        moments = [_moments(part) for part in self._parts]
        known = [both for both in moments if both is not None]
        if len(known) < self.dimension:
            return None
        mean, scale = (torch.cat(both) for both in zip(*known, strict=True))
        return (mean, scale) if torch.isfinite(mean + scale).all() else None

    def half_lines(self) -> Tensor:
        """Return where each parameter's half-line begins, minus infinity for other supports."""
        return torch.tensor([-torch.inf if begin is None else begin for begin in self._begins])

    def unconstrain(self, phi: Tensor) -> Tensor:
        """Map every parameter to its own coordinate."""
        columns = []
        for (part, column), begin in zip(self._columns("phi", phi), self._begins, strict=True):
            if begin is None:
                columns.append(part.unconstrain(column))
            else:
                above = (column.double() - begin).clamp(min=torch.finfo(torch.float32).tiny)
                columns.append(above.log().to(column.dtype))
        return torch.cat(columns, dim=-1)

    def constrain(self, x: Tensor) -> Tensor:
        """Map the coordinates back to parameters."""
        columns = []
        for (part, column), begin in zip(self._columns("x", x), self._begins, strict=True):
            if begin is None:
                columns.append(part.constrain(column))
            else:
                columns.append((begin + column.double().exp()).to(column.dtype))
        return torch.cat(columns, dim=-1)

    def unconstrained_log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of the coordinates, in float64.

        Where x = log(φ − begin), that is log p(φ) + x, for dφ/dx = φ − begin.
        """
        total = torch.zeros(())
        for (part, column), begin in zip(self._columns("x", x), self._begins, strict=True):
            if begin is None:
                log_density = part.unconstrained_log_prob(column)
            else:
                log_above = column.double()
                phi = begin + log_above.exp()
                log_density = part.log_prob(phi) + log_above.squeeze(-1)
                # Some densities of torch's are NaN where numbers are too large: nothing lies there.
                there = phi.isfinite().squeeze(-1) & ~log_density.isnan()
                log_density = torch.where(there, log_density, -torch.inf)
            total = total.to(log_density) + log_density
        return total

    def describe(self) -> dict[str, Any]:
        """Return every law; None for all where one is no plain torch Distribution."""
        laws = [_describe_law(law) for law in self.marginals.values()]
        return {
            "kind": self.kind,
            "marginals": None if None in laws else laws,
            "names": list(self.names),
        }

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> ProductPrior | None:
        """Make the prior a file describes; None where the user has to pass it again."""
        known = as_document("prior", description, _Description)
        if known.marginals is None:
            return None
        if len(known.names) != len(known.marginals) or len(set(known.names)) != len(known.names):
            raise InputError(
                f"prior: expected {len(known.marginals)} different names, got {show(known.names)}"
            )
        laws = [make_distribution(x) if isinstance(x, Stored) else x for x in known.marginals]
        return cls(**dict(zip(known.names, laws, strict=True)))


@dataclass
class _Description:
    """What a file holds of a product; no marginals where one cannot be held."""

    marginals: list[list[float] | Stored] | None
    names: list[str]


def _part(name: str, given: Any) -> BoxPrior | DistributionPrior:
    """Return the law of one parameter as a prior of its own."""
    if not isinstance(given, Distribution):
        return _interval(name, given)
    if tuple(given.batch_shape) or tuple(given.event_shape):
        raise InputError(
            f"{name}: expected a Distribution of one number, got batch shape "
            f"{show_shape(given.batch_shape)} and event shape {show_shape(given.event_shape)}"
        )
    if isinstance(given, Uniform):
        return _interval(name, (given.low, given.high))
    try:
        is_discrete = given.support is not None and given.support.is_discrete
    except NotImplementedError:
        # It declares no support; its density will tell.
        is_discrete = False
    if is_discrete:
        raise InputError(
            f"{name}: expected a continuous Distribution, got the discrete {type(given).__name__}"
        )
    try:
        return DistributionPrior(Independent(given.expand(torch.Size([1])), 1), names=[name])
    except NotImplementedError:
        raise InputError(
            f"{name}: expected a Distribution with expand(), got a {type(given).__name__} without"
        ) from None


def _interval(name: str, given: Any) -> BoxPrior:
    try:
        ends = as_float_tensor(name, given)
        if ends.shape != (2,):
            raise InputError("another shape")
        return BoxPrior(ends[:1], ends[1:], names=[name])
    except InputError:
        raise InputError(
            f"{name}: expected a torch Distribution of one number, or (low, high) with low below "
            f"high, got {show(given)}"
        ) from None


def _moments(part: BoxPrior | DistributionPrior) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation of one parameter, each (1,); None where not known."""
    if isinstance(part, BoxPrior):
        return part.location_and_scale()
    try:
        mean, scale = part.distribution.mean, part.distribution.stddev
    except NotImplementedError:
        # torch knows none of this law: its draws will tell.
        return None
    return mean.float().cpu(), scale.float().cpu()


def _describe_law(law: Distribution | tuple[float, float]) -> Any:
    return list(law) if isinstance(law, tuple) else describe_distribution(law)


def _show_law(law: Distribution | tuple[float, float]) -> str:
    if isinstance(law, tuple):
        return f"({law[0]:.4g}, {law[1]:.4g})"
    described = describe_distribution(law)
    # torch's own texts of some, such as LogNormal, leave the arguments out.
    arguments = {} if described is None else described.get("arguments", {})
    shown = ", ".join(f"{name}={value:.4g}" for name, value in arguments.items())
    return f"{type(law).__name__}({shown})"
