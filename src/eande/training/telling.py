"""Numbers of a datum that tell nothing of the parameters are turned down, or left out.

Of a vector of many numbers often few depend on the parameters. An encoder then over-fits to the
others. So numbers whose correlations with the parameters are not significant reach it at a
hundredth of their scale: they are not lost, but it has to insist.

Correlated are a number x or its distance from the mean |x|, with a parameter or its distance from
the mean; with the largest r² of these pairs, from N simulations, the weight of a number is

    1 − 2 log K / (N r²)   where that is positive, K the number of all pairs that are compared:

about the largest N r² of K pairs that have nothing to do with each other is 2 log K.

Of a series or a grid it may be the places that tell nothing: a stationary series is known by its
moments. A regression on moments is compared with one that also gets what the encoder knows of
places, each datum left out in turn.
"""

import math

import torch
from torch import Tensor

from eande.inference.model import EmbedAndEmulate
from eande.networks.convolutional import Convolutional
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View, fixed_views
from eande.training.linear import LinearFit, regressed

# What is turned down keeps this share of its scale.
_LEAST_WEIGHT = 0.01
# Fewer numbers than this that tell nothing do little harm.
_FEWEST_SILENT = 8
_LEAST_VARIANCE = 1e-12


class Correlations:
    """Sums over data, part by part, and the correlations with the parameters that they give.

    Args:
        z: standardised parameters of all data (N, D).
    """

    def __init__(self, z: Tensor) -> None:
        self._targets = torch.cat([_white(z), _white(z.abs())], dim=1)
        self._seen = 0
        # Of the numbers and of their distances from the mean: sums, squares and products.
        self._sums: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, x: Tensor) -> None:
        """Take in the next data (m, d), standardised."""
        targets = self._targets[self._seen : self._seen + len(x)]
        sums = [
            (form.sum(0), form.square().sum(0), form.T @ targets)
            for form in (x.double(), x.double().abs())
        ]
        if self._sums:
            pairs = zip(self._sums, sums, strict=True)
            sums = [(a + b, c + d, e + f) for (a, c, e), (b, d, f) in pairs]
        self._sums = sums
        self._seen += len(x)

    def weights(self) -> Tensor:
        """Return how much of what each number tells is beyond chance, (d,), from 0 to 1."""
        number = self._seen
        largest = torch.zeros(())
        varies = torch.zeros((), dtype=torch.bool)
        for total, squares, products in self._sums:
            variance = squares / number - (total / number).square()
            # The targets have mean 0 and variance 1.
            square = (products / number).square().amax(1) / variance.clamp(min=_LEAST_VARIANCE)
            largest = torch.maximum(largest, square)
            varies = varies | (variance > _LEAST_VARIANCE)
        pairs = len(self._sums) * self._targets.shape[1] * max(1, int(varies.sum()))
        by_chance = 2 * math.log(pairs) / number
        weights = ((largest - by_chance) / largest.clamp(min=by_chance)).clamp(min=0).float()
        # What never varies is nothing to over-fit to.
        return torch.where(varies, weights, 1.0)


def few_tell(weights: Tensor) -> bool:
    """Return whether some numbers tell something and most do not, so that it is worth the while."""
    silent = int((weights == 0).sum())
    return _FEWEST_SILENT <= silent < len(weights) and 2 * silent > len(weights)


def telling_weights(model: EmbedAndEmulate, train: Simulations, views: View | None) -> Tensor:
    """Return the weights of all numbers of data that are vectors, (d,)."""
    correlations = Correlations(model.phi_standardizer(train.phi))
    for y in fixed_views(views, train.y):
        # What is missing is nowhere in particular.
        correlations.add(model.y_standardizer(y.cpu()).nan_to_num())
    return correlations.weights()


def turn_down(model: EmbedAndEmulate, train: Simulations, views: View | None) -> None:
    """Let a model that was just made see little of the numbers that tell nothing."""
    weights = telling_weights(model, train, views)
    if few_tell(weights):
        model.y_standardizer.weight = weights.clamp(min=_LEAST_WEIGHT)


def places_tell(model: EmbedAndEmulate, train: Simulations, views: View | None) -> bool:
    """Return whether a regression leaves less when it knows where things are in series or grids."""
    assert isinstance(model.encoder, Convolutional)
    x, z = regressed(model, train, views)
    left = [LinearFit.of(part, z).residual.logdet() for part in (x, x[:, : model.encoder.moments])]
    return bool(left[0] < left[1])


def _white(values: Tensor) -> Tensor:
    """Return columns of mean 0 and variance 1, in float64."""
    centred = values.double() - values.double().mean(0)
    return centred / centred.var(0, correction=0).clamp(min=_LEAST_VARIANCE).sqrt()
