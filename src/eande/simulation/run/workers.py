"""Worker processes of our own: they can be interrupted, and replaced when they die.

A worker is a fresh Python process, never a fork, with one thread for numerical libraries. It takes
the simulator as it is (also one defined in a notebook, and scripts need no
``if __name__ == "__main__"``) and announces each call of the simulator before making it. It can
therefore be ended when a call takes too long, or replaced when a call kills its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from eande.foundations.checks import InputError
from eande.simulation.run.blocks import Job, SimulationError, Simulator
from eande.simulation.run.jobs import WRITING, OpenStore, Report, run_job

# A call that kills its process this many times has failed. Fewer deaths may have been chance, or
# somebody's kill.
_MOST_DEATHS = 3
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# What a worker does before it has announced a call.
_STARTING = "starting"
# Seconds a process may take to end after it has closed its pipe.
_SECONDS_TO_END = 2.0
# Seconds a block may take to be written where calls have a limit, too.
_SECONDS_TO_WRITE = 300.0
# Seconds between two looks at whether a silent process is alive.
_SECONDS_BETWEEN_LOOKS = 1.0
# Of Linux's prctl: the signal a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
# The pipe to the main process has at least this number, out of the way of simulators that close or
# replace low ones.
_LOWEST_DESCRIPTOR = 200
# Waits for the end of its standard input, then kills all processes of its group, itself included.
# In the background, so that it is no child of the worker: a simulator may wait for all of its own.
_GUARDIAN = "exec 3<&0; { read _ <&3; kill -KILL 0; } &"


class Workers:
    """Worker processes, each managed by a thread of this process.

    Args:
        number: of processes.
        timeout: seconds one call of the simulator may take; None for no limit.
        simulator: what they run.
        open_store: opens the store they write to; None to return results.
    """

    cancels = True

    def __init__(
        self,
        number: int,
        timeout: float | None,
        simulator: Simulator,
        open_store: OpenStore | None,
    ) -> None:
        if os.name != "posix":
            raise InputError(
                "executor: expected None or an executor of concurrent.futures on this system, "
                "got a number"
            )
        try:
            self._load = cloudpickle.dumps((sys.argv, simulator, open_store))
        except Exception as error:
            raise InputError(
                "simulator: expected one that can be sent to another process, "
                f"got {simulator!r} ({error})"
            ) from None
        self._timeout = timeout
        self._closed = False
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
            if ending == "late" and call != WRITING:
                job = job.without(call, f"took longer than {self._timeout:g} s")
                continue
            deaths[call] += 1
            if deaths[call] < _MOST_DEATHS:
                continue
            if call in (_STARTING, WRITING):
                how = "died" if ending == "dead" else f"took over {_SECONDS_TO_WRITE:g} s and died"
                raise SimulationError(
                    f"a worker process {how} {_MOST_DEATHS} times while {call} (exit code {code})"
                )
            job = job.without(call, f"killed its process {_MOST_DEATHS} times (exit code {code})")


class _Worker:
    """A process, started when there is work for it, and the pipe to it.

    Args:
        load: arguments of the script, simulator and what opens the store, pickled.
    """

    def __init__(self, load: bytes) -> None:
        self._load = load
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed = False

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        # Modules the simulator needs must be found there as they are here.
        path = [entry or os.getcwd() for entry in sys.path]
        code = (
            f"import sys; sys.path[:] = {path!r}; "
            f"from eande.simulation.run.workers import serve; serve({theirs.fileno()})"
        )
        environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, "1")}
        with self._lock:
            if self._killed:
                raise EOFError
            # In a session of its own, so that Ctrl-C in a terminal reaches the main process only.
            # Standard input ends with the main process, and the worker with it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        theirs.close()
        self._pipe.send_bytes(self._load)

    def kill(self) -> None:
        """End the process for good, from another thread."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                _kill_group(self._process)

    def stop(self, *, died: bool = False) -> int:
        """End the process and return its exit code."""
        with self._lock:
            process = self._process
            self._process = None
            if process is None:
                return 0
            if died:
                # Its own exit code, not that of our kill.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS_TO_END)
            _kill_group(process)
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._pipe.close()
        return code

    def run(self, job: Job, timeout: float | None) -> tuple[Any, Report | str]:
        """Run a job; return the latest call and the report, or ``"late"`` or ``"dead"``."""
        call: Any = _STARTING
        deadline: float | None = None
        try:
            if self._process is None:
                self._start()
            self._pipe.send(job)
            while True:
                silent = self._wait(deadline)
                if silent is not None:
                    return call, silent
                kind, content = self._pipe.recv()
                if kind == "begin":
                    call = content
                    deadline = None
                    if timeout is not None:
                        limit = _SECONDS_TO_WRITE if call == WRITING else timeout
                        deadline = time.monotonic() + limit
                elif kind == "report":
                    return call, content
                else:
                    raise content
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return call, "dead"

    def _wait(self, deadline: float | None) -> str | None:
        """Wait for a message; return ``"late"`` or ``"dead"`` if none will come."""
        while True:
            left = _SECONDS_BETWEEN_LOOKS
            if deadline is not None:
                left = min(left, max(0.0, deadline - time.monotonic()))
            if self._pipe.poll(left):
                return None
            # A program that outlives the process may keep its end of the pipe open.
            process = self._process
            if process is None or process.poll() is not None:
                return None if self._pipe.poll(0) else "dead"
            if deadline is not None and time.monotonic() >= deadline:
                return "late"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker with all processes of its session, also where the worker itself is dead."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def serve(descriptor: int) -> None:
    """Run the jobs that come through a pipe until it closes: what a worker process does."""
    # Programs that the simulator starts must not keep the pipe open when this process dies.
    pipe = Connection(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR))
    os.close(descriptor)
    _end_with_parent()

    def begin(call: Any) -> None:
        _restore_standard_files()
        pipe.send(("begin", call))

    try:
        try:
            sys.argv, simulator, open_store = cloudpickle.loads(pipe.recv_bytes())
        except (ImportError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            problem = SimulationError(f"a worker process could not load the simulator ({reason})")
            pipe.send(("error", problem))
            return
        while True:
            job = pipe.recv()
            _restore_standard_files()
            try:
                report = run_job(simulator, open_store, job, begin)
            except (InputError, SimulationError) as error:
                pipe.send(("error", error))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                pipe.send(("error", SimulationError(f"block {job.block}: {reason}")))
            else:
                pipe.send(("report", report))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _restore_standard_files() -> None:
    """Open standard input, output and error where a simulator has closed them.

    Else the next file would take their place: the simulator's words would go into it, and it would
    close that file when it closes them once more.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is the one that is missing.
            os.open(os.devnull, os.O_RDWR)


def _end_with_parent() -> None:
    """End this process, and all programs it has started, when the main one ends.

    That closes standard input, for which a small process of this one's group waits: it ends the
    group also where this process is inside a C function, or dead. On Linux the system ends this
    process, too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = subprocess.DEVNULL
    subprocess.run(["/bin/sh", "-c", _GUARDIAN], stdout=nothing, stderr=nothing, check=True)
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
