"""Tables of parameters that lie beside the data: a CSV file, a pandas DataFrame, an array.

A row is a simulation, a column a parameter. A column called ``file``, or an index of texts, names
the file that a row belongs to; without one, the rows are in the order of the files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    as_names,
    check_finite,
    check_shape,
    show,
)
from eande.foundations.files import open_regular
from eande.simulation.read.entry import reading

FILE_COLUMN = "file"


class Table(NamedTuple):
    """Parameters of simulations.

    Attributes:
        phi: (n, D), float32, finite.
        names: of the parameters, None where nobody named them.
        files: the file of every row as it was written there, None where the order tells.
    """

    phi: Tensor
    names: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None


def is_frame(value: object) -> bool:
    """Return whether a value is a pandas DataFrame, or one that does as such."""
    return all(hasattr(value, name) for name in ("columns", "index", "to_numpy"))


def read_columns(name: str, frame: Any) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return the columns of a DataFrame, all parameters, and their names.

    Args:
        name: of the argument.
        frame: a row per simulation.
    """
    columns = [str(column) for column in frame.columns]
    lists = [frame.iloc[:, place].tolist() for place in range(len(columns))]
    # pandas numbers columns that nobody named.
    named = any(isinstance(column, str) for column in frame.columns)
    table = _table(name, columns, lists, named=named)
    return table.phi, table.names


def read_frame(name: str, frame: Any) -> Table:
    """Return the parameters that a DataFrame holds for files.

    Its column ``file``, or its index where that consists of texts, names the files.

    Args:
        name: of the argument.
        frame: a row per file.
    """
    index = list(frame.index)
    files = None
    if FILE_COLUMN in frame.columns:
        files = tuple(map(str, frame[FILE_COLUMN]))
        frame = frame.drop(columns=FILE_COLUMN)
    elif index and all(isinstance(one, str) for one in index):
        files = tuple(index)
    return Table(*read_columns(name, frame), files)


def read_csv(path: Path) -> Table:
    """Return the parameters that a CSV file holds.

    Its first line names the columns, unless it consists of numbers. A first column without a name
    is an index as pandas writes it: of texts it names the files, of numbers it is left out.
    """
    with reading(path), open_regular(path) as raw:
        text = raw.readall().decode("utf-8-sig")
        # Where decimals have a comma, tables have semicolons.
        separator = max(",;\t", key=text.partition("\n")[0].count)
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if row]
    if not rows:
        raise InputError(f"{path}: expected a table of parameters, got an empty file")
    header = [cell.strip() for cell in rows[0]]
    named = not all(map(_is_number, header))
    if named:
        rows = rows[1:]
    else:
        header = [f"column {place}" for place in range(len(header))]
    for number, row in enumerate(rows, 2 if named else 1):
        if len(row) != len(header):
            raise InputError(
                f"{path}: expected {len(header)} cells in every row, got {len(row)} in line "
                f"{number}"
            )
    lists = [[row[place] for row in rows] for place in range(len(header))]
    files = None
    if FILE_COLUMN in header:
        place = header.index(FILE_COLUMN)
        files = tuple(lists[place])
        header = [*header[:place], *header[place + 1 :]]
        lists = [*lists[:place], *lists[place + 1 :]]
    if header and header[0] == "":
        if files is None and not all(map(_is_number, lists[0])):
            files = tuple(lists[0])
        header, lists = header[1:], lists[1:]
    return _table(str(path), header, lists, named=named)._replace(files=files)


def read_array(name: str, values: Any) -> Table:
    """Return the parameters of an array or tensor (n, D)."""
    phi = as_float_tensor(name, values).detach().cpu().clone()
    check_shape(name, phi, ("n", "D"))
    check_finite(name, phi)
    return Table(phi)


def _table(
    where: str, columns: Sequence[str], lists: Sequence[Sequence[Any]], *, named: bool
) -> Table:
    """Return the table of columns, all of them parameters."""
    if not columns or not lists or not len(lists[0]):
        rows = len(lists[0]) if lists else 0
        raise InputError(
            f"{where}: expected a row per simulation and a column per parameter, got "
            f"{len(columns)} columns and {rows} rows"
        )
    names = as_names(f"{where}: columns", list(columns), len(columns)) if named else None
    numbers = [_numbers(where, *both) for both in zip(columns, lists, strict=True)]
    phi = torch.from_numpy(np.stack(numbers, axis=1)).float()
    bad = (~torch.isfinite(phi)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"{where}: expected finite float32 numbers, got {len(bad)} NaN or inf, the first in "
            f"row {row} of {show(columns[column])}"
        )
    return Table(phi, names)


def _numbers(where: str, name: str, column: Sequence[Any]) -> np.ndarray:
    """Return a column as numbers, an empty cell as NaN."""
    found = np.empty(len(column))
    for row, cell in enumerate(column):
        try:
            found[row] = float("nan") if cell == "" else float(cell)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"{where}: expected numbers in the column {show(name)} (a column "
                f"{FILE_COLUMN!r} names the files), got {show(cell)} in row {row}"
            ) from None
    return found


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
