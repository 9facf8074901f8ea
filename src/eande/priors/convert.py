"""Priors from users and from files, and the comparison of priors with each other."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from eande.foundations.checks import InputError, as_names
from eande.foundations.discovery import import_modules
from eande.foundations.documents import as_document
from eande.priors.distribution import DistributionPrior
from eande.priors.prior import Prior, default_names, listed

# How many draws of priors are compared.
_COMPARED = 64
# How many tell where a prior has next to nothing, and the share of them that lies beyond.
_EXPLORING = 10_000
_BEYOND = 0.001


def as_prior(prior: Any, name: str = "prior") -> Prior:
    """Take a :class:`Prior` as it is and wrap a torch Distribution.

    Args:
        prior: given.
        name: of the argument, for messages.
    """
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, Distribution):
        return DistributionPrior(prior)
    raise InputError(
        f"{name}: expected an eande prior or a torch Distribution, got {type(prior).__name__}; "
        "eande.ProductPrior(a=(0, 1), …) takes a range or a Distribution for each parameter, "
        "eande.SamplerPrior a function that draws"
    )


def named_as(prior: Prior, names: Sequence[str] | None, name: str = "prior") -> Prior:
    """Return the prior under these names where it has none of its own.

    Names of its own stay, but the same names in another order are refused: the parameters would be
    taken for each other.

    Args:
        prior: given; it is not changed.
        names: of the parameters, None where nobody named them.
        name: of the argument, for messages.
    """
    if names is None or prior.names == tuple(names) or len(names) != prior.dimension:
        return prior
    if prior.own_names is None:
        named = copy.copy(prior)
        named.names = tuple(names)
        return named
    if set(prior.names) == set(names):
        raise InputError(
            f"{name}: expected its parameters in the order {listed(names)}, "
            f"got {listed(prior.names)}"
        )
    return prior


def described_names(
    where: object, description: Mapping[str, Any], dimension: int
) -> tuple[str, ...] | None:
    """Return the names that a prior's description gives its parameters, None where nobody did.

    Args:
        where: the file that has it.
        description: of a prior, whatever its kind.
        dimension: D.
    """
    if description.get("names") is None:
        return None
    names = as_names(f"{where}: prior.names", description["names"], dimension)
    return None if names == default_names(dimension) else names


def prior_from_description(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Prior | None:
    """Make the prior a file describes; None where the user has to pass it again."""
    import_modules("eande.priors")
    kind = as_document("prior", description, _Kind).kind
    if kind not in Prior.kinds:
        raise InputError(
            f"prior: expected one of {', '.join(map(repr, Prior.kinds))} in the file, got {kind!r}"
        )
    return Prior.kinds[kind].from_description(description, tensors)


@dataclass
class _Kind:
    """What all descriptions of priors have."""

    kind: str


def same_law(first: Prior, second: Prior) -> bool:
    """Return whether two priors are the same distribution.

    By their densities at draws of both, or by the draws themselves where there is no density.
    """
    if first is second:
        return True
    if first.dimension != second.dimension or first.has_density != second.has_density:
        return False
    draws = [prior.sample(_COMPARED, seed=0) for prior in (first, second)]
    if not first.has_density:
        return torch.equal(*draws)
    phi = torch.cat(draws)
    return torch.allclose(first.log_prob(phi), second.log_prob(phi), rtol=1e-3, atol=1e-3)


def share_beyond(prior: Prior, phi: Tensor) -> float | None:
    """Return the share of points that lie where practically no draw of a prior does.

    That is, where its density is lower than at all but 0.1 % of its own draws; of parameters on a
    half-line, the density of their logarithm. Points outside the support are left to ``contains``.

    Args:
        prior: None is returned for one without a density.
        phi: points (n, D).
    """
    if not prior.has_density:
        return None
    own = _log_density(prior, prior.sample(_EXPLORING, seed=0))
    level = own.kthvalue(int(_BEYOND * _EXPLORING)).values.item()
    found = _log_density(prior, phi)
    return ((found < level) & (found > -torch.inf)).double().mean().item()


def _log_density(prior: Prior, phi: Tensor) -> Tensor:
    """Return the log density, (n,), in coordinates in which half-lines are whole lines."""
    log_density = prior.log_prob(phi).double()
    begins = prior.half_lines()
    if begins is None:
        return log_density
    begins = begins.to(phi.device)
    # dφ/dx = φ − begin where x = log(φ − begin).
    above = torch.where(begins > -torch.inf, (phi - begins).double(), 1.0)
    return log_density + above.clamp(min=torch.finfo(torch.float32).tiny).log().sum(1)


def law_fingerprint(prior: Prior) -> str:
    """Return a text that identifies a prior across runs of a program.

    Name of the class and hash of some draws.
    """
    draws = prior.sample(_COMPARED, seed=0).contiguous()
    return f"{type(prior).__name__} {hashlib.sha256(draws.numpy().tobytes()).hexdigest()}"
