"""Simulations that others wrote: one .npz or NetCDF file each, or an xarray Dataset.

Parameters are small and read at once, data when they are asked for. Whatever a file gives is checked where it enters, and
what is wrong with it names the file: among thousands, that is what one needs to know.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_choice, check_count, check_finite, show_shape
from eande.simulation.read.simulations import Simulations, as_groups, digest
from eande.simulation.read.sources import Source, as_index

_NUMERIC, _SUFFIXES = "biuf", (".npz", ".nc", ".nc4", ".cdf")
# A fingerprint of a lazy dataset reads windows of so many data, each of about so many numbers.
_ROWS_IN_FINGERPRINT, _NUMBERS_IN_FINGERPRINT = 16, 16_384
# What zipfile, numpy, xarray and HDF5 raise when a file is not what it should be.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    EOFError,
    BadZipFile,
    zlib.error,
    struct.error,
)


def read_files(
    files: str | Path | Sequence[str | Path], phi: str | Sequence[str], y: str
) -> Simulations:
    """Do what :meth:`Simulations.from_files` promises, a folder's files by name; equal φ are replicates and share a group."""
    paths, (parts, several) = _as_paths(files), _as_names(phi)
    vectors: list[np.ndarray] = []
    shapes: list[tuple[int, ...]] = []
    others: set[str] = set()
    for path in paths:
        with _reading(path):
            vector, shape, dtype, names = _open(path, parts, several, y)
        if vectors and len(vector) != len(vectors[0]):
            raise InputError(
                f"{path}, phi: expected {len(vectors[0])} parameters as in {paths[0].name}, got {len(vector)}"
            )
        shapes.append(_check_datum(f"{path}, {y}", shape, dtype, *shapes[:1]))
        vectors.append(vector)
        others.update(names)
    parameters = torch.from_numpy(np.stack(vectors))
    source = FileSource(np.arange(len(paths)), shapes[0], paths, y, sorted(others - {y}))
    return Simulations(parameters, source, _replicates(parameters))


def read_xarray(dataset: Any, phi: str | Sequence[str], y: str, dimension: str) -> Simulations:
    """Do what :meth:`Simulations.from_xarray` promises; a datum's axes are the other dimensions of ``y``, equal φ share a group."""
    if not isinstance(dataset, _xarray("Simulations.from_xarray").Dataset):
        raise InputError(f"dataset: expected an xarray Dataset, got {type(dataset).__name__}")
    names, several = _as_names(phi)
    check_choice("dimension", dimension, list(dataset.sizes))
    check_count("number of simulations", dataset.sizes[dimension], 1)
    parameters = torch.from_numpy(
        np.concatenate([_columns(dataset, name, dimension, several) for name in names], axis=1)
    )
    check_count("number of parameters", parameters.shape[1], 1)
    check_finite("phi", parameters)
    check_choice("y", y, list(dataset.variables))
    array = dataset[y]
    if dimension not in array.dims:
        raise InputError(
            f"y: expected a variable with the dimension {dimension!r}, got {y!r} with {show_shape(array.dims)}"
        )
    _check_datum(f"y, {y!r}", array.isel({dimension: 0}).shape, array.dtype)
    # Xarray has no public word for "in memory"; without this one, data in memory are read like any others.
    if getattr(array.variable, "_in_memory", False):
        values = _as_floats("y", array.transpose(dimension, ...).values)
        return Simulations.from_arrays(
            parameters,
            values.reshape(-1, 1) if values.ndim == 1 else values,
            groups=_replicates(parameters),
        )
    return Simulations(
        parameters,
        XarraySource(np.arange(len(parameters)), array, dimension),
        _replicates(parameters),
    )


class FileSource(Source):
    """Data in files, one datum each. A file is opened for each reading and closed after it, so that any number will do.

    Args:
        rows: the number of each datum's file, (n,).
        y_shape: shape of one datum.
        files: paths.
        y: name of the data in each file.
        others: other variables in the files, which need not be looked at.
    """

    def __init__(
        self,
        rows: np.ndarray,
        y_shape: tuple[int, ...],
        files: Sequence[Path],
        y: str,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__(rows, y_shape)
        self.files, self.y, self.others = tuple(files), y, tuple(others)

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read from the file; its shape must still be the one expected, and the numbers finite."""
        path, name = self.files[row], f"{self.files[row]}, {self.y}"
        with _checked(name, start, stop, self.y_shape[0], out):
            if path.suffix.lower() == ".npz":
                out[...] = _npz_window(path, self.y, self.y_shape, start, stop)
                return
            with _open_dataset(path, self.others) as dataset:
                array = dataset[self.y]
                _check_datum(name, array.shape, array.dtype, self.y_shape)
                out[...] = array.isel({axis: slice(start, stop) for axis in array.dims[:1]}).values

    def subset(self, index: Any) -> FileSource:
        """Return the source of the chosen data."""
        return FileSource(self.rows[as_index(index)], self.y_shape, self.files, self.y, self.others)

    def fingerprint(self) -> str:
        """Return a digest of the files' paths, sizes and times of change, as they are now."""
        total = hashlib.sha256(self.y.encode())
        for path in (self.files[row] for row in self.rows):
            with _reading(path):
                state = path.stat()
            total.update(f"\n{path} {state.st_size} {state.st_mtime_ns}".encode())
        return total.hexdigest()[:16]


class XarraySource(Source):
    """Data in a lazy variable of an xarray Dataset.

    Args:
        rows: the place of each datum along the dimension, (n,).
        array: the variable.
        dimension: along which the simulations lie.
    """

    def __init__(self, rows: np.ndarray, array: Any, dimension: str) -> None:
        self.array, self.dimension = array, dimension
        self._axes = [other for other in array.dims if other != dimension]
        super().__init__(rows, tuple(array.sizes[axis] for axis in self._axes) or (1,))

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read one row's window; the numbers must be finite."""
        with _checked(
            f"{self.array.name}, {self.dimension} {row}", start, stop, self.y_shape[0], out
        ):
            # The other axes keep their order: a lazy array would be read in another, slower way if it were transposed first.
            out[...] = self.array.isel(
                {self.dimension: row} | {axis: slice(start, stop) for axis in self._axes[:1]}
            ).values

    def subset(self, index: Any) -> XarraySource:
        """Return the source of the chosen data."""
        return XarraySource(self.rows[as_index(index)], self.array, self.dimension)

    def fingerprint(self) -> str:
        """Return a digest of a spread of windows."""
        length = min(
            self.y_shape[0], max(1, _NUMBERS_IN_FINGERPRINT // math.prod(self.y_shape[1:]))
        )
        ends, number = (
            (len(self) - 1, self.y_shape[0] - length),
            min(len(self), _ROWS_IN_FINGERPRINT),
        )
        index, starts = (torch.linspace(0, end, number, dtype=torch.float64).long() for end in ends)
        return digest(self.windows(index, starts, length), torch.from_numpy(self.rows))


def _open(
    path: Path, phi: list[str], several: bool, y: str
) -> tuple[np.ndarray, tuple[int, ...], np.dtype, list[str]]:
    """Return the parameters, shape and type of the data, and the names of all variables."""
    npz = path.suffix.lower() == ".npz"
    opened: Any = np.load(path, allow_pickle=False) if npz else _open_dataset(path)
    with opened as file:
        names, attributes = (file.files, {}) if npz else (list(file.variables), file.attrs)
        for name in phi:
            check_choice(f"{path}, phi", name, [*names, *attributes])
        check_choice(f"{path}, y", y, names)
        read = (np.asarray(file[name] if name in names else attributes[name]) for name in phi)
        vector = np.concatenate(
            [
                _parameters(f"{path}, {name}", values, several)
                for name, values in zip(phi, read, strict=True)
            ]
        )
        if not npz:
            return vector, file[y].shape, file[y].dtype, names
        with _member(file.zip, y) as member:
            shape, _, dtype = _npy_header(member)
        return vector, shape, dtype, names


def _npz_window(path: Path, y: str, expected: tuple[int, ...], start: int, stop: int) -> np.ndarray:
    """Read entries of an array: alone where they lie in one piece, else out of the whole array."""
    with path.open("rb") as file, ZipFile(file) as archive:
        with _member(archive, y) as member:
            shape, in_fortran_order, dtype = _npy_header(member)
            _check_datum(f"{path}, {y}", shape, dtype, expected)
            info, header = archive.getinfo(member.name), member.tell()
            # The whole array goes through zipfile, which compares the checksum when it comes to the end.
            if stop - start == expected[0] or in_fortran_order or info.compress_type != ZIP_STORED:
                member.seek(0)
                values = np.lib.format.read_array(member, allow_pickle=False)
                return values[start:stop] if shape else values
        # The name and the extra field before a member have lengths that only its local header knows.
        file.seek(info.header_offset + 26)
        begin = info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))) + header
        file.seek(begin + start * math.prod(shape[1:]) * dtype.itemsize)
        window = np.empty((stop - start, *shape[1:]), dtype=dtype)
        if (
            info.file_size != header + math.prod(shape) * dtype.itemsize
            or file.readinto(window.data) != window.nbytes
        ):
            raise EOFError("not as many numbers as the header says")
        return window


def _member(archive: ZipFile, name: str) -> IO[bytes]:
    return archive.open(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)


def _npy_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether in Fortran's order, and type; the numbers begin where this stops reading."""
    version = np.lib.format.read_magic(member)
    return (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )(member)


def _open_dataset(path: Path, without: Sequence[str] = ()) -> Any:
    # Times stay numbers: a parameter with the unit "days" is one, and no calendar can fail.
    return _xarray("a NetCDF file").open_dataset(path, decode_times=False, drop_variables=without)


def _xarray(user: str) -> Any:
    try:
        import xarray
    except ImportError:
        raise ImportError(f"{user} needs xarray: pip install 'embed-and-emulate[scale]'") from None
    return xarray


@contextmanager
def _reading(what: str | Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{what}: expected data that can be read, got {type(error).__name__}: {reason}"
        ) from error


@contextmanager
def _checked(name: str, start: int, stop: int, length: int, out: np.ndarray) -> Iterator[None]:
    """Refuse damage while a window is read, NaN and infinity after."""
    with _reading(name), np.errstate(over="ignore"):
        yield
    check_finite(
        name if stop - start == length else f"{name}[{start}:{stop}]", torch.from_numpy(out)
    )


def _as_paths(files: Any) -> list[Path]:
    kinds = ", ".join(_SUFFIXES)
    if isinstance(files, str | Path) and Path(files).is_dir():
        # Hidden files are what file systems and copying leave beside the real ones.
        paths = sorted(
            path
            for path in Path(files).iterdir()
            if path.suffix.lower() in _SUFFIXES and path.name[0] != "." and path.is_file()
        )
    elif isinstance(files, Iterable) and not isinstance(files, str | Path):
        paths = [Path(path) for path in files]
    else:
        raise InputError(f"files: expected a folder or a list of files, got {files}")
    if not paths:
        raise InputError(f"files: expected at least one of {kinds}, got none in {files}")
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES or not path.is_file():
            got = (
                "a folder"
                if path.is_dir()
                else "another kind"
                if path.exists()
                else "nothing there"
            )
            raise InputError(f"{path}: expected a file of {kinds}, got {got}")
    return [path.absolute() for path in paths]


def _as_names(phi: Any) -> tuple[list[str], bool]:
    """Return the names of the parameters, and whether it is one that may have several numbers."""
    names = [phi] if isinstance(phi, str) else phi
    if (
        not isinstance(names, Sequence)
        or not names
        or not all(isinstance(name, str) for name in names)
    ):
        raise InputError(f"phi: expected a name or a list of names, got {phi!r}")
    return list(names), isinstance(phi, str)


def _parameters(name: str, values: np.ndarray, several: bool) -> np.ndarray:
    """Return a file's parameters (D,), or one (1,)."""
    numbers = _as_floats(name, values)
    if numbers.size != 1 and not (several and numbers.ndim == 1 and numbers.size):
        raise InputError(
            f"{name}: expected {'a vector' if several else 'one number'}, got shape {show_shape(numbers.shape)}"
        )
    check_finite(name, torch.from_numpy(numbers))
    return numbers.reshape(-1)


def _columns(dataset: Any, name: str, dimension: str, several: bool) -> np.ndarray:
    """Return a variable's parameters (n, 1), or (n, D) where it may have several."""
    check_choice("phi", name, list(dataset.variables))
    array = dataset[name]
    if dimension not in array.dims or array.ndim > 1 + several:
        expected = show_shape((dimension, "parameters") if several else (dimension,))
        raise InputError(
            f"phi, {name!r}: expected dimensions {expected}, got {show_shape(array.dims)}"
        )
    return _as_floats(f"phi, {name!r}", array.transpose(dimension, ...).values).reshape(
        array.sizes[dimension], -1
    )


def _replicates(phi: Tensor) -> Tensor:
    return as_groups(np.unique(phi.numpy(), axis=0, return_inverse=True)[1].reshape(-1), phi)


def _check_datum(
    name: str, shape: tuple[int, ...], dtype: np.dtype, expected: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return the shape of a datum, for a scalar (1,); refuse what is not numeric, empty, or of another shape than expected."""
    shape = tuple(shape) or (1,)
    if dtype.kind not in _NUMERIC:
        raise InputError(f"{name}: expected real numbers, got {dtype}")
    if math.prod(shape) == 0:
        raise InputError(f"{name}: expected at least one number, got shape {show_shape(shape)}")
    if expected is not None and shape != expected:
        raise InputError(
            f"{name}: expected shape {show_shape(expected)} as in the first file, got {show_shape(shape)}"
        )
    return shape


def _as_floats(name: str, values: np.ndarray) -> np.ndarray:
    """Turn numbers into float32 in one piece that torch may share."""
    if values.dtype.kind not in _NUMERIC:
        raise InputError(f"{name}: expected real numbers, got {values.dtype}")
    with np.errstate(over="ignore"):
        return np.require(values, np.float32, ["C", "W"])
