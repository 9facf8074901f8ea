"""What simulations consist of, whatever they are read from: parameters, data, groups, failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_count, check_plain, check_shape, show
from eande.simulation.read.sources import Source
from eande.simulation.run.blocks import summarize_reasons


@dataclass(frozen=True, repr=False)
class Failures:
    """Simulations that gave no data.

    Their parameters still belong to the prior, and serve as negatives in training.

    Args:
        phi: parameters (m, D).
        reasons: what went wrong, one text each.

    Example:
        >>> def fails_where_steep(phi, rng):
        ...     if phi[0] > 0.8:
        ...         raise ValueError("too steep")
        ...     return phi + rng.standard_normal(2)
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # it says how many failed
        ...     made = eande.simulate(eande.each(fails_where_steep), prior, n=50, progress=False)
        >>> len(made) + len(made.failures), made.failures.phi.shape[1]
        (50, 2)
        >>> made.failures
        Failures(... × ValueError: too steep)
    """

    phi: Tensor
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of failed simulations."""
        return len(self.phi)

    def __repr__(self) -> str:
        """Return how many, and the commonest reasons, in a line."""
        reasons = f": {summarize_reasons(self.reasons)}" if self.reasons else ""
        return f"Failures({len(self)}{reasons})"

    def __getitem__(self, index: Any) -> Failures:
        """Return the chosen ones."""
        chosen = torch.arange(len(self))[as_rows("index", index, len(self))].tolist()
        return Failures(self.phi[chosen], tuple(self.reasons[i] for i in chosen))

    def commonest(self, number: int = 3) -> list[tuple[str, int]]:
        """Return the commonest reasons with their counts.

        Example:
            >>> failures = Failures(torch.zeros(3, 2), ("too steep", "no mesh", "too steep"))
            >>> failures.commonest(1)
            [('too steep', 2)]
        """
        check_count("number", number, 1)
        return Counter(self.reasons).most_common(number)


class Parts(NamedTuple):
    """What a reader returns and :class:`~eande.Simulations` is made of.

    Attributes:
        phi: parameters (n, D), float32.
        y: data, first axis n.
        groups: (n,) integers, equal for simulations of one φ.
        failures: simulations that gave no data; None for none.
        names: of the parameters; None where nobody named them.
    """

    phi: Tensor
    y: Tensor | Source
    groups: Tensor
    failures: Failures | None = None
    names: tuple[str, ...] | None = None


def as_rows(name: str, index: Any, count: int) -> slice | Tensor:
    """Return what chooses some of so many rows: a slice, or a tensor of indices (m,).

    Args:
        name: of the argument.
        index: a slice, or indices or a truth value for every row, in an array or a list.
        count: the number of rows.
    """
    expected = f"{name}: expected a slice or a list of indices"
    if isinstance(index, slice):
        try:
            step = index.indices(count)[2]
        except (TypeError, ValueError):
            raise InputError(f"{expected}, got {show(index)}") from None
        if step > 0:
            return index
        return torch.tensor(range(count)[index], dtype=torch.long)
    try:
        rows = torch.as_tensor(index)
        check_plain(name, rows)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"{expected}, got {show(index)}") from None
    if isinstance(index, bytes) or rows.ndim != 1:
        raise InputError(f"{expected}, got {show(index)}; one datum is simulations.y[i]")
    if not rows.numel():
        return rows.long()
    if rows.dtype == torch.bool and len(rows) == count:
        return rows.nonzero()[:, 0]
    if rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex():
        raise InputError(f"{expected}, got {show(index)} of {rows.dtype}")
    low, high = int(rows.min()), int(rows.max())
    if low < -count or high >= count:
        raise InputError(f"{name}: expected indices of {count} rows, got {low} to {high}")
    return rows.long()


def as_groups(groups: Any, phi: Tensor) -> Tensor:
    """Number groups from 0, each row its own without any, and refuse different φ in one group."""
    if groups is None:
        return torch.arange(len(phi))
    try:
        ids = torch.as_tensor(np.unique(np.asarray(groups), return_inverse=True)[1])
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"groups: expected one number or text per simulation, got {show(groups)}"
        ) from None
    check_shape("groups", ids, (len(phi),))
    order = ids.argsort(stable=True)
    same = ids[order][1:] == ids[order][:-1]
    differ = same & (phi[order][1:] != phi[order][:-1]).any(1)
    if differ.any():
        where = int(order[1:][differ][0])
        raise InputError(
            "groups: expected equal phi within a group, "
            f"got another phi in row {where} (group {np.asarray(groups)[where]})"
        )
    return ids


def group_replicates(phi: Tensor) -> Tensor:
    """Return groups in which simulations of equal φ are together."""
    return as_groups(np.unique(phi.numpy(), axis=0, return_inverse=True)[1].reshape(-1), phi)
