"""What lies in a store's folder: commit records, files of parameters, shards of data in pieces, and a checksum for everything.

Zarr specifies the files: numbers in little-endian order, a CRC32C after each piece, and at a shard's end the place of
every piece, again with a CRC32C.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
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

_MISSING = np.iinfo(np.uint64).max
REMEDY = "simulate(…, redo='damaged') simulates what is damaged again"


class Damaged(Exception):
    """A file of a store is not what was written."""


@dataclass(frozen=True)
class Layout:
    """Where things are.

    Args:
        path: the store's folder.
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
        try:
            dimension = json.loads((path / "phi" / "zarr.json").read_text())["shape"][1]
            if not (path / "y" / "zarr.json").exists():
                return cls(path, block_size, dimension)
            y = json.loads((path / "y" / "zarr.json").read_text())
            return cls(
                path,
                block_size,
                dimension,
                tuple(y["shape"][1:]),
                y["codecs"][0]["configuration"]["chunk_shape"][0],
            )
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"{path}: expected whole array metadata (zarr.json), got {type(error).__name__}: {error}"
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

    def places(self, block: int) -> np.ndarray:
        """Return offset and length of every piece of a shard (pieces, 2), both 2⁶⁴ − 1 for one that was not written."""
        pieces = self.block_size // self.together
        try:
            with self.y_file(block).open("rb") as file:
                file.seek(-16 * pieces - 4, os.SEEK_END)
                index = file.read()
        except OSError as error:
            raise Damaged(f"{self.y_file(block)}: {error.strerror}") from None
        _check_crc(self.y_file(block), index)
        places = np.frombuffer(index[:-4], dtype="<u8").reshape(pieces, 2)
        there = places[places[:, 0] != _MISSING]
        if (there[:, 1] != self.together * self.row_bytes + 4).any():
            raise Damaged(f"{self.y_file(block)}: a piece of another length")
        return places

    def piece(self, block: int, place: np.ndarray) -> bytes:
        """Return a piece and its checksum, which are made sure to agree."""
        with self.y_file(block).open("rb") as file:
            file.seek(int(place[0]))
            piece = file.read(int(place[1]))
        _check_crc(self.y_file(block), piece)
        return piece

    def checksums(self, block: int) -> list[int | None]:
        """Return the checksum of every piece of a shard, read and verified; None for one that was not written."""
        places = self.places(block)
        return [
            None
            if place[0] == _MISSING
            else int.from_bytes(self.piece(block, place)[-4:], "little")
            for place in places
        ]

    def phi(self, block: int) -> np.ndarray:
        """Return a block's parameters (block size, D), verified."""
        try:
            content = self.phi_file(block).read_bytes()
        except OSError as error:
            raise Damaged(f"{self.phi_file(block)}: {error.strerror}") from None
        _check_crc(self.phi_file(block), content)
        return np.frombuffer(content[:-4], dtype="<f4").reshape(self.block_size, self.dimension)


@dataclass(frozen=True)
class Record:
    """A commit record: a block with one is complete.

    Args:
        block: its number.
        size: its simulations.
        failed: reason of each failed one.
        phi: checksum of its parameters.
        pieces: checksum of each piece of its data, None for one that was not written; empty if all failed.
    """

    block: int
    size: int
    failed: dict[int, str]
    phi: int
    pieces: list[int | None]

    @classmethod
    def of(cls, layout: Layout, block: int, size: int, failed: dict[int, str]) -> Record:
        """Make the record of a block that was just written, from its files."""
        return cls(
            block,
            size,
            failed,
            _crc(layout.phi(block)),
            layout.checksums(block) if len(failed) < size else [],
        )

    def write(self, layout: Layout) -> None:
        """Write it in a single step."""
        text = json.dumps(
            {**self.__dict__, "failed": {str(row): reason for row, reason in self.failed.items()}}
        )
        file = layout.record_file(self.block)
        temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w") as writing:
                writing.write(
                    json.dumps(
                        {"record": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
                    )
                )
                writing.flush()
                os.fsync(writing.fileno())
            temporary.replace(file)
            sync([file.parent])
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def read(cls, file: Path) -> Record:
        """Read one."""
        try:
            content = json.loads(file.read_text())
            if hashlib.sha256(content["record"].encode()).hexdigest() != content["sha256"]:
                raise Damaged(f"{file}: changed after it was written")
            stored = json.loads(content["record"])
            record = cls(
                **{
                    **stored,
                    "failed": {int(row): reason for row, reason in stored["failed"].items()},
                }
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise Damaged(f"{file}: not a commit record ({type(error).__name__})") from None
        if f"{record.block:08d}.json" != file.name:
            raise Damaged(f"{file}: the record of block {record.block}")
        return record

    def check(self, layout: Layout) -> None:
        """Read everything the record names and raise :class:`Damaged` where it is not what was written."""
        self.parameters(layout)
        if self.pieces and layout.checksums(self.block) != self.pieces:
            raise Damaged(f"{layout.y_file(self.block)}: data of another block, or of another time")

    def parameters(self, layout: Layout) -> np.ndarray:
        """Return the block's parameters (size, D), verified."""
        phi = layout.phi(self.block)
        if _crc(phi) != self.phi:
            raise Damaged(
                f"{layout.phi_file(self.block)}: parameters of another block, or of another time"
            )
        return phi[: self.size]


def read_records(path: Path) -> tuple[dict[int, Record], dict[int, str]]:
    """Read all commit records in order; those that cannot be read come back as problems."""
    records, damaged = {}, {}
    for file in sorted((path / "commits").glob("[0-9]" * 8 + ".json")):
        try:
            records[int(file.stem)] = Record.read(file)
        except Damaged as problem:
            damaged[int(file.stem)] = str(problem)
    return records, damaged


def sync(files: Iterable[Path]) -> None:
    """Make sure that files, and the names in folders, are on the disk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _crc(values: np.ndarray) -> int:
    return int(google_crc32c.value(values.tobytes()))


def _check_crc(file: Path, content: bytes) -> None:
    if len(content) < 4 or google_crc32c.value(content[:-4]) != int.from_bytes(
        content[-4:], "little"
    ):
        raise Damaged(f"{file}: the checksum does not match")
