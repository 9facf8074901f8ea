"""Any torch Distribution with event shape (D,) as a prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Dirichlet,
    Distribution,
    Independent,
    MultivariateNormal,
    constraints,
)

from eande.foundations.checks import InputError, show, show_shape
from eande.foundations.documents import as_document, one_line
from eande.foundations.seeds import generator, global_seed
from eande.priors.prior import Between, Prior, listed

# The torch Distributions a file may name. Their arguments are tensors alone, so that loading a file
# cannot call anything else.
STORED_DISTRIBUTIONS = (
    "Beta",
    "Cauchy",
    "Chi2",
    "Dirichlet",
    "Exponential",
    "Gamma",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "Kumaraswamy",
    "Laplace",
    "LogNormal",
    "LowRankMultivariateNormal",
    "MultivariateNormal",
    "Normal",
    "Pareto",
    "StudentT",
    "Uniform",
    "VonMises",
    "Weibull",
)


class DistributionPrior(Prior):
    """Any torch Distribution with event shape (D,) and no batch shape.

    Args:
        distribution: for instance ``Independent(Normal(loc, scale), 1)`` or
            ``MultivariateNormal(...)``.
        names: one name per parameter.

    Example:
        >>> from torch.distributions import Independent, LogNormal
        >>> rates = Independent(LogNormal(torch.tensor([1.0, 0.3]), torch.tensor([0.5, 0.2])), 1)
        >>> prior = DistributionPrior(rates, names=["birth", "death"])
        >>> prior.sample(3, seed=0).shape, prior.names
        (torch.Size([3, 2]), ('birth', 'death'))
    """

    kind = "distribution"

    def __init__(self, distribution: Distribution, *, names: Sequence[str] | None = None) -> None:
        if not isinstance(distribution, Distribution):
            raise InputError(
                f"distribution: expected a torch Distribution, got {show(distribution)}"
            )
        event = distribution.event_shape
        batch = distribution.batch_shape
        if len(event) != 1 or len(batch) != 0:
            remedy = "torch.distributions.Independent(prior, 1) turns a batch into an event"
            if not event and not batch:
                remedy = "eande.ProductPrior(a=prior) names its parameter"
            raise InputError(
                "prior: expected a Distribution with event shape (D,) and batch shape (), got "
                f"event shape {show_shape(event)} and batch shape {show_shape(batch)}; {remedy}"
            )
        super().__init__(event[0], names)
        self.distribution = distribution
        # A Distribution of others may declare more than it covers: its density knows.
        has_density = type(distribution).log_prob is not Distribution.log_prob
        known = describe_distribution(distribution) is not None
        self._asks_density = has_density and not known
        self.integrates = known and not isinstance(distribution, Dirichlet)
        support = self._support()
        if support is not None and support.is_discrete:
            raise InputError(
                "prior: expected a continuous Distribution, "
                f"got the discrete {type(distribution).__name__}"
            )
        with global_seed(0):
            self._home = distribution.sample().device
        self._inside = self.sample(1, seed=0)

    def __repr__(self) -> str:
        """Return the Distribution's name and the parameters, in a line."""
        law = self.distribution
        while isinstance(law, Independent):
            law = law.base_dist
        return f"DistributionPrior({type(law).__name__} of {listed(self.names)})"

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters through the Distribution's own sampler.

        Example:
            >>> from torch.distributions import Independent, LogNormal
            >>> prior = DistributionPrior(Independent(LogNormal(torch.zeros(2), 1.0), 1))
            >>> (prior.sample(5, seed=0) > 0).all()
            tensor(True)
        """
        self._check_draws(n, seed)
        with global_seed(seed, "prior", device=self._home):
            drawn = self.distribution.sample(torch.Size([n])).cpu()
        return self._rounded(drawn)

    def _quantiles(self, levels: Tensor) -> Tensor:
        """Return the quantiles (n, 1) of one parameter, for levels strictly between 0 and 1."""
        assert isinstance(self.distribution, Independent)
        law = self.distribution.base_dist
        try:
            found = law.icdf(levels.to(self._home)).cpu()
        except NotImplementedError:
            raise InputError(
                f"design: expected 'random', got 'even': torch knows no quantiles (icdf) of "
                f"{self.names[0]}, a {type(law).__name__}"
            ) from None
        return self._rounded(found)

    def between(self, low: Tensor, high: Tensor) -> Between | None:
        """Return independent laws in their own intervals, None where torch has no quantiles."""
        if not isinstance(self.distribution, Independent):
            return None
        law = self.distribution.base_dist
        if tuple(law.batch_shape) != (self.dimension,):
            return None
        ends = self.half_lines()
        if ends is not None:
            # torch refuses numbers beyond the support, and some at its end.
            low = low.maximum(ends.nextafter(torch.tensor(torch.inf)))
        try:
            levels = [law.cdf(end.double().to(self._home)) for end in (low, high)]
            law.icdf(levels[1])
        except (NotImplementedError, ValueError):
            # torch knows no quantiles of this law, or refuses these ends: rejection does without.
            return None
        width = levels[1] - levels[0]
        if not (width > 0).all():
            raise InputError("box: expected one that the prior has mass in, got one beside it")

        def draw(n: int, seed: int) -> Tensor:
            stream = generator(seed, "prior")
            uniform = torch.rand(n, self.dimension, generator=stream, dtype=torch.float64)
            found = law.icdf(levels[0] + uniform.to(self._home) * width).cpu()
            return self._rounded(found)

        return Between(draw, width.log().sum().item())

    def given(self, rest: Sequence[int], values: Tensor) -> DistributionPrior | None:
        """Return the law of independent or normal parameters given the others, None of others."""
        places = list(rest)
        names = [self.names[i] for i in places]
        law = self.distribution
        if type(law) is MultivariateNormal:
            fixed = [i for i in range(self.dimension) if i not in rest]
            covariance = law.covariance_matrix.double()
            apart = values.to(covariance)[fixed] - law.loc.double()[fixed]
            across = covariance[places][:, fixed]
            turned = torch.linalg.solve(covariance[fixed][:, fixed], across.T).T
            left = covariance[places][:, places] - turned @ across.T
            mean = law.loc.double()[places] + turned @ apart
            own = MultivariateNormal(mean.to(law.loc), left.to(law.loc))
            return DistributionPrior(own, names=names)
        if not isinstance(law, Independent) or tuple(law.base_dist.batch_shape) != (
            self.dimension,
        ):
            return None
        described = describe_distribution(law.base_dist)
        if described is None:
            return None
        arguments = {
            key: getattr(law.base_dist, key).expand(self.dimension)[places]
            for key in described["arguments"]
        }
        return DistributionPrior(Independent(type(law.base_dist)(**arguments), 1), names=names)

    def _rounded(self, drawn: Tensor) -> Tensor:
        """Return draws as float32 numbers in the support."""
        phi = drawn.float()
        # Rounding to float32 may carry a draw out of the support; the neighbouring float32 number
        # on the other side of it lies inside.
        back = phi.nextafter(torch.where(phi > drawn, -torch.inf, torch.inf))
        return torch.where((phi == drawn) | self.contains(phi).unsqueeze(-1), phi, back)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Return the log density, minus infinity outside the support.

        Example:
            >>> from torch.distributions import Independent, LogNormal
            >>> prior = DistributionPrior(Independent(LogNormal(torch.zeros(2), 1.0), 1))
            >>> prior.log_prob([[1.0, 1.0], [-1.0, 1.0]])
            tensor([-1.8379,    -inf])
        """
        phi = self._as_points("phi", phi)
        if not phi.numel():
            return phi.new_zeros(phi.shape[:-1])
        inside = self.contains(phi)
        # torch raises an error for values outside the support: replace them by one inside.
        safe = torch.where(inside.unsqueeze(-1), phi, self._inside.to(phi.device))
        return torch.where(inside, self._raw_log_prob(safe), -torch.inf)

    def contains(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies in the Distribution's support.

        Example:
            >>> from torch.distributions import Independent, LogNormal
            >>> prior = DistributionPrior(Independent(LogNormal(torch.zeros(2), 1.0), 1))
            >>> prior.contains([[1.0, 1.0], [-1.0, 1.0]])
            tensor([ True, False])
        """
        phi = self._as_points("phi", phi)
        if not phi.numel():
            # Some checks of torch fail for no rows at all.
            return torch.ones(len(phi), dtype=torch.bool, device=phi.device)
        support = self._support()
        if support is None:
            # The Distribution declares no support: ask its density.
            return torch.isfinite(self._raw_log_prob(phi))
        inside: Tensor = support.check(phi.to(self._home)).to(phi.device)
        if self._asks_density:
            inside[inside.clone()] = self._raw_log_prob(phi[inside]) > -torch.inf
        return inside

    def _support(self) -> Any:
        """Return the Distribution's support, None where it declares none."""
        try:
            return self.distribution.support
        except NotImplementedError:
            return None

    def half_lines(self) -> Tensor | None:
        """Return the lower ends that the Distribution's support declares, None without one."""
        support = self._support()
        if support is None:
            return None
        return _lower_ends(support, self.dimension)

    def _raw_log_prob(self, phi: Tensor) -> Tensor:
        value: Tensor = self.distribution.log_prob(phi.to(self._home))
        return value.to(phi.device, torch.result_type(phi, 1.0))

    def describe(self) -> dict[str, Any]:
        """Return class and parameters of a plain torch Distribution, None for any other."""
        return {
            "kind": self.kind,
            "distribution": describe_distribution(self.distribution),
            "names": list(self.names),
        }

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> DistributionPrior | None:
        """Make the Distribution a file describes; None where the user has to pass it again."""
        known = as_document("prior", description, _Description)
        if known.distribution is None:
            return None
        return cls(make_distribution(known.distribution), names=known.names)


def _lower_ends(support: constraints.Constraint, size: int) -> Tensor:
    """Return where the half-line of each of so many numbers begins, minus infinity for others."""
    inner = getattr(support, "base_constraint", None)
    if inner is not None:
        return _lower_ends(inner, size)
    if isinstance(support, constraints.cat):
        parts = zip(support.cseq, support.lengths, strict=True)
        return torch.cat([_lower_ends(part, int(length)) for part, length in parts])
    if isinstance(support, constraints.stack):
        return torch.cat([_lower_ends(part, 1) for part in support.cseq])
    if isinstance(support, constraints.greater_than | constraints.greater_than_eq):
        end = torch.as_tensor(support.lower_bound, dtype=torch.float32).cpu()
        # A mixture's components may begin at different places.
        if end.ndim <= 1:
            return end.expand(size).clone()
    return torch.full((size,), -torch.inf)


@dataclass
class Stored:
    """A torch Distribution as a file describes it.

    Args:
        name: of its class.
        arguments: numbers, or lists of them, by name.
        double: those of the arguments that are float64.
        base: of an Independent, what it is made of.
        dimensions: of an Independent, how many axes are one event.
    """

    name: str
    arguments: dict[str, float | list[Any]] = field(default_factory=dict)
    double: list[str] = field(default_factory=list)
    base: Stored | None = None
    dimensions: int = 1


@dataclass
class _Description:
    """What a file holds of a Distribution; None for one that it cannot hold."""

    distribution: Stored | None
    names: list[str]


def describe_distribution(distribution: Distribution) -> dict[str, Any] | None:
    """Return class and arguments of a plain torch Distribution, None for any other."""
    name = type(distribution).__name__
    if isinstance(distribution, Independent):
        base = describe_distribution(distribution.base_dist)
        if base is None:
            return None
        return {
            "name": "Independent",
            "base": base,
            "dimensions": distribution.reinterpreted_batch_ndims,
        }
    if name not in STORED_DISTRIBUTIONS:
        return None
    if type(distribution) is not getattr(torch.distributions, name):
        return None
    if name == "MultivariateNormal":
        # It has a covariance and a precision as well, and takes one of the three.
        keys = ["loc", "scale_tril"]
    else:
        keys = list(distribution.arg_constraints)
    arguments = {key: getattr(distribution, key) for key in keys}
    described: dict[str, Any] = {
        "name": name,
        "arguments": {key: value.tolist() for key, value in arguments.items()},
    }
    double = [key for key, value in arguments.items() if value.dtype == torch.float64]
    if double:
        described["double"] = double
    return described


def make_distribution(stored: Stored) -> Distribution:
    """Make the torch Distribution that a file describes."""
    try:
        if stored.name == "Independent" and stored.base is not None:
            return Independent(make_distribution(stored.base), stored.dimensions)
        if stored.name not in STORED_DISTRIBUTIONS:
            raise InputError(
                f"prior: expected one of torch's own distributions in the file, got {stored.name!r}"
            )
        arguments = {
            key: torch.tensor(value, dtype=torch.float64 if key in stored.double else torch.float32)
            for key, value in stored.arguments.items()
        }
        made: Distribution = getattr(torch.distributions, stored.name)(**arguments)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"prior: expected arguments of the distribution {stored.name}, got some it refuses "
            f"({one_line(error)})"
        ) from error
    return made
