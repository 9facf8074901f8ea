"""Batches of training pairs.

A batch is determined by the seed and its step, so that training can be resumed at any step.
"""

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from eande.foundations.seeds import generator
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import Source
from eande.simulation.read.views import View, draw_view
from eande.training.settings import FitSettings


@dataclass(frozen=True)
class Batch:
    """The pairs of one step.

    Args:
        phi: parameters (M, D).
        y: a view of their data.
        y_view: another view, None unless two are wanted.
        groups: ids of the parameters (M,).
        failed_phi: parameters (k, D) whose simulation failed, in the proportion in which
            simulations fail.
    """

    phi: Tensor
    y: Tensor
    y_view: Tensor | None
    groups: Tensor
    failed_phi: Tensor


class Batches:
    """An endless sequence of batches: passes over the simulations, each in an order of its own.

    A pass takes one random replicate of each group (of each φ). Several replicates would be false
    negatives of each other, and would give that φ more weight than the prior does.

    Args:
        simulations: the training simulations.
        views: what the encoder sees of a datum.
        batch_size: at most this many pairs per batch; a pass is cut into equal batches.
        steps_per_epoch: length of an epoch; None for one pass.
        two_views: whether a second view is drawn.
        seed: of the fit.
        bank: number of past pairs that serve as further negatives.
    """

    def __init__(
        self,
        simulations: Simulations,
        views: View | None,
        *,
        batch_size: int,
        steps_per_epoch: int | None,
        two_views: bool,
        seed: int,
        bank: int = 0,
    ) -> None:
        self.simulations = simulations
        self.views = views
        self.two_views = two_views
        self.bank = bank
        self.seed = seed
        _, inverse, self._counts = simulations.groups.unique(
            return_inverse=True, return_counts=True
        )
        self._rows = inverse.argsort(stable=True)
        self._offsets = self._counts.cumsum(0) - self._counts
        groups = len(self._counts)
        # At least two pairs per batch: one alone would have no negative.
        self.per_pass = max(1, min(math.ceil(groups / batch_size), groups // 2))
        self.steps_per_epoch = steps_per_epoch or self.per_pass
        self._pass: tuple[int, tuple[Tensor, ...]] = (-1, ())
        self._reader = ThreadPoolExecutor(1)
        self._read_ahead: dict[int, Future[Batch]] = {}

    @classmethod
    def of(cls, simulations: Simulations, views: View | None, settings: FitSettings) -> Self:
        """Make the batches of a run, whose settings leave nothing open."""
        assert settings.batch_size is not None
        return cls(
            simulations,
            views,
            batch_size=settings.batch_size,
            steps_per_epoch=settings.steps_per_epoch,
            two_views=settings.view_weight > 0,
            bank=settings.memory_bank,
            seed=settings.seed,
        )

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch.

        Data on disk are read one batch ahead, while the networks run.
        """
        steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
        if not isinstance(self.simulations.y, Source):
            yield from map(self._batch, steps)
            return
        for step in steps:
            batch = self._read_ahead.pop(step, None) or self._reader.submit(self._batch, step)
            self._read_ahead = {step + 1: self._reader.submit(self._batch, step + 1)}
            yield batch.result()

    def _batch(self, step: int) -> Batch:
        index = self._order(step // self.per_pass)[step % self.per_pass]
        rows = self.simulations.rows(index)
        return Batch(
            phi=self.simulations.phi[index],
            y=draw_view(self.views, rows, self.seed, step, 0),
            y_view=draw_view(self.views, rows, self.seed, step, 1) if self.two_views else None,
            groups=self.simulations.groups[index],
            failed_phi=self._failed(step, len(index)),
        )

    def _failed(self, step: int, size: int) -> Tensor:
        """Return failed parameters to go with the negatives of a batch of that size, (k, D).

        Their proportion is that of failures among all simulations: k is rounded up or down at
        random, so that its mean over steps is exact.
        """
        failed = self.simulations.failures.phi
        negatives = size - 1 + min(self.bank, step * size)
        stream = generator(self.seed, "failed", step)
        expected = len(failed) / len(self._counts) * negatives
        count = int(expected + torch.rand((), generator=stream).item())
        if count == 0:
            return failed[:0]
        # With a large bank, more are needed than there are: repeat all of them equally often.
        passes = math.ceil(count / len(failed))
        rows = [torch.randperm(len(failed), generator=stream) for _ in range(passes)]
        return failed[torch.cat(rows)[:count]]

    def _order(self, number: int) -> tuple[Tensor, ...]:
        """Return the rows of each batch of a pass; the latest pass is cached."""
        if self._pass[0] != number:
            stream = generator(self.seed, "order", number)
            groups = torch.randperm(len(self._counts), generator=stream)
            replicate = (torch.rand(len(groups), generator=stream) * self._counts[groups]).long()
            rows = self._rows[self._offsets[groups] + replicate]
            self._pass = (number, rows.tensor_split(self.per_pass))
        return self._pass[1]
