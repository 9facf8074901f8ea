"""Batches of training pairs, each drawn by (seed, epoch, step) so that training can be taken up again anywhere."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eande.core.seeds import generator
from eande.simulation.simulations import Simulations
from eande.simulation.views import View, draw_view


@dataclass(frozen=True)
class Batch:
    """One step's worth of pairs: parameters (M, D), a view of their data, another view if asked for, and group ids (M,)."""

    phi: Tensor
    y: Tensor
    y_view: Tensor | None
    groups: Tensor


class Batches:
    """Batches in which every group (every φ) occurs at most once.

    Replicates of one φ would be false negatives of each other, and would count that φ more often than the prior does:
    an epoch takes one random replicate of each φ.

    Args:
        simulations: the training simulations.
        views: what the encoder sees of a datum.
        batch_size: at most this many pairs per batch.
        two_views: whether a second view is drawn.
        seed: of the fit.
    """

    def __init__(self, simulations: Simulations, views: View | None, *, batch_size: int, two_views: bool, seed: int) -> None:
        self.simulations, self.views, self.two_views, self.seed = simulations, views, two_views, seed
        _, inverse, self._counts = simulations.groups.unique(return_inverse=True, return_counts=True)
        self._rows = inverse.argsort(stable=True)
        self._offsets = self._counts.cumsum(0) - self._counts
        self.steps = -(-len(self._counts) // batch_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        stream = generator(self.seed, "order", epoch)
        order = torch.randperm(len(self._counts), generator=stream)
        replicate = (torch.rand(len(order), generator=stream) * self._counts[order]).long()
        rows = self._rows[self._offsets[order] + replicate]
        for step, index in enumerate(rows.tensor_split(self.steps)):
            y = self.simulations.y[index]
            yield Batch(
                phi=self.simulations.phi[index],
                y=draw_view(self.views, y, self.seed, epoch, step, 0),
                y_view=draw_view(self.views, y, self.seed, epoch, step, 1) if self.two_views else None,
                groups=self.simulations.groups[index],
            )
