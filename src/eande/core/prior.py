"""Priors: what the parameters may be before any data are seen.

Three kinds are enough. A box is the usual one and scales itself. Any torch Distribution with event shape (D,) comes in
as it is. And a prior may be known through draws only (parameters from somebody else's ensemble, or a law that lives on
a surface and has no density): it can be sampled, so the ratio, its normaliser and posterior samples all exist; only
``log_prob`` does not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from eande.core.checks import InputError, as_float_tensor, check_count, check_finite, check_shape, show_shape
from eande.core.seeds import derive_seed, generator, global_seed


class Prior(ABC):
    """A law of parameters φ in R^D: draws always, a density where there is one."""

    has_density: bool = True

    def __init__(self, dimension: int, names: Sequence[str] | None) -> None:
        if isinstance(names, str):
            raise InputError(f"names: expected a list of {dimension} names, got the text {names!r}")
        if names is not None and (len(names) != dimension or len(set(names)) != dimension):
            raise InputError(f"names: expected {dimension} different names, got {list(names)}")
        self.dimension = dimension
        self.names = tuple(names) if names is not None else tuple(f"phi{i + 1}" for i in range(dimension))

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
        raise InputError(f"design: expected 'random' for a {type(self).__name__}, got 'even': only a BoxPrior can be filled evenly")

    def location_and_scale(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean and standard deviation per parameter if the prior knows them exactly."""
        return None


class BoxPrior(Prior):
    """The uniform law on a box.

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

    def __init__(self, low: Any, high: Any, *, names: Sequence[str] | None = None) -> None:
        self.low, self.high = as_float_tensor("low", low).cpu(), as_float_tensor("high", high).cpu()
        check_shape("low", self.low, ("D",))
        check_count("length of low", len(self.low), 1)
        check_shape("high", self.high, tuple(self.low.shape))
        check_finite("low", self.low)
        check_finite("high", self.high)
        if not (self.low < self.high).all():
            raise InputError(f"high: expected every entry above low (in float32), got low {low} and high {high}")
        self._edges: dict[torch.device, tuple[Tensor, Tensor]] = {}
        super().__init__(len(self.low), names)

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what lies on devices: workers may have others."""
        return self.__dict__ | {"_edges": {}}

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters."""
        return self._stretch(torch.rand(n, self.dimension, generator=generator(seed, "prior")))

    def sample_evenly(self, n: int, *, first: int, seed: int) -> Tensor:
        """Return a part of a scrambled Sobol sequence: each point alone is uniform, together they leave smaller holes."""
        sequence = torch.quasirandom.SobolEngine(self.dimension, scramble=True, seed=derive_seed(seed, "even") % 2**31)
        return self._stretch(sequence.fast_forward(first).draw(n, dtype=torch.float64).float())

    def _stretch(self, uniform: Tensor) -> Tensor:
        """Map the unit cube to the box."""
        # Rounding may carry the sum past the upper corner by one unit in the last place.
        return torch.minimum(self.low + uniform * (self.high - self.low), self.high)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Return minus the log volume inside the box, minus infinity outside."""
        inside = self.contains(phi)
        log_volume = (self.high.double() - self.low.double()).log().sum().item()
        return torch.where(inside, -log_volume, -torch.inf).to(torch.result_type(phi, 1.0))

    def contains(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies in the box, edges included."""
        # Moved once: on a GPU a copy would wait for all earlier work.
        if phi.device not in self._edges:
            self._edges[phi.device] = (self.low.to(phi.device), self.high.to(phi.device))
        low, high = self._edges[phi.device]
        # As precise as the edges: what was rounded to one lies on it.
        phi = phi.to(low.dtype)
        return ((phi >= low) & (phi <= high)).all(-1)

    def location_and_scale(self) -> tuple[Tensor, Tensor]:
        """Return the centre and the standard deviation, width / √12."""
        return (self.low + self.high) / 2, (self.high - self.low) / 12**0.5

    def describe(self) -> dict[str, Any]:
        """Return the corners and names."""
        return {"kind": "box", "low": self.low.tolist(), "high": self.high.tolist(), "names": list(self.names)}


class DistributionPrior(Prior):
    """Any torch Distribution with event shape (D,) and no batch shape.

    Args:
        distribution: for instance ``Independent(Normal(loc, scale), 1)`` or ``MultivariateNormal(...)``.
        names: one name per parameter.
    """

    def __init__(self, distribution: Distribution, *, names: Sequence[str] | None = None) -> None:
        event, batch = distribution.event_shape, distribution.batch_shape
        if len(event) != 1 or len(batch) != 0:
            raise InputError(
                f"prior: expected a Distribution with event shape (D,) and batch shape (), got event shape {show_shape(event)} and batch shape "
                f"{show_shape(batch)}; torch.distributions.Independent(prior, 1) turns a batch into an event"
            )
        super().__init__(event[0], names)
        self.distribution = distribution
        with global_seed(0):
            self._home = distribution.sample().device
        self._inside = self.sample(1, seed=0)

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters through the Distribution's own sampler."""
        with global_seed(seed, "prior", device=self._home):
            drawn = self.distribution.sample(torch.Size([n])).cpu()
        phi = drawn.float()
        # Rounding may carry a draw past an edge; the float32 number on its other side lies inside.
        back = phi.nextafter(torch.where(phi > drawn, -torch.inf, torch.inf))
        return torch.where((phi == drawn) | self.contains(phi).unsqueeze(-1), phi, back)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Return the log density, minus infinity outside the support."""
        inside = self.contains(phi)
        # Validation inside torch raises for values outside the support: ask for those inside only.
        safe = torch.where(inside.unsqueeze(-1), phi, self._inside.to(phi.device))
        return torch.where(inside, self._raw_log_prob(safe), -torch.inf)

    def contains(self, phi: Tensor) -> Tensor:
        """Return whether each φ lies in the Distribution's support."""
        if not phi.numel():
            # torch cannot say it of no rows at all.
            return torch.ones(len(phi), dtype=torch.bool, device=phi.device)
        try:
            support = self.distribution.support
        except NotImplementedError:
            # How torch says that a Distribution declares no support: its density tells.
            support = None
        if support is None:
            return torch.isfinite(self._raw_log_prob(phi))
        inside: Tensor = support.check(phi.to(self._home))
        return inside.to(phi.device)

    def _raw_log_prob(self, phi: Tensor) -> Tensor:
        value: Tensor = self.distribution.log_prob(phi.to(self._home))
        return value.to(phi.device, torch.result_type(phi, 1.0))

    def describe(self) -> dict[str, Any]:
        """Return class and parameters of a plain torch Distribution; others are asked for again at loading."""
        return {"kind": "distribution", "distribution": _describe_distribution(self.distribution), "names": list(self.names)}


class _DrawsOnly(Prior):
    """A prior without a density."""

    has_density = False

    def log_prob(self, phi: Tensor) -> Tensor:
        """Say that there is no density."""
        raise InputError("log_prob: expected a law with a density, got one known by draws only; log_ratio gives a posterior relative to its prior")


class SamplerPrior(_DrawsOnly):
    """A prior known through its sampler only: posterior samples and ratios exist, a density does not.

    Args:
        sampler: ``sampler(n, seed) -> (n, D)`` array or tensor; seeds have 32 bits, as numpy and scipy want them.
        names: one name per parameter.
        contains: ``contains(phi) -> (n,)`` booleans; without it every φ counts as inside.
    """

    def __init__(
        self,
        sampler: Callable[[int, int], Any],
        *,
        names: Sequence[str] | None = None,
        contains: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        probe = as_float_tensor("prior sampler", sampler(2, 0))
        check_shape("prior sampler", probe, (2, "D"))
        super().__init__(probe.shape[1], names)
        self._sampler, self._contains = sampler, contains

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters from the sampler."""
        phi = as_float_tensor("prior sampler", self._sampler(n, seed % 2**32)).cpu()
        check_shape("prior sampler", phi, (n, self.dimension))
        check_finite("prior sampler", phi)
        return phi

    def contains(self, phi: Tensor) -> Tensor:
        """Return what the given function says, True without one."""
        if self._contains is None:
            return torch.ones(len(phi), dtype=torch.bool, device=phi.device)
        inside = torch.as_tensor(self._contains(phi.detach().cpu()), dtype=torch.bool, device=phi.device)
        check_shape("contains", inside, (len(phi),))
        return inside

    def describe(self) -> dict[str, Any]:
        """Return the names: a function cannot be stored and is asked for again at loading."""
        return {"kind": "sampler", "names": list(self.names)}


class EmpiricalPrior(_DrawsOnly):
    """The law of given draws: where nobody knows the prior, the parameters of the simulations serve.

    Args:
        draws: shape (n, D).
        names: one name per parameter.
    """

    def __init__(self, draws: Any, *, names: Sequence[str] | None = None) -> None:
        self.draws = as_float_tensor("prior draws", draws).cpu()
        check_shape("prior draws", self.draws, ("n", "D"))
        check_finite("prior draws", self.draws)
        super().__init__(self.draws.shape[1], names)

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters in random order, every draw equally often up to one: none is favoured by chance or by its place."""
        stream = generator(seed, "prior")
        passes, rest = divmod(n, len(self.draws))
        rows = torch.cat([torch.arange(len(self.draws)).repeat(passes), torch.randperm(len(self.draws), generator=stream)[:rest]])
        return self.draws[rows[torch.randperm(n, generator=stream)]]

    def contains(self, phi: Tensor) -> Tensor:
        """Return True: the support is not known."""
        return torch.ones(len(phi), dtype=torch.bool, device=phi.device)

    def describe(self) -> dict[str, Any]:
        """Return the names; the draws themselves are stored as a tensor."""
        return {"kind": "empirical", "names": list(self.names)}


def as_prior(prior: Any) -> Prior:
    """Take a :class:`Prior` as it is and wrap a torch Distribution."""
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, Distribution):
        return DistributionPrior(prior)
    raise InputError(f"prior: expected an eande prior or a torch Distribution, got {type(prior).__name__}")


# The torch Distributions a file may name: classes made from tensors alone, so that loading calls nothing else.
STORED_DISTRIBUTIONS = (
    "Beta", "Cauchy", "Chi2", "Dirichlet", "Exponential", "Gamma", "Gumbel", "HalfCauchy", "HalfNormal", "InverseGamma", "Kumaraswamy", "Laplace",
    "LogNormal", "LowRankMultivariateNormal", "MultivariateNormal", "Normal", "Pareto", "StudentT", "Uniform", "VonMises", "Weibull",
)  # fmt: skip


def _describe_distribution(distribution: Distribution) -> dict[str, Any] | None:
    name = type(distribution).__name__
    if isinstance(distribution, Independent):
        base = _describe_distribution(distribution.base_dist)
        return base and {"name": "Independent", "base": base, "dimensions": distribution.reinterpreted_batch_ndims}
    if name not in STORED_DISTRIBUTIONS or type(distribution) is not getattr(torch.distributions, name):
        return None
    given = ["loc", "scale_tril"] if name == "MultivariateNormal" else list(distribution.arg_constraints)
    arguments = {key: getattr(distribution, key) for key in given}
    described: dict[str, Any] = {"name": name, "arguments": {key: value.tolist() for key, value in arguments.items()}}
    double = [key for key, value in arguments.items() if value.dtype == torch.float64]
    return described | {"double": double} if double else described
