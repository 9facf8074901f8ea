"""A similarity that was calibrated: what calibration found, around the score that was trained.

The posterior is p(φ) r(φ, y)^β. The exponent may depend on the datum,

    β(y) = β e^{slope·(f(y) − centre)},

for a model can be too sure of some data and not sure enough of others; and embedded data may be
moved by an affine map, f + Tᵀf + b, for a model can err to one side. :mod:`eande.calibration` finds
these numbers; here they are applied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from eande.foundations.checks import check_count
from eande.foundations.documents import as_document
from eande.networks.precision import full_precision
from eande.similarities.prior_only import PriorOnly
from eande.similarities.similarity import Similarity, similarity_from_description

# No exponent lies outside: for a datum unlike any seen before, a slope leads anywhere.
EXPONENTS = (1 / 16, 32.0)
# A file that asks for more is damaged.
_LARGEST_DIMENSION = 2**20


class Aim(NamedTuple):
    """An affine map of f, to f + Tᵀf + b.

    Args:
        turn: T, shape (n, n).
        shift: b, shape (n,).
    """

    turn: Tensor
    shift: Tensor


class Slope(NamedTuple):
    """How the log exponent depends on the datum, slope·(f − centre); both of shape (n,)."""

    slope: Tensor
    centre: Tensor


def move(similarity: Similarity, f: Tensor, aim: Aim) -> Tensor:
    """Return where f + Tᵀf + b lies, for f of shape (m, n)."""
    with full_precision(f.device):
        return similarity.place(f + f @ aim.turn + aim.shift)


class Calibrated(Similarity):
    """Another similarity, its data moved and its scores multiplied by an exponent.

    Args:
        inner: the similarity that was trained; it is shared, not copied.
        exponent: β.
        slope: what of the exponent depends on the datum; None for nothing.
        aim: how embedded data are moved; None for not at all.
        from_prior: whether the fit had fallen back to the prior, and calibration made something of
            what it had rejected.
    """

    name = "calibrated"
    trainable = False
    exponent: Tensor
    slope: Tensor | None
    centre: Tensor | None
    turn: Tensor | None
    shift: Tensor | None

    def __init__(
        self,
        inner: Similarity,
        exponent: float,
        slope: Slope | None = None,
        aim: Aim | None = None,
        *,
        from_prior: bool = False,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.from_prior = from_prior
        self.register_buffer("exponent", torch.tensor(float(exponent), device=_device(inner)))
        for name, value in (
            ("slope", None if slope is None else slope.slope),
            ("centre", None if slope is None else slope.centre),
            ("turn", None if aim is None else aim.turn),
            ("shift", None if aim is None else aim.shift),
        ):
            self.register_buffer(name, None if value is None else value.to(self.exponent))

    def wrapped(self) -> Similarity:
        """Return the similarity as it was before calibration."""
        return PriorOnly(self.inner) if self.from_prior else self.inner

    @property
    def aim(self) -> Aim | None:
        """How embedded data are moved, None where they stay."""
        if self.turn is None or self.shift is None:
            return None
        return Aim(self.turn, self.shift)

    @property
    def scale(self) -> float:
        """The factor of the inner product, exponent included."""
        return self.exponent.item() * self.inner.scale

    def exponents(self, f: Tensor) -> Tensor:
        """Return the exponent of every datum, (m,)."""
        if self.slope is None or self.centre is None:
            return self.exponent.expand(len(f))
        features = self.inner.features(f)
        tilt = ((features - self.centre) @ self.slope).exp()
        return (self.exponent * tilt).clamp(*EXPONENTS)

    def moved(self, f: Tensor) -> Tensor:
        """Return embedded data (m, n) where the calibration has them."""
        return f if self.aim is None else move(self.inner, f, self.aim)

    def place(self, raw: Tensor) -> Tensor:
        """Put a network's raw output where the inner similarity wants it."""
        return self.inner.place(raw)

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, n) → (m, k)."""
        return self.exponents(f).unsqueeze(1) * self.inner.score(self.moved(f), g)

    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, n) → (m,)."""
        return self.exponents(f) * self.inner.paired_score(self.moved(f), g)

    def grouped_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of each datum with points of its own, (m, n) × (m, k, n) → (m, k)."""
        return self.exponents(f).unsqueeze(1) * self.inner.grouped_score(self.moved(f), g)

    def bound(self, f: Tensor) -> Tensor | None:
        """Return the inner bound to that power, None where there is none."""
        bound = self.inner.bound(self.moved(f))
        return None if bound is None else self.exponents(f) * bound

    def pool(self, f: Tensor) -> Tensor:
        """Pool as the inner similarity does where all data are treated alike, else side by side."""
        return self.inner.pool(f) if self.slope is None and self.turn is None else f

    def features(self, f: Tensor) -> Tensor:
        """Return the features of the inner similarity."""
        return self.inner.features(f)

    @property
    def trained(self) -> Similarity:
        """The similarity that was trained."""
        return self.inner.trained

    def describe(self) -> dict[str, Any]:
        """Return the name, what is inside, and which of the corrections there are."""
        return {
            "name": self.name,
            "inner": self.inner.describe(),
            "slope": None if self.slope is None else len(self.slope),
            "aim": None if self.shift is None else len(self.shift),
            "from_prior": self.from_prior,
        }

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Self:
        """Make room for the numbers of a calibration, and what they belong to."""
        known = as_document("similarity", description, _Description)
        return cls.around(similarity_from_description(known.inner), description)

    @classmethod
    def around(cls, inner: Similarity, description: Mapping[str, Any]) -> Self:
        """Make a calibration whose numbers are still to be read, of the described dimensions."""
        known = as_document("similarity", description, _Description)
        device = _device(inner)
        slope = None
        if known.slope is not None:
            size = known.slope
            slope = Slope(torch.zeros(size, device=device), torch.zeros(size, device=device))
        aim = None
        if known.aim is not None:
            turn = torch.zeros(known.aim, known.aim, device=device)
            aim = Aim(turn, torch.zeros(known.aim, device=device))
        return cls(inner, 1.0, slope, aim, from_prior=known.from_prior)


@dataclass
class _Description:
    """What a file holds of a calibration; its numbers are tensors."""

    inner: dict[str, Any]
    slope: int | None
    aim: int | None
    from_prior: bool = False

    def __post_init__(self) -> None:
        """Refuse dimensions that no embedding has."""
        for name in ("slope", "aim"):
            size = getattr(self, name)
            if size is not None:
                check_count(name, size, 1, at_most=_LARGEST_DIMENSION)


def _device(similarity: Similarity) -> torch.device | None:
    """Return where the numbers of a similarity are, None where it has none."""
    numbers = (*similarity.parameters(), *similarity.buffers())
    return next((x.device for x in numbers), None)
