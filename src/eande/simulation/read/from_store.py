"""Simulations from a store: windows of data straight from its shard files.

Nothing in a shard is compressed, so a window of one simulation is a range of bytes: reading it
takes one seek and no more memory than the window.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from eande.foundations.checks import InputError
from eande.priors.convert import described_names
from eande.simulation.read.parts import Failures, Parts
from eande.simulation.read.sources import Source, as_index
from eande.simulation.run.blocks import summarize_reasons
from eande.simulation.store.commits import CommitRecord
from eande.simulation.store.shards import REMEDY, Damaged, Layout
from eande.simulation.store.zarr_store import Store


def read_store(path: str | Path, *, verify: bool = True, blocks: int | None = None) -> Parts:
    """Do what :meth:`Simulations.open` promises, in the order of the blocks.

    Args:
        path: the store's folder.
        verify: whether to compare checksums.
        blocks: read the first ones only.
    """
    store = Store(path)
    layout, records = store.opened()
    last = len(store.sizes) if blocks is None else blocks
    rows: list[np.ndarray] = []
    phi: list[np.ndarray] = []
    failed_phi: list[np.ndarray] = []
    reasons: list[str] = []
    for block, record in records.items():
        if block >= last:
            continue
        if record.pieces and not layout.y_shape:
            raise InputError(
                f"{path}: expected whole array metadata, got none at {path}/y/zarr.json"
            )
        try:
            parameters = record.parameters(layout)
        except Damaged as problem:
            raise InputError(
                f"{path}: expected parameters as they were written, "
                f"got block {block} damaged ({problem}); {REMEDY}"
            ) from None
        first = block * layout.block_size
        if not record.failed:
            rows.append(np.arange(first, first + record.size))
            phi.append(parameters)
            continue
        good = np.ones(record.size, dtype=bool)
        good[list(record.failed)] = False
        rows.append(first + np.flatnonzero(good))
        phi.append(parameters[good])
        failed_phi.append(parameters[~good])
        reasons += [record.failed[row] for row in sorted(record.failed)]
    if not any(map(len, rows)):
        got = "none; simulate(…, store=…) fills it"
        if reasons:
            got = f"{len(reasons)} failed ones ({summarize_reasons(reasons)})"
        raise InputError(f"{path}: expected at least one complete simulation, got {got}")
    source = ShardSource(layout, np.concatenate(rows), records, verify=verify)
    none = np.zeros((0, layout.dimension), dtype=np.float32)
    failures = Failures(torch.from_numpy(np.concatenate([none, *failed_phi])), tuple(reasons))
    groups = torch.arange(len(source))
    names = described_names(path, store.about.prior, layout.dimension)
    return Parts(torch.from_numpy(np.concatenate(phi)), source, groups, failures, names)


class ShardSource(Source):
    """Data in the shards of a store; a piece is verified against its record when first read.

    Args:
        layout: where they are.
        rows: which ones, by row of the array: block × block size + row in the block.
        records: the commit records by block.
        verify: whether to compare checksums.
    """

    def __init__(
        self, layout: Layout, rows: np.ndarray, records: dict[int, CommitRecord], *, verify: bool
    ) -> None:
        super().__init__(rows, layout.y_shape)
        self._layout = layout
        self._records = records
        # By block: its file, which one it was when first read, and where the pieces in it are.
        self._seen: dict[int, tuple[Path, tuple[int, ...], np.ndarray]] = {}
        self._verified: set[tuple[int, int]] | None = set() if verify else None

    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read a range of one datum."""
        layout = self._layout
        block, row_in_block = divmod(row, layout.block_size)
        piece, row_in_piece = divmod(row_in_block, layout.together)
        entry_bytes = layout.row_bytes // layout.y_shape[0]
        begin = row_in_piece * layout.row_bytes + start * entry_bytes
        try:
            seen = self._seen.get(block)
            name = layout.y_file(block) if seen is None else seen[0]
            with layout.open_found(name) as file:
                where = self._pieces(block, name, file)[piece]
                if self._verified is not None and (block, piece) not in self._verified:
                    self._verify(block, piece, file, where)
                layout.read_into(name, file, int(where[0]) + begin, out)
        except Damaged as problem:
            if self._replaced(block):
                raise self._another(block) from None
            raise InputError(
                f"{layout.path}: expected the data as they were written, "
                f"got block {block} damaged ({problem}); {REMEDY}"
            ) from None

    def _pieces(self, block: int, name: Path, file: IO[bytes]) -> np.ndarray:
        """Return where the pieces of a shard are; refuse another file than the one first read."""
        status = os.fstat(file.fileno())
        identity = (status.st_ino, status.st_mtime_ns, status.st_size)
        if block not in self._seen:
            self._seen[block] = (name, identity, self._layout.pieces(block, file))
        _, first_identity, pieces = self._seen[block]
        if identity != first_identity:
            raise self._another(block)
        return pieces

    def _verify(self, block: int, piece: int, file: IO[bytes], where: np.ndarray) -> None:
        _, checksum = self._layout.read_piece(block, file, where)
        if checksum != self._records[block].pieces[piece]:
            raise Damaged(
                f"{self._layout.y_file(block)}: data of another block, or of another time"
            )
        if self._verified is not None:
            self._verified.add((block, piece))

    def _replaced(self, block: int) -> bool:
        """Return whether a block was simulated again since the store was opened."""
        try:
            now = Store(self._layout.path).record(block)
        except InputError:
            return False
        return now is not None and now != self._records[block]

    def _another(self, block: int) -> InputError:
        return InputError(
            f"{self._layout.path}: expected block {block} as it was when first read, "
            "got another file: open the store again"
        )

    def subset(self, index: Any) -> ShardSource:
        """Return the chosen data; what was verified stays so."""
        chosen = ShardSource(self._layout, self.rows[as_index(index)], self._records, verify=False)
        chosen._seen = self._seen
        chosen._verified = self._verified
        return chosen

    def fingerprint(self) -> str:
        """Return a digest of which data these are and of all their checksums."""
        total = hashlib.sha256(self.rows.tobytes())
        for block in np.unique(self.rows // self._layout.block_size).tolist():
            total.update(repr(self._records[block].pieces).encode())
        return total.hexdigest()[:16]
