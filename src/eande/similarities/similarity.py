"""The similarity: how near an embedded datum and an emulated parameter are, in nats.

E&E models the likelihood-to-evidence ratio as log r(φ, y) = s(f(y), g(φ)) − log C(y) with a score s. The paper's score
is the cosine over a temperature; :mod:`eande.similarities.similarities` has this and others. Everything that follows from the choice
of s belongs to it: where embeddings lie (``place``), the score, its bound and how observations pool.

Every score carries an ``exponent`` β, 1 after training: the posterior is then p(φ) r^β. β = 0 is the prior. Calibration may let
it depend on the datum, β(y) = β e^{slope·(f(y) − centre)}: a model can be too sure of some data and not sure enough of others. It may
also move the data by an affine map of f, ``turn`` and ``shift``: a model can err to one side.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from eande.networks.precision import full_precision

# No calibrated exponent lies outside: for a datum unlike any seen before, a slope leads anywhere.
EXPONENTS = (1 / 16, 32.0)


class Aim(NamedTuple):
    """An affine map of f, to f + Tᵀf + b: ``turn`` is T, shape (n, n), ``shift`` is b, shape (n,)."""

    turn: Tensor
    shift: Tensor


def move(placed: Tensor, aim: Aim) -> Tensor:
    """Return f + Tᵀf + b of f (…, n)."""
    with full_precision(placed.device):
        return placed + placed @ aim.turn + aim.shift


class Similarity(nn.Module, ABC):
    """Score pairs of embeddings; by default an inner product up to a factor, so that observations pool by addition."""

    exponent: Tensor
    slope: Tensor | None
    centre: Tensor | None
    turn: Tensor | None
    shift: Tensor | None
    # Whether data may be aimed, which takes their features for raw output: those must be placed where they are.
    aims = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("exponent", torch.tensor(1.0))
        for name in ("slope", "centre", "turn", "shift"):
            self.register_buffer(name, None)

    @abstractmethod
    def place(self, raw: Tensor) -> Tensor:
        """Put a network's raw output (…, n) where embeddings lie."""

    def place_datum(self, raw: Tensor, aim: Aim | None = None) -> Tensor:
        """Put the encoder's raw output where embeddings lie, aimed (its own way by default), and lengthened by the datum's part of the exponent."""
        placed, aim = self.place(raw), aim or self.own_aim
        aimed = placed if aim is None else self.place(move(placed, aim))
        return aimed if self.slope is None else aimed * self.tilt(placed)

    @property
    def own_aim(self) -> Aim | None:
        """What calibration set, None where it set nothing."""
        return None if self.turn is None or self.shift is None else Aim(self.turn, self.shift)

    def features(self, embedded: Tensor) -> Tensor:
        """Return f(y) of the embeddings (m, …) of a model without calibration, which is what calibration goes by, shape (m, n)."""
        return embedded

    def tilt(self, placed: Tensor) -> Tensor:
        """Return the datum's own part of the exponent, e^{slope·(f − centre)}, shape (…, 1)."""
        if self.slope is None or self.centre is None:
            return torch.ones_like(placed[..., :1])
        least, most = (limit / self.exponent for limit in EXPONENTS)
        return ((placed - self.centre) @ self.slope).exp().clamp(least, most).unsqueeze(-1)

    def set_exponent(
        self, exponent: float, slope: Tensor | None = None, centre: Tensor | None = None
    ) -> None:
        """Set β and what of it depends on the datum; vectors (n,), both or none."""
        self.exponent = torch.full_like(self.exponent, exponent)
        self.slope, self.centre = (
            None if x is None else x.to(self.exponent) for x in (slope, centre)
        )

    def copy(self) -> Self:
        """Return a similarity that shares everything trained, and may be calibrated by itself."""
        copied = copy.copy(self)
        copied._buffers = dict(self._buffers)
        return copied

    def set_aim(self, aim: Aim | None) -> None:
        """Set how data are moved."""
        self.turn, self.shift = (None, None) if aim is None else (x.to(self.exponent) for x in aim)

    @abstractmethod
    def factor(self) -> Tensor:
        """Return the number the inner product is multiplied by, before the exponent."""

    @abstractmethod
    def bound(self, embedded: Tensor) -> Tensor | None:
        """Return a rigorous upper bound of the score of each (pooled) embedding (m, n) over all parameters, None where there is none."""

    def score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, n) → (m, k)."""
        return self.exponent * self.factor() * (embedded @ emulated.T)

    def paired_score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, n) → (m,)."""
        return self.exponent * self.factor() * (embedded * emulated).sum(-1)

    def pool(self, embedded: Tensor) -> Tensor:
        """Return the one vector (n,) that stands for independent observations (m, n) of the same parameters.

        The product of their ratios has the score Σ s(f_i, g) = s(Σ f_i, g): the sum, not renormalised.
        """
        return embedded.sum(0)


class SideBySide(Similarity):
    """A score that is no inner product: independent observations pool side by side in one long vector, and their scores are added."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The width of one embedded datum."""

    @abstractmethod
    def score_one(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of all pairs of a datum (m, width) and a parameter, (m, k)."""

    @abstractmethod
    def paired_score_one(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of matching rows, (m,)."""

    @abstractmethod
    def bound_one(self, embedded: Tensor) -> Tensor | None:
        """Return the bound of each datum (m, width), None where there is none."""

    def factor(self) -> Tensor:
        """Return 1: there is nothing to multiply."""
        return torch.ones_like(self.exponent)

    def score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, k), added up over the observations of a row."""
        return _sum(self.score_one(part, emulated) for part in embedded.split(self.width, dim=-1))

    def paired_score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of matching rows, (m,)."""
        return _sum(
            self.paired_score_one(part, emulated) for part in embedded.split(self.width, dim=-1)
        )

    def bound(self, embedded: Tensor) -> Tensor | None:
        """Return the sum of the observations' bounds."""
        bounds = [self.bound_one(part) for part in embedded.split(self.width, dim=-1)]
        return (
            None
            if any(bound is None for bound in bounds)
            else _sum(bound for bound in bounds if bound is not None)
        )

    def pool(self, embedded: Tensor) -> Tensor:
        """Put observations (m, width) side by side."""
        return embedded.flatten()


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)
