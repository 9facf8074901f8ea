"""What simulations consist of, whatever they are read from: parameters, data, groups, failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_shape
from eande.simulation.read.sources import Source
from eande.simulation.run.blocks import summarize_reasons


@dataclass(frozen=True, repr=False)
class Failures:
    """Simulations that gave no data.

    Their parameters still belong to the prior, and serve as negatives in training.

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
        """Return how many, and the commonest reasons, in a line."""
        reasons = f": {summarize_reasons(self.reasons)}" if self.reasons else ""
        return f"Failures({len(self)}{reasons})"

    def __getitem__(self, index: Tensor) -> Failures:
        """Return the chosen ones."""
        return Failures(self.phi[index], tuple(self.reasons[i] for i in index.tolist()))

    def commonest(self, number: int = 3) -> list[tuple[str, int]]:
        """Return the commonest reasons with their counts."""
        return Counter(self.reasons).most_common(number)


class Parts(NamedTuple):
    """What a reader returns and :class:`~eande.Simulations` is made of.

    Attributes:
        phi: parameters (n, D), float32.
        y: data, first axis n.
        groups: (n,) integers, equal for simulations of one φ.
        failures: simulations that gave no data; None for none.
    """

    phi: Tensor
    y: Tensor | Source
    groups: Tensor
    failures: Failures | None = None


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
            "groups: expected equal phi within a group, "
            f"got another phi in row {where} (group {np.asarray(groups)[where]})"
        )
    return ids


def group_replicates(phi: Tensor) -> Tensor:
    """Return groups in which simulations of equal φ are together."""
    return as_groups(np.unique(phi.numpy(), axis=0, return_inverse=True)[1].reshape(-1), phi)
