"""Batches of training pairs, each determined by the seed and its step, so that training can be taken up again anywhere."""

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
    """One step's worth of pairs.

    Args:
        phi: parameters (M, D).
        y: a view of their data.
        y_view: another view, if asked for.
        groups: ids of the parameters (M,).
        failed_phi: parameters (k, D) whose simulation failed, as many as go with M that succeeded
            and with the memory bank.
    """

    phi: Tensor
    y: Tensor
    y_view: Tensor | None
    groups: Tensor
    failed_phi: Tensor


class Batches:
    """An endless sequence of batches: passes over the simulations, each in an order of its own.

    Every group (every φ) occurs at most once in a pass. Replicates of one φ would be false
    negatives of each other, and would count that φ more often than the prior does: a pass takes one
    random replicate of each φ.

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
        self.simulations, self.views, self.two_views, self.bank, self.seed = (
            simulations,
            views,
            two_views,
            bank,
            seed,
        )
        _, inverse, self._counts = simulations.groups.unique(
            return_inverse=True, return_counts=True
        )
        self._rows = inverse.argsort(stable=True)
        self._offsets = self._counts.cumsum(0) - self._counts
        # A batch of one pair would have no negative.
        self.per_pass = max(1, min(-(-len(self._counts) // batch_size), len(self._counts) // 2))
        self.steps_per_epoch = steps_per_epoch or self.per_pass
        self._pass: tuple[int, tuple[Tensor, ...]] = (-1, ())
        self._reader = ThreadPoolExecutor(1)
        self._following: dict[int, Future[Batch]] = {}

    @classmethod
    def of(cls, simulations: Simulations, views: View | None, settings: FitSettings) -> Self:
        """Make the batches of a fit."""
        return cls(
            simulations, views, batch_size=settings.batch_size, steps_per_epoch=settings.steps_per_epoch, two_views=settings.view_weight > 0,
            bank=settings.memory_bank, seed=settings.seed,
        )  # fmt: skip

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; data that lie on disk are read one batch ahead, while the networks run."""
        steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
        if not isinstance(self.simulations.y, Source):
            yield from map(self._batch, steps)
            return
        for step in steps:
            ready = self._following.pop(step, None) or self._reader.submit(self._batch, step)
            self._following = {step + 1: self._reader.submit(self._batch, step + 1)}
            yield ready.result()

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
        """Return failed parameters in the proportion in which they occur among the negatives, on average over steps exactly."""
        failed = self.simulations.failures.phi
        negatives = size - 1 + min(self.bank, step * size)
        stream = generator(self.seed, "failed", step)
        number = int(
            len(failed) / len(self._counts) * negatives + torch.rand((), generator=stream).item()
        )
        # Every one as often as the others, up to one: a large bank asks for more than there are.
        passes = [
            torch.randperm(len(failed), generator=stream)
            for _ in range(-(-number // max(1, len(failed))))
        ]
        return failed[torch.cat(passes)[:number]] if passes else failed[:0]

    def _order(self, number: int) -> tuple[Tensor, ...]:
        """Return the rows of each batch of a pass; the latest pass is remembered."""
        if self._pass[0] != number:
            stream = generator(self.seed, "order", number)
            groups = torch.randperm(len(self._counts), generator=stream)
            replicate = (torch.rand(len(groups), generator=stream) * self._counts[groups]).long()
            self._pass = (
                number,
                self._rows[self._offsets[groups] + replicate].tensor_split(self.per_pass),
            )
        return self._pass[1]
