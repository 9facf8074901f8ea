"""Simulations from files of others: one .npz or NetCDF file each.

Parameters are small and read when the files are opened, data when they are asked for. What a file
holds is checked when it is read, and a refusal names the file: among thousands, that is what one
needs to know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import InputError, check_choice, check_finite, show_shape
from eande.foundations.files import open_regular
from eande.foundations.paths import as_path
from eande.simulation.read.entry import (
    as_floats,
    as_names,
    check_datum,
    check_few,
    import_xarray,
    reading,
    reading_window,
)
from eande.simulation.read.npz import Identity, NpzFile
from eande.simulation.read.parts import Parts, group_replicates
from eande.simulation.read.sources import Source, as_index

# Number, size and time of change of a file.
State = tuple[int, int, int]

_SUFFIXES = (".npz", ".nc", ".nc4", ".cdf")


def read_files(files: str | Path | Sequence[str | Path], phi: str | Sequence[str], y: str) -> Parts:
    """Do what :meth:`Simulations.from_files` promises, a folder's files in the order of names.

    Simulations of equal φ are replicates and share a group.
    """
    paths = _as_paths(files)
    names, several = as_names(phi)
    vectors: list[np.ndarray] = []
    shapes: list[tuple[int, ...]] = []
    variables: set[str] = set()
    states: list[State] = []
    for path in paths:
        with reading(path):
            # Before it is opened: what is put in its place later is another file.
            states.append(_state(path))
            vector, shape, dtype, found = _open(path, names, several, y)
        if vectors and len(vector) != len(vectors[0]):
            raise InputError(
                f"{path}, phi: expected {len(vectors[0])} parameters as in {paths[0].name}, "
                f"got {len(vector)}"
            )
        shapes.append(check_datum(f"{path}, {y}", shape, dtype, *shapes[:1]))
        vectors.append(vector)
        variables.update(found)
    parameters = torch.from_numpy(np.stack(vectors))
    others = sorted(variables - {y})
    source = FileSource(np.arange(len(paths)), shapes[0], paths, y, others, states)
    return Parts(parameters, source, group_replicates(parameters))


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
        """Read from the file; its shape must still be the expected one, its numbers finite."""
        path = self.files[row]
        name = f"{path}, {self.y}"
        with reading_window(name, start, stop, self.y_shape[0], out):
            if _state(path) != self.states[row]:
                raise InputError(
                    f"{path}: expected the file whose parameters were read, got another or a "
                    "changed one: open the files again"
                )
            if path.suffix.lower() == ".npz":
                with NpzFile.open(path) as file:
                    out[...] = file.window(self.y, self.y_shape, start, stop, self._verified)
                return
            with _open_dataset(path, self.others) as dataset:
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


def _state(path: Path) -> State:
    """Return what changes when a file is written or replaced."""
    try:
        state = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file, got nothing there") from None
    return state.st_ino, state.st_size, state.st_mtime_ns


def _open(
    path: Path, phi: list[str], several: bool, y: str
) -> tuple[np.ndarray, tuple[int, ...], np.dtype, list[str]]:
    """Return the parameters, shape and type of the data, and the names of all variables."""
    if path.suffix.lower() == ".npz":
        with NpzFile.open(path) as file:
            _check_names(path, phi, y, file.names, file.names)
            vectors = [_parameters(f"{path}, {name}", file.few(name), several) for name in phi]
            return np.concatenate(vectors), *file.described(y), file.names
    with _open_dataset(path) as dataset:
        names = list(dataset.variables)
        _check_names(path, phi, y, names, [*names, *dataset.attrs])
        vectors = []
        for name in phi:
            values = dataset[name] if name in names else np.asarray(dataset.attrs[name])
            check_few(f"{path}, {name}", values.size)
            vectors.append(_parameters(f"{path}, {name}", np.asarray(values), several))
        return np.concatenate(vectors), dataset[y].shape, dataset[y].dtype, names


def _check_names(
    path: Path, phi: list[str], y: str, variables: Sequence[str], parameters: Sequence[str]
) -> None:
    """Refuse names of which a file has nothing."""
    for name in phi:
        check_choice(f"{path}, phi", name, parameters)
    check_choice(f"{path}, y", y, variables)


def _open_dataset(path: Path, without: Sequence[str] = ()) -> Any:
    # Refuses a pipe, which the library would wait for.
    open_regular(path).close()
    # Times stay numbers: a parameter with the unit "days" is one, and no calendar can fail.
    xarray = import_xarray("a NetCDF file")
    return xarray.open_dataset(path, decode_times=False, drop_variables=without)


def _as_paths(files: Any) -> list[Path]:
    kinds = ", ".join(_SUFFIXES)
    if isinstance(files, Iterable) and not isinstance(files, str | bytes | Path | Set | Mapping):
        paths = [as_path("files", path) for path in files]
        where = "[]"
    else:
        folder = as_path("files", files, kind="folder")
        if not folder.is_dir():
            raise InputError(f"files: expected a folder or a list of files, got {folder}")
        where = str(folder)
        # Hidden files are what file systems and copying leave beside the real ones.
        with reading(folder):
            paths = sorted(
                path
                for path in folder.iterdir()
                if path.suffix.lower() in _SUFFIXES and path.name[0] != "." and path.is_file()
            )
    if not paths:
        raise InputError(f"files: expected at least one of {kinds}, got none in {where}")
    for path in paths:
        if path.suffix.lower() in _SUFFIXES and path.is_file():
            continue
        if path.is_dir():
            got = "a folder"
        elif path.exists():
            got = "another kind"
        else:
            got = "nothing there"
        raise InputError(f"{path}: expected a file of {kinds}, got {got}")
    return paths


def _parameters(name: str, values: np.ndarray, several: bool) -> np.ndarray:
    """Return a file's parameters (D,), or one (1,)."""
    numbers = as_floats(name, values)
    is_vector = numbers.ndim == 1 and numbers.size > 0
    if numbers.size != 1 and not (several and is_vector):
        expected = "a vector" if several else "one number"
        raise InputError(f"{name}: expected {expected}, got shape {show_shape(numbers.shape)}")
    check_finite(name, torch.from_numpy(numbers))
    return numbers.reshape(-1)
