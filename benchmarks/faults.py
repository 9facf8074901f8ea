"""Faults under the files of a folder: a disk that is full, broken, slow or takes half a write.

:func:`install` wraps what Python opens, writes, syncs and renames by, in this process and for good,
so that it belongs into a child process. Libraries that write through ``pathlib`` or ``open``, as
zarr's local store does, are hit too.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPERATIONS = ("open", "write", "fsync", "replace")
KINDS = ("ENOSPC", "EIO", "slow", "partial")
_SECONDS_OF_A_SLOW_CALL = 0.02


@dataclass
class Fault:
    """A fault that is waiting for its moment.

    Args:
        folder: below which files are hit.
        operation: one of ``OPERATIONS``.
        kind: one of ``KINDS``.
        after: so many of the operations work before.
        lasting: whether all later ones fail too.
    """

    folder: Path
    operation: str
    kind: str
    after: int
    lasting: bool
    hit: bool = False

    def meets(self, operation: str, path: Any) -> bool:
        """Return whether an operation on a path fails now."""
        if operation != self.operation or not self._below(path):
            return False
        self.after -= 1
        if self.after >= 0 or (self.hit and not self.lasting):
            return False
        self.hit = True
        if self.kind == "slow":
            time.sleep(_SECONDS_OF_A_SLOW_CALL)
            return False
        return True

    def error(self) -> OSError:
        """Return what the operating system would say."""
        number = errno.EIO if self.kind == "EIO" else errno.ENOSPC
        return OSError(number, os.strerror(number))

    def _below(self, path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        return os.path.abspath(os.fspath(path)).startswith(str(self.folder))


def install(fault: Fault) -> None:
    """Let the fault happen from now on, in this process."""
    plain_open = io.open

    class Raw(io.FileIO):
        def __init__(self, path: Any, mode: str, opener: Any) -> None:
            super().__init__(path, mode, opener=opener)
            self._path = path

        def write(self, content: Any) -> int:
            if fault.meets("write", self._path):
                if fault.kind == "partial":
                    super().write(memoryview(content).cast("B")[: len(content) // 2])
                raise fault.error()
            return super().write(content) or 0

    def faulty_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        writes = set(mode) & set("wxa+")
        if not writes or isinstance(file, int) or not closefd:
            return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if fault.meets("open", file):
            raise fault.error()
        raw = Raw(file, mode.replace("b", "").replace("t", ""), opener)
        if buffering == 0:
            return raw
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

    def guarded(operation: str, function: Callable[..., Any], place: int = 0) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if fault.meets(operation, arguments[place]):
                raise fault.error()
            return function(*arguments, **options)

        return call

    plain_os_open = os.open

    def faulty_os_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_CREAT and fault.meets("open", path):
            raise fault.error()
        return plain_os_open(path, flags, *rest, **options)

    builtins.open = faulty_open
    io.open = faulty_open
    os.open = faulty_os_open
    os.write = guarded("write", os.write)
    os.fsync = guarded("fsync", os.fsync)
    os.replace = guarded("replace", os.replace, 1)
    os.rename = guarded("replace", os.rename, 1)
    os.link = guarded("replace", os.link, 1)
