"""Executors: where jobs run, behind one small interface: ``submit(job)``, ``at_once`` (how many to have in flight), ``close()``.

``executor=None`` is this process, a number means that many worker processes of our own, and anything with the
``concurrent.futures`` protocol is used as it is: ``dask.distributed.Client(...)`` (or its ``get_executor()``),
``mpi4py.futures.MPIPoolExecutor``, ``ProcessPoolExecutor``. Jobs carry parameters and bring back a few words; where there is
a store, the data are written to it where they were made, so workers on other machines must see its folder.
"""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from eande.core.checks import EandeWarning, InputError, check_count
from eande.simulation.blocks import Job, Simulator
from eande.simulation.workers import Report, Workers, run_job

# Jobs in flight with an executor that does not say how many workers it has.
_UNKNOWN_AT_ONCE = 64


class Pool(Protocol):
    """What runs jobs."""

    at_once: int

    def submit(self, job: Job) -> Future[Report]:
        """Begin a job, or queue it."""
        ...

    def close(self) -> None:
        """Let go of what was started for this pool."""
        ...


def make_pool(executor: Any, timeout: float | None, simulator: Simulator, store: str | None) -> Pool:
    """Make the pool for what a user gave as executor."""
    if isinstance(executor, int | np.integer) and not isinstance(executor, bool):
        check_count("executor", executor, 1)
        return Workers(int(executor), timeout, simulator, store)
    if timeout is not None:
        warnings.warn("timeout is not enforced here: only worker processes of our own (executor=2, say) can be cut off", EandeWarning, stacklevel=3)
    if executor is None:
        return _Here(simulator, store)
    if hasattr(executor, "get_executor"):
        return _Foreign(executor.get_executor(), 2 * sum(executor.ncores().values()), simulator, store)
    if not hasattr(executor, "submit"):
        raise InputError(f"executor: expected None, a number of processes or an executor of concurrent.futures, got {executor!r}")
    workers = getattr(executor, "_max_workers", None)
    return _Foreign(executor, 2 * workers if isinstance(workers, int) else _UNKNOWN_AT_ONCE, simulator, store)


class _Here:
    """This process: a job is done when ``submit`` returns."""

    at_once = 1

    def __init__(self, simulator: Simulator, store: str | None) -> None:
        self._simulator, self._store = simulator, store

    def submit(self, job: Job) -> Future[Report]:
        future: Future[Report] = Future()
        try:
            future.set_result(run_job(self._simulator, self._store, job))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        return


class _Foreign:
    """Somebody else's executor, which stays open."""

    def __init__(self, executor: Any, at_once: int, simulator: Simulator, store: str | None) -> None:
        self._executor, self.at_once = executor, max(1, at_once)
        self._simulator, self._store = simulator, store

    def submit(self, job: Job) -> Future[Report]:
        future: Future[Report] = self._executor.submit(run_job, self._simulator, self._store, job)
        return future

    def close(self) -> None:
        return
