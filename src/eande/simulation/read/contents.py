"""What is in files of others, before anything is read: names and shapes of a first file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eande.simulation.read.entry import reading
from eande.simulation.read.from_files import list_files
from eande.simulation.read.members import open_dataset
from eande.simulation.read.npz import NpzFile


@dataclass(frozen=True)
class Contents:
    """What a folder of files holds, as far as its first file tells.

    Args:
        first: that file.
        files: their number.
        shapes: of each variable in it, by name; attributes of NetCDF that are single numbers, too.
    """

    first: Path
    files: int
    shapes: dict[str, tuple[int, ...]]


def look_into(folder: str | Path) -> Contents:
    """Return the names and shapes of what the first of a folder's files holds.

    Args:
        folder: a folder, or a pattern, as for ``Simulations.from_files``.
    """
    paths, _ = list_files(folder)
    first = paths[0]
    with reading(first):
        if first.suffix.lower() == ".npz":
            with NpzFile.open(first) as file:
                shapes = {name: file.described(name)[0] for name in file.names}
        else:
            with open_dataset(first) as dataset:
                shapes = {str(name): tuple(x.shape) for name, x in dataset.variables.items()}
                numbers = [name for name, x in dataset.attrs.items() if isinstance(x, int | float)]
                shapes |= dict.fromkeys(map(str, numbers), ())
    return Contents(first, len(paths), shapes)
