"""Collectors: where simulated blocks go, into memory or a store that workers have written to."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import InputError
from eande.simulation.read.parts import Failures
from eande.simulation.read.simulations import Simulations
from eande.simulation.run.blocks import SimulationError, block_sizes, summarize_reasons
from eande.simulation.run.jobs import Report

_DEFAULT_BLOCK_SIZE = 100
# Bytes that keeping track of a block takes, beside its simulations.
_BLOCK_BYTES = 500
# How often a block that was reported may be missing: another machine may see the folder late.
_MOST_UNSEEN = 3


class MemoryCollector:
    """Blocks kept in memory.

    Args:
        n: number of simulations.
        block_size: of each block, None for the default.
        names: of the parameters, None where nobody named them.
    """

    path = None
    open_store = None
    replaces: Mapping[int, str] = {}

    def __init__(
        self, n: int, block_size: int | None, names: tuple[str, ...] | None = None
    ) -> None:
        self._names = names
        size = block_size or _DEFAULT_BLOCK_SIZE
        # Each has at least a parameter and a number; how many more, the first block shows.
        self._overhead = _BLOCK_BYTES * (n // size)
        _check_memory(n, 8, self._overhead)
        self.sizes = block_sizes([n], size)
        self._starts = np.cumsum([0, *self.sizes]).tolist()
        self._phi: np.ndarray | None = None
        self._y: np.ndarray | None = None
        self._failed: dict[int, str] = {}

    def missing(self) -> list[int]:
        """Return the blocks that are not there yet."""
        return list(range(len(self.sizes)))

    def accept(self, report: Report) -> Iterable[str]:
        """Take in a block and return the reasons of its failures."""
        outcome = report.outcome
        assert outcome is not None
        n = self._starts[-1]
        start = self._starts[report.block]
        rows = slice(start, self._starts[report.block + 1])
        if self._phi is None:
            self._phi = _empty((n, outcome.phi.shape[1]))
        self._phi[rows] = outcome.phi
        if outcome.y is not None:
            if self._y is None:
                row = 4 * (outcome.phi[0].size + outcome.y[0].size)
                _check_memory(n, row, self._overhead)
                self._y = _empty((n, *outcome.y.shape[1:]))
            outcome = outcome.conform(self._y.shape[1:])
        if outcome.y is not None and self._y is not None:
            self._y[rows] = outcome.y
        self._failed |= {start + row: reason for row, reason in outcome.failed.items()}
        return outcome.failed.values()

    def simulations(self) -> Simulations:
        """Return everything."""
        if self._phi is None or self._y is None:
            reasons = summarize_reasons(self._failed.values())
            raise SimulationError(f"none of {self._starts[-1]} simulations succeeded: {reasons}")
        phi = torch.from_numpy(self._phi)
        y = torch.from_numpy(self._y)
        bad = sorted(self._failed)
        failures = Failures(phi[bad], tuple(self._failed[row] for row in bad))
        if bad:
            good = np.setdiff1d(np.arange(len(phi)), bad)
            phi = phi[good]
            y = y[good]
        return Simulations(phi, y, torch.arange(len(phi)), failures, self._names)


class StoreCollector:
    """Blocks in a store, which is made or extended; those who simulate them write them.

    Args:
        path: its folder.
        n: number of simulations.
        about: prior, simulator and seed.
        dimension: D.
        block_size: of each block, None for the store's own or the default.
        redo: what to simulate again, ``"damaged"`` blocks or ``"failed"`` rows.

    Attributes:
        replaces: by block to be simulated again, the version that is there.
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
        # Here and not above: without a store zarr is not needed, and need not be installed.
        from eande.simulation.store.zarr_store import Store

        self._store = Store.prepare(
            path,
            n,
            about,
            dimension=dimension,
            block_size=block_size,
            default_size=_DEFAULT_BLOCK_SIZE,
        )
        self.path = str(self._store.path)
        self.open_store = partial(Store, self.path)
        self.sizes = self._store.sizes
        self._unseen: Counter[int] = Counter()
        self.replaces: Mapping[int, str] = {}
        if redo is not None:
            self._store.settle()
            self._store.forget_shape()
            self.replaces = self._store.versions(redo=redo)

    def missing(self) -> list[int]:
        """Return the blocks that are not there yet, or are to be simulated again."""
        there = self._store.complete(without=self.replaces)
        return [block for block in range(len(self.sizes)) if block not in there]

    def accept(self, report: Report) -> Iterable[str] | None:
        """Make sure that a block is there and return the reasons of its failures, else None."""
        if self._store.record(report.block) is not None:
            return report.reasons
        self._unseen[report.block] += 1
        if self._unseen[report.block] >= _MOST_UNSEEN:
            raise SimulationError(
                f"block {report.block} was reported as written, but it is not in {self.path}: "
                "workers must see that folder"
            )
        return None

    def simulations(self) -> Simulations:
        """Return everything."""
        from eande.simulation.read.from_store import read_store

        # Only the blocks of this call: another process may have extended the store meanwhile.
        return Simulations(*read_store(self.path, blocks=len(self.sizes)))


def _check_memory(n: int, row: int, overhead: int) -> None:
    """Refuse simulations of so many bytes each that do not fit into the memory there is."""
    available = _available_memory()
    if n * row + overhead > available:
        raise InputError(
            f"n: expected simulations that fit into {available / 1e9:.3g} GB of memory, "
            f"got {n}, which take {(n * row + overhead) / 1e9:.3g} GB; store=… keeps them on disk"
        )


def _available_memory() -> int:
    """Return how many bytes this process may still take: of the machine, and of its own limit."""
    try:
        # Where the system says it: what is free or used for copies of files only.
        text = Path("/proc/meminfo").read_text()
        available = 1024 * int(text.partition("MemAvailable:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return available if limit == resource.RLIM_INFINITY else min(available, limit)


def _empty(shape: tuple[int, ...]) -> np.ndarray:
    try:
        return np.empty(shape, dtype=np.float32)
    except MemoryError:
        raise InputError(
            f"n: expected simulations that fit into memory, got an array of shape {shape}; "
            "store=… keeps them on disk"
        ) from None
