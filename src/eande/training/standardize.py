"""What the networks see: numbers around zero and of the size of one, whatever the units, and heavy tails brought in."""

import warnings

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning
from eande.networks.standardizer import Standardizer
from eande.priors.prior import Prior
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View, fixed_views

# A spread of so small a share of the mean is a few hundred units in the last place of float32.
_COARSEST = 1e-5
# A standard deviation of so many times what the quartiles say means heavy tails; beyond so many
# scales numbers are brought in.
_HEAVY, _LIMIT = 3.0, 1.0
# Quartiles are taken of so many numbers at most.
_NUMBERS = 4_000_000


def standardize_phi(train: Simulations, prior: Prior) -> Standardizer:
    """Standardise each parameter: as the prior knows it, or as the simulations have it."""
    known = prior.location_and_scale()
    if known is not None:
        return _resolved("phi", *known)
    phi = train.phi.double()
    return _resolved("phi", *_robust(phi, phi.mean(0), phi.std(0, correction=0)))


def standardize_y(train: Simulations, views: View | None, *, per_channel: bool) -> Standardizer:
    """Standardise each entry of a vector, each channel of a field for our encoders, and all numbers alike for a user's."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    shift: Tensor | None = None
    sample: list[Tensor] = []
    for y in map(Tensor.double, fixed_views(views, train.y)):
        kept = y.ndim if y.ndim == 2 else 2 if per_channel else 0
        axes = [axis for axis in range(y.ndim) if axis == 0 or axis >= kept]
        if shift is None:
            # Squares of a large common offset would cancel: count from the first rows' mean.
            shift = y.mean(axes, keepdim=True)
        total = total + (y - shift).sum(axes, keepdim=True)
        squares = squares + ((y - shift) ** 2).sum(axes, keepdim=True)
        count += y.numel() // shift.numel()
        if y.ndim == 2:
            # Some rows from everywhere do for quartiles.
            sample.append(y[:: 1 + len(train) * y.shape[1] // _NUMBERS].cpu())
    assert shift is not None
    mean, variance = total / count, squares / count - (total / count) ** 2
    mean, scale = (shift + mean)[0].cpu(), variance.clamp(min=0).sqrt()[0].cpu()
    if not sample:
        # Where numbers of many places are standardised alike, a few far away may be what the field
        # is about.
        return _resolved("y", mean, scale)
    return _resolved("y", *_robust(torch.cat(sample), mean, scale))


def _robust(sample: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return location, scale and limit of every column: by quartiles where few numbers far away make up most of the standard deviation."""
    low, middle, high = torch.as_tensor(np.quantile(sample.numpy(), [0.25, 0.5, 0.75], axis=0))
    # Of a normal law, this is its standard deviation.
    typical = (high - low) / 1.349
    heavy = (typical > 0) & (scale > _HEAVY * typical)
    if not heavy.any():
        return mean, scale, None
    return (
        torch.where(heavy, middle, mean),
        torch.where(heavy, typical, scale),
        torch.where(heavy, _LIMIT, torch.inf),
    )


def _resolved(name: str, mean: Tensor, scale: Tensor, limit: Tensor | None = None) -> Standardizer:
    """Make a standardiser, and warn where float32 numbers of that size cannot resolve such a spread."""
    coarse = (scale > 0) & (scale < _COARSEST * mean.abs())
    if coarse.any():
        warnings.warn(
            f"{name}: {int(coarse.sum())} entries vary by less than a hundred-thousandth of their size, which float32 cannot resolve well: "
            "subtract their common offset first", EandeWarning, stacklevel=6,
        )  # fmt: skip
    return Standardizer(mean, scale, limit)
