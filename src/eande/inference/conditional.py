r"""Posteriors of some parameters: the others given (conditional) or left open (marginal).

With φ = (a, b) and values of a given,

    q(b | a, y) ∝ p(b | a) e^{s(f(y), g(a, b))},      q(a | y) = p(a) C_a(y) / C(y),

where C_a is the mean of e^s over p(b | a), the normaliser of the conditional posterior. Both take
nothing but the ratio that was learned, and the prior of b given a: that of a box, of a product, of
independent laws and of a normal distribution is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_instance,
    check_number,
    check_shape,
    show,
)
from eande.foundations.seeds import derive_seed
from eande.inference.integral import can_be_proposed
from eande.inference.normalizer import PriorBank
from eande.priors.prior import Prior, listed


class Whole(Protocol):
    """The posterior of all parameters."""

    prior: Prior
    bank: PriorBank

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""

    @property
    def log_normalizer(self) -> float:
        """Log C."""

    def score(self, phi: Any) -> Tensor:
        """Return log r up to a constant, (k, D) → (k,)."""

    def bound(self) -> float | None:
        """Return a rigorous upper bound of the score, None where there is none."""

    def sample(self, n: int, *, seed: int = 0, **options: Any) -> tuple[Tensor, Any]:
        """Draw samples."""

    def conditional(self, given: Mapping[str, float]) -> Any:
        """Return the posterior of the other parameters."""


@dataclass(frozen=True)
class Slice:
    """The ratio of an observation as a function of some parameters, the others given.

    Args:
        whole: the posterior of all parameters.
        rest: which are left, their places.
        values: of all; those left are not looked at, (D,).
        rows: parameters to score at a time.
        support: the prior of those left.
    """

    whole: Whole
    rest: tuple[int, ...]
    values: Tensor
    rows: int
    support: Prior

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""
        return self.whole.device

    def filled(self, phi: Tensor) -> Tensor:
        """Return all parameters, (k, D), of those left."""
        whole = self.values.to(phi).expand(len(phi), -1).clone()
        whole[:, list(self.rest)] = phi
        return whole

    def score(self, phi: Tensor) -> Tensor:
        """Return log r up to a constant, (k, …) → (k,)."""
        return self.whole.score(self.filled(phi))

    def bank_scores(self, bank: PriorBank) -> Tensor:
        """Return the scores of a bank's draws, which it holds in the place of emulated points."""
        return bank.emulated[:, 0]

    def bound(self) -> float | None:
        """Return that of the whole posterior."""
        return self.whole.bound()


def sliced(whole: Whole, given: Mapping[str, float], rows: int) -> tuple[Slice, PriorBank]:
    """Return the ratio of the parameters that are not given, and a bank of draws of them."""
    prior = whole.prior
    check_instance("given", given, Mapping, "values by parameters' names")
    for name, value in given.items():
        if name not in prior.names:
            raise InputError(f"given: expected some of {listed(prior.names)}, got {show(name)}")
        check_number(f"given: {name}", value)
    if not 0 < len(given) < prior.dimension:
        raise InputError(
            f"given: expected values of some of {listed(prior.names)}, and not of all, got "
            f"{len(given)}"
        )
    places = tuple(i for i, name in enumerate(prior.names) if name not in given)
    values = torch.tensor([float(given.get(name, 0.0)) for name in prior.names])
    own = prior.given(places, values)
    if own is None:
        raise InputError(
            f"prior: expected one whose parameters are independent or normal, got {prior!r}: the "
            "law of some given others is not known"
        )
    inside = own.sample(1, seed=0)
    first = values.expand(1, -1).clone()
    first[:, list(places)] = inside
    if not prior.contains(first).all():
        raise OutsideSupport(f"given: expected values in the prior's support, got {show(given)}")
    phi = own.sample(len(whole.bank.phi), seed=derive_seed(0, "bank")).to(whole.device)
    slice_ = Slice(whole, places, values, rows, own)
    with torch.no_grad():
        scores = slice_.score(phi)
    inside = torch.isfinite(scores)
    if not inside.any():
        raise OutsideSupport(
            f"given: expected values that the prior trained under holds, got {show(given)}"
        )
    bank = PriorBank(phi, scores.unsqueeze(1), inside, proposable=can_be_proposed(own))
    return slice_, bank


class Marginal:
    """The posterior of some parameters, whatever the others are.

    Args:
        posterior: of all.
        names: of those that are looked at.

    Example:
        >>> slope = posterior.marginal(["slope"])
        >>> slope
        Marginal(of slope)
        >>> phi, info = slope.sample(1_000)
        >>> phi.shape, slope.log_prob([[0.5]]).shape
        (torch.Size([1000, 1]), torch.Size([1]))
    """

    def __init__(self, posterior: Whole, names: Sequence[str]) -> None:
        known = posterior.prior.names
        if isinstance(names, str) or not isinstance(names, Sequence) or not names:
            raise InputError(
                f"names: expected a list of some of {listed(known)}, got {show(names)}"
            )
        for name in names:
            if name not in known:
                raise InputError(f"names: expected some of {listed(known)}, got {show(name)}")
        if len(set(names)) < len(names):
            raise InputError(f"names: expected each once, got {listed(names)}")
        self.posterior = posterior
        self.names = tuple(names)
        self._places = [known.index(name) for name in names]

    def __repr__(self) -> str:
        """Return of which parameters, in a line."""
        return f"Marginal(of {listed(self.names)})"

    def sample(self, n: int, *, seed: int = 0, **options: Any) -> tuple[Tensor, Any]:
        """Draw ``n`` samples, (n, d): those of the whole posterior, without the other parameters.

        Args:
            n: how many.
            seed: same seed, same samples.
            options: as those of the whole posterior take them.

        Example:
            >>> phi, info = posterior.marginal(["offset"]).sample(100)
            >>> phi.shape
            torch.Size([100, 1])
        """
        phi, info = self.posterior.sample(n, seed=seed, **options)
        return phi[:, self._places], info

    def log_prob(self, phi: Any) -> Tensor:
        """Return the normalised log density, (n,): log p(a) + log C_a − log C.

        Every point has a normaliser of its own, which takes a tenth of a second where it is found
        near the conditional posterior: this is for some points, not for the pixels of a picture.

        Example:
            >>> slope = torch.linspace(-1, 1, 21).unsqueeze(1)
            >>> total = posterior.marginal(["slope"]).log_prob(slope).exp().mean() * 2
            >>> abs(total - 1) < 0.2
            tensor(True)
        """
        points = as_float_tensor("phi", phi, device=self.posterior.device)
        check_shape("phi", points, ("n", len(self.names)))
        prior = self.posterior.prior
        if len(self.names) == prior.dimension:
            order = [self.names.index(name) for name in prior.names]
            whole = points[:, order]
            return (
                self.posterior.score(whole) + prior.log_prob(whole) - self.posterior.log_normalizer
            )
        found = []
        for point in points.tolist():
            given = dict(zip(self.names, point, strict=True))
            try:
                rest = self.posterior.conditional(given)
            except OutsideSupport:
                found.append(-torch.inf)
                continue
            other = rest.bank.phi[:1]
            log_prior = prior.log_prob(rest.scorer.filled(other)) - rest.prior.log_prob(other)
            log_c = rest.log_normalizer - self.posterior.log_normalizer
            found.append(log_prior.item() + log_c)
        return torch.tensor(found, device=points.device)


class OutsideSupport(InputError):
    """Values were given that the prior excludes, or the one trained under."""
