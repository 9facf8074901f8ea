"""Priors known through draws only: without a density, but with ratios, normalisers, samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    calling,
    check_count,
    check_finite,
    check_function,
    check_shape,
    show_shape,
)
from eande.foundations.documents import as_document
from eande.foundations.seeds import generator
from eande.priors.prior import Prior, listed


class _DrawsOnly(Prior):
    """A prior without a density."""

    has_density = False

    def log_prob(self, phi: Tensor) -> Tensor:
        """Raise an error: there is no density.

        Example:
            >>> EmpiricalPrior([[0.0], [1.0]]).log_prob([[0.5]])
            Traceback (most recent call last):
            eande.foundations.checks.InputError: log_prob: expected a prior with a density, got ...
        """
        raise InputError(
            "log_prob: expected a prior with a density, got one known by draws only; log_ratio "
            "gives a posterior relative to its prior"
        )


class SamplerPrior(_DrawsOnly):
    """A prior known through its sampler only.

    Args:
        sampler: ``sampler(n, seed) -> (n, D)`` array or tensor; seeds have 32 bits, as numpy and
            scipy require.
        names: one name per parameter.
        contains: ``contains(phi) -> (n,)`` booleans; without it every φ counts as inside.

    Example:
        >>> def on_a_circle(n, seed):
        ...     angle = torch.rand(n, generator=torch.Generator().manual_seed(seed)) * 2 * torch.pi
        ...     return torch.stack([angle.cos(), angle.sin()], 1)
        >>> prior = SamplerPrior(on_a_circle, names=["east", "north"])
        >>> prior.sample(4, seed=0).norm(dim=1)
        tensor([1., 1., 1., 1.])
    """

    kind = "sampler"

    def __init__(
        self,
        sampler: Callable[[int, int], Any],
        *,
        names: Sequence[str] | None = None,
        contains: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        check_function("sampler", sampler, "(n, seed)")
        if contains is not None:
            check_function("contains", contains, "phi")
        self._sampler = sampler
        self._contains = contains
        probe = as_float_tensor("prior sampler", self._call(2, 0))
        check_shape("prior sampler", probe, (2, "D"))
        super().__init__(probe.shape[1], names)

    def __repr__(self) -> str:
        """Return the function's name and the parameters, in a line."""
        function = getattr(self._sampler, "__name__", type(self._sampler).__name__)
        return f"SamplerPrior({function} of {listed(self.names)})"

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters from the sampler.

        Example:
            >>> prior = SamplerPrior(
            ...     lambda n, seed: np.random.default_rng(seed).gamma(2, size=(n, 3))
            ... )
            >>> prior.sample(5, seed=0).shape
            torch.Size([5, 3])
        """
        self._check_draws(n, seed)
        phi = as_float_tensor("prior sampler", self._call(n, seed % 2**32)).detach().cpu()
        check_shape("prior sampler", phi, (n, self.dimension))
        check_finite("prior sampler", phi)
        return phi

    def _call(self, n: int, seed: int) -> Any:
        call = partial(self._sampler, n, seed)
        with calling("prior sampler", call, n=n, seed=seed):
            return call()

    def contains(self, phi: Tensor) -> Tensor:
        """Return what the given function says, True without one.

        Example:
            >>> prior = SamplerPrior(
            ...     lambda n, seed: torch.ones(n, 1), contains=lambda phi: phi[:, 0] > 0
            ... )
            >>> prior.contains([[1.0], [-1.0]])
            tensor([ True, False])
        """
        phi = self._as_points("phi", phi)
        if self._contains is None:
            return torch.ones(len(phi), dtype=torch.bool, device=phi.device)
        call = partial(self._contains, phi.detach().cpu())
        with calling("contains", call, shape=show_shape(phi.shape)):
            found = call()
        inside = torch.as_tensor(found, dtype=torch.bool, device=phi.device)
        check_shape("contains", inside, (len(phi),))
        return inside

    def describe(self) -> dict[str, Any]:
        """Return the names; the function cannot be stored, the user passes it again."""
        return {"kind": self.kind, "names": list(self.names)}

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        """Return None: the user has to pass the function again."""
        return


class EmpiricalPrior(_DrawsOnly):
    """The empirical distribution of given draws.

    Where the prior is not known, the parameters of the simulations serve as its draws.

    Args:
        draws: shape (n, D).
        names: one name per parameter.

    Example:
        >>> prior = EmpiricalPrior([[0.1, 3.0], [0.2, 2.0], [0.4, 1.0]], names=["rate", "delay"])
        >>> prior.sample(2, seed=0).shape, prior.has_density
        (torch.Size([2, 2]), False)
    """

    kind = "empirical"

    def __init__(self, draws: Any, *, names: Sequence[str] | None = None) -> None:
        self.draws = as_float_tensor("prior draws", draws).detach().cpu()
        check_shape("prior draws", self.draws, ("n", "D"))
        check_count("number of prior draws", len(self.draws), 1)
        check_count("number of parameters", self.draws.shape[1], 1)
        check_finite("prior draws", self.draws)
        super().__init__(self.draws.shape[1], names)
        self.distinct_draws = len(self.draws)

    def __repr__(self) -> str:
        """Return how many draws of which parameters, in a line."""
        return f"EmpiricalPrior({len(self.draws)} draws of {listed(self.names)})"

    def sample(self, n: int, *, seed: int) -> Tensor:
        """Draw ``n`` parameters in random order, every draw equally often (or once more).

        Example:
            >>> EmpiricalPrior([[1.0], [2.0], [3.0]]).sample(3, seed=0).sort(0).values[:, 0]
            tensor([1., 2., 3.])
        """
        self._check_draws(n, seed)
        stream = generator(seed, "prior")
        passes, remainder = divmod(n, len(self.draws))
        repeated = torch.arange(len(self.draws)).repeat(passes)
        others = torch.randperm(len(self.draws), generator=stream)[:remainder]
        rows = torch.cat([repeated, others])
        return self.draws[rows[torch.randperm(n, generator=stream)]]

    def contains(self, phi: Tensor) -> Tensor:
        """Return True: the support is not known.

        Example:
            >>> EmpiricalPrior([[1.0], [2.0]]).contains([[99.0]])
            tensor([True])
        """
        phi = self._as_points("phi", phi)
        return torch.ones(len(phi), dtype=torch.bool, device=phi.device)

    def describe(self) -> dict[str, Any]:
        """Return the names; the draws themselves are stored as a tensor."""
        return {"kind": self.kind, "names": list(self.names)}

    def tensors(self) -> dict[str, Tensor]:
        """Return the draws."""
        return {"draws": self.draws}

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> "EmpiricalPrior":
        """Make the prior of stored draws."""
        known = as_document("prior", description, _Description)
        if "draws" not in tensors:
            raise InputError("prior: expected the tensor prior.draws, got none")
        return cls(tensors["draws"], names=known.names)


@dataclass
class _Description:
    """What a file holds of a prior known by its draws."""

    names: list[str]
