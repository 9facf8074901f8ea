"""Standardisation of the networks' inputs, in coordinates that suit them.

What lies on a half-line and spans decades goes through its logarithm, what has heavy tails on both
sides is brought in, all else is shifted and scaled. The maps are chosen by the training data and,
for parameters, by the prior's support, and are stored with the model.
"""

import warnings
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning
from eande.foundations.seeds import generator
from eande.networks.standardizer import Standardizer
from eande.priors.prior import Prior
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View, fixed_views

# A spread of this share of the mean is a few hundred units in the last place of float32.
_COARSEST = 1e-5
# Tails are heavy if the standard deviation is so many times the one estimated by the quartiles.
_HEAVY = 3.0
# The interquartile range of a normal distribution, in standard deviations.
_NORMAL_QUARTILES = 1.349
# Data of one sign span decades if the range of all but one in a hundred is so many times that
# between the quartiles: 3.8 for a normal distribution, 4.8 for an exponential one, 9 for a
# log-normal one of log deviation 1.
_WIDE = 6.0
# Such data are taken by their logarithm from this quantile of their sizes on, if the largest are
# ten times as large; parameters from the other, or from this share of their median.
_SMALLEST_DATA = 0.01
_SMALLEST_PHI = 0.001
_SMALLEST_SHARE = 1e-4
# Parameters of a prior without a known support are taken by their logarithm if all are positive,
# those at these quantiles are so many times apart, and their logarithm is the more symmetric.
_TAILS = (0.05, 0.5, 0.95)
_APART = 10.0
# A bent number is linear up to so many scales, and from there on a logarithm.
_LIMIT = 1.0
# Quantiles are taken of so many values at most.
_MOST_VALUES = 4_000_000


class _Map(NamedTuple):
    """The tensors of a standardiser, as it takes them."""

    mean: Tensor
    scale: Tensor
    limit: Tensor | None = None
    centre: Tensor | None = None
    spread: Tensor | None = None

    def shaped(self, shape: tuple[int, ...]) -> "_Map":
        """Return the same with tensors of another shape."""
        further = [None if x is None else x.view(shape) for x in self[2:]]
        return _Map(self.mean.view(shape), self.scale.view(shape), *further)


def standardize_phi(train: Simulations, prior: Prior, *, natural: bool = True) -> Standardizer:
    """Standardise each parameter, by the prior's moments or else by those of the simulations.

    Where the prior's support is not known, that is, for a prior known by its draws only, a
    parameter is taken by its logarithm if all draws are positive, their 5 % and 95 % quantiles are
    more than ten times apart, and the logarithm is distributed the more symmetrically of the two.

    Args:
        train: the simulations to train on.
        prior: of the parameters.
        natural: whether parameters on a half-line are taken by their logarithm, and those of heavy
            tails are brought in.
    """
    phi = train.phi.double()
    known = prior.location_and_scale()
    mean, scale = (phi.mean(0), phi.std(0, correction=0)) if known is None else known
    if not natural:
        return _resolved("phi", _Map(mean, scale))
    ends = prior.half_lines()
    if ends is None:
        ends = torch.where(_looks_positive(phi), 0.0, -torch.inf)
    on_half_line = ends > -torch.inf
    origin = torch.where(on_half_line, ends, 0.0).double()
    smallest, middle = _quantiles(phi - origin, (_SMALLEST_PHI, 0.5))
    smallest = smallest.maximum(_SMALLEST_SHARE * middle)
    on_half_line &= smallest > 0
    heavy, median, typical = _heavy_tails(phi, scale)
    # A distribution whose moments are known has no heavy tails.
    heavy &= ~on_half_line if known is None else False
    bent = _bent(
        phi,
        _where(on_half_line, (origin, smallest), _where(heavy, (median, typical), (mean, scale))),
        on_half_line | heavy,
    )
    return _resolved("phi", bent)


def _looks_positive(phi: Tensor) -> Tensor:
    """Return of every parameter whether its draws are more natural as logarithms, (D,)."""
    positive = (phi > 0).all(0)
    logs = torch.where(positive, phi, 1.0).log()
    skew = []
    for values in (phi, logs):
        low, median, high = _quantiles(values, _TAILS)
        skew.append((high + low - 2 * median).abs() / (high - low).clamp(min=1e-300))
    low, _, high = _quantiles(phi, _TAILS)
    return positive & (high > _APART * low) & (skew[1] < skew[0])


class Standardized(Enum):
    """Which numbers of a datum are standardised together."""

    ENTRIES = "each by itself"
    CHANNELS = "those of one entry of the first axis"
    COLUMNS = "those of one entry of the second axis, all where there is none"
    ONE_CHANNEL = "all: they are one channel"
    WHOLE = "all, whatever they are"

    def table(self, y: Tensor) -> Tensor:
        """Return data (m, …) as a table with a column for all that belongs together."""
        if self is Standardized.ENTRIES:
            return y.flatten(1)
        if self is Standardized.CHANNELS:
            return y.transpose(0, 1).flatten(1).T
        if self is Standardized.COLUMNS and y.ndim > 2:
            return y.flatten(0, 1).flatten(1)
        return y.reshape(-1, 1)

    def shape(self, y_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape in which one number a column goes with a datum."""
        if self is Standardized.ENTRIES:
            return tuple(y_shape)
        if self is Standardized.CHANNELS:
            return (y_shape[0], *[1] * (len(y_shape) - 1))
        if self is Standardized.COLUMNS:
            return tuple(y_shape[1:]) or (1,)
        return (1,) * len(y_shape)


def standardize_y(
    train: Simulations, views: View | None, together: Standardized, *, natural: bool = True
) -> Standardizer:
    """Standardise data; what is missing (NaN) is not counted.

    Entries, channels and columns of one sign that span decades are taken by their logarithm, zeros
    kept; entries of vectors and columns of sets of heavy tails are brought in. A channel of both
    signs keeps its outliers: a few extreme places may be what matters in it; and a field for a
    user's encoder is left as it is.

    Args:
        train: the simulations to train on.
        views: what the encoder sees of a datum.
        together: which numbers of a datum have one mean and one scale.
        natural: whether there are logarithms at all.
    """
    natural = natural and together is not Standardized.WHOLE
    count = torch.zeros(())
    total = torch.zeros(())
    squares = torch.zeros(())
    shift: Tensor | None = None
    low = torch.full((), torch.inf)
    high = torch.full((), -torch.inf)
    sample: list[Tensor] = []
    shape: tuple[int, ...] = ()
    for y in map(Tensor.double, fixed_views(views, train.y)):
        shape = together.shape(y.shape[1:])
        table = together.table(y)
        seen = ~table.isnan()
        if shift is None:
            # Subtracting the first rows' mean avoids cancellation where there is a large offset.
            shift = table.nanmean(0).nan_to_num()
        shifted = (table - shift).nan_to_num()
        count = count + seen.sum(0)
        total = total + shifted.sum(0)
        squares = squares + (shifted**2).sum(0)
        low = torch.minimum(low, table.masked_fill(~seen, torch.inf).amin(0))
        high = torch.maximum(high, table.masked_fill(~seen, -torch.inf).amax(0))
        if natural:
            # Quantiles need only some of the numbers, from everywhere.
            share = min(1.0, _MOST_VALUES / (len(train) * y[0].numel()))
            sample.append(_some(table, share, len(sample)).cpu())
    assert shift is not None
    count = count.clamp(min=1)
    shifted_mean = total / count
    variance = squares / count - shifted_mean**2
    chosen = _Map((shift + shifted_mean).cpu(), variance.clamp(min=0).sqrt().cpu())
    # Where nothing was ever seen, at the mean.
    never = low > high
    ends = torch.stack([torch.where(never, shift, low), torch.where(never, shift, high)]).cpu()
    if natural:
        one_sign = (ends[0] >= 0) | (ends[1] <= 0)
        tails = together in (Standardized.ENTRIES, Standardized.COLUMNS)
        chosen = _bent_data(torch.cat(sample), chosen, one_sign, both_sides=tails)
    made = _resolved("y", chosen.shaped(shape))
    made.largest = made(ends.view(2, *shape)).abs().max().item()
    return made


def widen(standardizer: Standardizer, train: Simulations, views: View | None) -> None:
    """Let a standardiser of earlier data know how far out those of a warm start lie."""
    if standardizer.largest is None:
        return
    for y in fixed_views(views, train.y):
        farthest = standardizer.farthest(y.cpu()).max().item()
        standardizer.largest = max(standardizer.largest, farthest)


def _some(rows: Tensor, share: float, part: int) -> Tensor:
    """Return a random share of rows."""
    if share == 1:
        return rows
    count = max(1, round(share * len(rows)))
    index = torch.randint(len(rows), (count,), generator=generator(0, "quantiles", part))
    return rows[index.to(rows.device)]


def _bent_data(sample: Tensor, plain: _Map, one_sign: Tensor, *, both_sides: bool) -> _Map:
    """Return the map of every column of a sample (n, d) of data.

    Args:
        sample: some of the data.
        plain: mean and standard deviation of all of them.
        one_sign: which columns are nowhere negative, or nowhere positive.
        both_sides: whether columns of both signs may have heavy tails.
    """
    lowest, first, third, highest = _quantiles(sample, (0.005, 0.25, 0.75, 0.995))
    decades = one_sign & (highest - lowest > _WIDE * (third - first))
    smallest = torch.ones_like(lowest)
    for column in decades.nonzero().flatten().tolist():
        sizes = sample[:, column].abs()
        smallest[column] = np.quantile(sizes[sizes > 0].numpy(), _SMALLEST_DATA)
    # Far from zero there are no decades, however wide the tails.
    decades &= highest.abs().maximum(lowest.abs()) > _APART * smallest
    heavy, median, typical = _heavy_tails(sample, plain.scale)
    heavy &= ~decades if both_sides else False
    origin = torch.zeros_like(lowest)
    tails = _where(heavy, (median, typical), (plain.mean, plain.scale))
    return _bent(sample, _where(decades, (origin, smallest), tails), decades | heavy)


def _heavy_tails(sample: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return which columns have heavy tails, their median and the spread of their middle.

    Tails are heavy where a few values far away make up most of the standard deviation.
    """
    low, median, high = _quantiles(sample, (0.25, 0.5, 0.75))
    typical = (high - low) / _NORMAL_QUARTILES
    return (typical > 0) & (scale > _HEAVY * typical), median, typical


def _bent(sample: Tensor, location_and_scale: tuple[Tensor, Tensor], bent: Tensor) -> _Map:
    """Return the map that bends some columns of a sample, and standardises what comes of them."""
    mean, scale = location_and_scale
    if not bent.any():
        return _Map(mean, scale)
    limit = torch.where(bent, _LIMIT, torch.inf)
    values = Standardizer(mean, scale, limit)(sample)
    centre = values.nanmean(0)
    spread = (values - centre).square().nanmean(0).sqrt()
    return _Map(mean, scale, limit, torch.where(bent, centre, 0.0), torch.where(bent, spread, 1.0))


def _where(
    chosen: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return location and scale of the first where chosen, else those of the second."""
    return torch.where(chosen, first[0], second[0]), torch.where(chosen, first[1], second[1])


def _quantiles(values: Tensor, shares: tuple[float, ...]) -> Tensor:
    """Return quantiles of every column, (k, d), of what is not missing; zero where all is."""
    if not values.isnan().any():
        return torch.as_tensor(np.quantile(values.numpy(), shares, axis=0))
    found = torch.zeros(len(shares), values.shape[1], dtype=values.dtype)
    for column, numbers in enumerate(values.T):
        seen = numbers[~numbers.isnan()]
        if len(seen):
            found[:, column] = torch.as_tensor(np.quantile(seen.numpy(), shares))
    return found


def _resolved(name: str, chosen: _Map) -> Standardizer:
    """Make a standardiser, and warn where float32 cannot resolve so small a spread."""
    coarse = (chosen.scale > 0) & (chosen.scale < _COARSEST * chosen.mean.abs())
    if chosen.limit is not None:
        coarse &= chosen.limit.isinf()
    if coarse.any():
        warnings.warn(
            f"{name}: {int(coarse.sum())} entries vary by less than a hundred-thousandth of their "
            "size, which float32 cannot resolve well: subtract their common offset first",
            EandeWarning,
            stacklevel=7,
        )
    return Standardizer(*chosen)
