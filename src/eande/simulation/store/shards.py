"""What lies in a store's folder: files of parameters, shards of data in pieces, checksums.

Zarr specifies the files: numbers in little-endian order, a CRC32C after each piece, and at a
shard's end the offset and length of every piece, again with a CRC32C. They are written and read
here, without a library: that a block may be replaced in one step, and that a window of one datum is
a range of bytes, is beyond what one offers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import IO

import numpy as np

from eande.foundations.checks import InputError
from eande.foundations.files import open_regular, read_exactly, read_regular

try:
    import google_crc32c
except ImportError as error:
    raise ImportError(f"a store needs google-crc32c ({error}): pip install google-crc32c") from None

# Offset and length of a piece that was not written.
_MISSING = np.iinfo(np.uint64).max
# Bytes a commit record may have: for each simulation a reason, written as JSON within JSON, and for
# each piece a number.
_RECORD_BYTES = 4_096
_REASON_BYTES = 4_096
REMEDY = (
    "simulate(…, redo='damaged'), of a study's run eande simulate STUDY --redo damaged (of its "
    "rounds, eande rounds STUDY --redo damaged), simulates what is damaged again"
)


class Damaged(Exception):
    """A file of a store is not what was written."""


@contextmanager
def finding_damage() -> Iterator[None]:
    """Take what cannot be read for damage."""
    try:
        yield
    except InputError as error:
        raise Damaged(str(error)) from None


@dataclass(frozen=True)
class Layout:
    """Where things are in a store's folder.

    Args:
        path: the folder.
        block_size: simulations per block.
        dimension: D.
        y_shape: shape of one datum; empty as long as nobody has written any.
        together: simulations per piece of a shard.
    """

    path: Path
    block_size: int
    dimension: int
    y_shape: tuple[int, ...] = ()
    together: int = 1

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one datum."""
        return 4 * math.prod(self.y_shape)

    @cached_property
    def piece_number(self) -> int:
        """Pieces of a shard."""
        return self.block_size // self.together

    @cached_property
    def _piece_bytes(self) -> int:
        """Bytes of a piece, with its checksum."""
        return self.together * self.row_bytes + 4

    @cached_property
    def _index_bytes(self) -> int:
        """Bytes at the end of a shard that say where its pieces are, with their checksum."""
        return 16 * self.piece_number + 4

    @cached_property
    def _shard_bytes(self) -> int:
        """Bytes a shard has at most."""
        return self.piece_number * self._piece_bytes + self._index_bytes

    def phi_file(self, block: int) -> Path:
        """Return the file with a block's parameters."""
        return self.path.joinpath("phi", "c", str(block), "0")

    def y_file(self, block: int) -> Path:
        """Return the shard with a block's data."""
        return self.path.joinpath("y", "c", str(block), *["0"] * len(self.y_shape))

    def record_file(self, block: int) -> Path:
        """Return a block's commit record."""
        return self.path.joinpath("commits", f"{block:08d}.json")

    @cached_property
    def record_bytes(self) -> int:
        """Bytes a commit record has at most."""
        return _RECORD_BYTES + _REASON_BYTES * self.block_size + 32 * self.piece_number

    def open_shard(self, block: int) -> FileIO:
        """Open the file with a block's data."""
        return self.open_found(self.y_file(block))

    def open_found(self, file: Path) -> FileIO:
        """Open a file with a block's data, whose name is known."""
        # Not by `finding_damage`: this is done for every datum that is read.
        try:
            return open_regular(file, at_most=self._shard_bytes)
        except InputError as error:
            raise Damaged(str(error)) from None

    def pieces(self, block: int, file: IO[bytes]) -> np.ndarray:
        """Return offset and length of every piece of an open shard, (pieces, 2).

        Both are 2⁶⁴ − 1 for a piece that was not written.
        """
        name = self.y_file(block)
        begin = os.fstat(file.fileno()).st_size - self._index_bytes
        if begin < 0:
            raise Damaged(f"{name}: shorter than it was")
        file.seek(begin)
        with finding_damage():
            index = read_exactly(name, file, self._index_bytes)
        _check_crc(name, index)
        pieces = np.frombuffer(index[:-4], dtype="<u8").reshape(self.piece_number, 2)
        there = pieces[pieces[:, 0] != _MISSING]
        if (there[:, 1] != self._piece_bytes).any():
            raise Damaged(f"{name}: a piece of another length")
        if (there[:, 0] > begin - self._piece_bytes).any() or len(
            there
        ) * self._piece_bytes > begin:
            raise Damaged(f"{name}: a piece outside the file")
        return pieces

    def read_piece(self, block: int, file: IO[bytes], where: np.ndarray) -> tuple[bytes, int]:
        """Return the data at that offset of an open shard, verified, and their checksum."""
        if where[0] == _MISSING:
            raise Damaged(f"{self.y_file(block)}: a piece is missing")
        file.seek(int(where[0]))
        with finding_damage():
            piece = read_exactly(self.y_file(block), file, int(where[1]))
        return piece[:-4], _check_crc(self.y_file(block), piece)

    def read_into(self, name: Path, file: FileIO, offset: int, out: np.ndarray) -> None:
        """Fill an array with what lies at that offset of an open shard, unverified."""
        rest = out.data.cast("B")
        file.seek(offset)
        try:
            while len(rest):
                got = file.readinto(rest)
                if not got:
                    raise Damaged(f"{name}: shorter than it was")
                rest = rest[got:]
        except OSError as error:
            raise Damaged(f"{name}: {error.strerror}") from None

    def checksums(self, block: int) -> list[int | None]:
        """Return the checksum of every piece of a shard, verified; None for one not written."""
        with self.open_shard(block) as file:
            return [
                None if where[0] == _MISSING else self.read_piece(block, file, where)[1]
                for where in self.pieces(block, file)
            ]

    def write_shard(self, file: IO[bytes], y: np.ndarray) -> list[int | None]:
        """Write data (at most block size, …) as a shard and return the checksum of each piece.

        Pieces of NaN alone take no room, and have None.
        """
        index = np.full((self.piece_number, 2), _MISSING, dtype="<u8")
        checksums: list[int | None] = [None] * self.piece_number
        offset = 0
        for number in range(-(-len(y) // self.together)):
            rows = y[number * self.together : (number + 1) * self.together]
            if np.isnan(rows).all():
                continue
            piece = _padded(rows, self.together)
            checksum = int(google_crc32c.value(piece))
            file.write(piece)
            file.write(checksum.to_bytes(4, "little"))
            checksums[number] = checksum
            index[number] = (offset, self._piece_bytes)
            offset += self._piece_bytes
        file.write(_sealed(index.tobytes()))
        return checksums

    def phi(self, block: int) -> tuple[np.ndarray, int]:
        """Return a block's parameters (block size, D), verified, and their checksum."""
        # A text, not a path: opening a store does this for every block.
        file = f"{self.path}/phi/c/{block}/0"
        size = 4 * self.block_size * self.dimension + 4
        try:
            content = read_regular(file, at_most=size)
        except InputError as error:
            raise Damaged(str(error)) from None
        if len(content) != size:
            raise Damaged(f"{file}: shorter than it was")
        checksum = _check_crc(file, content)
        phi = np.frombuffer(content, dtype="<f4", count=self.block_size * self.dimension)
        return phi.reshape(self.block_size, self.dimension), checksum

    def phi_bytes(self, phi: np.ndarray) -> bytes:
        """Return what the file of a block's parameters holds, its checksum last."""
        return _sealed(_padded(phi, self.block_size))


def _padded(rows: np.ndarray, number: int) -> bytes:
    """Return the bytes of that many rows, NaN where there are fewer."""
    values = np.asarray(rows, dtype="<f4")
    if len(values) < number:
        nothing = np.full((number - len(values), *values.shape[1:]), np.nan, dtype="<f4")
        values = np.concatenate([values, nothing])
    return values.tobytes()


def _sealed(content: bytes) -> bytes:
    """Return content with its checksum."""
    return content + int(google_crc32c.value(content)).to_bytes(4, "little")


def _check_crc(file: str | Path, content: bytes) -> int:
    """Return the checksum at the end of content; refuse one that is not that of the rest."""
    checksum = int.from_bytes(content[-4:], "little")
    if len(content) < 4 or google_crc32c.value(content[:-4]) != checksum:
        raise Damaged(f"{file}: the checksum does not match")
    return checksum
