"""Simulations: pairs of parameters and data, what training reads."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_shape,
)
from eande.foundations.seeds import generator
from eande.simulation.read.sources import Rows, Source, take

# A fingerprint reads so many rows, and no more numbers than that.
_ROWS_IN_FINGERPRINT, _NUMBERS_IN_FINGERPRINT = 1_024, 16_000_000


@dataclass(frozen=True, repr=False)
class Failures:
    """Simulations that gave no data: their parameters still belong to the prior, and serve as negatives in training.

    Args:
        phi: parameters (m, D).
        reasons: what went wrong, one text each.
    """

    phi: Tensor
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of failed simulations."""
        return len(self.phi)

    def __repr__(self) -> str:
        """Return how many, and mostly why, in a line."""
        return f"Failures({len(self)}{': ' if self.reasons else ''}{in_words(self.reasons)})"

    def __getitem__(self, index: Tensor) -> Failures:
        """Return the chosen ones."""
        return Failures(self.phi[index], tuple(self.reasons[i] for i in index.tolist()))

    def commonest(self, number: int = 3) -> list[tuple[str, int]]:
        """Return the commonest reasons with their counts."""
        return Counter(self.reasons).most_common(number)


def in_words(reasons: Iterable[str]) -> str:
    """Return the three commonest reasons of failure with their counts."""
    return "; ".join(f"{count} × {reason}" for reason, count in Counter(reasons).most_common(3))


class Simulations:
    """Pairs (φ_i, y_i), with a group id each: simulations of the same φ (replicates, ensemble members) share one.

    Made by :func:`eande.simulate`, from its store by :meth:`open`, or from what you have by :meth:`from_arrays`,
    :meth:`from_files` and :meth:`from_xarray`. Data that lie on disk are read when they are asked for: ``simulations.y[i]``.

    Args:
        phi: parameters (n, D), float32.
        y: data, first axis n: a tensor, or a source that reads rows from elsewhere.
        groups: (n,) integers.
        failures: simulations that were tried and gave no data; not counted in ``len``.

    Example:
        >>> simulations = Simulations.from_arrays(np.zeros((4, 2)), np.ones((4, 3)))
        >>> len(simulations), simulations.y_shape
        (4, (3,))
    """

    def __init__(
        self, phi: Tensor, y: Tensor | Source, groups: Tensor, failures: Failures | None = None
    ) -> None:
        self.phi, self.y, self.groups = phi, y, groups
        self.failures = Failures(phi[:0], ()) if failures is None else failures

    @classmethod
    def from_arrays(
        cls, phi: Any, y: Any, *, groups: Any = None, failed_phi: Any = None
    ) -> Simulations:
        """Take parameters (n, D) and data (n, …) you already have; float32 data are not copied.

        Args:
            phi: parameters.
            y: data.
            groups: rows with equal entries are simulations of one φ.
            failed_phi: parameters (m, D) drawn from the same prior whose simulation gave no data, one row per φ. Leaving them out
                would favour, in the posterior, the parameters that often fail.
        """
        phi, y = (
            as_float_tensor("phi", phi).detach().cpu().clone(),
            as_float_tensor("y", y).detach(),
        )
        check_shape("phi", phi, ("n", "D"))
        if y.ndim < 2 or y[:1].numel() == 0 < len(y):
            raise InputError(
                f"y: expected shape (n, …) with at least one number per datum, got {tuple(y.shape)}"
            )
        if len(phi) != len(y):
            raise InputError(f"phi and y: expected the same length, got {len(phi)} and {len(y)}")
        check_count("number of simulations", len(phi), 1)
        check_finite("phi", phi)
        check_finite("y", y)
        return cls(phi, y, as_groups(groups, phi), _as_failures(failed_phi, phi))

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Simulations:
        """Open the simulations in a store, also while it is still being filled: those that are complete now.

        Args:
            path: the store's folder.
            verify: whether the checksum of each piece is compared when it is first read; this reads the whole piece once.
        """
        from eande.simulation.read.stored import open_store

        return open_store(path, verify=verify)

    @classmethod
    def from_files(
        cls,
        files: str | Path | Sequence[str | Path],
        *,
        phi: str | Sequence[str] = "phi",
        y: str = "y",
    ) -> Simulations:
        """Read a directory of ``.npz`` or NetCDF members, one simulation each; data are read when they are asked for.

        Args:
            files: a folder, or the files themselves.
            phi: name of the parameters in each file: one vector, or several scalars (NetCDF: variables or attributes).
            y: name of the data in each file.
        """
        from eande.simulation.read.readers import read_files

        return read_files(files, phi, y)

    @classmethod
    def from_xarray(
        cls, dataset: Any, *, phi: str | Sequence[str], y: str, dimension: str
    ) -> Simulations:
        """Take an xarray Dataset, lazily where it is lazy.

        Args:
            dataset: holds parameters and data along a common dimension.
            phi: name of the variable with the parameters (that dimension and one more), or one scalar variable's name each.
            y: name of the variable with the data.
            dimension: the dimension along which the simulations lie.
        """
        from eande.simulation.read.readers import read_xarray

        return read_xarray(dataset, phi, y, dimension)

    def __len__(self) -> int:
        """Return the number of simulations."""
        return len(self.phi)

    def __repr__(self) -> str:
        """Return what is here, in a line."""
        failed = f", {len(self.failures)} failed" if len(self.failures) else ""
        return f"Simulations({len(self)} of {self.phi.shape[1]} parameters and data of shape {self.y_shape}{failed})"

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of one datum as stored."""
        return tuple(self.y.shape[1:])

    def __getitem__(self, index: Tensor | Sequence[int] | slice) -> Simulations:
        """Return the chosen simulations, with as large a share of the failures: they keep their proportion."""
        phi = self.phi[index]
        if phi.ndim != 2:
            raise InputError(
                f"simulations: expected a slice or a list of indices, got {index!r}; one datum is simulations.y[i]"
            )
        # By groups: so many negatives there are.
        groups = self.groups[index]
        kept = round(len(self.failures) * len(groups.unique()) / max(1, len(self.groups.unique())))
        spread = (
            torch.linspace(0, len(self.failures) - 1, kept).round().long()
            if kept
            else torch.zeros(0, dtype=torch.long)
        )
        return Simulations(phi, take(self.y, index), groups, self.failures[spread])

    def rows(self, index: Tensor) -> Rows:
        """Return a batch that is read when a view asks for it."""
        return Rows(self.y, index)

    def in_memory(self, at_most: int | None = None) -> Simulations:
        """Return the simulations with all data read into memory; unread, as they are, if that took more than so many bytes."""
        if not isinstance(self.y, Source) or (at_most is not None and self.y.nbytes > at_most):
            return self
        return Simulations(self.phi, self.y[:], self.groups, self.failures)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Simulations, Simulations]:
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
        """Return a text that changes with the simulations: a digest of all φ and groups, and of the data or a spread of them."""
        if isinstance(self.y, Source):
            data = self.y.fingerprint()
        else:
            most = max(
                1,
                min(len(self), _ROWS_IN_FINGERPRINT, _NUMBERS_IN_FINGERPRINT // self.y[0].numel()),
            )
            data = digest(self.y[torch.linspace(0, len(self) - 1, most).long()])
        return f"{len(self)} of shape {self.y_shape}, {digest(self.phi, self.groups, self.failures.phi)}, {data}"


def digest(*tensors: Tensor) -> str:
    """Return a short digest of the bytes of tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


def as_groups(groups: Any, phi: Tensor) -> Tensor:
    """Number groups from 0, each row its own without any, and refuse different φ in one group."""
    if groups is None:
        return torch.arange(len(phi))
    ids = torch.as_tensor(np.unique(np.asarray(groups), return_inverse=True)[1])
    check_shape("groups", ids, (len(phi),))
    order = ids.argsort(stable=True)
    same = ids[order][1:] == ids[order][:-1]
    differ = same & (phi[order][1:] != phi[order][:-1]).any(1)
    if differ.any():
        where = int(order[1:][differ][0])
        raise InputError(
            f"groups: expected equal phi within a group, got another phi in row {where} (group {np.asarray(groups)[where]})"
        )
    return ids


def _as_failures(failed_phi: Any, phi: Tensor) -> Failures | None:
    if failed_phi is None:
        return None
    failed = as_float_tensor("failed_phi", failed_phi).cpu().clone()
    check_shape("failed_phi", failed, ("m", phi.shape[1]))
    check_finite("failed_phi", failed)
    return Failures(failed, ("given as failed",) * len(failed))


def first_of_groups(groups: Tensor) -> Tensor:
    """Return the index of the first row of every group, in order."""
    found, which = groups.unique(return_inverse=True)
    rows = torch.arange(len(groups))
    return (
        torch.full((len(found),), len(groups)).scatter_reduce(0, which, rows, "amin").sort().values
    )
