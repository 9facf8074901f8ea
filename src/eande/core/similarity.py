"""The similarity: how near an embedded datum and an emulated parameter are, in nats.

E&E models the likelihood-to-evidence ratio as log r(φ, y) = s(f(y), g(φ)) − log C(y) with a score s. The paper's score
is the cosine over a temperature, f·g/τ with both on the unit sphere: it has a rigorous upper bound, which makes
acceptance–rejection exact, and independent observations pool by adding their embeddings. ``Dot`` lets lengths be free;
``Gaussians`` is a mixture, for posteriors that are no single blob. Everything that follows from the choice of s lives here:
where embeddings lie (``place``), the score, its bound and how observations pool.

Every score carries an ``exponent`` β, 1 after training: the posterior is then p(φ) r^β. β = 0 is the prior. Calibration may let
it depend on the datum, β(y) = β e^{slope·(f(y) − centre)}: a model can be too sure of some data and not sure enough of others. It may
also move the data by an affine map of f, ``turn`` and ``shift``: a model can err to one side.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.core.checks import InputError, check_choice, check_count, check_positive
from eande.core.networks import full_precision

SIMILARITIES = ("cosine", "dot", "gaussians")
# No calibrated exponent lies outside: for a datum unlike any seen before, a slope leads anywhere.
EXPONENTS = (1 / 16, 32.0)
# Of Gaussians: how far apart heads begin, how much narrower the narrowest is, the log precisions allowed, and scores of heads at once (128 MB).
_APART, _NARROWER, _LOG_PRECISIONS, _SCORES_AT_ONCE = 0.3, 100.0, (-5.0, 12.0), 2**25


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

    def set_exponent(self, exponent: float, slope: Tensor | None = None, centre: Tensor | None = None) -> None:
        """Set β and what of it depends on the datum; vectors (n,), both or none."""
        self.exponent.fill_(exponent)
        self.slope, self.centre = (None if x is None else x.to(self.exponent) for x in (slope, centre))

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

    aims = True

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
    aims = True

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


class Gaussians(Similarity):
    """The log of a mixture of Gaussians around points that the datum chooses, at the emulated point: log Σ_k w_k e^{−p_k ‖μ_k − g‖²/2}.

    Weights w_k (their sum is 1), precisions p_k and centres μ_k are an affine map of the encoder's output f; the centres lie around f. A single
    inner product of smooth networks finds one blob; this finds narrow peaks on wide feet, crescents and several modes, from few simulations. The
    score is at most 0, an exact bound. Independent observations do not pool: a product of sums is no sum.

    Args:
        dimension: n, the embedding dimension.
        heads: K, the number of Gaussians.

    Example:
        >>> similarity = Gaussians(2, heads=3)
        >>> similarity.score(similarity.place_datum(torch.zeros(4, 2)), similarity.place(torch.randn(5, 2))).shape
        torch.Size([4, 5])
    """

    aims = True

    def __init__(self, dimension: int, heads: int = 8) -> None:
        super().__init__()
        check_count("heads", heads, 1)
        self.dimension, self.heads = dimension, heads
        # Each a centre, a log weight and a log precision.
        self.spread = nn.Linear(dimension, heads * (dimension + 2))
        with torch.no_grad():
            # Alike, heads would stay alike: they begin side by side, from wide to narrow.
            bias = torch.zeros(heads, dimension + 2)
            bias[:, :dimension] = _APART * torch.randn(heads, dimension) / dimension**0.5
            bias[:, -1] = torch.linspace(0, math.log(_NARROWER), heads)
            self.spread.bias.copy_(bias.flatten())
            self.spread.weight.mul_(0.1)

    def place(self, raw: Tensor) -> Tensor:
        """Return (g, 1, ‖g‖²), shape (…, n + 2): each Gaussian's exponent is an inner product with it."""
        return torch.cat([raw, torch.ones_like(raw[..., :1]), raw.square().sum(-1, keepdim=True)], dim=-1)

    def place_datum(self, raw: Tensor, aim: Aim | None = None) -> Tensor:
        """Return f, every head's (p μ, log w − p ‖μ‖²/2, −p/2) and the datum's own part of the exponent, shape (…, n + K(n + 2) + 1)."""
        aim = aim or self.own_aim
        aimed = raw if aim is None else move(raw, aim)
        with full_precision(raw.device):
            heads = self.spread(aimed).unflatten(-1, (self.heads, -1))
        centre, weight = aimed.unsqueeze(-2) + heads[..., :-2], heads[..., -2].log_softmax(-1)
        precision = heads[..., -1].clamp(*_LOG_PRECISIONS).exp()
        offset = weight - precision * centre.square().sum(-1) / 2
        parts = torch.cat([precision.unsqueeze(-1) * centre, offset.unsqueeze(-1), -precision.unsqueeze(-1) / 2], dim=-1)
        return torch.cat([raw, parts.flatten(-2), self.tilt(raw)], dim=-1)

    def features(self, embedded: Tensor) -> Tensor:
        """Return f."""
        return embedded[..., : self.dimension]

    def factor(self) -> Tensor:
        """Return 1: precisions are the heads' own."""
        return torch.ones_like(self.exponent)

    def _heads(self, embedded: Tensor) -> Tensor:
        return embedded[..., self.dimension : -1].unflatten(-1, (self.heads, -1))

    def score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n + K(n + 2) + 1) × (k, n + 2) → (m, k)."""
        rows = max(1, _SCORES_AT_ONCE // max(1, self.heads * len(emulated)))
        sums = [_log_sum_exp(self._heads(part).transpose(0, 1) @ emulated.T) for part in embedded.split(rows)]
        return self.exponent * embedded[..., -1:] * torch.cat(sums)

    def paired_score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of matching rows, (m,)."""
        return self.exponent * embedded[..., -1] * (self._heads(embedded) * emulated.unsqueeze(-2)).sum(-1).logsumexp(-1)

    def bound(self, embedded: Tensor) -> Tensor:
        """Return 0, and what rounding may add: every Gaussian is at most its weight."""
        rounding = 3e-7 * (self.dimension + 2) * self._heads(embedded)[..., -2].abs().amax(-1)
        return self.exponent * embedded[..., -1] * rounding

    def pool(self, embedded: Tensor) -> Tensor:
        """Refuse more than one."""
        if len(embedded) > 1:
            raise InputError(f"pooled: expected one observation, or a model with the cosine or dot similarity, got {len(embedded)} observations")
        return embedded[0]


def _log_sum_exp(x: Tensor) -> Tensor:
    """Return log Σ e^x over the first axis; with its gradient, in less than half the time of ``torch.logsumexp`` on a CPU."""
    top = x.detach().amax(0)
    return (x - top).exp().sum(0).log() + top


def describe_similarity(similarity: Similarity) -> str:
    """Return the name of one of our similarities; a user's own cannot be stored in a file."""
    names: dict[type[Similarity], str] = {Cosine: "cosine", Dot: "dot", Gaussians: "gaussians"}
    if type(similarity) not in names:
        raise InputError(f"similarity: expected Cosine, Dot or Gaussians to store in a file, got {type(similarity).__name__}")
    return names[type(similarity)]


def make_similarity(kind: str, temperature: float | str, dimension: int, heads: int = 8) -> Similarity:
    """Make the similarity of that name; ``temperature="learn"`` starts at 0.05."""
    check_choice("similarity", kind, SIMILARITIES)
    if kind == "dot":
        return Dot(dimension)
    if kind == "gaussians":
        return Gaussians(dimension, heads)
    if temperature == "learn":
        return Cosine(0.05, learn=True)
    if isinstance(temperature, str):
        raise InputError(f"temperature: expected a number above 0 or 'learn', got {temperature!r}")
    return Cosine(temperature)
