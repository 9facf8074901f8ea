"""The guide of a model: a network that says where the posteriors of embedded data lie.

It maps what a similarity sees of a datum to a mixture of K Gaussians in unconstrained coordinates,

    q(φ | f(y)) = Σ_k w_k N(μ_k, (L_kᵀ L_k)⁻¹),      w, μ, L functions of f(y),

after Bishop's mixture density networks. Training fits it to the model's own posteriors
(:mod:`eande.training.guide`), and no answer rests on it: its draws are weighted by the model, and
where few of them are effective for a datum a guide of that datum's own is found from there on
(:mod:`eande.inference.guide`).

Reference:
    Bishop, *Mixture density networks*, 1994.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, check_count
from eande.inference.guide import Guide
from eande.inference.samplers.gaussian_mixture import Components, GaussianMixture
from eande.networks.mlp import ResidualMLP
from eande.networks.precision import full_precision
from eande.priors.prior import Prior

# Nobody trains larger ones, and a file that asks for one is damaged.
_LARGEST = 2**16
_MOST_COMPONENTS = 64
_DEEPEST = 100
# Of more parameters a guide takes minutes to learn, for covariances have as many numbers squared.
MOST_PARAMETERS = 24
# No output is larger, whatever the datum: means in prior deviations, logarithms of widths, weights.
_LARGEST_OUTPUT = 30.0
_LOG_INVERSE_WIDTHS = (-5.0, 12.0)
# Nor is an off-diagonal of L, over the diagonal of its row, by which it can be inverted.
_MOST_CORRELATED = 8.0
# A feature whose deviation is a smaller share of its mean is constant.
_ROUNDING = 1e-5
# Of the mixture, a share is as much wider, for tails.
_SHARE_OF_WIDE = 0.2
_TIMES_AS_WIDE = 2.0
# No scale is smaller.
_LEAST = 1e-30
# First weights: components that lie apart, and no dependence on the datum to speak of.
_APART = 0.5
_SMALL = 0.1


@dataclass(frozen=True)
class GuideSettings:
    """What a file needs to make a guide again, beside its numbers.

    Args:
        features: of a datum.
        dimension: D, of the parameters.
        components: K.
        width: of the hidden layers.
        blocks: their number.
    """

    features: int
    dimension: int
    components: int = 8
    width: int = 128
    blocks: int = 2

    def __post_init__(self) -> None:
        """Refuse sizes that no guide has."""
        for name in ("features", "width"):
            check_count(name, getattr(self, name), 1, at_most=_LARGEST)
        check_count("dimension", self.dimension, 1, at_most=MOST_PARAMETERS)
        check_count("components", self.components, 1, at_most=_MOST_COMPONENTS)
        check_count("blocks", self.blocks, 0, at_most=_DEEPEST)


class GuideNetwork(nn.Module):
    """Maps features of embedded data to proposals for their posteriors.

    Args:
        settings: its sizes.

    Example:
        >>> network = GuideNetwork(GuideSettings(features=4, dimension=2, components=3))
        >>> network.mixture(torch.zeros(5, 4)).log_prob(torch.zeros(5, 7, 2)).shape
        torch.Size([5, 7])
    """

    mean: Tensor
    deviation: Tensor
    location: Tensor
    scale: Tensor

    def __init__(self, settings: GuideSettings) -> None:
        super().__init__()
        self.settings = settings
        dimension, components = settings.dimension, settings.components
        outputs = 1 + 2 * dimension + dimension * (dimension - 1) // 2
        self.network = ResidualMLP(
            settings.features,
            components * outputs,
            width=settings.width,
            blocks=settings.blocks,
            activation="silu",
            linear_skip=False,
        )
        self.register_buffer("mean", torch.zeros(settings.features))
        self.register_buffer("deviation", torch.ones(settings.features))
        self.register_buffer("location", torch.zeros(dimension))
        self.register_buffer("scale", torch.ones(dimension))
        if self.network.last.weight.is_meta:
            # Without memory there is nothing to begin with.
            return
        with torch.no_grad():
            self.network.last.weight.mul_(_SMALL)
            bias = torch.zeros(components, outputs)
            bias[:, 1 : 1 + dimension] = _APART * torch.randn(components, dimension)
            self.network.last.bias.copy_(bias.flatten())

    def standardize(self, features: Tensor, x: Tensor) -> None:
        """Take features (m, p) and unconstrained parameters (N, D) for what is usual."""
        exact = features.double()
        self.mean = exact.mean(0).float()
        deviation = exact.std(0).float()
        # Of a feature that is constant, rounding is left.
        constant = deviation <= _ROUNDING * self.mean.abs()
        self.deviation = deviation.masked_fill(constant | (deviation == 0), 1.0)
        # By quantiles: tails may be so heavy that there is no deviation.
        low, middle, high = x.float().quantile(
            torch.tensor([0.16, 0.5, 0.84], device=x.device), dim=0
        )
        self.location = middle
        self.scale = ((high - low) / 2).clamp_min(_LEAST)

    def check_scales(self, where: str) -> None:
        """Refuse numbers from a file that nothing can be standardised by."""
        for name, least in (("mean", None), ("location", None), ("deviation", 0), ("scale", 0)):
            values = getattr(self, name)
            right = values.isfinite() if least is None else (values >= _LEAST) & values.isfinite()
            if not bool(right.all()):
                kind = "numbers" if least is None else "numbers above 0"
                raise InputError(f"{where}: guide.{name}: expected {kind}, got others")

    def mixture(self, features: Tensor) -> GaussianMixture:
        """Return the mixtures for data of these features, (m, p); differentiable."""
        dimension, components = self.settings.dimension, self.settings.components
        with full_precision(features.device):
            raw = self.network((features - self.mean) / self.deviation)
        raw = raw.nan_to_num(0.0).clamp(-_LARGEST_OUTPUT, _LARGEST_OUTPUT)
        raw = raw.unflatten(1, (components, -1))
        means = raw[..., 1 : 1 + dimension]
        log_inverse_width = raw[..., 1 + dimension : 1 + 2 * dimension].clamp(*_LOG_INVERSE_WIDTHS)
        inverses = torch.diag_embed(log_inverse_width.exp())
        row, column = torch.tril_indices(dimension, dimension, -1, device=raw.device)
        below = torch.zeros_like(inverses)
        correlated = raw[..., 1 + 2 * dimension :].clamp(-_MOST_CORRELATED, _MOST_CORRELATED)
        below[..., row, column] = correlated * log_inverse_width[..., row].exp()
        inverses = inverses + below
        with torch.no_grad():
            identity = torch.eye(dimension, dtype=torch.float64, device=raw.device)
            identity = identity.expand_as(inverses)
            factors = torch.linalg.solve_triangular(inverses.double(), identity, upper=False)
        weights = raw[..., 0].softmax(1)
        shape = (len(raw), 1, dimension)
        return GaussianMixture(
            self.location.expand(shape),
            self.scale.expand(shape),
            Components(weights, means, factors.to(means.dtype), inverses),
        )

    @torch.no_grad()
    def guide(self, features: Tensor, prior: Prior) -> Guide:
        """Return proposals for data of these features, (m, p), under the prior trained under."""
        return self.with_tails(self.mixture(features), prior)

    @staticmethod
    def with_tails(mixture: GaussianMixture, prior: Prior) -> Guide:
        """Return proposals of these mixtures, with heavier tails."""
        return Guide(mixture.joined(mixture.widened(_TIMES_AS_WIDE), _SHARE_OF_WIDE), prior)
