"""The store: a folder that any number of processes may fill, and that no crash can damage.

The folder is a Zarr (version 3) group that any Zarr reader opens, with two arrays, NaN where
nothing was written:

    phi  (blocks × block size, D)    one chunk per block
    y    (blocks × block size, …)    one shard per block, uncompressed, a checksum per piece

A block is written by one process: parameters, then data, each file put in place in a single step,
and only then its commit record, ``commits/<block>.json``, which names every checksum. What has no
record does not exist, and is simulated again. ``locks/`` keeps two processes from the same block;
the system frees a lock when its process dies.

A complete block that is simulated again stays as it is until the new version is ready, and then
changes in a single step (see :mod:`~eande.simulation.store.commits`).

The group's attributes say what the simulations are: prior, simulator, seed, block size, versions. A
call that would make other ones is refused.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from eande.foundations.checks import InputError
from eande.foundations.files import StorageError, clear_folder, clear_strays, replacing, sync
from eande.foundations.locks import Lock, locked
from eande.foundations.paths import as_path
from eande.simulation.run.blocks import UNKNOWN, UNREADABLE, Outcome, SimulationError
from eande.simulation.store.commits import CommitRecord, Committed, committed_blocks, read_commit
from eande.simulation.store.metadata import (
    FORMAT,
    ArrayDocument,
    Description,
    read_description,
    read_layout,
    write_description,
)
from eande.simulation.store.provenance import check_same_call, versions
from eande.simulation.store.shards import REMEDY, Damaged, Layout

# Pieces of a shard, each with its own checksum, have about this many bytes unless one simulation
# has more.
_PIECE_BYTES = 65_536
# What killed processes leave of files that they were writing; the second in stores of format 1.
_DEBRIS = (".tmp", ".partial")
_FOLDERS = ("locks", "commits", "phi", "phi/c", "y", "y/c")
# The version of a block whose record cannot be read.
_NO_VERSION = "unreadable"


class Store:
    """An existing store.

    Args:
        path: its folder.

    Example:
        >>> Store("nowhere.zarr")
        Traceback (most recent call last):
        eande.foundations.checks.InputError: ...nowhere.zarr: expected an eande store,
            got nothing there
    """

    def __init__(self, path: str | Path) -> None:
        self.path = as_path("store", path, kind="folder")
        if not os.path.lexists(self.path / "zarr.json"):
            if not self.path.exists():
                got = "nothing there"
            elif self.path.is_dir():
                got = "a folder of something else"
            else:
                got = "a file"
            raise InputError(f"{self.path}: expected an eande store, got {got}")
        self.about = read_description(self.path)

    @classmethod
    def prepare(
        cls,
        path: str | Path,
        n: int,
        about: Mapping[str, Any],
        *,
        dimension: int,
        block_size: int | None,
        default_size: int,
    ) -> Store:
        """Open the store at that path for ``n`` simulations, making or extending it where needed.

        Args:
            path: its folder.
            n: number of simulations it shall have.
            about: prior, simulator and seed, which must be those of the store.
            dimension: D.
            block_size: simulations per block; None takes what the store has.
            default_size: the block size of a new store if None is given.
        """
        path = as_path("store", path, kind="folder")
        if path.is_file():
            raise InputError(f"store: expected the name of a folder, got the file {path}")
        wanted = dict(about)
        if block_size is not None:
            wanted["block_size"] = block_size
        if os.path.lexists(path / "zarr.json"):
            store = cls(path)
            check_same_call(path, wanted, asdict(store.about))
            if store.about.extents[-1] == n:
                # Nothing to make or extend: where all is complete, the folder may be read-only.
                _clear(path)
                return store
        with _writable(path):
            path.mkdir(parents=True, exist_ok=True)
            # In this order: where another process makes the store now, its zarr.json comes first.
            if not _is_new(path) and not os.path.lexists(path / "zarr.json"):
                raise InputError(
                    "store: expected a store or an empty folder, "
                    f"got {path} with other things in it, or without its zarr.json"
                )
            _refuse_links(path, _FOLDERS)
            for folder in ("locks", "commits"):
                (path / folder).mkdir(exist_ok=True)
            with locked(path / "locks" / "store"):
                _clear(path)
                if not os.path.lexists(path / "zarr.json"):
                    size = default_size if block_size is None else block_size
                    _make(path, n, about, dimension, size)
                store = cls(path)
                check_same_call(path, wanted, asdict(store.about))
                store._extend(n)
        return store

    def _extend(self, n: int) -> None:
        have = self.about.extents[-1]
        if n < have:
            raise InputError(
                f"n: expected at least {have}, what {self.path} is made for, got {n}; "
                f"Simulations.open(…)[:{n}] takes fewer"
            )
        if n == have:
            return
        self._check_metadata()
        layout = self.layout
        extended = replace(self.about, format=FORMAT, extents=[*self.about.extents, n])
        # Arrays first: the attributes must not name a block that the arrays have no rows for.
        _write_arrays(layout, len(extended.sizes))
        write_description(self.path, extended)
        self.about = extended

    @property
    def block_size(self) -> int:
        """Simulations per block."""
        return self.about.block_size

    @property
    def sizes(self) -> list[int]:
        """The size of every block there is to be."""
        return self.about.sizes

    @property
    def layout(self) -> Layout:
        """Where things are now."""
        return read_layout(self.path, self.about)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of one datum; empty as long as nobody has written any."""
        return self.layout.y_shape

    def records(self) -> dict[int, CommitRecord]:
        """Return the commit records of all complete blocks."""
        return self.opened()[1]

    def opened(self) -> tuple[Layout, dict[int, CommitRecord]]:
        """Return where things are, and the commit records of all complete blocks."""
        layout, found, damaged = self._found()
        for problem in damaged.values():
            raise _damaged_record(self.path, problem)
        return layout, {block: commit.record for block, commit in found.items()}

    def record(self, block: int) -> CommitRecord | None:
        """Return the commit record of a block, None if it has none."""
        try:
            commit = read_commit(self.layout, self.sizes, block)
        except Damaged as problem:
            raise _damaged_record(self.path, problem) from None
        return None if commit is None else commit.record

    def complete(self, *, without: Container[int]) -> set[int]:
        """Return the numbers of complete blocks, without some, which may be damaged."""
        found, damaged = self._commits()
        for block, problem in damaged.items():
            if block not in without:
                raise _damaged_record(self.path, problem)
        return {block for block in found if block not in without}

    def versions(self, *, redo: str) -> dict[int, str]:
        """Return the blocks to simulate again, each with a text that names what is there now.

        Args:
            redo: ``"damaged"`` or ``"failed"`` ones.
        """
        if redo == "failed":
            self.records()
            commits, _ = self._commits()
            return {block: one.version for block, one in commits.items() if one.record.failed}
        damaged = self.check()
        commits, _ = self._commits()
        return {
            block: commits[block].version if block in commits else _NO_VERSION for block in damaged
        }

    def _commits(self) -> tuple[dict[int, Committed], dict[int, Damaged]]:
        """Read all commit records in order; those that cannot be read come back as problems."""
        _, found, damaged = self._found()
        return found, damaged

    def _found(self) -> tuple[Layout, dict[int, Committed], dict[int, Damaged]]:
        """Do the same, and return where things are, too."""
        blocks = committed_blocks(self.path)
        if blocks and blocks[-1] >= len(self.sizes):
            # The store may have been extended since this process opened it.
            self.about = read_description(self.path)
        # Metadata after the names of records: what a record names is there.
        layout = self.layout
        sizes = self.sizes
        found: dict[int, Committed] = {}
        damaged: dict[int, Damaged] = {}
        for block in blocks:
            if block >= len(sizes):
                raise InputError(
                    f"{self.path}: expected records of {len(sizes)} blocks, what it is made for, "
                    f"got {layout.record_file(block).name}: its zarr.json was changed, or it is "
                    "the record of another store"
                )
            try:
                commit = read_commit(layout, sizes, block)
            except Damaged as problem:
                damaged[block] = problem
            else:
                if commit is not None:
                    found[block] = commit
        return layout, found, damaged

    @contextmanager
    def writing(self, block: int) -> Iterator[bool]:
        """Lock a block for writing; gives False, and locks nothing, while another process does."""
        with _writable(self.path):
            _refuse_links(self.path, _FOLDERS)
            (self.path / "locks").mkdir(exist_ok=True)
            lock = Lock.acquire(self.path / "locks" / f"{block:08d}", seconds=0)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                # Where there is a record, there will rarely be need of this lock again.
                complete = (self.path / "commits" / f"{block:08d}.json").exists()
                lock.release(remove=complete)

    def readable(self, block: int, version: str, phi: np.ndarray, *, whole: bool) -> Outcome | None:
        """Return what can be read of a complete block that is locked; other rows have failed.

        Args:
            block: its number.
            version: what it must be; None is returned if it is another by now.
            phi: its parameters, for where they cannot be read.
            whole: whether to refuse a block of which something cannot be read.
        """
        layout = self.layout
        problem: Damaged | None
        try:
            commit = read_commit(layout, self.sizes, block)
        except Damaged as damage:
            stored = Outcome(phi, None, _had_data(layout, block, len(phi)))
            problem = damage
        else:
            if commit is None or commit.version != version:
                return None
            try:
                stored, problem = _read_outcome(layout, commit.record)
            except Damaged as damage:
                failed = commit.record.failed
                reasons = {row: failed.get(row, UNREADABLE) for row in range(len(phi))}
                stored = Outcome(phi, None, reasons)
                problem = damage
        if whole and problem is not None:
            raise InputError(
                f"{self.path}: expected the data as they were written, "
                f"got block {block} damaged ({problem}); {REMEDY}"
            )
        return stored

    def write(self, block: int, outcome: Outcome) -> Outcome:
        """Write a block that is locked: parameters, data, then the record; return the outcome.

        A block that is complete stays so, and changes in a single step.
        """
        with _writable(self.path):
            if outcome.y is not None:
                outcome = outcome.conform(self._decided_shape(outcome.y.shape[1:]))
            layout = self.layout
            phi_file = layout.phi_file(block)
            y_file = layout.y_file(block)
            _refuse_links(self.path, _folders_of(self.path, phi_file, y_file))
            for file in (phi_file, y_file, layout.record_file(block)):
                clear_strays(file)
            phi = layout.phi_bytes(outcome.phi)
            size = len(outcome.phi)
            checksum = int.from_bytes(phi[-4:], "little")
            old = self._replaceable(layout, block, checksum)
            if old is None:
                with replacing(phi_file) as opened:
                    opened.write(phi)
            if outcome.y is None:
                record = CommitRecord(block, size, outcome.failed, checksum, [])
                if layout.y_shape:
                    y_file.unlink(missing_ok=True)
            else:
                with replacing(y_file) as opened:
                    pieces = layout.write_shard(opened, outcome.y)
                    record = CommitRecord(block, size, outcome.failed, checksum, pieces)
                    if old is not None:
                        # All of the new version must be on the disk before the record names it.
                        opened.flush()
                        os.fsync(opened.fileno())
                        old.write(layout, record)
            # The names of folders, too, must be there before anybody is told of the block.
            sync(self.path / folder for folder in _folders_of(self.path, phi_file, y_file))
            record.write(layout)
        return outcome

    def _replaceable(self, layout: Layout, block: int, phi: int) -> CommitRecord | None:
        """Return the record of a block as it is, None if there is none with these parameters."""
        try:
            commit = read_commit(layout, self.sizes, block)
            if commit is None or commit.record.phi != phi:
                return None
            commit.record.parameters(layout)
        except Damaged:
            return None
        return commit.record

    def _decided_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the data; the first block to be written decides it."""
        if not self.y_shape:
            with locked(self.path / "locks" / "store"):
                if not self.y_shape:
                    self._check_metadata()
                    self._create_y(shape)
        return self.y_shape

    def _create_y(self, shape: tuple[int, ...]) -> None:
        # Read anew: the store may have been extended since this process opened it.
        self.about = read_description(self.path)
        size = self.block_size
        datum_bytes = 4 * int(np.prod(shape))
        wanted = max(1, min(_PIECE_BYTES // datum_bytes, size))
        together = max(divisor for divisor in range(1, wanted + 1) if size % divisor == 0)
        ArrayDocument.of(len(self.sizes), size, shape, together).write(self.path / "y")
        sync([self.path])

    def _has_data(self) -> bool:
        """Return whether any block is complete and has data, or may have had."""
        found, damaged = self._commits()
        return bool(damaged) or any(commit.record.pieces for commit in found.values())

    def _check_metadata(self) -> None:
        """Refuse to go on where data are there but y/zarr.json is lost.

        Making it anew would be a guess at what the data are.
        """
        if not self.y_shape and self._has_data():
            raise InputError(
                f"{self.path}: expected y/zarr.json beside the blocks that are complete, got none; "
                "put it back from a copy"
            )

    def check(self) -> dict[int, str]:
        """Read everything and return what is damaged, a text per block; empty if nothing is.

        Damaged metadata are refused: without them nothing can be said about a block.

        Example:
            >>> path = folder / "checked.zarr"
            >>> made = eande.simulate(simulator, prior, n=20, store=path, progress=False)
            >>> Store(path).check()
            {}
        """
        self.about = read_description(self.path)
        found, problems = self._commits()
        damaged = {block: str(problem) for block, problem in problems.items()}
        layout = self.layout
        for block, commit in found.items():
            problem = self._damage(layout, block, commit)
            if problem is not None:
                damaged[block] = problem
        return dict(sorted(damaged.items()))

    def _damage(self, layout: Layout, block: int, commit: Committed) -> str | None:
        """Return what is wrong with a block, None if nothing is."""
        while True:
            try:
                commit.record.check(layout)
                return None
            except Damaged as problem:
                try:
                    now = read_commit(layout, self.sizes, block)
                except Damaged as damage:
                    return str(damage)
                if now is None or now == commit:
                    return str(problem)
            # Another process has replaced it meanwhile.
            commit = now

    def settle(self) -> None:
        """Finish what killed processes left of blocks that they were replacing."""
        found, _ = self._commits()
        for block, commit in found.items():
            if not commit.pending:
                continue
            with self.writing(block) as held:
                if held:
                    self._settle(block)

    def _settle(self, block: int) -> None:
        layout = self.layout
        try:
            now = read_commit(layout, self.sizes, block)
        except Damaged as problem:
            raise _damaged_record(self.path, problem) from None
        if now is not None and now.pending:
            with _writable(self.path):
                clear_strays(layout.y_file(block))
                now.record.write(layout)

    def forget_shape(self) -> None:
        """Where no block has data, let the next one written decide their shape again.

        Nothing happens while another process is writing one.
        """
        if not self.y_shape or self._has_data():
            return
        with ExitStack() as held_blocks:
            # Stops at the first block that another process holds.
            if all(
                held_blocks.enter_context(self.writing(block)) for block in range(len(self.sizes))
            ):
                with _writable(self.path), locked(self.path / "locks" / "store"):
                    if not self._has_data():
                        shutil.rmtree(self.path / "y")


def _clear(path: Path) -> None:
    """Remove what killed processes left of metadata and records; a block clears its own."""
    for folder in (path, path / "phi", path / "y", path / "commits"):
        # Behind a link lies what is not the store's.
        if not folder.is_symlink():
            clear_folder(folder)


def _is_new(path: Path) -> bool:
    """Return whether a folder without zarr.json can become a store.

    It has nothing in it but what making a store may have left when it was killed.
    """
    left_behind = ("locks/store", "phi/zarr.json")
    files = [file for file in path.rglob("*") if file.suffix not in _DEBRIS]
    return all(
        (file.is_dir() and not file.is_symlink())
        or file.relative_to(path).as_posix() in left_behind
        for file in files
    )


def _make(path: Path, n: int, about: Mapping[str, Any], dimension: int, size: int) -> None:
    """Make a new store; its zarr.json comes last, for with it the store exists."""
    description = Description(
        format=FORMAT, **about, block_size=size, extents=[n], versions=versions()
    )
    _write_arrays(Layout(path, size, dimension), len(description.sizes))
    sync([path])
    write_description(path, description)


def _write_arrays(layout: Layout, blocks: int) -> None:
    """Write the metadata of the arrays, for that many blocks."""
    size = layout.block_size
    ArrayDocument.of(blocks, size, (layout.dimension,), None).write(layout.path / "phi")
    if layout.y_shape:
        array = ArrayDocument.of(blocks, size, layout.y_shape, layout.together)
        array.write(layout.path / "y")


def _read_outcome(layout: Layout, record: CommitRecord) -> tuple[Outcome, Damaged | None]:
    """Return what can be read of a block, as it is and verified, and what kept from the rest."""
    phi = record.parameters(layout)
    if not record.pieces:
        return Outcome(phi, None, record.failed), None
    y = np.full((layout.block_size, *layout.y_shape), np.nan, dtype=np.float32)
    failed = dict(record.failed)
    problem: Damaged | None = None
    for number, checksum in enumerate(record.pieces):
        if checksum is None:
            continue
        rows = range(number * layout.together, (number + 1) * layout.together)
        try:
            with layout.open_shard(record.block) as file:
                where = layout.pieces(record.block, file)[number]
                piece, found = layout.read_piece(record.block, file, where)
            if found != checksum:
                raise Damaged(f"{layout.y_file(record.block)}: data of another block or time")
        except Damaged as damage:
            problem = damage
            failed |= {row: failed.get(row, UNREADABLE) for row in rows if row < record.size}
        else:
            y[rows] = np.frombuffer(piece, dtype="<f4").reshape(layout.together, *layout.y_shape)
    failed = dict(sorted(failed.items()))
    kept = y[: record.size] if len(failed) < record.size else None
    return Outcome(phi, kept, failed), problem


def _had_data(layout: Layout, block: int, size: int) -> dict[int, str]:
    """Return, of a block whose record cannot be read, which rows its shard has data of."""
    reasons = dict.fromkeys(range(size), UNKNOWN)
    if not layout.y_shape:
        return reasons
    for number in range(-(-size // layout.together)):
        try:
            with layout.open_shard(block) as file:
                where = layout.pieces(block, file)[number]
                piece, _ = layout.read_piece(block, file, where)
        except Damaged:
            continue
        rows = np.frombuffer(piece, dtype="<f4").reshape(layout.together, -1)
        there = np.flatnonzero(np.isfinite(rows).all(axis=1)) + number * layout.together
        reasons |= {row: UNREADABLE for row in there.tolist() if row < size}
    return reasons


def _folders_of(path: Path, *files: Path) -> list[str]:
    """Return the folders between a store's and its files, and those all of them share."""
    between = {
        folder.relative_to(path).as_posix()
        for file in files
        for folder in file.parents
        if folder.is_relative_to(path) and folder != path and os.path.lexists(folder)
    }
    return sorted(between)


def _refuse_links(path: Path, folders: Iterable[str]) -> None:
    """Refuse to write where a folder of a store is a link: who knows what lies behind it."""
    for folder in folders:
        if (path / folder).is_symlink():
            raise InputError(
                f"{path / folder}: expected a folder of the store, got a symbolic link"
            )


def _damaged_record(path: Path, problem: Damaged) -> InputError:
    return InputError(
        f"{path}: expected whole commit records, got a damaged one ({problem}); {REMEDY}"
    )


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say in one line why something could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(
                f"store: expected a folder that can be written, "
                f"got {path} ({os.strerror(error.errno)})"
            ) from None
        if isinstance(error, StorageError):
            raise SimulationError(f"{error}, and the same call goes on") from None
        raise SimulationError(
            f"{path}: could not be written ({error.strerror or error}); "
            "what is complete in it stays, and the same call goes on"
        ) from None
