"""The store: a folder that any number of processes may fill, and that no crash can damage.

The folder is a Zarr (version 3) group that any Zarr reader opens, with two arrays, NaN where
nothing was written:

    phi  (blocks × block size, D)    one chunk per block
    y    (blocks × block size, …)    one shard per block, uncompressed, a checksum per piece

A block is written by one process: parameters, then data, each file put in place in a single step,
and only then its commit record, ``commits/<block>.json``, which names every checksum. What has no
record does not exist, and is simulated again. ``locks/`` keeps two processes from the same block;
the system frees a lock when its process dies.

The group's attributes say what the simulations are: prior, simulator, seed, block size, versions. A
call that would make other ones is refused.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from eande.foundations.checks import InputError
from eande.foundations.files import sync
from eande.simulation.run.blocks import Outcome, SimulationError, block_sizes
from eande.simulation.store.commits import CommitRecord, read_records
from eande.simulation.store.provenance import check_same_call, versions
from eande.simulation.store.shards import REMEDY, Damaged, Layout

try:
    import zarr
    from filelock import FileLock, Timeout
    from zarr.codecs import Crc32cCodec
except ImportError as error:
    raise ImportError(
        f"a store needs zarr ({error}): pip install 'embed-and-emulate[scale]'"
    ) from None

FORMAT = 1
# Pieces of a shard, each with its own checksum, have about this many bytes unless one simulation
# has more.
_PIECE_BYTES = 65_536
# What zarr leaves of metadata it was killed in the middle of writing.
_DEBRIS = ".partial"


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
        self.path = _as_path(path)
        if not (self.path / "zarr.json").is_file():
            if not self.path.exists():
                got = "nothing there"
            elif self.path.is_dir():
                got = "a folder of something else"
            else:
                got = "a file"
            raise InputError(f"{self.path}: expected an eande store, got {got}")
        self.about = _read_about(self.path)

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
        path = _as_path(path)
        if path.is_file():
            raise InputError(f"store: expected the name of a folder, got the file {path}")
        wanted = dict(about)
        if block_size is not None:
            wanted["block_size"] = block_size
        if (path / "zarr.json").exists():
            store = cls(path)
            check_same_call(path, wanted, store.about)
            if store.about["extents"][-1] == n:
                # Nothing to make or extend: where all is complete, the folder may be read-only.
                return store
        with _writable(path):
            path.mkdir(parents=True, exist_ok=True)
            if not (path / "zarr.json").exists() and not _is_new(path):
                raise InputError(
                    "store: expected a store or an empty folder, "
                    f"got {path} with other things in it, or without its zarr.json"
                )
            for folder in ("locks", "commits"):
                (path / folder).mkdir(exist_ok=True)
            with FileLock(path / "locks" / "store"):
                for debris in (*path.glob(f"*{_DEBRIS}"), *path.glob(f"*/*{_DEBRIS}")):
                    debris.unlink()
                if not (path / "zarr.json").exists():
                    size = default_size if block_size is None else block_size
                    _make(path, n, about, dimension, size)
                store = cls(path)
                check_same_call(path, wanted, store.about)
                store._extend(n)
        return store

    def _extend(self, n: int) -> None:
        have = self.about["extents"][-1]
        if n < have:
            raise InputError(
                f"n: expected at least {have}, what {self.path} is made for, got {n}; "
                f"Simulations.open(…)[:{n}] takes fewer"
            )
        if n == have:
            return
        self._check_metadata()
        self.about["extents"].append(n)
        # Arrays first: the attributes must not name a block that the arrays have no rows for.
        for name in ("phi", "y"):
            if (self.path / name / "zarr.json").exists():
                array = zarr.open_array(self.path / name, mode="r+")
                array.resize((len(self.sizes) * self.block_size, *array.shape[1:]))
                sync([self.path / name / "zarr.json", self.path / name])
        zarr.open_group(self.path, mode="r+").attrs["eande"] = self.about
        sync([self.path / "zarr.json", self.path])

    @property
    def block_size(self) -> int:
        """Simulations per block."""
        return int(self.about["block_size"])

    @property
    def sizes(self) -> list[int]:
        """The size of every block there is to be."""
        return block_sizes(self.about["extents"], self.block_size)

    @property
    def layout(self) -> Layout:
        """Where things are now."""
        return Layout.read(self.path, self.block_size)

    def records(self) -> dict[int, CommitRecord]:
        """Return the commit records of all complete blocks."""
        records, damaged = read_records(self.path)
        for problem in damaged.values():
            raise InputError(
                f"{self.path}: expected whole commit records, "
                f"got a damaged one ({problem}); {REMEDY}"
            )
        return records

    def record(self, block: int) -> CommitRecord | None:
        """Return the commit record of a block, None if it has none."""
        file = self.layout.record_file(block)
        try:
            return CommitRecord.read(file) if file.exists() else None
        except Damaged as problem:
            raise InputError(
                f"{self.path}: expected a whole commit record, "
                f"got a damaged one ({problem}); {REMEDY}"
            ) from None

    @contextmanager
    def writing(self, block: int) -> Iterator[bool]:
        """Lock a block for writing; gives False, and locks nothing, while another process does."""
        with _writable(self.path):
            (self.path / "locks").mkdir(exist_ok=True)
            lock = FileLock(self.path / "locks" / f"{block:08d}")
            try:
                lock.acquire(blocking=False)
            except Timeout:
                held = False
            else:
                held = True
        try:
            yield held
        finally:
            try:
                if held and self.layout.record_file(block).exists():
                    # Whoever makes a new lock file from now on finds the record.
                    Path(lock.lock_file).unlink(missing_ok=True)
            finally:
                lock.release()

    def write(self, block: int, outcome: Outcome) -> Outcome:
        """Write a block that is locked: parameters, data, then the record; return the outcome."""
        with _writable(self.path):
            if outcome.y is not None:
                outcome = outcome.conform(self._y_shape(outcome.y.shape[1:]))
            rows = slice(block * self.block_size, block * self.block_size + len(outcome.phi))
            for name, values in (("phi", outcome.phi), ("y", outcome.y)):
                folder = self.path / name / "c" / str(block)
                if folder.exists():
                    # What a crash left half-written, or a damaged version.
                    shutil.rmtree(folder)
                if values is not None:
                    zarr.open_array(self.path / name, mode="r+")[rows] = values
                    sync([*folder.rglob("*"), folder, folder.parent])
            layout = self.layout
            for debris in layout.record_file(block).parent.glob(f"{block:08d}.json.*.tmp"):
                debris.unlink()
            CommitRecord.of(layout, block, len(outcome.phi), outcome.failed).write(layout)
        return outcome

    def _y_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the data; the first block to be written decides it."""
        if not self.layout.y_shape:
            with FileLock(self.path / "locks" / "store"):
                if not self.layout.y_shape:
                    self._check_metadata()
                    self._create_y(shape)
        return self.layout.y_shape

    def _create_y(self, shape: tuple[int, ...]) -> None:
        # Read anew: the store may have been extended since this process opened it.
        blocks = len(Store(self.path).sizes)
        size = self.block_size
        datum_bytes = 4 * int(np.prod(shape))
        wanted = max(1, min(_PIECE_BYTES // datum_bytes, size))
        together = max(divisor for divisor in range(1, wanted + 1) if size % divisor == 0)
        chunks = {"chunks": (together, *shape), "shards": (size, *shape)}
        _create_array(self.path, "y", (blocks * size, *shape), chunks)
        sync([self.path / "y" / "zarr.json", self.path / "y", self.path])

    def _has_data(self) -> bool:
        """Return whether any block is complete and has data."""
        records, _ = read_records(self.path)
        return any(record.pieces for record in records.values())

    def _check_metadata(self) -> None:
        """Refuse to go on where data are there but y/zarr.json is lost.

        Making it anew would delete the data.
        """
        if not self.layout.y_shape and self._has_data():
            raise InputError(
                f"{self.path}: expected y/zarr.json beside the blocks that are complete, got none; "
                "put it back from a copy"
            )

    def check(self) -> dict[int, str]:
        """Read everything and return what is damaged, a text per block; empty if nothing is."""
        records, damaged = read_records(self.path)
        layout = self.layout
        for block, record in records.items():
            try:
                record.check(layout)
            except Damaged as problem:
                damaged[block] = str(problem)
        return dict(sorted(damaged.items()))

    def discard(self, blocks: Iterable[int]) -> None:
        """Remove the records of blocks: for the next call of ``simulate`` they are missing.

        Blocks that another process is writing are left alone.
        """
        discarded = False
        for block in blocks:
            with self.writing(block) as held:
                if held:
                    with _writable(self.path):
                        self.layout.record_file(block).unlink(missing_ok=True)
                    discarded = True
        if discarded and self.layout.y_shape and not self._has_data():
            self._forget_shape()

    def _forget_shape(self) -> None:
        """Let the next block written decide the shape again, unless one is being written now."""
        with ExitStack() as held_blocks:
            # Stops at the first block that another process holds.
            if all(
                held_blocks.enter_context(self.writing(block)) for block in range(len(self.sizes))
            ):
                with _writable(self.path), FileLock(self.path / "locks" / "store"):
                    shutil.rmtree(self.path / "y", ignore_errors=True)


def _as_path(path: Any) -> Path:
    """Take the name of a folder; absolute, for simulators may change the working directory."""
    if not isinstance(path, str | Path) or "://" in str(path) or "\0" in str(path):
        raise InputError(f"store: expected the name of a folder, got {path!r}")
    return Path(path).expanduser().absolute()


def _is_new(path: Path) -> bool:
    """Return whether a folder without zarr.json can become a store.

    It has nothing in it but what making a store may have left when it was killed.
    """
    left_behind = ("locks/store", "phi/zarr.json")
    files = [file for file in path.rglob("*") if file.is_file() and file.suffix != _DEBRIS]
    return all(file.relative_to(path).as_posix() in left_behind for file in files)


def _make(path: Path, n: int, about: Mapping[str, Any], dimension: int, size: int) -> None:
    """Make a new store; its zarr.json comes last, for with it the store exists."""
    attributes = {
        "format": FORMAT,
        **about,
        "block_size": size,
        "extents": [n],
        "versions": versions(),
    }
    rows = len(block_sizes([n], size)) * size
    _create_array(path, "phi", (rows, dimension), {"chunks": (size, dimension)})
    zarr.create_group(path, attributes={"eande": attributes})
    sync([path / "phi" / "zarr.json", path / "zarr.json", path])


def _create_array(
    path: Path, name: str, shape: tuple[int, ...], chunks: dict[str, tuple[int, ...]]
) -> None:
    zarr.create_array(
        path / name,
        shape=shape,
        dtype="float32",
        fill_value=float("nan"),
        compressors=[Crc32cCodec()],
        overwrite=True,
        **chunks,
    )


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((path / "zarr.json").read_text())["attributes"]["eande"]
        form = int(about["format"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{path}: expected an eande store, got a zarr.json without what a store needs "
            f"({type(error).__name__}: {error})"
        ) from None
    if form > FORMAT:
        raise InputError(
            f"{path}: expected a store of format {FORMAT} or older, got format {form}: "
            "it was written by a newer version of eande"
        )
    return about


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say in one line why something could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(
                f"store: expected a folder that can be written, got {path} ({error.strerror})"
            ) from None
        raise SimulationError(
            f"{path}: could not be written ({error.strerror or error}); "
            "what is complete in it stays, and the same call goes on"
        ) from None
