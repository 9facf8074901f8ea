"""Processes that work for the main one: they end when it does, however it ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection

# Of Linux's prctl: the signal a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


@contextmanager
def process_pool(number: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes for a block; what still runs when the block raises is killed.

    They are spawned, not forked: a forked child inherits torch's thread pools in an unusable state.

    Args:
        number: of processes, at most.
    """
    before = multiprocessing.active_children()
    pool = ProcessPoolExecutor(
        number, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent
    )
    try:
        yield pool
    except BaseException:
        for child in multiprocessing.active_children():
            if child not in before:
                child.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """End this process, and all that it starts, when the one that spawned it ends.

    Its session is its own, so that Ctrl-C in a terminal reaches the main process only. On Linux the
    system ends it, even inside a C function; elsewhere a thread that sees the parent's pipe close.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("end_with_parent: expected a process of multiprocessing, got another")
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
