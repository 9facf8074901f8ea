"""Reading a store: windows of data straight from its shard files.

Nothing in a shard is compressed, so a window of one simulation is a range of bytes: reading it takes one seek and no
more memory than the window.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eande.core.checks import InputError
from eande.simulation.shards import REMEDY, Damaged, Layout, Record
from eande.simulation.simulations import Failures, Simulations
from eande.simulation.sources import Source
from eande.simulation.store import Store


def open_store(path: str | Path, *, verify: bool = True) -> Simulations:
    """Do what :meth:`Simulations.open` promises, in the order of the blocks."""
    store = Store(path)
    layout, records = store.layout, store.records()
    rows, phi, failed_phi, reasons = [], [], [], []
    for block, record in records.items():
        try:
            parameters = record.parameters(layout)
        except Damaged as problem:
            raise InputError(f"{path}: expected parameters as they were written, got block {block} damaged ({problem}); {REMEDY}") from None
        good = np.ones(record.size, dtype=bool)
        good[list(record.failed)] = False
        rows.append(block * layout.block_size + np.flatnonzero(good))
        phi.append(parameters[good])
        failed_phi.append(parameters[~good])
        reasons += [record.failed[row] for row in sorted(record.failed)]
    if not any(map(len, rows)):
        raise InputError(f"{path}: expected at least one complete simulation, got none; simulate(…, store=…) fills it")
    data = StoredData(layout, np.concatenate(rows), records, verify=verify)
    failures = Failures(torch.from_numpy(np.concatenate(failed_phi)), tuple(reasons))
    return Simulations(torch.from_numpy(np.concatenate(phi)), data, torch.arange(len(data)), failures)


class StoredData(Source):
    """The data in a store; a piece is verified against its record when it is first read.

    Args:
        layout: where they are.
        rows: which ones, by place in the array: block × block size + place in the block.
        records: the commit records by block.
        verify: whether to compare checksums.
    """

    def __init__(self, layout: Layout, rows: np.ndarray, records: dict[int, Record], *, verify: bool) -> None:
        super().__init__(rows, layout.y_shape)
        self._layout, self._records = layout, records
        self._places: dict[int, np.ndarray] = {}
        self._trusted: set[tuple[int, int]] | None = set() if verify else None

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read a range of one datum."""
        layout = self._layout
        block, place = divmod(row, layout.block_size)
        piece, inside = divmod(place, layout.together)
        stride = layout.row_bytes // layout.y_shape[0]
        begin, count = inside * layout.row_bytes + start * stride, (stop - start) * stride
        try:
            if block not in self._places:
                self._places[block] = layout.places(block)
            where = self._places[block][piece]
            if self._trusted is not None and (block, piece) not in self._trusted:
                self._verified(block, piece, where)
            with layout.y_file(block).open("rb", buffering=0) as file:
                file.seek(int(where[0]) + begin)
                got = file.readinto(out.data.cast("B"))
            if got != count:
                raise Damaged(f"{layout.y_file(block)}: shorter than it was")
        except (Damaged, OSError) as error:
            raise InputError(f"{layout.path}: expected the data as they were written, got block {block} damaged ({error}); {REMEDY}") from None

    def _verified(self, block: int, piece: int, where: np.ndarray) -> None:
        layout = self._layout
        stored = int.from_bytes(layout.piece(block, where)[-4:], "little")
        if stored != self._records[block].pieces[piece]:
            raise Damaged(f"{layout.y_file(block)}: data of another block, or of another time")
        assert self._trusted is not None
        self._trusted.add((block, piece))

    def subset(self, index: Any) -> StoredData:
        """Return the chosen data; what was verified stays so."""
        chosen = StoredData(self._layout, self.rows[index], self._records, verify=False)
        chosen._places, chosen._trusted = self._places, self._trusted
        return chosen

    def fingerprint(self) -> str:
        """Return a digest of which data these are and of all their checksums."""
        total = hashlib.sha256(self.rows.tobytes())
        for block in np.unique(self.rows // self._layout.block_size).tolist():
            total.update(repr(self._records[block].pieces).encode())
        return total.hexdigest()[:16]
