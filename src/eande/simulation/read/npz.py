"""Arrays in .npz files: of an uncompressed one only the bytes of a window are read.

What a file declares is compared with what it holds before anything is read.
"""

from __future__ import annotations

import math
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from eande.foundations.files import open_regular
from eande.simulation.read.entry import check_datum, check_few

# In a zip archive, a member's local header has this many bytes, then its name and an extra field,
# whose two lengths are the header's last four bytes.
_LOCAL_HEADER = 30
# Bytes read at a time to compare a checksum.
_PART = 2**20
# Which file it was, and which member of it.
Identity = tuple[int, int, int, str]


class _Header(NamedTuple):
    """What an array says about itself.

    Attributes:
        shape: of the array.
        in_fortran_order: whether the first index runs fastest.
        dtype: of its numbers.
        begin: the byte of the member where the numbers begin.
    """

    shape: tuple[int, ...]
    in_fortran_order: bool
    dtype: np.dtype
    begin: int


class NpzFile:
    """An open .npz file.

    Args:
        path: its name.
        file: the open file.
        archive: the same, as a zip archive.
    """

    def __init__(self, path: Path, file: BufferedReader[FileIO], archive: ZipFile) -> None:
        self._path = path
        self._file = file
        self._archive = archive
        self.names = [name.removesuffix(".npy") for name in archive.namelist()]

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[NpzFile]:
        """Open a file for as long as it is needed."""
        with BufferedReader(open_regular(path)) as file, ZipFile(file) as archive:
            yield cls(path, file, archive)

    def few(self, name: str) -> np.ndarray:
        """Read an array of few numbers, such as parameters."""
        with self._member(name) as member:
            header = self._header(name, member)
            check_few(f"{self._path}, {name}", math.prod(header.shape))
            return self._whole(member)

    def described(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and type of an array."""
        with self._member(name) as member:
            header = self._header(name, member)
        return header.shape, header.dtype

    def window(
        self, name: str, expected: tuple[int, ...], start: int, stop: int, verified: set[Identity]
    ) -> np.ndarray:
        """Read entries ``start`` to ``stop`` of an array that must have the expected shape.

        They are read alone where they lie in one piece, else with the whole array.

        Args:
            name: of the array.
            expected: its shape.
            start: first entry along the first axis.
            stop: entry after the last.
            verified: arrays whose checksum was compared already; it is before any part is read.
        """
        info = self._info(name)
        with self._member(name) as member:
            header = self._header(name, member)
            check_datum(f"{self._path}, {name}", header.shape, header.dtype, expected)
            whole = stop - start == expected[0]
            # The whole array goes through zipfile, which compares the checksum at its end.
            if whole or header.in_fortran_order or info.compress_type != ZIP_STORED:
                values = self._whole(member)
                return values[start:stop] if header.shape else values
            state = os.fstat(self._file.fileno())
            identity = (state.st_ino, state.st_size, state.st_mtime_ns, name)
            if identity not in verified:
                while member.read(_PART):
                    continue
                verified.add(identity)
        return self._part(info, header, start, stop)

    def _part(self, info: ZipInfo, header: _Header, start: int, stop: int) -> np.ndarray:
        self._file.seek(info.header_offset + _LOCAL_HEADER - 4)
        name_and_extra = sum(struct.unpack("<HH", self._file.read(4)))
        begin = info.header_offset + _LOCAL_HEADER + name_and_extra + header.begin
        self._file.seek(begin + start * math.prod(header.shape[1:]) * header.dtype.itemsize)
        window = np.empty((stop - start, *header.shape[1:]), dtype=header.dtype)
        if self._file.readinto(window.data) != window.nbytes:
            raise EOFError("not as many numbers as the header says")
        return window

    def _info(self, name: str) -> ZipInfo:
        stored = f"{name}.npy"
        return self._archive.getinfo(stored if stored in self._archive.NameToInfo else name)

    def _member(self, name: str) -> IO[bytes]:
        return self._archive.open(self._info(name))

    def _header(self, name: str, member: IO[bytes]) -> _Header:
        """Read what an array says about itself; it must be as large as it says."""
        with warnings.catch_warnings():
            # That Python 2 wrote it, which makes no difference.
            warnings.filterwarnings("ignore", message=".*required additional header parsing")
            if np.lib.format.read_magic(member) == (1, 0):
                shape, in_fortran_order, dtype = np.lib.format.read_array_header_1_0(member)
            else:
                shape, in_fortran_order, dtype = np.lib.format.read_array_header_2_0(member)
        header = _Header(shape, in_fortran_order, dtype, member.tell())
        if any(size < 0 for size in shape):
            raise ValueError(f"an array of shape {shape}")
        numbers = self._info(name).file_size - header.begin
        if not dtype.hasobject and numbers != math.prod(shape) * dtype.itemsize:
            raise EOFError("not as many numbers as the header says")
        return header

    def _whole(self, member: IO[bytes]) -> np.ndarray:
        member.seek(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*required additional header parsing")
            return np.lib.format.read_array(member, allow_pickle=False)
