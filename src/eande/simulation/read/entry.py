"""Checks of what others wrote, where it enters: every refusal names the file or variable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import InputError, check_finite, show, show_shape

# NumPy's kinds of type for boolean, signed, unsigned and floating-point numbers.
_NUMERIC = "biuf"
# A file has at most this many parameters.
_MOST_PARAMETERS = 1_000_000


@contextmanager
def reading(what: str | Path) -> Iterator[None]:
    """Say in one line what could not be read, and why."""
    try:
        yield
    except (InputError, ImportError):
        raise
    # Of files that others wrote, zipfile, numpy, xarray and HDF5 raise anything.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{what}: expected data that can be read, got {type(error).__name__}: {reason}"
        ) from error


@contextmanager
def reading_window(
    name: str, start: int, stop: int, length: int, out: np.ndarray
) -> Iterator[None]:
    """Refuse damage while a window is read, NaN and infinity after."""
    with reading(name), np.errstate(over="ignore"):
        yield
    whole = stop - start == length
    check_finite(name if whole else f"{name}[{start}:{stop}]", torch.from_numpy(out))


def as_names(given: Any, argument: str = "phi") -> tuple[list[str], bool]:
    """Return the names that were given, and whether it is one that may have several numbers."""
    names = [given] if isinstance(given, str) else given
    is_list = isinstance(names, Sequence) and len(names) > 0
    if not is_list or not all(isinstance(name, str) for name in names):
        raise InputError(f"{argument}: expected a name or a list of names, got {show(given)}")
    return list(names), isinstance(given, str)


def check_datum(
    name: str, shape: tuple[int, ...], dtype: np.dtype, expected: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return the shape of a datum, for a scalar (1,).

    Refuse what is not numeric, empty, or of another shape than expected.
    """
    shape = tuple(shape) or (1,)
    if dtype.kind not in _NUMERIC:
        raise InputError(f"{name}: expected real numbers, got {dtype}")
    if math.prod(shape) == 0:
        raise InputError(f"{name}: expected at least one number, got shape {show_shape(shape)}")
    if expected is not None and shape != expected:
        raise InputError(
            f"{name}: expected shape {show_shape(expected)} as in the others, "
            f"got {show_shape(shape)}"
        )
    return shape


def names_along(array: Any, dimension: str) -> tuple[str, ...] | None:
    """Return the texts that label a dimension of an xarray variable, None where there are none."""
    labels = array.coords.get(dimension)
    if labels is None or labels.dtype.kind not in "UTO" or labels.ndim != 1:
        return None
    values = labels.values.tolist()
    return tuple(values) if all(isinstance(label, str) for label in values) else None


def check_few(name: str, number: int) -> None:
    """Refuse more numbers than the parameters of a simulation can have, before they are read."""
    if number > _MOST_PARAMETERS:
        raise InputError(f"{name}: expected at most {_MOST_PARAMETERS} numbers, got {number}")


def as_floats(name: str, values: np.ndarray) -> np.ndarray:
    """Turn numbers into contiguous float32 that torch may share."""
    if values.dtype.kind not in _NUMERIC:
        raise InputError(f"{name}: expected real numbers, got {values.dtype}")
    with np.errstate(over="ignore"):
        return np.require(values, np.float32, ["C", "W"])


def import_xarray(user: str) -> Any:
    """Import xarray, an extra, or say who needs it."""
    try:
        import xarray
    except ImportError:
        raise ImportError(f"{user} needs xarray: pip install xarray h5netcdf") from None
    return xarray
