"""What lies in a store's folder: files of parameters, shards of data in pieces, checksums.

Zarr specifies the files: numbers in little-endian order, a CRC32C after each piece, and at a
shard's end the offset and length of every piece, again with a CRC32C.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eande.foundations.checks import InputError

try:
    import google_crc32c
except ImportError as error:
    raise ImportError(
        f"a store needs zarr ({error}): pip install 'embed-and-emulate[scale]'"
    ) from None

# Offset and length of a piece that was not written.
_MISSING = np.iinfo(np.uint64).max
REMEDY = "simulate(…, redo='damaged') simulates what is damaged again"


class Damaged(Exception):
    """A file of a store is not what was written."""


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

    @classmethod
    def read(cls, path: Path, block_size: int) -> Layout:
        """Read it from the arrays' metadata."""
        y_metadata = path / "y" / "zarr.json"
        try:
            dimension = json.loads((path / "phi" / "zarr.json").read_text())["shape"][1]
            if not y_metadata.exists():
                return cls(path, block_size, dimension)
            y = json.loads(y_metadata.read_text())
            together = y["codecs"][0]["configuration"]["chunk_shape"][0]
            return cls(path, block_size, dimension, tuple(y["shape"][1:]), together)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"{path}: expected whole array metadata (zarr.json), "
                f"got {type(error).__name__}: {error}"
            ) from None

    @property
    def row_bytes(self) -> int:
        """Bytes of one datum."""
        return 4 * int(np.prod(self.y_shape, dtype=np.int64))

    def phi_file(self, block: int) -> Path:
        """Return the file with a block's parameters."""
        return self.path / "phi" / "c" / str(block) / "0"

    def y_file(self, block: int) -> Path:
        """Return the shard with a block's data."""
        return self.path.joinpath("y", "c", str(block), *["0"] * len(self.y_shape))

    def record_file(self, block: int) -> Path:
        """Return a block's commit record."""
        return self.path / "commits" / f"{block:08d}.json"

    def pieces(self, block: int) -> np.ndarray:
        """Return offset and length of every piece of a shard, (pieces, 2).

        Both are 2⁶⁴ − 1 for a piece that was not written.
        """
        number = self.block_size // self.together
        try:
            with self.y_file(block).open("rb") as file:
                file.seek(-16 * number - 4, os.SEEK_END)
                index = file.read()
        except OSError as error:
            raise Damaged(f"{self.y_file(block)}: {error.strerror}") from None
        _check_crc(self.y_file(block), index)
        pieces = np.frombuffer(index[:-4], dtype="<u8").reshape(number, 2)
        there = pieces[pieces[:, 0] != _MISSING]
        if (there[:, 1] != self.together * self.row_bytes + 4).any():
            raise Damaged(f"{self.y_file(block)}: a piece of another length")
        return pieces

    def read_piece(self, block: int, where: np.ndarray) -> bytes:
        """Return the piece at that offset, of that length, with its checksum, verified."""
        with self.y_file(block).open("rb") as file:
            file.seek(int(where[0]))
            piece = file.read(int(where[1]))
        _check_crc(self.y_file(block), piece)
        return piece

    def checksums(self, block: int) -> list[int | None]:
        """Return the checksum of every piece of a shard, verified; None for one not written."""
        return [
            None
            if where[0] == _MISSING
            else int.from_bytes(self.read_piece(block, where)[-4:], "little")
            for where in self.pieces(block)
        ]

    def phi(self, block: int) -> np.ndarray:
        """Return a block's parameters (block size, D), verified."""
        try:
            content = self.phi_file(block).read_bytes()
        except OSError as error:
            raise Damaged(f"{self.phi_file(block)}: {error.strerror}") from None
        _check_crc(self.phi_file(block), content)
        return np.frombuffer(content[:-4], dtype="<f4").reshape(self.block_size, self.dimension)


def crc32c(values: np.ndarray) -> int:
    """Return the checksum of an array's bytes."""
    return int(google_crc32c.value(values.tobytes()))


def _check_crc(file: Path, content: bytes) -> None:
    """Refuse content whose last four bytes are not the checksum of the others."""
    checksum = int.from_bytes(content[-4:], "little")
    if len(content) < 4 or google_crc32c.value(content[:-4]) != checksum:
        raise Damaged(f"{file}: the checksum does not match")
