"""Files of one simulation each: what is in them, and what is wrong with those that are broken."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import InputError, check_choice, check_finite, show, show_shape
from eande.foundations.files import open_regular
from eande.simulation.read.entry import (
    as_floats,
    check_datum,
    check_few,
    import_xarray,
    names_along,
    reading,
)
from eande.simulation.read.npz import NpzFile
from eande.simulation.read.plain import ARRAY, TABLE, PlainFile
from eande.simulation.read.tables import Table

# Number, size and time of change of a file.
State = tuple[int, int, int]

# Of files that can hold parameters too, and of those that hold data alone.
_NAMED = (".npz", ".nc", ".nc4", ".cdf")
PLAIN = (ARRAY, TABLE)
SUFFIXES = (*_NAMED, *PLAIN)
# Of a folder with files of several kinds, the first of these that is there: tables lie beside data.
KINDS = (_NAMED, (ARRAY,), (TABLE,))
# Letters of a reason, and of all reasons together, in a message.
_LONGEST_REASON = 160
_LONGEST_LIST = 1_200


class Member:
    """A file of one simulation, and what was found in it so far.

    Args:
        path: the file.
        phi: its parameters (D,), None where they are in the file.
        reason: why it is no simulation, None for one that is.
    """

    def __init__(
        self, path: Path, phi: np.ndarray | None = None, reason: str | None = None
    ) -> None:
        self.path = path
        self.phi = phi
        self.reason = reason
        self.names: tuple[str, ...] | None = None
        self.state: State | None = None
        self.shape: tuple[int, ...] | None = None
        self.variables: list[str] = []

    @property
    def known_phi(self) -> np.ndarray:
        """The parameters of a file that was read."""
        assert self.phi is not None
        return self.phi

    @property
    def told(self) -> str:
        """The file's name and what is wrong with it."""
        return f"{self.path.name}: {self.why}"

    @property
    def why(self) -> str:
        """What is wrong with the file."""
        return (self.reason or "").removeprefix(str(self.path)).lstrip(",: ")

    def has_parameters_of(self, other: Member) -> bool:
        """Whether the parameters are known, and are those of the other file."""
        return self.phi is not None and self.layout == other.layout

    @property
    def layout(self) -> tuple[int, tuple[str, ...] | None]:
        """How many parameters there are, and their names."""
        return len(self.known_phi), self.names

    def look(self, phi: list[str], several: bool, y: str) -> None:
        """Read parameters and what the data are, or why they cannot be read."""
        if self.reason is not None:
            return
        try:
            check_file(self.path)
            with reading(self.path):
                # Before it is opened: what is put in its place later is another file.
                self.state = state_of(self.path)
                if self.path.suffix.lower() == ".npz":
                    self._look_into_npz(phi, several, y)
                elif self.path.suffix.lower() in PLAIN:
                    self._look_into_plain(phi, y)
                else:
                    self._look_into_dataset(phi, several, y)
        except InputError as error:
            self.reason = str(error)

    def _look_into_npz(self, phi: list[str], several: bool, y: str) -> None:
        with NpzFile.open(self.path) as file:
            self.variables = file.names
            vectors = []
            for name in phi:
                check_choice(f"{self.path}, phi", name, file.names)
                vectors.append(_parameters(f"{self.path}, {name}", file.few(name), several))
            self._keep(phi, vectors, None)
            check_choice(f"{self.path}, y", y, file.names)
            self.shape = check_datum(f"{self.path}, {y}", *file.described(y))

    def _look_into_plain(self, phi: list[str], y: str) -> None:
        if phi:
            raise InputError(
                f"{self.path}: expected the parameters in a table beside the files, such as "
                f"phi='parameters.csv', for a {self.path.suffix} file holds data alone"
            )
        file = PlainFile.open(self.path)
        self.variables = file.names
        values = file.values(y)
        self.shape = check_datum(f"{self.path}, {y}", values.shape, values.dtype)

    def _look_into_dataset(self, phi: list[str], several: bool, y: str) -> None:
        with open_dataset(self.path) as dataset:
            self.variables = list(dataset.variables)
            vectors = []
            labels = None
            for name in phi:
                check_choice(f"{self.path}, phi", name, [*self.variables, *dataset.attrs])
                where = f"{self.path}, {name}"
                if name in self.variables:
                    values = dataset[name]
                    labels = names_along(values, values.dims[0]) if values.ndim == 1 else None
                else:
                    values = np.asarray(dataset.attrs[name])
                check_few(where, values.size)
                vectors.append(_parameters(where, np.asarray(values), several))
            self._keep(phi, vectors, labels)
            check_choice(f"{self.path}, y", y, self.variables)
            self.shape = check_datum(f"{self.path}, {y}", dataset[y].shape, dataset[y].dtype)

    def _keep(
        self, phi: list[str], vectors: list[np.ndarray], labels: tuple[str, ...] | None
    ) -> None:
        """Keep the parameters and their names, where they are in the file."""
        if vectors:
            self.phi = np.concatenate(vectors)
            self.names = tuple(phi) if len(self.phi) == len(phi) else labels


def compare(members: list[Member], y: str) -> None:
    """Take those for broken that are of another shape than most, or of other parameters."""
    good = [member for member in members if member.reason is None]
    if not good:
        return
    (layout, _), *_ = Counter(member.layout for member in good).most_common(1)
    like = next(member for member in good if member.layout == layout)
    for member in good:
        if member.layout[0] != layout[0]:
            member.reason = (
                f"{member.path}, phi: expected {layout[0]} parameters as in {like.path.name}, "
                f"got {member.layout[0]}"
            )
        elif member.layout != layout:
            member.reason = (
                f"{member.path}, phi: expected the parameters {show(layout[1])} as in "
                f"{like.path.name}, got {show(member.names)}"
            )
    (shape, _), *_ = Counter(member.shape for member in good).most_common(1)
    like = next(member for member in good if member.shape == shape)
    for member in good:
        if member.reason is None and member.shape != shape:
            member.reason = (
                f"{member.path}, {y}: expected shape {show_shape(shape or ())} as in "
                f"{like.path.name}, got {show_shape(member.shape or ())}"
            )


def list_broken(bad: list[Member]) -> str:
    """Return the broken files, by what is wrong with them, in a line of limited length."""
    groups: dict[str, list[str]] = {}
    for member in bad:
        groups.setdefault(member.why, []).append(member.path.name)
    texts: list[str] = []
    room = _LONGEST_LIST
    for why, names in groups.items():
        shown = [
            name for name, length in zip(names, _lengths(names), strict=True) if length <= room
        ]
        if not shown:
            return f"{'; '.join(texts)}; … ({len(bad)} in all)"
        more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
        cut = why if len(why) <= _LONGEST_REASON else f"{why[:_LONGEST_REASON]}…"
        texts.append(f"{', '.join(shown)}{more}: {cut}")
        room -= len(texts[-1])
    return "; ".join(texts)


def _lengths(names: list[str]) -> list[int]:
    """Return how long a list is up to each of its names."""
    return np.cumsum([len(name) + 2 for name in names]).tolist()


def check_order(paths: list[Path]) -> None:
    """Refuse rows without names for files that letters and numbers put in different orders."""
    by_number = sorted(paths, key=lambda path: _as_numbers(str(path)))
    for letters, numbers in zip(paths, by_number, strict=True):
        if letters != numbers:
            raise InputError(
                "phi: expected a column 'file', or the files in a list in the order of the rows, "
                f"for it is not plain: got {letters.name} before {numbers.name} by letters, after "
                "it by numbers"
            )


def _as_numbers(text: str) -> list[tuple[str, int]]:
    """Return a text as what is compared where 10 comes after 2."""
    parts = re.findall(r"(\D*)(\d*)", text)
    return [(letters, int(digits or 0)) for letters, digits in parts]


def assign(table: Table, paths: Sequence[Path]) -> tuple[list[Member], list[Member]]:
    """Return the files with their rows of a table, and the rows of files that are not there.

    By the column that names the files, with or without folder and ending; else in their order.
    """
    rows = table.phi.numpy()
    if table.files is None:
        if len(rows) != len(paths):
            raise InputError(
                f"phi: expected one row for each of {len(paths)} files, got {len(rows)}"
            )
        return [Member(path, row) for path, row in zip(paths, rows, strict=True)], []
    places: dict[str, set[int]] = {}
    for place, path in enumerate(paths):
        for key in (path.name, path.stem):
            places.setdefault(key, set()).add(place)
    members = [
        Member(path, reason=f"{path}: expected a row of parameters, got none") for path in paths
    ]
    absent = []
    for entry, row in zip(table.files, rows, strict=True):
        found = places.get(Path(entry).name, set())
        if not found:
            reason = f"{entry}: expected a file of that name, got a row of parameters alone"
            absent.append(Member(Path(entry), row, reason))
            continue
        first = members[min(found)]
        if len(found) > 1 or first.phi is not None:
            what = f"{len(found)} files" if len(found) > 1 else "two rows"
            raise InputError(
                f"phi: expected one file and one row of each name, got {what} of {show(entry)}"
            )
        members[min(found)] = Member(first.path, row)
    return members, absent


def state_of(path: Path) -> State:
    """Return what changes when a file is written or replaced."""
    try:
        state = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file, got nothing there") from None
    return state.st_ino, state.st_size, state.st_mtime_ns


def open_dataset(path: Path, without: Sequence[str] = ()) -> Any:
    """Open a NetCDF file, without variables that need not be looked at."""
    # Refuses a pipe, which the library would wait for.
    open_regular(path).close()
    # Times stay numbers: a parameter with the unit "days" is one, and no calendar can fail.
    xarray = import_xarray("a NetCDF file")
    return xarray.open_dataset(path, decode_times=False, drop_variables=without)


def check_file(path: Path) -> None:
    """Refuse what is no file of a kind that is read."""
    if path.suffix.lower() in SUFFIXES and path.is_file():
        return
    if path.is_dir():
        got = "a folder"
    elif path.exists():
        got = "another kind"
    else:
        got = "nothing there"
    raise InputError(f"{path}: expected a file of {', '.join(SUFFIXES)}, got {got}")


def _parameters(name: str, values: np.ndarray, several: bool) -> np.ndarray:
    """Return a file's parameters (D,), or one (1,)."""
    numbers = as_floats(name, values)
    is_vector = numbers.ndim == 1 and numbers.size > 0
    if numbers.size != 1 and not (several and is_vector):
        expected = "a vector" if several else "one number"
        raise InputError(f"{name}: expected {expected}, got shape {show_shape(numbers.shape)}")
    check_finite(name, torch.from_numpy(numbers))
    return numbers.reshape(-1)
