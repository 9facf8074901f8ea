"""Commit records: a block is complete when, and only when, its record is there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eande.foundations.files import sync, write_json
from eande.simulation.store.shards import Damaged, Layout, crc32c


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

    @classmethod
    def of(cls, layout: Layout, block: int, size: int, failed: dict[int, str]) -> CommitRecord:
        """Make the record of a block that was just written, from its files."""
        pieces = layout.checksums(block) if len(failed) < size else []
        return cls(block, size, failed, crc32c(layout.phi(block)), pieces)

    def write(self, layout: Layout) -> None:
        """Write it in a single step."""
        failed = {str(row): reason for row, reason in self.failed.items()}
        text = json.dumps({**self.__dict__, "failed": failed})
        file = layout.record_file(self.block)
        digest = hashlib.sha256(text.encode()).hexdigest()
        write_json(file, {"record": text, "sha256": digest}, indent=None)
        # The name too must be on the disk before anybody is told that the block is complete.
        sync([file.parent])

    @classmethod
    def read(cls, file: Path) -> CommitRecord:
        """Read one."""
        try:
            content = json.loads(file.read_text())
            if hashlib.sha256(content["record"].encode()).hexdigest() != content["sha256"]:
                raise Damaged(f"{file}: changed after it was written")
            fields = json.loads(content["record"])
            failed = {int(row): reason for row, reason in fields["failed"].items()}
            record = cls(**{**fields, "failed": failed})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise Damaged(f"{file}: not a commit record ({type(error).__name__})") from None
        if f"{record.block:08d}.json" != file.name:
            raise Damaged(f"{file}: the record of block {record.block}")
        return record

    def check(self, layout: Layout) -> None:
        """Read everything the record names; raise :class:`Damaged` where it has changed."""
        self.parameters(layout)
        if self.pieces and layout.checksums(self.block) != self.pieces:
            raise Damaged(f"{layout.y_file(self.block)}: data of another block, or of another time")

    def parameters(self, layout: Layout) -> np.ndarray:
        """Return the block's parameters (size, D), verified."""
        phi = layout.phi(self.block)
        if crc32c(phi) != self.phi:
            raise Damaged(
                f"{layout.phi_file(self.block)}: parameters of another block, or of another time"
            )
        return phi[: self.size]


def read_records(path: Path) -> tuple[dict[int, CommitRecord], dict[int, str]]:
    """Read all commit records in order; those that cannot be read come back as problems."""
    records: dict[int, CommitRecord] = {}
    damaged: dict[int, str] = {}
    for file in sorted((path / "commits").glob("[0-9]" * 8 + ".json")):
        try:
            records[int(file.stem)] = CommitRecord.read(file)
        except Damaged as problem:
            damaged[int(file.stem)] = str(problem)
    return records, damaged
