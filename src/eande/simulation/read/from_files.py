"""Simulations from files of others: one .npz, NetCDF, .npy or .csv file each.

Parameters are small and read when the files are opened, data when they are asked for. What a file
holds is checked when it is read, and a refusal names the file: among thousands, that is what one
needs to know.
"""

from __future__ import annotations

import glob
import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    check_choice,
    check_flag,
)
from eande.foundations.paths import as_path
from eande.simulation.read.entry import (
    as_names,
    check_datum,
    reading,
    reading_window,
)
from eande.simulation.read.members import (
    KINDS,
    PLAIN,
    SUFFIXES,
    Member,
    State,
    assign,
    check_file,
    check_order,
    compare,
    list_broken,
    open_dataset,
    state_of,
)
from eande.simulation.read.npz import Identity, NpzFile
from eande.simulation.read.parts import Failures, Parts, group_replicates
from eande.simulation.read.plain import PlainFile
from eande.simulation.read.sources import Source, as_index
from eande.simulation.read.tables import Table, is_frame, read_array, read_csv, read_frame

# What becomes of files that are no simulations.
BROKEN = ("refuse", "failed")


def read_files(
    files: str | Path | Sequence[str | Path],
    phi: Any,
    y: str,
    *,
    broken: str = "refuse",
    progress: bool = True,
) -> Parts:
    """Do what :meth:`Simulations.from_files` promises, a folder's files in the order of names.

    Simulations of equal φ are replicates and share a group.
    """
    check_choice("broken", broken, BROKEN)
    check_flag("progress", progress)
    table = _as_table(phi)
    paths, as_given = list_files(files, without=_table_path(phi))
    if table is None:
        names, several = as_names(phi)
        members = [Member(path) for path in paths]
        absent: list[Member] = []
    else:
        names, several = [], False
        if table.files is None and not as_given:
            check_order(paths)
        members, absent = assign(table, paths)
    for member in _shown(members, "opening files", progress):
        member.look(names, several, y)
    compare(members, y)
    if broken == "failed":
        _check_data(members, y, progress)
    good = [member for member in members if member.reason is None]
    bad = [member for member in (*members, *absent) if member.reason is not None]
    if bad:
        _refuse_or_tell(good, bad, broken)
    parameters = torch.from_numpy(np.stack([member.known_phi for member in good]))
    known = [member for member in bad if member.has_parameters_of(good[0])]
    failed = np.stack([m.known_phi for m in known]) if known else parameters[:0].numpy()
    failures = Failures(torch.from_numpy(failed), tuple(member.told for member in known))
    found_names = good[0].names if table is None else table.names
    return Parts(parameters, _source(good, y), group_replicates(parameters), failures, found_names)


def _check_data(members: list[Member], y: str, progress: bool) -> None:
    """Read all data, and take those for broken that cannot be read or are not finite."""
    good = [member for member in members if member.reason is None]
    if not good:
        return
    source = _source(good, y)
    datum = np.empty(source.y_shape, dtype=np.float32)
    for row, member in enumerate(_shown(good, "checking data", progress)):
        try:
            source.look(row, 0, source.y_shape[0], datum)
        except InputError as error:
            member.reason = str(error)


def _source(good: list[Member], y: str) -> FileSource:
    """Return the data of files that were read."""
    assert good[0].shape is not None
    others = sorted(set[str]().union(*(member.variables for member in good)) - {y})
    states = [member.state for member in good if member.state is not None]
    paths = [member.path for member in good]
    return FileSource(np.arange(len(good)), good[0].shape, paths, y, others, states)


def _refuse_or_tell(good: list[Member], bad: list[Member], broken: str) -> None:
    """Refuse broken files, all of them in one line, or warn that they count as failures."""
    several = f"{len(bad)} of {len(good) + len(bad)} files"
    if not good:
        # That all are broken alike tells of the call rather than of the files.
        also = f" (and {len(bad) - 1} more files are broken)" if len(bad) > 1 else ""
        raise InputError(f"{bad[0].reason}{also}")
    if broken == "refuse":
        if len(bad) == 1:
            raise InputError(f"{bad[0].reason}; broken='failed' counts it as a failure")
        raise InputError(
            f"files: expected simulations, got {several} broken (broken='failed' counts them as "
            f"failures): {list_broken(bad)}"
        )
    unknown = sum(not member.has_parameters_of(good[0]) for member in bad)
    left_out = f", but {unknown} without parameters are left out" if unknown else ""
    warnings.warn(
        f"{several} are broken and count as failures{left_out}: {list_broken(bad)}",
        EandeWarning,
        stacklevel=4,
    )


def _shown(members: list[Member], what: str, progress: bool) -> Iterable[Member]:
    """Return the files one by one, with a progress bar."""
    # Here and not above: who reads no files needs no bar.
    from rich.progress import track

    return track(members, what, disable=not progress, transient=True)


class FileSource(Source):
    """Data in files, one datum each.

    A file is opened for each reading and closed after it, so that their number has no limit.

    Args:
        rows: the number of each datum's file, (n,).
        y_shape: shape of one datum.
        files: paths.
        y: name of the data in each file.
        others: other variables in the files, which need not be looked at.
        states: of the files when their parameters were read.
    """

    def __init__(
        self,
        rows: np.ndarray,
        y_shape: tuple[int, ...],
        files: Sequence[Path],
        y: str,
        others: Sequence[str],
        states: Sequence[State],
    ) -> None:
        super().__init__(rows, y_shape)
        self.files = tuple(files)
        self.y = y
        self.others = tuple(others)
        self.states = tuple(states)
        # What was compared with its checksum.
        self._verified: set[Identity] = set()

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read from the file, or refuse it."""
        try:
            self.look(row, start, stop, out)
        except InputError as error:
            raise InputError(
                f"{error}; from_files(…, broken='failed') finds all such files at once, and "
                "counts them as failures"
            ) from None

    def look(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read from the file; its shape must still be the expected one, its numbers finite."""
        path = self.files[row]
        name = f"{path}, {self.y}"
        with reading_window(name, start, stop, self.y_shape[0], out):
            if state_of(path) != self.states[row]:
                raise InputError(
                    f"{path}: expected the file whose parameters were read, got another or a "
                    "changed one: open the files again"
                )
            if path.suffix.lower() == ".npz":
                with NpzFile.open(path) as file:
                    out[...] = file.window(self.y, self.y_shape, start, stop, self._verified)
                return
            if path.suffix.lower() in PLAIN:
                values = PlainFile.open(path).values(self.y)
                check_datum(name, values.shape, values.dtype, self.y_shape)
                out[...] = values[start:stop] if values.ndim else values
                return
            with open_dataset(path, self.others) as dataset:
                array = dataset[self.y]
                check_datum(name, array.shape, array.dtype, self.y_shape)
                window = {axis: slice(start, stop) for axis in array.dims[:1]}
                out[...] = array.isel(window).values

    def subset(self, index: Any) -> FileSource:
        """Return the source of the chosen data."""
        chosen = FileSource(
            self.rows[as_index(index)],
            self.y_shape,
            self.files,
            self.y,
            self.others,
            self.states,
        )
        chosen._verified = self._verified
        return chosen

    def fingerprint(self) -> str:
        """Return a digest of the files' paths, sizes and times of change, as they are now."""
        total = hashlib.sha256(self.y.encode())
        for row in self.rows:
            path = self.files[row]
            with reading(path):
                state = path.stat()
            total.update(f"\n{path} {state.st_size} {state.st_mtime_ns}".encode())
        return total.hexdigest()[:16]


def list_files(files: Any, *, without: Path | None = None) -> tuple[list[Path], bool]:
    """Return the files, and whether they were given one by one, in an order of their own.

    Args:
        files: a folder, a pattern or a list.
        without: the table of parameters, which may lie among them.
    """
    kinds = ", ".join(SUFFIXES)
    if isinstance(files, Iterable) and not isinstance(files, str | bytes | Path | Set | Mapping):
        paths = [as_path("files", path) for path in files]
        if not paths:
            raise InputError(f"files: expected at least one of {kinds}, got none in []")
        for path in paths:
            if path.suffix.lower() not in SUFFIXES or path.is_dir():
                check_file(path)
        return paths, True
    folder = as_path("files", files, kind="folder")
    is_pattern = not folder.exists() and glob.has_magic(str(folder))
    if not folder.is_dir() and not is_pattern:
        raise InputError(
            f"files: expected a folder, a pattern such as 'members/*.nc' or a list of files, got "
            f"{folder}"
        )
    with reading(folder):
        found = glob.glob(str(folder), recursive=True) if is_pattern else folder.iterdir()
        # Hidden files are what file systems and copying leave beside the real ones.
        there = sorted(
            path
            for path in map(Path, found)
            if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
        )
        if without is not None and without.exists():
            there = [path for path in there if not path.samefile(without)]
    of_kinds = ([path for path in there if path.suffix.lower() in kind] for kind in KINDS)
    paths = next(filter(None, of_kinds), [])
    if not paths:
        raise InputError(f"files: expected at least one of {kinds}, got none in {folder}")
    return paths, False


def _table_path(phi: Any) -> Path | None:
    """Return where parameters lie beside the files in a table; None where they are elsewhere."""
    if isinstance(phi, Path) or (isinstance(phi, str) and phi.lower().endswith(".csv")):
        return as_path("phi", phi)
    return None


def _as_table(phi: Any) -> Table | None:
    """Return the parameters that lie beside the files; None for names of those in the files."""
    path = _table_path(phi)
    if path is not None:
        return read_csv(path)
    if is_frame(phi):
        return read_frame("phi", phi)
    is_list = isinstance(phi, list | tuple) and bool(phi)
    if hasattr(phi, "__array__") or (is_list and not any(isinstance(x, str) for x in phi)):
        return read_array("phi", phi)
    return None
