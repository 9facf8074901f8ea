"""Where blocks go that have been simulated: into memory, or a store that has them already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.simulation.read.simulations import Failures, Simulations, in_words
from eande.simulation.run.blocks import Outcome, SimulationError, block_sizes
from eande.simulation.run.workers import Report

_BLOCK_SIZE = 100
# So often a block that was reported may be missing: another process may have taken it back to simulate it again.
_UNSEEN_AT_MOST = 3


class Memory:
    """Blocks kept in memory.

    Args:
        n: number of simulations.
        block_size: of each block, None for the usual.
    """

    path = None

    def __init__(self, n: int, block_size: int | None) -> None:
        self.sizes = block_sizes([n], int(block_size or _BLOCK_SIZE))
        self._starts = np.cumsum([0, *self.sizes])
        self._phi: np.ndarray | None = None
        self._y: np.ndarray | None = None
        self._failed: dict[int, str] = {}

    def missing(self) -> list[int]:
        """Return the blocks that are not there yet."""
        return list(range(len(self.sizes)))

    def accept(self, report: Report) -> Iterable[str]:
        """Take in a block and return the reasons of its failures."""
        assert report.outcome is not None
        outcome: Outcome = report.outcome
        n, rows = (
            int(self._starts[-1]),
            slice(self._starts[report.block], self._starts[report.block + 1]),
        )
        if self._phi is None:
            self._phi = np.empty((n, outcome.phi.shape[1]), dtype=np.float32)
        self._phi[rows] = outcome.phi
        if outcome.y is not None:
            if self._y is None:
                self._y = np.empty((n, *outcome.y.shape[1:]), dtype=np.float32)
            outcome = outcome.conform(self._y.shape[1:])
        if outcome.y is not None and self._y is not None:
            self._y[rows] = outcome.y
        self._failed |= {
            int(self._starts[report.block]) + row: reason for row, reason in outcome.failed.items()
        }
        return outcome.failed.values()

    def simulations(self) -> Simulations:
        """Return everything."""
        if self._phi is None or self._y is None:
            raise SimulationError(
                f"none of {self._starts[-1]} simulations succeeded: {in_words(self._failed.values())}"
            )
        bad = sorted(self._failed)
        phi, y = torch.from_numpy(self._phi), torch.from_numpy(self._y)
        failures = Failures(phi[bad], tuple(self._failed[row] for row in bad))
        if bad:
            good = np.setdiff1d(np.arange(len(phi)), bad)
            phi, y = phi[good], y[good]
        return Simulations(phi, y, torch.arange(len(phi)), failures)


class Stored:
    """Blocks in a store, which is made or extended.

    Args:
        path: its folder.
        n: number of simulations.
        about: prior, simulator and seed.
        dimension: D.
        block_size: of each block, None for the store's own or the usual.
        redo: what to simulate again, ``"damaged"`` or ``"failed"`` blocks.
    """

    def __init__(
        self,
        path: str | Path,
        n: int,
        about: dict[str, Any],
        dimension: int,
        block_size: int | None,
        redo: str | None,
    ) -> None:
        from eande.simulation.store.store import Store

        self._store = Store.prepare(
            path, n, about, dimension=dimension, block_size=block_size, default_size=_BLOCK_SIZE
        )
        self.path, self.sizes = str(self._store.path), self._store.sizes
        self._unseen: Counter[int] = Counter()
        if redo is not None:
            damaged = list(self._store.check()) if redo == "damaged" else []
            failed = (
                [block for block, record in self._store.records().items() if record.failed]
                if redo == "failed"
                else []
            )
            self._store.discard(damaged + failed)

    def missing(self) -> list[int]:
        """Return the blocks that are not there yet."""
        there = self._store.records()
        return [block for block in range(len(self.sizes)) if block not in there]

    def accept(self, report: Report) -> Iterable[str] | None:
        """Make sure that a block is there and return the reasons of its failures; None if it is not."""
        if self._store.record(report.block) is None:
            self._unseen[report.block] += 1
            if self._unseen[report.block] >= _UNSEEN_AT_MOST:
                raise SimulationError(
                    f"block {report.block} was reported as written, but it is not in {self.path}: workers must see that folder"
                )
            return None
        return report.reasons

    def simulations(self) -> Simulations:
        """Return everything."""
        from eande.simulation.read.stored import open_store

        # Another process may have extended the store meanwhile.
        return open_store(self.path, blocks=len(self.sizes))
