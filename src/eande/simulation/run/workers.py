"""Where the work is done: running a job, in any process, and worker processes of our own.

Our workers are fresh Python processes, never forks, with one thread each for numerical libraries. They take the simulator
as it is (also one defined in a notebook, and scripts need no ``if __name__ == "__main__"``), tell before each call of the
simulator which one it is, and can therefore be cut off when it takes too long, or replaced when it kills its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from eande.foundations.checks import InputError
from eande.simulation.run.blocks import Job, Outcome, SimulationError, Simulator, run_block

# A call that kills its process so many times is given up; less often it may have been chance, or somebody's kill.
_DEATHS = 3
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_STARTING, _WRITING = "starting", "writing"
# Seconds a process that has closed its line may take to end.
_DYING = 2.0
# Of Linux's prctl: the signal a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Report:
    """What became of a job.

    Args:
        block: its number.
        state: ``"done"``, ``"there"`` (another process had done it), ``"busy"`` (another process is at it) or ``"dropped"``.
        reasons: of its failed simulations.
        outcome: the simulations themselves where there is no store.
    """

    block: int
    state: str
    reasons: tuple[str, ...] = ()
    outcome: Outcome | None = None


def run_job(
    simulator: Simulator,
    store: str | None,
    job: Job,
    begin: Callable[[Any], None] = lambda call: None,
    keep: Callable[[Outcome], bool] = lambda outcome: True,
) -> Report:
    """Simulate a block and write it to the store; without one, hand it back.

    Args:
        simulator: takes ``(phi, rng)``.
        store: the store's folder.
        job: the block.
        begin: told before each call of the simulator which one it is, and before writing.
        keep: says whether to write what came out.
    """
    if store is None:
        outcome = run_block(simulator, job, begin)
        return Report(job.block, "done", tuple(outcome.failed.values()), outcome)
    from eande.simulation.store.store import Store

    opened = Store(store)
    with opened.writing(job.block) as held:
        if not held:
            return Report(job.block, "busy")
        there = opened.record(job.block)
        if there is not None:
            return Report(job.block, "there", tuple(there.failed.values()))
        outcome = run_block(simulator, job, begin)
        if not keep(outcome):
            return Report(job.block, "dropped")
        begin(_WRITING)
        written = opened.write(job.block, outcome)
        return Report(job.block, "done", tuple(written.failed.values()))


class Workers:
    """Worker processes of our own, each managed by a thread here.

    Args:
        number: of processes.
        timeout: seconds one call of the simulator may take; None for any time.
        simulator: what they run.
        store: where they write; None to hand results back.
    """

    cancels = True

    def __init__(
        self, number: int, timeout: float | None, simulator: Simulator, store: str | None
    ) -> None:
        if os.name != "posix":
            raise InputError(
                "executor: expected None or an executor of concurrent.futures on this system, got a number"
            )
        try:
            self._load = cloudpickle.dumps((sys.argv, simulator, store))
        except Exception as error:
            raise InputError(
                f"simulator: expected one that can be sent to another process, got {simulator!r} ({error})"
            ) from None
        self._timeout, self._closed = timeout, False
        self._queue: queue.SimpleQueue[tuple[Future[Report], Job] | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._threads = [threading.Thread(target=self._manage, daemon=True) for _ in range(number)]
        self.at_once = 2 * number
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> Future[Report]:
        """Queue a job."""
        future: Future[Report] = Future()
        self._queue.put((future, job))
        return future

    def close(self) -> None:
        """Stop; whatever still runs is killed."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for worker in self._workers:
            worker.kill()
        for thread in self._threads:
            thread.join()

    def _manage(self) -> None:
        worker = _Worker(self._load)
        self._workers.append(worker)
        while (item := self._queue.get()) is not None:
            future, job = item
            if self._closed or not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._run(worker, job))
            except Exception as error:
                future.set_exception(error)
        worker.stop()

    def _run(self, worker: _Worker, job: Job) -> Report:
        """Run a job to its end, with as many processes as that takes."""
        deaths: Counter[Any] = Counter()
        while True:
            call, ending = worker.run(job, self._timeout)
            if isinstance(ending, Report):
                return ending
            code = worker.stop(died=ending == "dead")
            if self._closed:
                raise SimulationError("stopped")
            if ending == "late":
                job = job.without(call, f"took longer than {self._timeout:g} s")
                continue
            deaths[call] += 1
            if deaths[call] < _DEATHS:
                continue
            if call in (_STARTING, _WRITING):
                raise SimulationError(
                    f"a worker process died {_DEATHS} times while {call} (exit code {code})"
                )
            job = job.without(call, f"killed its process {_DEATHS} times (exit code {code})")


class _Worker:
    """A process, started when there is work for it, and the line to it.

    Args:
        load: arguments of the script, simulator and store, as they are sent.
    """

    def __init__(self, load: bytes) -> None:
        self._load = load
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._dead = threading.Lock(), False

    def _start(self) -> None:
        self._line, theirs = Pipe()
        # What the simulator needs must be found there as it is here.
        path = [entry or os.getcwd() for entry in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from eande.simulation.run.workers import serve; serve({theirs.fileno()})"
        environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
        # A session of its own: Ctrl-C in a terminal reaches the main process only. Its end ends standard input, and so the worker.
        with self._lock:
            if self._dead:
                raise EOFError
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        theirs.close()
        self._line.send_bytes(self._load)

    def kill(self) -> None:
        """End the process for good, from another thread."""
        with self._lock:
            self._dead = True
            if self._process is not None:
                _kill_group(self._process)

    def stop(self, *, died: bool = False) -> int:
        """End the process and return its exit code."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return 0
            if died:
                # Its own exit code, not that of our kill.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_DYING)
            _kill_group(process)
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._line.close()
        return code

    def run(self, job: Job, timeout: float | None) -> tuple[Any, Report | str]:
        """Run a job; return the latest call and the report, or ``"late"`` or ``"dead"`` where there is none."""
        call: Any = _STARTING
        deadline = None
        try:
            if self._process is None:
                self._start()
            self._line.send(job)
            while True:
                if deadline is not None and not self._line.poll(
                    max(0.0, deadline - time.monotonic())
                ):
                    return call, "late"
                kind, content = self._line.recv()
                if kind == "begin":
                    call = content
                    deadline = (
                        time.monotonic() + timeout
                        if timeout is not None and call != _WRITING
                        else None
                    )
                elif kind == "report":
                    return call, content
                else:
                    raise content
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return call, "dead"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker with all that it has started: it leads a session of its own. If it is dead already, the rest of its session dies."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def serve(descriptor: int) -> None:
    """Run jobs that come through a line until it ends: what a worker process does."""
    # Programs that the simulator starts must not keep the line open when this process dies.
    os.set_inheritable(descriptor, False)
    _end_with_parent()
    line = Connection(descriptor)
    try:
        try:
            sys.argv, simulator, store = cloudpickle.loads(line.recv_bytes())
        except (ImportError, AttributeError) as error:
            line.send(
                (
                    "error",
                    SimulationError(
                        f"a worker process could not load the simulator ({type(error).__name__}: {error})"
                    ),
                )
            )
            return
        while True:
            job = line.recv()
            try:
                report = run_job(simulator, store, job, lambda call: line.send(("begin", call)))
            except (InputError, SimulationError) as error:
                line.send(("error", error))
            except Exception as error:
                line.send(
                    (
                        "error",
                        SimulationError(f"block {job.block}: {type(error).__name__}: {error}"),
                    )
                )
            else:
                line.send(("report", report))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _end_with_parent() -> None:
    """End this process when the main one does: standard input ends then. On Linux the system does it too, even inside a C function."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
