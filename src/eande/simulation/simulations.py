"""Simulations: pairs of parameters and data, what training reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.core.checks import InputError, as_float_tensor, check_count, check_finite, check_shape
from eande.core.seeds import generator

_ROWS_IN_FINGERPRINT = 1_024


class Simulations:
    """Pairs (φ_i, y_i), with a group id each: simulations of the same φ (replicates, ensemble members) share one.

    Made by :func:`eande.simulate`, or from arrays you have by :meth:`from_arrays`.

    Args:
        phi: parameters (n, D), float32.
        y: data, first axis n; anything that gives rows for an integer array.
        groups: (n,) integers.

    Example:
        >>> simulations = Simulations.from_arrays(np.zeros((4, 2)), np.ones((4, 3)))
        >>> len(simulations), simulations.y_shape
        (4, (3,))
    """

    def __init__(self, phi: Tensor, y: Any, groups: Tensor) -> None:
        self.phi, self.y, self.groups = phi, y, groups

    @classmethod
    def from_arrays(cls, phi: Any, y: Any, *, groups: Any = None) -> Simulations:
        """Take parameters (n, D) and data (n, …) you already have; float32 data are not copied.

        Args:
            phi: parameters.
            y: data.
            groups: rows with equal entries are simulations of one φ.
        """
        phi, y = as_float_tensor("phi", phi).cpu().clone(), as_float_tensor("y", y)
        check_shape("phi", phi, ("n", "D"))
        if y.ndim < 2 or y[:1].numel() == 0 < len(y):
            raise InputError(f"y: expected shape (n, …) with at least one number per datum, got {tuple(y.shape)}")
        if len(phi) != len(y):
            raise InputError(f"phi and y: expected the same length, got {len(phi)} and {len(y)}")
        check_count("number of simulations", len(phi), 1)
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
        check_count("number of different parameters to split", len(ids), 2)
        count = min(max(1, round(fraction * len(ids))), len(ids) - 1)
        chosen = ids[torch.randperm(len(ids), generator=generator(seed, "split"))[:count]]
        small = torch.isin(self.groups, chosen)
        return self[(~small).nonzero()[:, 0]], self[small.nonzero()[:, 0]]

    def fingerprint(self) -> str:
        """Return a text that changes with the simulations: a digest of all φ and groups, and of a spread of rows of y."""
        rows = torch.linspace(0, len(self) - 1, min(len(self), _ROWS_IN_FINGERPRINT)).long()
        return f"{len(self)} of shape {self.y_shape}, {digest(self.phi, self.groups, self.y[rows])}"


def digest(*tensors: Tensor) -> str:
    """Return a short digest of the bytes of tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


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
