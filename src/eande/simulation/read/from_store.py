"""Reading a store: windows of data straight from its shard files.

Nothing in a shard is compressed, so a window of one simulation is a range of bytes: reading it takes one seek and no
more memory than the window.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.foundations.checks import InputError
from eande.simulation.read.simulations import Failures, Simulations, in_words
from eande.simulation.read.sources import Source, as_index
from eande.simulation.store.shards import REMEDY, Damaged, Layout, Record
from eande.simulation.store.store import Store


def open_store(path: str | Path, *, verify: bool = True, blocks: int | None = None) -> Simulations:
    """Do what :meth:`Simulations.open` promises, in the order of the blocks; with ``blocks``, for the first ones only."""
    store = Store(path)
    # Records first: what they name is there.
    records, layout = store.records(), store.layout
    rows, phi, failed_phi, reasons = [], [], [], []
    for block, record in records.items():
        if block >= (len(store.sizes) if blocks is None else blocks):
            continue
        if record.pieces and not layout.y_shape:
            raise InputError(
                f"{path}: expected whole array metadata, got none at {path}/y/zarr.json"
            )
        try:
            parameters = record.parameters(layout)
        except Damaged as problem:
            raise InputError(
                f"{path}: expected parameters as they were written, got block {block} damaged ({problem}); {REMEDY}"
            ) from None
        good = np.ones(record.size, dtype=bool)
        good[list(record.failed)] = False
        rows.append(block * layout.block_size + np.flatnonzero(good))
        phi.append(parameters[good])
        failed_phi.append(parameters[~good])
        reasons += [record.failed[row] for row in sorted(record.failed)]
    if not any(map(len, rows)):
        got = (
            f"{len(reasons)} failed ones ({in_words(reasons)})"
            if reasons
            else "none; simulate(…, store=…) fills it"
        )
        raise InputError(f"{path}: expected at least one complete simulation, got {got}")
    data = StoredData(layout, np.concatenate(rows), records, verify=verify)
    failures = Failures(torch.from_numpy(np.concatenate(failed_phi)), tuple(reasons))
    return Simulations(
        torch.from_numpy(np.concatenate(phi)), data, torch.arange(len(data)), failures
    )


class StoredData(Source):
    """The data in a store; a piece is verified against its record when it is first read.

    Args:
        layout: where they are.
        rows: which ones, by place in the array: block × block size + place in the block.
        records: the commit records by block.
        verify: whether to compare checksums.
    """

    def __init__(
        self, layout: Layout, rows: np.ndarray, records: dict[int, Record], *, verify: bool
    ) -> None:
        super().__init__(rows, layout.y_shape)
        self._layout, self._records = layout, records
        self._seen: dict[int, tuple[tuple[int, ...], np.ndarray]] = {}
        self._trusted: set[tuple[int, int]] | None = set() if verify else None

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read a range of one datum."""
        layout = self._layout
        block, place = divmod(row, layout.block_size)
        piece, inside = divmod(place, layout.together)
        begin = inside * layout.row_bytes + start * (layout.row_bytes // layout.y_shape[0])
        try:
            with layout.y_file(block).open("rb", buffering=0) as file:
                where = self._places(block, file)[piece]
                if self._trusted is not None and (block, piece) not in self._trusted:
                    self._verify(block, piece, where)
                file.seek(int(where[0]) + begin)
                rest = out.data.cast("B")
                while len(rest):
                    got = file.readinto(rest)
                    if not got:
                        raise Damaged(f"{layout.y_file(block)}: shorter than it was")
                    rest = rest[got:]
        except Damaged as problem:
            raise InputError(
                f"{layout.path}: expected the data as they were written, got block {block} damaged ({problem}); {REMEDY}"
            ) from None
        except FileNotFoundError:
            raise InputError(
                f"{layout.path}: expected the data as they were written, got block {block} damaged (no file); {REMEDY}"
            ) from None

    def _places(self, block: int, file: Any) -> np.ndarray:
        """Return where the pieces of a shard are; a file that is not the one first seen has others."""
        status = os.fstat(file.fileno())
        key = (status.st_ino, status.st_mtime_ns, status.st_size)
        if block not in self._seen:
            self._seen[block] = (key, self._layout.places(block))
        elif self._seen[block][0] != key:
            raise InputError(
                f"{self._layout.path}: expected block {block} as it was when first read, got another file: open the store again"
            )
        return self._seen[block][1]

    def _verify(self, block: int, piece: int, where: np.ndarray) -> None:
        stored = int.from_bytes(self._layout.piece(block, where)[-4:], "little")
        if stored != self._records[block].pieces[piece]:
            raise Damaged(
                f"{self._layout.y_file(block)}: data of another block, or of another time"
            )
        if self._trusted is not None:
            self._trusted.add((block, piece))

    def subset(self, index: Any) -> StoredData:
        """Return the chosen data; what was verified stays so."""
        chosen = StoredData(self._layout, self.rows[as_index(index)], self._records, verify=False)
        chosen._seen, chosen._trusted = self._seen, self._trusted
        return chosen

    def fingerprint(self) -> str:
        """Return a digest of which data these are and of all their checksums."""
        total = hashlib.sha256(self.rows.tobytes())
        for block in np.unique(self.rows // self._layout.block_size).tolist():
            total.update(repr(self._records[block].pieces).encode())
        return total.hexdigest()[:16]
