"""Numbers of a datum that tell nothing of the parameters are turned down.

Of a vector of many numbers often few depend on the parameters. An encoder then over-fits to the
others: with a thousand simulations, and twelve numbers of noise for each that tells something, it
learns a quarter of what it could. So numbers whose correlations with the parameters are not
significant reach it at a hundredth of their scale: they are not lost, but it has to insist.

Correlated are a number x or its distance from the mean |x|, with a parameter or its distance from
the mean; with the largest r² of these pairs, from N simulations, the weight of a number is

    1 − 2 log K / (N r²)   where that is positive, K the number of all pairs that are compared:

about the largest N r² of K pairs that have nothing to do with each other is 2 log K.
"""

import math

import torch
from torch import Tensor

from eande.inference.model import EmbedAndEmulate
from eande.networks.standardizer import Standardizer
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take
from eande.simulation.read.views import View, fixed_views

# What is turned down keeps this share of its scale.
_LEAST_WEIGHT = 0.01
# Fewer numbers than this that tell nothing do little harm.
_FEWEST_SILENT = 8
# Numbers of data that are looked at: more find little more.
_MOST_NUMBERS = 10**7
_LEAST_DEVIATION = 1e-12


def telling_weights(x: Tensor, z: Tensor) -> Tensor:
    """Return how much of what each number tells is beyond chance, (d,), from 0 to 1.

    Args:
        x: standardised data (N, d).
        z: standardised parameters (N, D).
    """
    targets = torch.cat([_white(z), _white(z.abs())], dim=1)
    pairs = 2 * targets.shape[1] * x.shape[1]
    largest = torch.zeros(x.shape[1])
    for form in (x, x.abs()):
        correlation = _white(form).T @ targets / len(x)
        largest = torch.maximum(largest, correlation.square().amax(1))
    by_chance = 2 * math.log(pairs) / len(x)
    return (1 - by_chance / largest.clamp(min=by_chance)).float()


def few_tell(weights: Tensor) -> bool:
    """Return whether some numbers tell something and most do not, so that it is worth the while."""
    silent = int((weights == 0).sum())
    return _FEWEST_SILENT <= silent < len(weights) and 2 * silent > len(weights)


def weights_of(model: EmbedAndEmulate, train: Simulations, views: View | None) -> Tensor:
    """Return the weights of all numbers of data that are vectors, (d,)."""
    rows = max(2, min(len(train), _MOST_NUMBERS // math.prod(model.y_shape)))
    y = torch.cat(list(fixed_views(views, take(train.y, slice(rows)))))
    # What is missing is nowhere in particular.
    x = model.y_standardizer(y).nan_to_num()
    return telling_weights(x, model.phi_standardizer(train.phi[:rows]))


def turn_down(model: EmbedAndEmulate, train: Simulations, views: View | None) -> None:
    """Let a model that was just made see little of the numbers that tell nothing."""
    weights = weights_of(model, train, views)
    if not few_tell(weights):
        return
    known = model.y_standardizer
    none = torch.zeros_like(weights)
    spread = none + 1 if known.spread is None else known.spread
    model.y_standardizer = Standardizer(
        known.mean,
        known.scale,
        none + torch.inf if known.limit is None else known.limit,
        none if known.centre is None else known.centre,
        spread / weights.clamp(min=_LEAST_WEIGHT),
        largest=known.largest,
    )


def _white(values: Tensor) -> Tensor:
    """Return columns of mean 0 and variance 1."""
    centred = values - values.mean(0)
    return centred / centred.std(0, correction=0).clamp(min=_LEAST_DEVIATION)
