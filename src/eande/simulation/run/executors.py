"""Executors: where jobs run, behind one small interface: ``submit(job)``, ``at_once`` (how many to have in flight), ``cancels``, ``close()``.

``executor=None`` is this process, a number means that many worker processes of our own, and anything with the
``concurrent.futures`` protocol is used as it is: ``dask.distributed.Client(...)`` (or its ``get_executor()``),
``mpi4py.futures.MPIPoolExecutor``, ``ProcessPoolExecutor``. Jobs carry parameters and bring back a few words; where there is
a store, the data are written to it where they were made, so workers on other machines must see its folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from eande.foundations.checks import EandeWarning, InputError, check_count
from eande.simulation.run.blocks import Job, Outcome, Simulator
from eande.simulation.run.workers import Report, Workers, run_job

# Jobs in flight with an executor that does not say how many workers it has.
_UNKNOWN_AT_ONCE = 64


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
        """Let go of what was started for this pool."""
        ...


def check_executor(executor: Any) -> None:
    """Refuse what is no executor."""
    if isinstance(executor, int | np.integer) and not isinstance(executor, bool):
        check_count("executor", executor, 1)
    elif executor is not None and not hasattr(executor, "submit"):
        raise InputError(
            f"executor: expected None, a number of processes or an executor of concurrent.futures, got {executor!r}"
        )


def make_pool(
    executor: Any,
    timeout: float | None,
    simulator: Simulator,
    store: str | None,
    stopping: Callable[[], bool],
) -> Pool:
    """Make the pool for what a user gave as executor; ``stopping`` tells whether the user has asked to stop."""
    if isinstance(executor, int | np.integer):
        return Workers(int(executor), timeout, simulator, store)
    if timeout is not None:
        warnings.warn(
            "timeout is not enforced here: only worker processes of our own (executor=2, say) can be cut off",
            EandeWarning,
            stacklevel=3,
        )
    return (
        _Here(simulator, store, stopping)
        if executor is None
        else _Foreign(executor, simulator, store)
    )


class _Here:
    """This process: a job is done when ``submit`` returns."""

    at_once, cancels = 1, True

    def __init__(
        self, simulator: Simulator, store: str | None, stopping: Callable[[], bool]
    ) -> None:
        self._simulator, self._store, self._stopping = simulator, store, stopping

    def submit(self, job: Job) -> Future[Report]:
        future: Future[Report] = Future()
        try:
            future.set_result(run_job(self._simulator, self._store, job, keep=self._keep))
        except Exception as error:
            future.set_exception(error)
        return future

    def _keep(self, outcome: Outcome) -> bool:
        """Ctrl-C in a terminal reaches programs that the simulator runs, too: what failed then may not have failed by itself."""
        return outcome.smooth or not self._stopping()

    def close(self) -> None:
        return


class _Foreign:
    """Somebody else's executor, or a dask client; it stays open."""

    cancels = False

    def __init__(self, executor: Any, simulator: Simulator, store: str | None) -> None:
        self._given = executor
        self._executor = executor.get_executor() if hasattr(executor, "get_executor") else executor
        self._simulator, self._store = simulator, store

    @property
    def at_once(self) -> int:
        if hasattr(self._given, "ncores"):
            # Asked anew each time: workers of a cluster come and go.
            return max(2, 2 * sum(self._given.ncores().values()))
        workers = getattr(self._executor, "_max_workers", None)
        return 2 * workers if isinstance(workers, int) else _UNKNOWN_AT_ONCE

    def submit(self, job: Job) -> Future[Report]:
        future: Future[Report] = self._executor.submit(run_job, self._simulator, self._store, job)
        return future

    def close(self) -> None:
        return
