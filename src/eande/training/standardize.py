"""Standardisation of the networks' inputs, by robust statistics where tails are heavy."""

import warnings

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning
from eande.networks.standardizer import Standardizer
from eande.priors.prior import Prior
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View, fixed_views

# A spread of this share of the mean is a few hundred units in the last place of float32.
_COARSEST = 1e-5
# Tails are heavy if the standard deviation is so many times the one estimated by the quartiles;
# values beyond so many scales are then compressed.
_HEAVY = 3.0
_LIMIT = 1.0
# Quartiles are taken of so many values at most.
_MOST_VALUES = 4_000_000
# The interquartile range of a normal distribution, in standard deviations.
_NORMAL_QUARTILES = 1.349


def standardize_phi(train: Simulations, prior: Prior) -> Standardizer:
    """Standardise each parameter, by the prior's moments or else by those of the simulations."""
    known = prior.location_and_scale()
    if known is not None:
        return _resolved("phi", *known)
    phi = train.phi.double()
    return _resolved("phi", *_robust(phi, phi.mean(0), phi.std(0, correction=0)))


def standardize_y(train: Simulations, views: View | None, *, per_channel: bool) -> Standardizer:
    """Standardise data: each entry of a vector, each channel of a field or the field as a whole.

    Args:
        train: the simulations to train on.
        views: what the encoder sees of a datum.
        per_channel: whether each channel of a field has a mean and a scale of its own, as our
            encoders expect; a field for a user's encoder is standardised as a whole.
    """
    count = 0
    total = torch.zeros(())
    squares = torch.zeros(())
    shift: Tensor | None = None
    low = torch.full((), torch.inf)
    high = torch.full((), -torch.inf)
    sample: list[Tensor] = []
    for y in map(Tensor.double, fixed_views(views, train.y)):
        own_scale = y.ndim == 2 or per_channel
        axes = [axis for axis in range(y.ndim) if axis != 1 or not own_scale]
        if shift is None:
            # Subtracting the first rows' mean avoids cancellation where there is a large offset.
            shift = y.mean(axes, keepdim=True)
        total = total + (y - shift).sum(axes, keepdim=True)
        squares = squares + ((y - shift) ** 2).sum(axes, keepdim=True)
        count += y.numel() // shift.numel()
        low = torch.minimum(low, y.amin(axes, keepdim=True))
        high = torch.maximum(high, y.amax(axes, keepdim=True))
        if y.ndim == 2:
            # Quartiles need only some of the rows, from everywhere.
            sample.append(y[:: 1 + len(train) * y.shape[1] // _MOST_VALUES].cpu())
    assert shift is not None
    shifted_mean = total / count
    variance = squares / count - shifted_mean**2
    mean = (shift + shifted_mean)[0].cpu()
    scale = variance.clamp(min=0).sqrt()[0].cpu()
    if sample:
        made = _resolved("y", *_robust(torch.cat(sample), mean, scale))
    else:
        # A field keeps its outliers: a few extreme places may be what matters in it.
        made = _resolved("y", mean, scale)
    ends = torch.cat([low, high]).cpu()
    made.largest = ((ends - made.mean) / made.scale).abs().max().item()
    return made


def widen(standardizer: Standardizer, train: Simulations, views: View | None) -> None:
    """Let a standardiser of earlier data know how far out those of a warm start lie."""
    if standardizer.largest is None:
        return
    for y in fixed_views(views, train.y):
        farthest = ((y.cpu() - standardizer.mean) / standardizer.scale).abs().max().item()
        standardizer.largest = max(standardizer.largest, farthest)


def _robust(sample: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return location, scale and limit of every column.

    Median and interquartile range replace mean and standard deviation where tails are heavy, that
    is, where a few values far away make up most of the standard deviation.
    """
    low, median, high = torch.as_tensor(np.quantile(sample.numpy(), [0.25, 0.5, 0.75], axis=0))
    typical = (high - low) / _NORMAL_QUARTILES
    heavy = (typical > 0) & (scale > _HEAVY * typical)
    if not heavy.any():
        return mean, scale, None
    return (
        torch.where(heavy, median, mean),
        torch.where(heavy, typical, scale),
        torch.where(heavy, _LIMIT, torch.inf),
    )


def _resolved(name: str, mean: Tensor, scale: Tensor, limit: Tensor | None = None) -> Standardizer:
    """Make a standardiser, and warn where float32 cannot resolve so small a spread."""
    coarse = (scale > 0) & (scale < _COARSEST * mean.abs())
    if coarse.any():
        warnings.warn(
            f"{name}: {int(coarse.sum())} entries vary by less than a hundred-thousandth of their "
            "size, which float32 cannot resolve well: subtract their common offset first",
            EandeWarning,
            stacklevel=7,
        )
    return Standardizer(mean, scale, limit)
