r"""Does a prior's density integrate to one? Guides mix draws of it with others, and rely on it.

A Distribution of a user's may have a log_prob that lacks a constant, and one on a surface (such as
a simplex) has no density in as many dimensions as it has numbers. By bridge sampling between n
draws of the prior and n of a Gaussian mixture g that is fitted to others,

    c = E_g[p / (p + c g)] / E_p[g / (p + c g)],

solved by iterating; c is ∫ p, and zero where no draw of g lies in the prior's support.

Reference:
    Meng and Wong, *Simulating ratios of normalizing constants via a simple identity*, 1996.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning
from eande.foundations.seeds import derive_seed
from eande.inference.samplers.gaussian_mixture import fit_gaussian_mixture
from eande.priors.prior import Prior

# Draws of the prior that g is fitted to, and as many for the bridge.
_DRAWS = 4_000
_COMPONENTS = 8
_ITERATIONS = 30
# So far from one it is told, where that is more than so many standard errors.
_TOLD = 0.1
_TIMES_ERROR = 5.0


def log_integral(prior: Prior) -> tuple[float, float]:
    """Return the log of a density's integral, and its standard error.

    Args:
        prior: with a density.

    Example:
        >>> value, error = log_integral(prior)
        >>> abs(value) < 5 * error
        True
    """
    x = prior.unconstrain(prior.sample(2 * _DRAWS, seed=derive_seed(0, "integral")))
    stream = torch.Generator().manual_seed(derive_seed(0, "bridge"))
    mixture = fit_gaussian_mixture(x[:_DRAWS].unsqueeze(0), _COMPONENTS, stream)
    drawn, _ = mixture.sample(_DRAWS, stream)
    ratios = [
        prior.unconstrained_log_prob(points.flatten(0, 1)) - mixture.log_prob(points)[0]
        for points in (x[_DRAWS:].unsqueeze(0), drawn)
    ]
    own, others = (ratio.nan_to_num(nan=-torch.inf) for ratio in ratios)
    if not torch.isfinite(others).any():
        return -math.inf, 0.0
    log_c = torch.zeros((), dtype=torch.float64)
    for _ in range(_ITERATIONS):
        # Of p / (p + c g) over draws of g, and of c g / (p + c g) over those of p.
        above = torch.sigmoid(others - log_c)
        below = torch.sigmoid(log_c - own)
        log_c = log_c + above.mean().log() - below.mean().log()
    error = (_relative_variance(above) + _relative_variance(below)).sqrt()
    return log_c.item(), error.item()


def _relative_variance(values: Tensor) -> Tensor:
    """Return the variance of a mean, relative to the mean's square."""
    return values.var() / (len(values) * values.mean().square())


def can_be_proposed(prior: Prior) -> bool:
    """Return whether guides may mix draws of a prior with others, and warn where a constant lacks.

    Args:
        prior: of any kind; that of one whose density is torch's or ours is not computed.
    """
    if not prior.has_density or prior.integrates:
        return prior.has_density
    log_c, error = log_integral(prior)
    if abs(log_c) <= max(_TOLD, _TIMES_ERROR * error):
        return True
    if log_c > -math.inf:
        warnings.warn(
            f"prior: expected a log_prob whose density integrates to one, got one that integrates "
            f"to {math.exp(log_c):.2g}: log_prob of posteriors is off by {log_c:+.2f} nats",
            EandeWarning,
            stacklevel=2,
        )
    return False
