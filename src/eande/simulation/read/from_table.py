"""Simulations from one table: a row per simulation, columns of parameters and columns of data."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import EandeWarning, InputError, check_choice, show
from eande.foundations.files import open_regular
from eande.foundations.paths import as_path
from eande.simulation.read.entry import as_names, reading
from eande.simulation.read.from_files import BROKEN
from eande.simulation.read.parts import Failures, Parts, group_replicates
from eande.simulation.read.tables import Split, is_frame, numbers_of, split

# Tables of text, and those that pandas reads with a library of its own.
TEXT = (".csv", ".tsv", ".txt")
COLUMNAR = (".parquet", ".feather")
# What columns are called that number the rows.
_ROW_NUMBERS = ("", "Unnamed: 0", "index", "id", "run", "row", "simulation")
# A name that ends in a number, perhaps with its unit: y1, day_03, flux[7], t=0.5, level_12h.
_NUMBERED = re.compile(r"(?P<stem>.*?)\d+(\.\d+)?(?P<unit>[a-zA-Z]{0,3})[\])]?")
# A column with texts in more cells than this share is one of texts.
_MOSTLY = 0.5
# Stems of parameters: theta1 and theta2 are no data.
_PARAMETERS = ("phi", "theta", "param", "parameter", "params", "par")


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Args:
        where: what it is called in messages.
        table: of text, or a pandas DataFrame.
        names: of the columns.
    """

    where: str
    table: Any
    names: tuple[str, ...]

    def numbers(self, name: str, *, texts: dict[int, str] | None = None) -> np.ndarray:
        """Return a column of numbers, NaN where one is missing.

        Args:
            name: of the column.
            texts: takes what else stands in cells, such as ``"solver failed"``, by their rows,
                unless these are the most; None refuses them.
        """
        if isinstance(self.table, Split):
            found = self.table.column(self.where, name, texts=texts)
        else:
            cells = self.table.iloc[:, self.names.index(name)]
            if cells.dtype.kind in "biuf":
                return cells.to_numpy(dtype=np.float64)
            given = ["" if _is_missing(x) else x for x in cells]
            found = numbers_of(self.where, name, given, texts=texts)
        return found if not texts or len(texts) <= _MOSTLY * len(self) else self.numbers(name)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.table.cells[0]) if isinstance(self.table, Split) else len(self.table)


def open_table(table: Any) -> Columns:
    """Return the columns of a table: of a file, or of a DataFrame.

    Args:
        table: path of a ``.csv``, ``.tsv`` or ``.txt`` file, of a ``.parquet`` or ``.feather``
            file, or a DataFrame.
    """
    if is_frame(table):
        return Columns("table", table, _unique("table", [str(name) for name in table.columns]))
    path = as_path("table", table)
    suffix = path.suffix.lower()
    if suffix not in TEXT + COLUMNAR:
        kinds = ", ".join(TEXT + COLUMNAR)
        raise InputError(f"table: expected a DataFrame or a file, one of {kinds}, got {path}")
    with reading(path):
        if suffix in COLUMNAR:
            frame = _read_columnar(path)
            names = [str(name) for name in frame.columns]
            return Columns(str(path), frame, _unique(str(path), names))
        with open_regular(path) as raw:
            found = split(str(path), raw.readall(), by_spaces=suffix == ".txt")
    return Columns(str(path), found, _unique(str(path), list(found.columns)))


def read_table(table: Any, phi: Any, y: Any, *, broken: str = "refuse") -> Parts:
    """Do what :meth:`Simulations.from_table` promises; simulations of equal φ share a group."""
    check_choice("broken", broken, BROKEN)
    columns = open_table(table)
    parameters = _chosen(columns, "phi", phi)
    if y is None:
        data = [name for name in columns.names if name not in parameters]
        if data and data[0] == columns.names[0] and not _is_numeric(columns, data[0]):
            # Names or numbers of the rows.
            data = data[1:]
    else:
        data = _chosen(columns, "y", y)
    both = [name for name in data if name in parameters]
    if both:
        raise InputError(f"y: expected other columns than phi, got {show(both[0])} in both")
    if not data:
        raise InputError(f"{columns.where}: expected columns of data beside phi, got none")
    texts: dict[str, dict[int, str]] = {name: {} for name in data}
    read = [columns.numbers(name, texts=texts[name]) for name in data]
    values = np.stack(read, axis=1).astype(np.float32)
    known = np.stack([columns.numbers(name) for name in parameters], axis=1).astype(np.float32)
    if not len(values):
        raise InputError(f"{columns.where}: expected a row per simulation, got none")
    for name, column in zip(parameters, known.T, strict=True):
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise InputError(
                f"{columns.where}: expected finite parameters, got {column[row]} in row {row} of "
                f"{show(name)}"
            )
    bad = ~np.isfinite(values).all(axis=1)
    reasons = tuple(_reason(data, values, int(row), texts) for row in np.flatnonzero(bad))
    if reasons:
        _refuse_or_tell(columns, reasons, len(values), broken, texts)
    good = torch.from_numpy(known[~bad])
    failures = Failures(torch.from_numpy(known[bad]), reasons)
    y_good = torch.from_numpy(values[~bad])
    return Parts(good, y_good, group_replicates(good), failures, tuple(parameters))


def _chosen(columns: Columns, argument: str, names: Any) -> list[str]:
    """Return the columns of those names; a name may be a pattern, such as ``"day*"``."""
    wanted, _ = as_names(names, argument)
    for one in wanted:
        if wanted.count(one) > 1:
            raise InputError(f"{argument}: expected different names, got {show(one)} twice")
    found: list[str] = []
    for one in wanted:
        fitting = [one] if one in columns.names else []
        fitting = fitting or [name for name in columns.names if fnmatchcase(name, one)]
        if not fitting:
            raise InputError(
                f"{argument}: expected columns of {columns.where}, one of "
                f"{_some(columns.names)}, got {show(one)}"
            )
        found += fitting
    return list(dict.fromkeys(found))


def _reason(
    data: Sequence[str], values: np.ndarray, row: int, texts: Mapping[str, Mapping[int, str]]
) -> str:
    """Say why a row is no simulation."""
    (missing,) = np.nonzero(~np.isfinite(values[row]))
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    name = data[missing[0]]
    text = texts[name].get(row)
    found = values[row, missing[0]] if text is None else show(text)
    return f"row {row}: {found} in {name}{more}"


def _found(texts: Mapping[str, Mapping[int, str]]) -> str:
    """Say what stands where numbers should."""
    return "NaN, inf or texts" if any(texts.values()) else "NaN or inf"


def _refuse_or_tell(
    columns: Columns,
    reasons: Sequence[str],
    rows: int,
    broken: str,
    texts: Mapping[str, Mapping[int, str]],
) -> None:
    """Refuse rows that are not finite, all in one line, or warn that they count as failures."""
    shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
    several = f"{len(reasons)} of {rows} rows"
    if broken == "refuse":
        raise InputError(
            f"{columns.where}: expected finite data, got {several} with {_found(texts)} "
            f"(broken='failed' counts them as failures): {shown}"
        )
    if len(reasons) == rows:
        raise InputError(
            f"{columns.where}: expected simulations, got {_found(texts)} in every row: {shown}"
        )
    warnings.warn(
        f"{columns.where}: {several} are broken and count as failures: {shown}",
        EandeWarning,
        stacklevel=4,
    )


def tell_apart(
    columns: Columns, parameters: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return which columns are parameters and which are data, as their names tell.

    Data are the largest family of columns whose names differ by a number only, such as ``day1`` to
    ``day14``; parameters all other columns of numbers that do not number the rows.

    Args:
        columns: of the table.
        parameters: those that are parameters; all others of numbers are then data.
    """
    numeric = [name for name in columns.names if _is_numeric(columns, name)]
    if parameters is not None:
        phi = _chosen(columns, "parameters", list(parameters))
        return phi, [name for name in numeric if name not in phi]
    families: dict[tuple[str, str], list[str]] = {}
    for name in numeric:
        match = _NUMBERED.fullmatch(name)
        if match and match["stem"].strip("_-.[(= ").lower() not in _PARAMETERS:
            families.setdefault((match["stem"], match["unit"]), []).append(name)
    data = max(families.values(), key=len, default=[])
    if len(data) < 2 or len(data) == len(numeric):
        raise InputError(
            f"{columns.where}: expected columns of data called alike but for a number (y1, y2, …) "
            f"beside those of the parameters, got {_some(columns.names)}; --parameters A,B names "
            "the parameters, and all others are data"
        )
    return [name for name in numeric if name not in data], data


def _is_numeric(columns: Columns, name: str) -> bool:
    """Return whether a column has numbers that say something: not texts, and no row numbers."""
    try:
        values = columns.numbers(name, texts={})
    except InputError:
        return False
    if name != columns.names[0] or name not in _ROW_NUMBERS or not len(values):
        return True
    return not np.array_equal(values, np.arange(len(values)) + values[0])


def as_pattern(columns: Columns, data: Sequence[str]) -> str | None:
    """Return a pattern that fits those columns and no others, such as ``day*``; None for none."""
    stems = {match["stem"] if (match := _NUMBERED.fullmatch(name)) else "" for name in data}
    (stem, *others) = stems
    fitting = [name for name in columns.names if fnmatchcase(name, f"{stem}*")]
    return f"{stem}*" if stem and not others and fitting == list(data) else None


def _read_columnar(path: Path) -> Any:
    """Read a file by pandas, or say what it needs."""
    import pandas

    reader = pandas.read_parquet if path.suffix.lower() == ".parquet" else pandas.read_feather
    try:
        return reader(path)
    except ImportError:
        raise ImportError(f"{path} needs pyarrow: pip install pyarrow") from None


def _unique(where: str, names: Sequence[str]) -> tuple[str, ...]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{where}: expected columns of different names, got two {show(twice[0])}")
    return tuple(names)


def _is_missing(cell: object) -> bool:
    return cell is None or cell != cell


def _some(names: Sequence[str]) -> str:
    """Return names as a message shows them, some of many."""
    return ", ".join(names[:12]) + (f", … ({len(names)})" if len(names) > 12 else "")
