"""A mixture of Gaussians around points that the datum chooses, for posteriors of any shape.

    s(f, g) = log Σ_k w_k e^{−κ_k ‖μ_k − g‖² / 2}

Weights w_k (their sum is 1), precisions κ_k and centres μ_k are an affine map of f; the centres lie
around f. A single inner product of smooth networks finds one blob; this finds narrow peaks on wide
feet, crescents and several modes, from few simulations. The score is at most 0, a rigorous bound.

The paper's score is the special case of one head: with g and μ_k on the unit sphere the mixture is
log Σ_k w_k e^{κ_k (μ_k·g − 1)}, and K = 1, μ = f, κ = 1/τ gives f·g/τ − 1/τ, whose constant cancels
in the losses and in the ratio.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from eande.foundations.checks import check_count, check_fits, check_positive
from eande.networks.precision import full_precision
from eande.similarities.similarity import Similarity

# Heads begin this far apart, and the narrowest with this many times the precision of the widest.
_DISTANCE = 0.3
_PRECISION_RATIO = 100.0
_MOST_HEADS = 10_000
_LOG_PRECISIONS = (-5.0, 12.0)
# Exponents computed at once, in training 16 MB and else 2 MB, what processors keep in their caches;
# of so many points.
_TRAINED_AT_ONCE = 2**22
_SCORES_AT_ONCE = 2**19
_COLUMNS = 2_048
# A summand e^x of this share of the largest is lost in rounding. Near the smallest numbers a
# processor needs ten times as long for an exponential.
_NEGLIGIBLE = -50.0


class Mixture(Similarity):
    """The log density, up to a constant, of a mixture of Gaussians at the emulated point.

    Args:
        heads: K, the number of Gaussians. Twice as many as a posterior has modes or more: of as
            many, some settle between modes and stay there.
        temperature: None lets every head choose its precision; a number τ fixes κ_k = 1/τ.
        dimension: n, the embedding dimension; None for that of the fit.

    Example:
        >>> similarity = Mixture(heads=3, dimension=2)
        >>> similarity.score(torch.zeros(4, 2), torch.randn(5, 2)).shape
        torch.Size([4, 5])
    """

    name = "mixture"
    movable = True

    def __init__(
        self, heads: int = 16, *, temperature: float | None = None, dimension: int | None = None
    ) -> None:
        super().__init__()
        check_count("heads", heads, 1, _MOST_HEADS)
        if dimension is not None:
            check_count("dimension", dimension, 1)
            check_fits("dimension", dimension, 4 * heads * (dimension + 2))
            dimension = int(dimension)
        if temperature is not None:
            check_positive("temperature", temperature)
            temperature = float(temperature)
        self.settings = {"heads": int(heads), "temperature": temperature, "dimension": dimension}
        self.heads = int(heads)
        self.temperature = temperature
        self.dimension = dimension
        if dimension is not None:
            self.spread = self._make_spread(dimension)

    def _make_spread(self, n: int) -> nn.Linear:
        """Make the affine map from f to every head's offset of its centre, log w and log κ."""
        spread = nn.Linear(n, self.heads * (n + 2))
        if spread.weight.is_meta:
            # Without memory there is nothing to begin with.
            return spread
        with torch.no_grad():
            # Alike, heads would stay alike: they begin side by side, from wide to narrow.
            bias = torch.zeros(self.heads, n + 2)
            bias[:, :n] = _DISTANCE * torch.randn(self.heads, n) / n**0.5
            bias[:, -1] = torch.linspace(0, math.log(_PRECISION_RATIO), self.heads)
            spread.bias.copy_(bias.flatten())
            spread.weight.mul_(0.1)
        return spread

    def for_dimension(self, dimension: int) -> "Mixture":
        """Return a mixture with new weights for embeddings in R^n."""
        return Mixture(**self.settings | {"dimension": dimension})

    @property
    def scale(self) -> float:
        """1/τ where the temperature is fixed."""
        return 1.0 if self.temperature is None else 1 / self.temperature

    def place(self, raw: Tensor) -> Tensor:
        """Leave embeddings where they are.

        Example:
            >>> Mixture(dimension=2).place(torch.tensor([[3.0, 4.0]]))
            tensor([[3., 4.]])
        """
        return raw

    def _exponents(self, f: Tensor) -> Tensor:
        """Return every head as a vector whose inner product with (g, 1, ‖g‖²) is its exponent.

        That is (κ μ, log w − κ ‖μ‖²/2, −κ/2), shape (…, K, n + 2).
        """
        with full_precision(f.device):
            heads = self.spread(f).unflatten(-1, (self.heads, -1))
        centre = f.unsqueeze(-2) + heads[..., :-2]
        log_weight = heads[..., -2].log_softmax(-1)
        if self.temperature is None:
            precision = heads[..., -1].clamp(*_LOG_PRECISIONS).exp()
        else:
            precision = torch.full_like(log_weight, 1 / self.temperature)
        offset = log_weight - precision * centre.square().sum(-1) / 2
        return torch.cat(
            [
                precision.unsqueeze(-1) * centre,
                offset.unsqueeze(-1),
                -precision.unsqueeze(-1) / 2,
            ],
            dim=-1,
        )

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, n) → (m, k).

        Example:
            >>> Mixture(dimension=2).score(torch.zeros(4, 2), torch.zeros(3, 2)).shape
            torch.Size([4, 3])
        """
        lifted = _lift(g).T
        if self.training:
            rows = max(1, _TRAINED_AT_ONCE // max(1, self.heads * len(g)))
            parts = self._exponents(f).split(rows)
            sums = [
                _LogSumExp.apply(part.transpose(0, 1) @ lifted)  # type: ignore[no-untyped-call]
                for part in parts
            ]
            return torch.cat(sums)
        # Blocks of data and points: every step of a sum over heads finds the last one's numbers in
        # the cache, four times as quickly as rows of twenty thousand points.
        rows = max(1, _SCORES_AT_ONCE // (self.heads * min(_COLUMNS, max(1, len(g)))))
        return torch.cat(
            [
                torch.cat(
                    [
                        _log_sum_exp(part.transpose(0, 1) @ points)
                        for points in lifted.split(_COLUMNS, dim=1)
                    ],
                    dim=1,
                )
                for part in self._exponents(f).split(rows)
            ]
        )

    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, n) → (m,).

        Example:
            >>> similarity = Mixture(dimension=2)
            >>> f, g = torch.randn(3, 2), torch.randn(3, 2)
            >>> torch.allclose(
            ...     similarity.paired_score(f, g), similarity.score(f, g).diagonal(), atol=1e-4
            ... )
            True
        """
        return (self._exponents(f) * _lift(g).unsqueeze(-2)).sum(-1).logsumexp(-1)

    def grouped_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of each datum with points of its own, (m, n) × (m, k, n) → (m, k)."""
        return (self._exponents(f) @ _lift(g).transpose(1, 2)).logsumexp(1)

    def bound(self, f: Tensor) -> Tensor:
        """Return 0, and what rounding may add: every Gaussian is at most its weight.

        Example:
            >>> similarity = Mixture(dimension=2)
            >>> f = torch.randn(3, 2)
            >>> (similarity.score(f, torch.randn(100, 2)) <= similarity.bound(f).unsqueeze(1)).all()
            tensor(True)
        """
        offset = self._exponents(f)[..., -2]
        return 3e-7 * (f.shape[-1] + 2) * offset.abs().amax(-1)


def _lift(g: Tensor) -> Tensor:
    """Return (g, 1, ‖g‖²), shape (…, n + 2)."""
    return torch.cat([g, torch.ones_like(g[..., :1]), g.square().sum(-1, keepdim=True)], dim=-1)


def _log_sum_exp(x: Tensor) -> Tensor:
    """Return log Σ e^x over the first axis, without the slow numbers near the smallest."""
    top = x.detach().amax(0)
    return (x - top).clamp(min=_NEGLIGIBLE).exp().sum(0).log() + top


class _LogSumExp(torch.autograd.Function):
    """The same with a gradient that makes fewer copies, for training: it has no second one."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        top = x.amax(0)
        summands = (x - top).clamp_(min=_NEGLIGIBLE).exp_()
        total = summands.sum(0)
        ctx.save_for_backward(summands, total)
        return total.log() + top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summands, total = ctx.saved_tensors
        return summands * (gradient / total)
