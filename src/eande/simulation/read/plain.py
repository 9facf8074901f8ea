"""Files of a single array or table, which name no parameters: .npy and .csv.

The columns of a table go by their names; ``y`` is the whole of it, as it is the whole of an array.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eande.foundations.checks import check_choice
from eande.foundations.files import open_regular
from eande.simulation.read.tables import Split, split

ARRAY = ".npy"
TABLE = ".csv"
WHOLE = "y"


class PlainFile:
    """What such a file holds.

    Args:
        where: its name, for refusals.
        table: its cells, None for an array.
        array: its numbers, None for a table.
    """

    def __init__(self, where: str, table: Split | None, array: np.ndarray | None) -> None:
        self._where = where
        self._table = table
        self._array = array
        columns = table.columns if table is not None and table.named else ()
        self.names = [name for name in columns if name]
        if WHOLE not in self.names:
            self.names.append(WHOLE)

    @classmethod
    def open(cls, path: Path) -> PlainFile:
        """Open a file; an array's numbers are read when they are asked for."""
        # Refuses a pipe, which would be waited for.
        with open_regular(path) as file:
            if path.suffix.lower() == TABLE:
                return cls.of_text(str(path), file.readall())
        return cls(str(path), None, np.load(path, mmap_mode="r", allow_pickle=False))

    @classmethod
    def of_text(cls, where: str, content: bytes, *, by_spaces: bool = False) -> PlainFile:
        """Take a table of text, as :func:`eande.simulation.read.tables.split` does."""
        return cls(where, split(where, content, by_spaces=by_spaces), None)

    def values(self, name: str) -> np.ndarray:
        """Return the numbers of that name: (rows,), for a table of several columns (rows, columns).

        An empty cell is NaN.
        """
        check_choice(f"{self._where}, y", name, self.names)
        if self._table is None:
            assert self._array is not None
            return self._array
        if name in self._table.columns:
            return self._table.column(self._where, name)
        columns = [self._table.column(self._where, one) for one in self._table.columns]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
