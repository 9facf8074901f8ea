"""Commit records: a block is complete when, and only when, its record is there.

To replace a block that is complete, its record is made to name the new version beside the old one;
then the new data take the place of the old ones in a single step, and a record of the new version
alone that of both. As long as a record names two, the data that are there say which one counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eande.foundations.checks import InputError, check_count
from eande.foundations.documents import as_document, as_json
from eande.foundations.files import parse_json, read_state, write_json
from eande.simulation.store.shards import Damaged, Layout

_LARGEST_CHECKSUM = 2**32 - 1
_WHAT = "a commit record"


@dataclass(frozen=True)
class CommitRecord:
    """A commit record.

    Args:
        block: its number.
        size: its simulations.
        failed: reason of each failed one.
        phi: checksum of its parameters.
        pieces: checksum of each piece of its data, None for one that was not written; empty if all
            failed.
    """

    block: int
    size: int
    failed: dict[int, str]
    phi: int
    pieces: list[int | None]

    def __post_init__(self) -> None:
        check_count("block", self.block, 0)
        check_count("size", self.size, 1)
        for row in self.failed:
            if not 0 <= row < self.size:
                raise InputError(f"failed: expected rows of {self.size}, got {row}")
        for checksum in (self.phi, *self.pieces):
            if checksum is not None and not 0 <= checksum <= _LARGEST_CHECKSUM:
                raise InputError(f"checksum: expected 0 to {_LARGEST_CHECKSUM}, got {checksum}")
        if (len(self.failed) == self.size) != (not self.pieces):
            raise InputError(
                f"pieces: expected none where all failed, and some where not, "
                f"got {len(self.pieces)} with {len(self.failed)} of {self.size} failed"
            )

    def write(self, layout: Layout, then: CommitRecord | None = None) -> None:
        """Write it in a single step.

        Args:
            layout: of the store.
            then: the version that is about to take its place.
        """
        content = dataclasses.asdict(_sealed(self))
        del content["next"]
        if then is not None:
            content["next"] = {"record": _sealed(then).record, "sha256": _sealed(then).sha256}
        write_json(layout.record_file(self.block), content, indent=None)

    def check(self, layout: Layout) -> None:
        """Read everything the record names; raise :class:`Damaged` where it has changed."""
        self.parameters(layout)
        if self.pieces and layout.checksums(self.block) != self.pieces:
            raise Damaged(f"{layout.y_file(self.block)}: data of another block, or of another time")

    def parameters(self, layout: Layout) -> np.ndarray:
        """Return the block's parameters (size, D), verified."""
        phi, checksum = layout.phi(self.block)
        if checksum != self.phi:
            raise Damaged(
                f"{layout.phi_file(self.block)}: parameters of another block, or of another time"
            )
        return phi[: self.size]

    def belongs(self, file: str, layout: Layout, sizes: Sequence[int]) -> None:
        """Raise :class:`Damaged` where it cannot be of a store with such blocks."""
        if self.size != sizes[self.block]:
            raise Damaged(
                f"{file}: the record of {self.size} simulations instead of {sizes[self.block]}"
            )
        if not self.pieces or not layout.y_shape:
            return
        if len(self.pieces) != layout.piece_number:
            raise Damaged(
                f"{file}: the record of {len(self.pieces)} pieces instead of {layout.piece_number}"
            )
        if None in self.pieces:
            for row in range(self.size):
                if row not in self.failed and self.pieces[row // layout.together] is None:
                    raise Damaged(f"{file}: no piece with row {row}, which did not fail")


@dataclass(frozen=True)
class _Sealed:
    """A file with a commit record.

    Args:
        record: the record, as JSON.
        sha256: of that text.
        next: the same of the version that is about to take its place.
    """

    record: str
    sha256: str
    next: dict[str, str] | None = None


def _sealed(record: CommitRecord) -> _Sealed:
    text = json.dumps(as_json(record))
    return _Sealed(text, hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True)
class Committed:
    """What was found where a block's record lies.

    Args:
        record: the version that counts.
        version: a text that changes whenever the record is written.
        pending: whether it names a further version, because a process was, or is, replacing it.
    """

    record: CommitRecord
    version: str
    pending: bool = False


def read_commit(layout: Layout, sizes: Sequence[int], block: int) -> Committed | None:
    """Read the commit record of a block; None if it has none.

    Args:
        layout: of the store.
        sizes: of all blocks.
        block: its number.
    """
    # A text, not a path: opening a store does this for every block.
    file = f"{layout.path}/commits/{block:08d}.json"
    try:
        # Twice, for a record may name two versions.
        content, state = read_state(file, at_most=2 * layout.record_bytes)
        version = f"{state.st_ino} {state.st_mtime_ns} {hashlib.sha256(content).hexdigest()}"
        sealed = as_document(file, parse_json(file, content, _WHAT), _Sealed)
        records = [_unsealed(file, sealed)]
        if sealed.next is not None:
            records.append(_unsealed(file, as_document(file, sealed.next, _Sealed)))
    except InputError as error:
        if _is_missing(file):
            return None
        raise Damaged(str(error)) from None
    for record in records:
        if record.block != block:
            raise Damaged(f"{file}: the record of block {record.block}")
        record.belongs(file, layout, sizes)
    return Committed(_which(layout, records), version, len(records) > 1)


def _is_missing(file: str) -> bool:
    """Return whether nothing is there; what may not be looked at is not missing."""
    try:
        os.lstat(file)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _unsealed(file: str, sealed: _Sealed) -> CommitRecord:
    if hashlib.sha256(sealed.record.encode(errors="replace")).hexdigest() != sealed.sha256:
        raise Damaged(f"{file}: changed after it was written")
    return as_document(file, parse_json(file, sealed.record, _WHAT), CommitRecord)


def _which(layout: Layout, records: Sequence[CommitRecord]) -> CommitRecord:
    """Return the version whose data are there."""
    first, *following = records
    for record in following:
        try:
            record.check(layout)
        except Damaged:
            continue
        return record
    return first


def committed_blocks(path: Path) -> list[int]:
    """Return the numbers of the blocks with a commit record, in order."""
    folder = path / "commits"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"{folder}: expected a folder that can be read, got {error.strerror}"
        ) from None
    found = []
    for name in names:
        stem, _, suffix = name.partition(".")
        # Copies and hidden files are what file systems and people leave beside the real ones.
        if suffix == "json" and len(stem) == 8 and stem.isascii() and stem.isdigit():
            found.append(int(stem))
    return sorted(found)
