"""Outliers among points: distance to the neighbours relative to the neighbours' own distances.

References:
    Breunig et al., *LOF: identifying density-based local outliers*, 2000;
    Vovk, *Cross-conformal predictors*, 2015.
"""

import torch
from torch import Tensor

from eande.calibration.cross_validation import folds

_NEIGHBOURS = 5
# Distances to all simulated data are computed for this many points at a time.
_ROWS_AT_ONCE = 1_000
# Keeps quotients of zeros finite.
_TINY = 1e-12


class Outliers:
    """Simulated data in folds, each scored against the other folds.

    A point that helped to define the neighbourhood would look less strange than a new one.

    Args:
        points: of simulated data (m, k), float64.
    """

    def __init__(self, points: Tensor) -> None:
        fold = folds(torch.arange(len(points)))
        self._neighbourhoods = [_Neighbourhood(points[fold != out]) for out in fold.unique()]
        self._own = [
            others.score(points[fold == out])
            for others, out in zip(self._neighbourhoods, fold.unique(), strict=True)
        ]

    def as_strange(self, points: Tensor) -> Tensor:
        """Return how many simulated data are at least as strange as each point, (m,)."""
        counts = [
            count_reaching(own, others.score(points))
            for others, own in zip(self._neighbourhoods, self._own, strict=True)
        ]
        return torch.stack(counts).sum(0)


def count_reaching(reference: Tensor, scores: Tensor) -> Tensor:
    """Return how many scores of the reference are at least as high as each score, (m,).

    Example:
        >>> count_reaching(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0]))
        tensor([2, 0])
    """
    return (reference >= scores.unsqueeze(1)).sum(1)


class _Neighbourhood:
    """Standardised points, with a score for others.

    The score is the distance to the fifth neighbour over the mean of the neighbours' own.
    """

    def __init__(self, points: Tensor) -> None:
        self.mean = points.mean(0)
        deviation = points.std(0)
        size = self.mean.abs()
        # What never varies in simulations must not vary in data either, but rounding may.
        varies = deviation > 1e-6 * size + _TINY
        self.scale = torch.where(varies, deviation, size.clamp(min=1.0))
        self.points = self._standardize(points)
        # The nearest of all is the point itself.
        reaches = [
            torch.cdist(part, self.points).kthvalue(_NEIGHBOURS + 1, dim=1).values
            for part in self.points.split(_ROWS_AT_ONCE)
        ]
        self.reach = torch.cat(reaches)

    def _standardize(self, points: Tensor) -> Tensor:
        return (points - self.mean) / self.scale

    def score(self, points: Tensor) -> Tensor:
        scores = []
        for part in self._standardize(points).split(_ROWS_AT_ONCE):
            nearest, which = torch.cdist(part, self.points).topk(_NEIGHBOURS, largest=False)
            scores.append(nearest[:, -1] / (self.reach[which].mean(1) + _TINY))
        return torch.cat(scores)
