"""Locks between processes: files that the system unlocks when their process dies."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eande.foundations.checks import InputError
from eande.foundations.paths import what_is


class Lock:
    """A lock that this process holds.

    Args:
        path: its file.
        descriptor: of the open file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path, *, wait: bool) -> Lock | None:
        """Take a lock; None if another process has it and we do not wait for it."""
        while True:
            # O_NONBLOCK and O_NOFOLLOW: a pipe or a link in its place must be refused at once.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o666)
            try:
                state = os.fstat(descriptor)
                if not stat.S_ISREG(state.st_mode):
                    raise InputError(f"{path}: expected a file, got {what_is(state)}")
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                # Whoever had it may have removed the file meanwhile: then this lock keeps nobody
                # out.
                if os.fstat(descriptor).st_nlink:
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self, *, remove: bool = False) -> None:
        """Let others have it.

        Args:
            remove: whether to remove its file, too.
        """
        try:
            if remove:
                self._path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock, waiting for it."""
    lock = Lock.acquire(path, wait=True)
    assert lock is not None
    try:
        yield
    finally:
        lock.release()
