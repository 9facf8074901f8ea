"""The similarities there are.

``Cosine`` is the paper's, f·g/τ with both on the unit sphere: it has a rigorous upper bound, which makes acceptance–rejection exact, and
independent observations pool by adding their embeddings. ``Dot`` lets lengths be free. ``Gaussians`` is a mixture, for posteriors that are no
single blob.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.foundations.checks import InputError, check_choice, check_count, check_positive
from eande.networks.precision import full_precision
from eande.similarities.similarity import Aim, SideBySide, Similarity, move

SIMILARITIES = ("cosine", "dot", "gaussians")
# Of Gaussians: how far apart heads begin, how much narrower the narrowest is, the log precisions allowed, and scores at once (16 MB: caches).
_APART, _NARROWER, _LOG_PRECISIONS, _SCORES_AT_ONCE = 0.3, 100.0, (-5.0, 12.0), 2**22


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
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(temperature)), requires_grad=learn
        )

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


class Gaussians(SideBySide):
    """The log of a mixture of Gaussians around points that the datum chooses, at the emulated point: log Σ_k w_k e^{−p_k ‖μ_k − g‖²/2}.

    Weights w_k (their sum is 1), precisions p_k and centres μ_k are an affine map of the encoder's output f; the centres lie around f. A single
    inner product of smooth networks finds one blob; this finds narrow peaks on wide feet, crescents and several modes, from few simulations. The
    score is at most 0, an exact bound.

    Args:
        dimension: n, the embedding dimension.
        heads: K, the number of Gaussians.

    Example:
        >>> similarity = Gaussians(2, heads=3)
        >>> similarity.score(
        ...     similarity.place_datum(torch.zeros(4, 2)), similarity.place(torch.randn(5, 2))
        ... ).shape
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
        return torch.cat(
            [raw, torch.ones_like(raw[..., :1]), raw.square().sum(-1, keepdim=True)], dim=-1
        )

    def place_datum(self, raw: Tensor, aim: Aim | None = None) -> Tensor:
        """Return f, every head's (p μ, log w − p ‖μ‖²/2, −p/2) and the datum's own part of the exponent, shape (…, n + K(n + 2) + 1)."""
        aim = aim or self.own_aim
        aimed = raw if aim is None else move(raw, aim)
        with full_precision(raw.device):
            heads = self.spread(aimed).unflatten(-1, (self.heads, -1))
        centre, weight = aimed.unsqueeze(-2) + heads[..., :-2], heads[..., -2].log_softmax(-1)
        precision = heads[..., -1].clamp(*_LOG_PRECISIONS).exp()
        offset = weight - precision * centre.square().sum(-1) / 2
        parts = torch.cat(
            [precision.unsqueeze(-1) * centre, offset.unsqueeze(-1), -precision.unsqueeze(-1) / 2],
            dim=-1,
        )
        return torch.cat([raw, parts.flatten(-2), self.tilt(raw)], dim=-1)

    def features(self, embedded: Tensor) -> Tensor:
        """Return f."""
        return embedded[..., : self.dimension]

    @property
    def width(self) -> int:
        """The width of one embedded datum, n + K(n + 2) + 1."""
        return self.dimension + self.heads * (self.dimension + 2) + 1

    def _heads(self, embedded: Tensor) -> Tensor:
        return embedded[..., self.dimension : -1].unflatten(-1, (self.heads, -1))

    def score_one(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, width) × (k, n + 2) → (m, k)."""
        rows = max(1, _SCORES_AT_ONCE // max(1, self.heads * len(emulated)))
        sums = [
            _log_sum_exp(self._heads(part).transpose(0, 1) @ emulated.T)
            for part in embedded.split(rows)
        ]
        return self.exponent * embedded[..., -1:] * torch.cat(sums)

    def paired_score_one(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of matching rows, (m,)."""
        return (
            self.exponent
            * embedded[..., -1]
            * (self._heads(embedded) * emulated.unsqueeze(-2)).sum(-1).logsumexp(-1)
        )

    def bound_one(self, embedded: Tensor) -> Tensor:
        """Return 0, and what rounding may add: every Gaussian is at most its weight."""
        rounding = 3e-7 * (self.dimension + 2) * self._heads(embedded)[..., -2].abs().amax(-1)
        return self.exponent * embedded[..., -1] * rounding


def _log_sum_exp(x: Tensor) -> Tensor:
    """Return log Σ e^x over the first axis; with its gradient, in less than half the time of ``torch.logsumexp`` on a CPU."""
    top = x.detach().amax(0)
    return (x - top).exp().sum(0).log() + top


def describe_similarity(similarity: Similarity) -> str:
    """Return the name of one of our similarities; a user's own cannot be stored in a file."""
    names: dict[type[Similarity], str] = {Cosine: "cosine", Dot: "dot", Gaussians: "gaussians"}
    if type(similarity) not in names:
        raise InputError(
            f"similarity: expected Cosine, Dot or Gaussians to store in a file, got {type(similarity).__name__}"
        )
    return names[type(similarity)]


def make_similarity(
    kind: str, temperature: float | str, dimension: int, heads: int = 8
) -> Similarity:
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
