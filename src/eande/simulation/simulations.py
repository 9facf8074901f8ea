"""Simulations: pairs of parameters and data, what training reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.core.checks import InputError, as_float_tensor, check_at_least, check_finite, check_shape
from eande.core.seeds import generator

_ROWS_AT_ONCE = 1_024


class Simulations:
    """Pairs (φ_i, y_i), with a group id each: simulations of the same φ (replicates, ensemble members) share one.

    Args:
        phi: parameters (n, D), float32.
        y: data, first axis n; anything that gives rows for an integer array.
        groups: (n,) integers; every simulation is its own group by default.

    Example:
        >>> simulations = Simulations.from_arrays(np.zeros((4, 2)), np.ones((4, 3)))
        >>> len(simulations), simulations.y_shape
        (4, (3,))
    """

    def __init__(self, phi: Tensor, y: Any, groups: Tensor) -> None:
        self.phi, self.y, self.groups = phi, y, groups

    @classmethod
    def from_arrays(cls, phi: Any, y: Any, *, groups: Any = None) -> Simulations:
        """Take parameters (n, D) and data (n, …) you already have; rows with equal ``groups`` are simulations of one φ."""
        phi, y = as_float_tensor("phi", phi), as_float_tensor("y", y)
        check_shape("phi", phi, ("n", "D"))
        if y.ndim < 2:
            raise InputError(f"y: expected shape (n, …) with at least one axis per datum, got {tuple(y.shape)}")
        if len(phi) != len(y):
            raise InputError(f"phi and y: expected the same length, got {len(phi)} and {len(y)}")
        check_at_least("number of simulations", len(phi), 1)
        check_finite("phi", phi)
        check_finite("y", y)
        return cls(phi, y, _as_groups(groups, phi))

    def __len__(self) -> int:
        """Return the number of simulations."""
        return len(self.phi)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of one datum as stored."""
        return tuple(self.y.shape[1:])

    def __getitem__(self, index: Tensor | Sequence[int] | slice) -> Simulations:
        """Return the chosen simulations."""
        return Simulations(self.phi[index], self.y[index], self.groups[index])

    def split(self, fraction: float, *, seed: int) -> tuple[Simulations, Simulations]:
        """Split at random into a large and a small part of that fraction; a group is never divided."""
        if not 0 < fraction < 1:
            raise InputError(f"validation: expected a fraction between 0 and 1, got {fraction}")
        ids = self.groups.unique()
        check_at_least("number of different parameters to split", len(ids), 2)
        count = min(max(1, round(fraction * len(ids))), len(ids) - 1)
        chosen = ids[torch.randperm(len(ids), generator=generator(seed, "split"))[:count]]
        small = torch.isin(self.groups, chosen)
        return self[(~small).nonzero()[:, 0]], self[small.nonzero()[:, 0]]

    def fingerprint(self) -> str:
        """Return a short text that changes with the data: sizes, and sums over all φ and a spread of rows of y."""
        rows = torch.linspace(0, len(self) - 1, min(len(self), _ROWS_AT_ONCE)).long()
        position = torch.arange(1, len(self) + 1, dtype=torch.float64)
        phi = (position @ self.phi.double().sum(1)).item()
        y = (torch.arange(1, len(rows) + 1, dtype=torch.float64) @ self.y[rows].double().flatten(1).sum(1)).item()
        return f"{len(self)} x {self.y_shape} phi {phi!r} y {y!r}"


def _as_groups(groups: Any, phi: Tensor) -> Tensor:
    if groups is None:
        return torch.arange(len(phi))
    ids = torch.as_tensor(np.unique(np.asarray(groups), return_inverse=True)[1])
    check_shape("groups", ids, (len(phi),))
    order = ids.argsort(stable=True)
    same = ids[order][1:] == ids[order][:-1]
    differ = same & (phi[order][1:] != phi[order][:-1]).any(1)
    if differ.any():
        where = int(order[1:][differ][0])
        raise InputError(f"groups: expected equal phi within a group, got another phi in row {where} (group {np.asarray(groups)[where]})")
    return ids
