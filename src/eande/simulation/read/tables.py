"""Tables of parameters that lie beside the data: a CSV file, a pandas DataFrame, an array.

A row is a simulation, a column a parameter. A column called ``file``, or a first column or index of
texts, names the file that a row belongs to; without one, the rows are in the order of the files.
"""

from __future__ import annotations

import csv
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
# How tables say that a number is missing.
_MISSING = ("", "na", "n/a", "null", "none")


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

    Its column ``file``, or its index or first column where that consists of texts, names the files.

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
    elif index and all(isinstance(one, str) for one in frame.iloc[:, 0]):
        files = tuple(frame.iloc[:, 0])
        frame = frame.iloc[:, 1:]
    return Table(*read_columns(name, frame), files)


def read_csv(path: Path) -> Table:
    """Return the parameters that a CSV file holds.

    Its first line names the columns, unless it consists of numbers. A first column of texts names
    the files, whatever it is called; one of numbers without a name is an index as pandas writes it,
    and left out.
    """
    with reading(path), open_regular(path) as raw:
        found = split(str(path), raw.readall())
    header = list(found.columns)
    lists = [list(cells) for cells in found.cells]
    files = None
    if FILE_COLUMN in header:
        place = header.index(FILE_COLUMN)
        files = tuple(lists.pop(place))
        del header[place]
    if header and not any(map(_is_number, lists[0])):
        if files is None and lists[0]:
            files = tuple(lists[0])
            header, lists = header[1:], lists[1:]
    elif header and header[0] == "":
        header, lists = header[1:], lists[1:]
    return _table(str(path), header, lists, named=found.named)._replace(files=files)


class Split(NamedTuple):
    """A table of text.

    Attributes:
        columns: their names.
        cells: of each column, from top to bottom.
        named: whether the names stand in the file.
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    named: bool

    def column(self, where: str, name: str, *, texts: dict[int, str] | None = None) -> np.ndarray:
        """Return the numbers of a column, NaN for an empty cell; texts as :func:`numbers_of`."""
        return numbers_of(where, name, self.cells[self.columns.index(name)], texts=texts)


def split(where: str, content: bytes, *, by_spaces: bool = False) -> Split:
    """Return the cells of a table of text; lines that begin with # are comments.

    Args:
        where: its name, for refusals.
        content: of the file.
        by_spaces: whether spaces separate cells where nothing else does.
    """
    lines = content.decode("utf-8-sig").splitlines()
    # Comments become blank, so that refusals count lines as an editor does.
    lines = ["" if line.startswith("#") or not line.strip() else line for line in lines]
    first = next(filter(None, lines), "")
    # Where decimals have a comma, tables have semicolons.
    separator = max(",;\t", key=first.count)
    if by_spaces and separator not in first:
        rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line]
    else:
        reader = csv.reader(lines, delimiter=separator)
        rows = [(reader.line_num, row) for row in reader if row]
    if not rows:
        raise InputError(f"{where}: expected a table of numbers, got an empty file")
    header = [cell.strip() for cell in rows[0][1]]
    named = not all(map(_is_number, header))
    if named:
        rows = rows[1:]
    else:
        header = [f"column {place}" for place in range(len(header))]
    for number, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{where}: expected {len(header)} cells in every row, got {len(row)} in line "
                f"{number}"
            )
    cells = tuple(tuple(row[place] for _, row in rows) for place in range(len(header)))
    return Split(tuple(header), cells, named)


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
    hint = f" (a column {FILE_COLUMN!r} names the files)"
    both = zip(columns, lists, strict=True)
    numbers = [numbers_of(where, name, cells, hint=hint) for name, cells in both]
    phi = torch.from_numpy(np.stack(numbers, axis=1)).float()
    bad = (~torch.isfinite(phi)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"{where}: expected finite float32 numbers, got {len(bad)} NaN or inf, the first in "
            f"row {row} of {show(columns[column])}"
        )
    return Table(phi, names)


def numbers_of(
    where: str,
    name: str,
    column: Sequence[Any],
    *,
    hint: str = "",
    texts: dict[int, str] | None = None,
) -> np.ndarray:
    """Return a column as numbers, NaN where a cell is empty or says that there is none.

    Args:
        where: what the table is called in messages.
        name: of the column.
        column: its cells.
        hint: what a column of texts may have been meant for, in brackets.
        texts: takes other texts by their rows, which are then NaN, too; None refuses them.
    """
    found = np.empty(len(column))
    for row, cell in enumerate(column):
        missing = isinstance(cell, str) and cell.strip().lower() in _MISSING
        try:
            found[row] = float("nan") if missing else float(cell)
        except (TypeError, ValueError, OverflowError):
            if texts is not None and isinstance(cell, str):
                texts[row] = cell.strip()
                found[row] = float("nan")
                continue
            raise InputError(
                f"{where}: expected numbers in the column {show(name)}{hint}, got {show(cell)} in "
                f"row {row}"
            ) from None
    return found


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
