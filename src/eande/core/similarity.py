"""The similarity: how near an embedded datum and an emulated parameter are, in nats.

E&E models the likelihood-to-evidence ratio as log r(φ, y) = s(f(y), g(φ)) − log C(y) with a score s. The paper's score
is the cosine over a temperature, f·g/τ with both on the unit sphere: it has a rigorous upper bound, which makes
acceptance–rejection exact, and independent observations pool by adding their embeddings. Everything that follows from
the choice of s lives here: where embeddings lie (``place``), the score, its bound and how observations pool.

Every score carries an ``exponent`` β, 1 after training: the posterior is then p(φ) r^β. β = 0 is the prior. Calibration may let
it depend on the datum, β(y) = β e^{slope·(f(y) − centre)}: a model can be too sure of some data and not sure enough of others.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.core.checks import InputError, check_choice, check_positive

SIMILARITIES = ("cosine", "dot")
# No calibrated exponent lies outside: for a datum unlike any seen before, a slope leads anywhere.
EXPONENTS = (1 / 16, 32.0)


class Similarity(nn.Module, ABC):
    """Score pairs of embeddings; an inner product up to a factor, so that observations pool by addition."""

    exponent: Tensor
    slope: Tensor | None
    centre: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("exponent", torch.tensor(1.0))
        self.register_buffer("slope", None)
        self.register_buffer("centre", None)

    @abstractmethod
    def place(self, raw: Tensor) -> Tensor:
        """Put a network's raw output (…, n) where embeddings lie."""

    def place_datum(self, raw: Tensor) -> Tensor:
        """Put the encoder's raw output where embeddings lie, lengthened by the datum's own part of the exponent."""
        placed = self.place(raw)
        return placed if self.slope is None else placed * self.tilt(placed)

    def features(self, embedded: Tensor) -> Tensor:
        """Return what of the embeddings (m, …) of a model without ``slope`` the exponent may depend on, shape (m, n)."""
        return embedded

    def tilt(self, placed: Tensor) -> Tensor:
        """Return the datum's own part of the exponent, e^{slope·(f − centre)}, shape (…, 1)."""
        if self.slope is None or self.centre is None:
            return torch.ones_like(placed[..., :1])
        least, most = (limit / self.exponent for limit in EXPONENTS)
        return ((placed - self.centre) @ self.slope).exp().clamp(least, most).unsqueeze(-1)

    def set_exponent(self, exponent: float, slope: Tensor | None = None, centre: Tensor | None = None) -> None:
        """Set β and what of it depends on the datum; vectors (n,), both or none."""
        self.exponent.fill_(exponent)
        self.slope, self.centre = (None if x is None else x.to(self.exponent) for x in (slope, centre))

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


class Cosine(Similarity):
    """The paper's score, f·g/τ on the unit sphere.

    Args:
        temperature: τ, the starting value where it is learned.
        learn: whether training changes it.

    Example:
        >>> similarity = Cosine(0.5)
        >>> f = similarity.place(torch.tensor([[3.0, 4.0]]))
        >>> similarity.score(f, f), similarity.bound(f)
        (tensor([[2.]]), tensor([2.]))
    """

    def __init__(self, temperature: float, *, learn: bool = False) -> None:
        super().__init__()
        check_positive("temperature", temperature)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)), requires_grad=learn)

    @property
    def temperature(self) -> float:
        """τ as a number."""
        return self.log_temperature.exp().item()

    def place(self, raw: Tensor) -> Tensor:
        """Project onto the unit sphere."""
        return functional.normalize(raw, dim=-1)

    def factor(self) -> Tensor:
        """Return 1/τ."""
        return (-self.log_temperature).exp()

    def bound(self, embedded: Tensor) -> Tensor:
        """Return ‖s‖/τ: no point of the sphere has a larger inner product with s than ‖s‖."""
        return self.exponent * self.factor() * embedded.norm(dim=-1)


class Dot(Similarity):
    """The free-norm inner product f·g/√n: embeddings choose their length, so information may vary over the prior.

    It has no upper bound, hence no exact acceptance–rejection bound.

    Args:
        dimension: n, the embedding dimension.
    """

    root: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.register_buffer("root", torch.tensor(float(dimension)).sqrt())

    def place(self, raw: Tensor) -> Tensor:
        """Leave embeddings where they are."""
        return raw

    def factor(self) -> Tensor:
        """Return 1/√n."""
        return 1 / self.root

    def bound(self, embedded: Tensor) -> None:
        """Return None: lengths are free."""
        return


def describe_similarity(similarity: Similarity) -> str:
    """Return the name of one of our similarities; a user's own cannot be stored in a file."""
    names: dict[type[Similarity], str] = {Cosine: "cosine", Dot: "dot"}
    if type(similarity) not in names:
        raise InputError(f"similarity: expected Cosine or Dot to store in a file, got {type(similarity).__name__}")
    return names[type(similarity)]


def make_similarity(kind: str, temperature: float | str, dimension: int) -> Similarity:
    """Make the similarity of that name; ``temperature="learn"`` starts at 0.05."""
    check_choice("similarity", kind, SIMILARITIES)
    if kind == "dot":
        return Dot(dimension)
    if temperature == "learn":
        return Cosine(0.05, learn=True)
    if isinstance(temperature, str):
        raise InputError(f"temperature: expected a number above 0 or 'learn', got {temperature!r}")
    return Cosine(temperature)
