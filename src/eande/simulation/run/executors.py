"""Executors: where jobs run, behind one small interface, :class:`Pool`.

``executor=None`` is this process, a number means that many worker processes of our own, and
anything with the ``concurrent.futures`` protocol is used as it is:
``dask.distributed.Client(...)`` (or its ``get_executor()``), ``mpi4py.futures.MPIPoolExecutor``,
``ProcessPoolExecutor``. Jobs carry parameters, and a short report comes back: where there is a
store, data are written to it by the process that made them, so workers on other machines must see
its folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from eande.foundations.checks import EandeWarning, InputError, check_count, show
from eande.simulation.run.blocks import Job, Outcome, Simulator
from eande.simulation.run.jobs import OpenStore, Report, run_job
from eande.simulation.run.workers import Workers

# Jobs in flight with an executor that does not say how many workers it has.
_UNKNOWN_AT_ONCE = 64
_MOST_WORKERS = 10_000


class Pool(Protocol):
    """What runs jobs.

    Attributes:
        cancels: whether cancelling a future stops jobs that have not begun, and no other.
    """

    cancels: bool

    @property
    def at_once(self) -> int:
        """Jobs to have in flight."""
        ...

    def submit(self, job: Job) -> Future[Report]:
        """Begin a job, or queue it."""
        ...

    def close(self) -> None:
        """Release what was started for this pool."""
        ...


def check_executor(executor: Any) -> None:
    """Refuse what is no executor."""
    if isinstance(executor, int | np.integer) and not isinstance(executor, bool):
        check_count("executor", executor, 1, _MOST_WORKERS)
    elif executor is not None and not hasattr(executor, "submit"):
        raise InputError(
            "executor: expected None, a number of processes or an executor of "
            f"concurrent.futures, got {show(executor)}"
        )


def make_pool(
    executor: Any,
    timeout: float | None,
    simulator: Simulator,
    open_store: OpenStore | None,
    stopping: Callable[[], bool],
) -> Pool:
    """Make the pool for what a user gave as executor.

    Args:
        executor: as in :func:`eande.simulate`.
        timeout: seconds one call of the simulator may take.
        simulator: what the jobs run.
        open_store: opens the store the jobs write to; None to return results.
        stopping: tells whether the user has asked to stop.
    """
    if isinstance(executor, int | np.integer):
        return Workers(int(executor), timeout, simulator, open_store)
    if timeout is not None:
        warnings.warn(
            "timeout is not enforced here: only worker processes of our own (executor=2, say) "
            "can be interrupted",
            EandeWarning,
            stacklevel=3,
        )
    if executor is None:
        return _ThisProcess(simulator, open_store, stopping)
    return _Foreign(executor, simulator, open_store)


class _ThisProcess:
    """This process: a job is done when ``submit`` returns."""

    at_once = 1
    cancels = True

    def __init__(
        self, simulator: Simulator, open_store: OpenStore | None, stopping: Callable[[], bool]
    ) -> None:
        self._simulator = simulator
        self._open_store = open_store
        self._stopping = stopping

    def submit(self, job: Job) -> Future[Report]:
        future: Future[Report] = Future()
        try:
            future.set_result(run_job(self._simulator, self._open_store, job, keep=self._keep))
        except Exception as error:
            future.set_exception(error)
        return future

    def _keep(self, outcome: Outcome) -> bool:
        """Return whether an outcome can be trusted.

        Ctrl-C in a terminal reaches programs that the simulator runs, too: a simulation that
        failed after it may not have failed by itself.
        """
        return outcome.smooth or not self._stopping()

    def close(self) -> None:
        return


class _Foreign:
    """Somebody else's executor, or a dask client; it stays open."""

    cancels = False

    def __init__(self, executor: Any, simulator: Simulator, open_store: OpenStore | None) -> None:
        self._given = executor
        self._executor = executor.get_executor() if hasattr(executor, "get_executor") else executor
        self._simulator = simulator
        self._open_store = open_store

    @property
    def at_once(self) -> int:
        if hasattr(self._given, "ncores"):
            # Asked anew each time: workers of a cluster come and go.
            return max(2, 2 * sum(self._given.ncores().values()))
        workers = getattr(self._executor, "_max_workers", None)
        return 2 * workers if isinstance(workers, int) else _UNKNOWN_AT_ONCE

    def submit(self, job: Job) -> Future[Report]:
        future: Future[Report] = self._executor.submit(
            run_job, self._simulator, self._open_store, job
        )
        return future

    def close(self) -> None:
        return
