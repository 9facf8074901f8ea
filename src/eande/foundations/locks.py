"""Locks between processes: files that the system unlocks when their process dies."""

from __future__ import annotations

import fcntl
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eande.foundations.checks import InputError
from eande.foundations.files import storing
from eande.foundations.paths import what_is

# Between two attempts to take a lock that another process has.
_SECONDS_BETWEEN = 0.05


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
    def acquire(cls, path: Path, *, seconds: float = math.inf) -> Lock | None:
        """Take a lock; None if another process has it for as long as we wait.

        Args:
            path: its file, which is made where there is none.
            seconds: to wait.
        """
        last = time.monotonic() + seconds
        while True:
            # O_NONBLOCK and O_NOFOLLOW: a pipe or a link in its place must be refused at once.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            with storing(path):
                descriptor = os.open(path, flags, 0o666)
            try:
                state = os.fstat(descriptor)
                if not stat.S_ISREG(state.st_mode):
                    raise InputError(f"{path}: expected a file, got {what_is(state)}")
                fcntl.flock(
                    descriptor, fcntl.LOCK_EX | (0 if seconds == math.inf else fcntl.LOCK_NB)
                )
                # Whoever had it may have removed the file meanwhile: then this lock keeps nobody
                # out.
                if os.fstat(descriptor).st_nlink:
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() >= last:
                    return None
                time.sleep(_SECONDS_BETWEEN)
                continue
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
def locked(path: Path, *, seconds: float = math.inf, busy: str = "") -> Iterator[None]:
    """Hold a lock, waiting for it.

    Args:
        path: its file.
        seconds: to wait at most.
        busy: what to say when another process has it all that time.
    """
    lock = Lock.acquire(path, seconds=seconds)
    if lock is None:
        raise InputError(busy)
    try:
        yield
    finally:
        lock.release()
