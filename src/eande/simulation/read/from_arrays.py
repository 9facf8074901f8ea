"""Simulations from arrays: parameters and data that a user has in memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_flag,
    check_no_infinity,
    check_shape,
)
from eande.simulation.read.parts import Failures, Parts, as_groups
from eande.simulation.read.tables import is_frame, read_columns


def read_arrays(
    phi: Any, y: Any, groups: Any = None, failed_phi: Any = None, *, missing: bool = False
) -> Parts:
    """Do what :meth:`Simulations.from_arrays` promises."""
    names = None
    if is_frame(phi):
        phi, names = read_columns("phi", phi)
    phi = as_float_tensor("phi", phi).detach().cpu().clone()
    y = as_float_tensor("y", y).detach()
    check_shape("phi", phi, ("n", "D"))
    if y.ndim < 2 or y[:1].numel() == 0 < len(y):
        raise InputError(
            f"y: expected shape (n, …) with at least one number per datum, got {tuple(y.shape)}"
        )
    if len(phi) != len(y):
        raise InputError(f"phi and y: expected the same length, got {len(phi)} and {len(y)}")
    check_count("number of simulations", len(phi), 1)
    check_finite("phi", phi)
    check_flag("missing", missing)
    if missing:
        check_no_infinity("y", y)
    else:
        check_finite("y", y)
    return Parts(phi, y, as_groups(groups, phi), _as_failures(failed_phi, phi), names)


def _as_failures(failed_phi: Any, phi: Tensor) -> Failures | None:
    if failed_phi is None:
        return None
    failed = as_float_tensor("failed_phi", failed_phi).cpu().clone()
    check_shape("failed_phi", failed, ("m", phi.shape[1]))
    check_finite("failed_phi", failed)
    return Failures(failed, ("given as failed",) * len(failed))
