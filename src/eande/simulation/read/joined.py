"""Several sets of simulations as one, data where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import InputError, show_shape
from eande.simulation.read.parts import Failures
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import Source, as_index, digest


def join(parts: Sequence[Simulations]) -> Simulations:
    """Return simulations of different φ as one set; the groups of each stay their own.

    Data are in memory where all of them were, and are read when asked for otherwise.

    Args:
        parts: at least one, of equal shapes; the names are the first one's.
    """
    shapes = {(part.phi.shape[1], *part.y_shape) for part in parts}
    if len(shapes) > 1:
        raise InputError(
            f"simulations: expected data of one shape, got {show_shape(parts[0].y_shape)} and "
            + show_shape(next(one.y_shape for one in parts if one.y_shape != parts[0].y_shape))
        )
    groups = []
    first = 0
    for part in parts:
        groups.append(part.groups - _least(part.groups) + first)
        first += _most(groups[-1], first)
    data = [part.y for part in parts]
    together = [one for one in data if isinstance(one, Tensor)]
    y = torch.cat(together) if len(together) == len(data) else JoinedSource.of(data)
    failures = Failures(
        torch.cat([part.failures.phi for part in parts]),
        tuple(reason for part in parts for reason in part.failures.reasons),
    )
    phi = torch.cat([part.phi for part in parts])
    return Simulations(phi, y, torch.cat(groups), failures, parts[0].names)


def _least(groups: Tensor) -> int:
    return int(groups.min()) if len(groups) else 0


def _most(groups: Tensor, first: int) -> int:
    """Return how many numbers groups from ``first`` on take up."""
    return int(groups.max()) + 1 - first if len(groups) else 0


class JoinedSource(Source):
    """Data of several origins, one after the other.

    Args:
        parts: the origins, tensors (n, …) or sources.
        rows: of the parts joined, those that are here.
    """

    def __init__(self, parts: Sequence[Tensor | Source], rows: np.ndarray) -> None:
        super().__init__(rows, tuple(parts[0].shape[1:]))
        self._parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in parts])

    @classmethod
    def of(cls, parts: Sequence[Tensor | Source]) -> JoinedSource:
        """Join all data of the parts."""
        return cls(parts, np.arange(sum(len(part) for part in parts)))

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read a range of one datum into ``out``."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        part = self._parts[number]
        own = row - int(self._ends[number]) + len(part)
        if isinstance(part, Source):
            part.read(int(part.rows[own]), start, stop, out)
        else:
            out[...] = part[own, start:stop].numpy()

    def subset(self, index: Any) -> JoinedSource:
        """Return the source of the chosen data."""
        return JoinedSource(self._parts, self.rows[as_index(index)])

    def fingerprint(self) -> str:
        """Return a text that changes with the data."""
        own = [one.fingerprint() if isinstance(one, Source) else digest(one) for one in self._parts]
        return f"{digest(torch.from_numpy(self.rows))} of {'; '.join(own)}"
