"""Simulations from an xarray Dataset: lazy variables stay lazy, and are read when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import InputError, check_choice, check_count, check_finite, show_shape
from eande.simulation.read.entry import (
    as_floats,
    as_names,
    check_datum,
    import_xarray,
    names_along,
    reading_window,
)
from eande.simulation.read.from_arrays import read_arrays
from eande.simulation.read.parts import Parts, group_replicates
from eande.simulation.read.sources import Source, as_index, digest

# A fingerprint reads windows of at most this many data, each of about this many numbers.
_ROWS_IN_FINGERPRINT = 16
_NUMBERS_IN_FINGERPRINT = 16_384


def read_xarray(dataset: Any, phi: str | Sequence[str], y: str, dimension: str) -> Parts:
    """Do what :meth:`Simulations.from_xarray` promises.

    A datum's axes are the other dimensions of ``y``; simulations of equal φ share a group.
    """
    if not isinstance(dataset, import_xarray("Simulations.from_xarray").Dataset):
        raise InputError(f"dataset: expected an xarray Dataset, got {type(dataset).__name__}")
    names, several = as_names(phi)
    check_choice("dimension", dimension, list(dataset.sizes))
    check_count("number of simulations", dataset.sizes[dimension], 1)
    columns = [_columns(dataset, name, dimension, several) for name in names]
    labels = _labels(dataset, names, dimension)
    parameters = torch.from_numpy(np.concatenate(columns, axis=1))
    check_count("number of parameters", parameters.shape[1], 1)
    check_finite("phi", parameters)
    check_choice("y", y, list(dataset.variables))
    array = dataset[y]
    if dimension not in array.dims:
        raise InputError(
            f"y: expected a variable with the dimension {dimension!r}, "
            f"got {y!r} with {show_shape(array.dims)}"
        )
    check_datum(f"y, {y!r}", array.isel({dimension: 0}).shape, array.dtype)
    groups = group_replicates(parameters)
    # xarray has no public word for "in memory"; without this one, data in memory are read as lazy
    # ones are.
    if getattr(array.variable, "_in_memory", False):
        values = as_floats("y", array.transpose(dimension, ...).values)
        if values.ndim == 1:
            values = values.reshape(-1, 1)
        return read_arrays(parameters, values, groups)._replace(names=labels)
    source = XarraySource(np.arange(len(parameters)), array, dimension)
    return Parts(parameters, source, groups, names=labels)


class XarraySource(Source):
    """Data in a lazy variable of an xarray Dataset.

    Args:
        rows: the place of each datum along the dimension, (n,).
        array: the variable.
        dimension: along which the simulations lie.
    """

    def __init__(self, rows: np.ndarray, array: Any, dimension: str) -> None:
        self.array = array
        self.dimension = dimension
        self._axes = [other for other in array.dims if other != dimension]
        super().__init__(rows, tuple(array.sizes[axis] for axis in self._axes) or (1,))

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read one row's window; the numbers must be finite."""
        name = f"{self.array.name}, {self.dimension} {row}"
        with reading_window(name, start, stop, self.y_shape[0], out):
            # The other axes keep their order: a lazy array that is transposed first is read in
            # another, slower way.
            window = {axis: slice(start, stop) for axis in self._axes[:1]}
            out[...] = self.array.isel({self.dimension: row} | window).values

    def subset(self, index: Any) -> XarraySource:
        """Return the source of the chosen data."""
        return XarraySource(self.rows[as_index(index)], self.array, self.dimension)

    def fingerprint(self) -> str:
        """Return a digest of windows spread over the data."""
        affordable = max(1, _NUMBERS_IN_FINGERPRINT // math.prod(self.y_shape[1:]))
        length = min(self.y_shape[0], affordable)
        number = min(len(self), _ROWS_IN_FINGERPRINT)
        index = _spread(len(self) - 1, number)
        starts = _spread(self.y_shape[0] - length, number)
        return digest(self.windows(index, starts, length), torch.from_numpy(self.rows))


def _spread(last: int, number: int) -> torch.Tensor:
    """Return whole numbers spread evenly from 0 to the last."""
    return torch.linspace(0, last, number, dtype=torch.float64).long()


def _labels(dataset: Any, names: Sequence[str], dimension: str) -> tuple[str, ...] | None:
    """Return the names of the parameters: their variables' own, or the labels of a variable."""
    others = [axis for axis in dataset[names[0]].dims if axis != dimension]
    return names_along(dataset[names[0]], others[0]) if others else tuple(names)


def _columns(dataset: Any, name: str, dimension: str, several: bool) -> np.ndarray:
    """Return a variable's parameters (n, 1), or (n, D) where it may have several."""
    check_choice("phi", name, list(dataset.variables))
    array = dataset[name]
    if dimension not in array.dims or array.ndim > 1 + several:
        expected = show_shape((dimension, "parameters") if several else (dimension,))
        raise InputError(
            f"phi, {name!r}: expected dimensions {expected}, got {show_shape(array.dims)}"
        )
    values = as_floats(f"phi, {name!r}", array.transpose(dimension, ...).values)
    return values.reshape(array.sizes[dimension], -1)
