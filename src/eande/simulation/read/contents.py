"""What is in files of others, before anything is read: names and shapes of a first file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eande.foundations.checks import InputError
from eande.simulation.read.entry import reading
from eande.simulation.read.from_files import list_files
from eande.simulation.read.members import PLAIN, open_dataset
from eande.simulation.read.npz import NpzFile
from eande.simulation.read.plain import PlainFile
from eande.simulation.read.tables import Table, read_csv

# What a table of parameters is called, where it lies in the folder or beside it.
_TABLES = ("parameters", "params", "phi", "theta")


@dataclass(frozen=True)
class Contents:
    """What a folder of files holds, as far as its first file tells.

    Args:
        first: that file.
        files: their number.
        shapes: of each variable in it, by name; attributes of NetCDF that are single numbers, too.
        beside: a table of parameters in the folder or beside it; None where there is none.
        table: what it holds.
    """

    first: Path
    files: int
    shapes: dict[str, tuple[int, ...]]
    beside: Path | None = None
    table: Table | None = None


def look_into(folder: Path) -> Contents:
    """Return what the first of a folder's files holds, and the table of parameters beside them.

    Args:
        folder: a folder, or a pattern, as for ``Simulations.from_files``.
    """
    beside, table = _table(folder)
    paths, _ = list_files(folder, without=beside)
    first = paths[0]
    with reading(first):
        if first.suffix.lower() in PLAIN:
            shapes = {}
            plain = PlainFile.open(first)
            for name in plain.names:
                # A column may hold dates or remarks.
                with suppress(InputError):
                    shapes[name] = plain.values(name).shape
        elif first.suffix.lower() == ".npz":
            with NpzFile.open(first) as file:
                shapes = {name: file.described(name)[0] for name in file.names}
        else:
            with open_dataset(first) as dataset:
                shapes = {str(name): tuple(x.shape) for name, x in dataset.variables.items()}
                numbers = [name for name, x in dataset.attrs.items() if isinstance(x, int | float)]
                shapes |= dict.fromkeys(map(str, numbers), ())
    return Contents(first, len(paths), shapes, beside, table)


def _table(folder: Path) -> tuple[Path | None, Table | None]:
    """Return the table of parameters of a folder, and what it holds."""
    inside = folder if folder.is_dir() else folder.parent
    for name in (*_TABLES, inside.name):
        for path in (inside / f"{name}.csv", inside.parent / f"{name}.csv"):
            if path.is_file():
                return path, read_csv(path)
    return None, None
