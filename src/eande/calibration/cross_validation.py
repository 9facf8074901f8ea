"""Cross-validation over groups: folds that keep groups together, and gains with their errors."""

import torch
from torch import Tensor

from eande.foundations.seeds import generator


def folds(groups: Tensor, number: int = 5) -> Tensor:
    """Return the fold of every row, shape (m,); groups stay together."""
    inverse = groups.unique(return_inverse=True)[1]
    # In random order: parameters may come from a grid, whose period a fold must not share.
    order = torch.randperm(int(inverse.max()) + 1, generator=generator(0, "folds"))
    return order[inverse] % number


def gain(difference: Tensor, groups: Tensor) -> tuple[float, float]:
    """Return the mean of a difference of scores and its standard error.

    Data of one group are one draw, of any size.
    """
    inverse = groups.unique(return_inverse=True)[1]
    number = int(inverse.max()) + 1
    mean = difference.mean()
    sums = torch.zeros(number, dtype=torch.float64).index_add_(0, inverse, difference - mean)
    variance = sums.square().sum() * number / (number - 1)
    return mean.item(), variance.sqrt().item() / len(difference)


def within(difference: Tensor, groups: Tensor, errors: float) -> bool:
    """Return whether the mean of a difference is at most so many of its standard errors."""
    mean, error = gain(difference, groups)
    return mean <= errors * error
