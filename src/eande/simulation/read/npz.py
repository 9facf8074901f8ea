"""Windows of arrays in .npz files: of an uncompressed one only the bytes of the window are read."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import IO
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from eande.simulation.read.entry import check_datum

# In a zip archive, a member's local header has this many bytes, then its name and an extra field,
# whose two lengths are the header's last four bytes.
_LOCAL_HEADER = 30


def npz_header(archive: ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type of an array."""
    with _member(archive, name) as member:
        shape, _, dtype = _npy_header(member)
    return shape, dtype


def npz_window(
    path: Path, name: str, expected: tuple[int, ...], start: int, stop: int
) -> np.ndarray:
    """Read entries ``start`` to ``stop`` of an array that must have the expected shape.

    They are read alone where they lie in one piece, else with the whole array.
    """
    with path.open("rb") as file, ZipFile(file) as archive:
        with _member(archive, name) as member:
            shape, in_fortran_order, dtype = _npy_header(member)
            check_datum(f"{path}, {name}", shape, dtype, expected)
            info = archive.getinfo(member.name)
            header = member.tell()
            # The whole array goes through zipfile, which compares the checksum at its end.
            if stop - start == expected[0] or in_fortran_order or info.compress_type != ZIP_STORED:
                member.seek(0)
                values = np.lib.format.read_array(member, allow_pickle=False)
                return values[start:stop] if shape else values
        file.seek(info.header_offset + _LOCAL_HEADER - 4)
        name_and_extra = sum(struct.unpack("<HH", file.read(4)))
        begin = info.header_offset + _LOCAL_HEADER + name_and_extra + header
        file.seek(begin + start * math.prod(shape[1:]) * dtype.itemsize)
        window = np.empty((stop - start, *shape[1:]), dtype=dtype)
        complete = info.file_size == header + math.prod(shape) * dtype.itemsize
        if not complete or file.readinto(window.data) != window.nbytes:
            raise EOFError("not as many numbers as the header says")
        return window


def _member(archive: ZipFile, name: str) -> IO[bytes]:
    return archive.open(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)


def _npy_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether in Fortran's order, and type; the numbers begin where this stops."""
    if np.lib.format.read_magic(member) == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    return np.lib.format.read_array_header_2_0(member)
