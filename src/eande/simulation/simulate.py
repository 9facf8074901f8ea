"""simulate: from a prior and a simulator to simulations, on one core or a cluster, in memory or in a store.

Work is cut into blocks with a random stream each, so that the result depends on the seed and the block size alone: not on
the executor, the order in which blocks end, interruptions, or extensions (an extension starts a new block).
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eande.core.checks import EandeWarning, InputError, check_at_least, check_choice, check_count, check_positive
from eande.core.prior import as_prior
from eande.core.seeds import derive_seed
from eande.simulation.blocks import Job, Outcome, SimulationError, Simulator, block_sizes
from eande.simulation.executors import Pool, make_pool
from eande.simulation.provenance import describe_prior, describe_simulator
from eande.simulation.simulations import Failures, Simulations
from eande.simulation.workers import Report

_BLOCK_SIZE = 100
# The share of failures is judged once so many simulations have ended.
_ENOUGH_TO_JUDGE = 50


def simulate(
    simulator: Simulator,
    prior: Any,
    n: int,
    *,
    store: str | Path | None = None,
    executor: Any = None,
    seed: int = 0,
    block_size: int | None = None,
    timeout: float | None = None,
    failure_limit: float = 0.5,
    redo: str | None = None,
    progress: bool = True,
) -> Simulations:
    """Draw ``n`` parameters from the prior and simulate each.

    A simulation that raises an exception or gives NaN, infinity or data of another shape than the others counts as failed:
    it is in ``simulations.failures`` with its parameters and the reason, and the run goes on.

    Args:
        simulator: ``simulator(phi, rng) -> y`` for a batch of parameters: ``phi`` an array (m, D), ``rng`` a ``numpy.random.Generator``,
            ``y`` an array or tensor whose first axis is m. :func:`each` makes one from a function of a single vector.
        prior: an eande prior or a torch Distribution.
        n: number of simulations, failed ones included.
        store: a folder. Every complete block is kept there whatever happens: the same call goes on after a crash, a larger ``n``
            extends it, and several processes may make the same call at once. None keeps everything in memory.
        executor: where to run: None here, a number in as many worker processes, or any executor of ``concurrent.futures`` or
            dask client. With a store, workers write to it themselves and must see its folder.
        seed: same seed and block size, same simulations.
        block_size: simulations per call of the simulator, and what a crash can lose; 100 or what the store has. For data of
            megabytes each, or simulations of minutes, take fewer.
        timeout: seconds one call of the simulator may take (one simulation for :func:`each`, else a block, whose simulations
            are then tried one by one); enforced in worker processes of our own only.
        failure_limit: stop when more than this share has failed.
        redo: ``"damaged"`` checks the whole store and simulates damaged blocks again, ``"failed"`` those with failures.
        progress: whether to show a progress bar.
    """
    if not callable(simulator):
        raise InputError(f"simulator: expected a function of (phi, rng), got {simulator!r}")
    check_count("n", n, 1)
    check_count("seed", seed, 0)
    check_at_least("failure_limit", failure_limit, 0)
    if block_size is not None:
        check_count("block_size", block_size, 1)
    if timeout is not None:
        check_positive("timeout", timeout)
    known = as_prior(prior)
    target: _Memory | _Stored
    if store is None:
        if redo is not None:
            raise InputError(f"redo: expected None without a store, got {redo!r}")
        target = _Memory(n, block_size or _BLOCK_SIZE)
    else:
        about = {"prior": describe_prior(known), "simulator": describe_simulator(simulator), "seed": int(seed)}
        target = _Stored(store, n, about, known.dimension, block_size, redo)

    def job(block: int) -> Job:
        phi = known.sample(target.sizes[block], seed=derive_seed(seed, "phi", block)).numpy()
        return Job(block, phi, int(seed), ticket=uuid.uuid4().hex)

    missing = target.missing()
    if missing:
        pool = make_pool(executor, timeout, simulator, target.path)
        try:
            run = _Run(target, pool, job, n, failure_limit)
            run.run(missing, progress)
        finally:
            pool.close()
        if run.reasons:
            failed = f"{run.reasons.total()} of {run.ended} simulations failed ({run.commonest()})"
            warnings.warn(f"{failed}: see simulations.failures", EandeWarning, stacklevel=2)
    return target.simulations()


class _Run:
    """One call of ``simulate`` at work: keeps a bounded number of blocks in flight until none is missing."""

    def __init__(self, target: _Memory | _Stored, pool: Pool, job: Callable[[int], Job], n: int, failure_limit: float) -> None:
        self.target, self.pool, self.job, self.n, self.failure_limit = target, pool, job, n, failure_limit
        self.reasons: Counter[str] = Counter()
        self.ended = 0
        self.stopping = False

    def run(self, missing: list[int], progress: bool) -> None:
        """Simulate the missing blocks."""
        sizes = self.target.sizes
        self.there = self.n - sum(sizes[block] for block in missing)
        columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[news]}"), TimeRemainingColumn())
        with Progress(*columns, disable=not progress) as bar, self._interruptible(bar):
            self._bar, self._task, self._began = bar, bar.add_task("", total=self.n, completed=self.there, news=""), time.monotonic()
            self._work(deque(missing))
        if self.stopping:
            raise KeyboardInterrupt(
                f"stopped: {self.there + self.ended} of {self.n} simulations are in {self.target.path}; the same call goes on from there"
            )

    def _work(self, waiting: deque[int]) -> None:
        running: dict[Future[Report], int] = {}
        try:
            while running or (waiting and not self.stopping):
                while waiting and len(running) < self.pool.at_once and not self.stopping:
                    block = waiting.popleft()
                    running[self.pool.submit(self.job(block))] = block
                busy = False
                for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    block = running.pop(future)
                    report = _result(future, block, self.target.path)
                    if report is None:
                        continue
                    if report.state == "busy":
                        busy = True
                        waiting.append(block)
                    else:
                        self._accept(report)
                if busy and not running:
                    # Another process is at what is missing: look again soon.
                    time.sleep(0.2)
                if self.stopping:
                    # Those that have not begun; the others come to their end.
                    _cancel(running)
        finally:
            _cancel(running)

    def _accept(self, report: Report) -> None:
        """Take in a block, and stop where too many have failed."""
        self.target.accept(report)
        self.ended += self.target.sizes[report.block]
        self.reasons.update(report.reasons)
        failed, rate = self.reasons.total(), self.ended / (time.monotonic() - self._began + 1e-9)
        news = f"{rate:.3g}/s" + (f", {failed} failed" if failed else "")
        self._bar.update(self._task, completed=self.there + self.ended, news=news)
        if failed > self.failure_limit * self.ended and self.ended >= min(self.n - self.there, _ENOUGH_TO_JUDGE):
            kept = "" if self.target.path is None else f"; {self.target.path} keeps the rest, and redo='failed' tries the failed ones again"
            raise SimulationError(
                f"{failed} of {self.ended} simulations failed, more than failure_limit={self.failure_limit:g} allows: {self.commonest()}{kept}"
            )

    def commonest(self) -> str:
        """Return the three commonest reasons of failure."""
        return "; ".join(f"{count} × {reason}" for reason, count in self.reasons.most_common(3))

    @contextmanager
    def _interruptible(self, bar: Progress) -> Iterator[None]:
        """Let blocks in flight come to their end at the first Ctrl-C; without a store there is nothing to save."""
        if self.target.path is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupted(*_: object) -> None:
            if self.stopping:
                raise KeyboardInterrupt("stopped at once; the same call goes on from what is stored")
            self.stopping = True
            bar.console.print("stopping when the blocks in flight are done; Ctrl-C again stops at once")

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _result(future: Future[Report], block: int, path: str | None) -> Report | None:
    """Return a job's report, None if it was cancelled; what breaks outside the simulator stops the run."""
    try:
        return future.result()
    except CancelledError:
        return None
    except (InputError, SimulationError):
        raise
    except Exception as error:
        stored = "" if path is None else f"; {path} keeps what is complete, and the same call goes on"
        raise SimulationError(f"the executor could not run block {block} ({type(error).__name__}: {error}){stored}") from error


def _cancel(running: dict[Future[Report], int]) -> None:
    for future in running:
        future.cancel()


class _Memory:
    """Blocks kept in memory."""

    path = None

    def __init__(self, n: int, block_size: int) -> None:
        self.sizes = block_sizes([n], block_size)
        self._starts = np.cumsum([0, *self.sizes])
        self._phi: np.ndarray | None = None
        self._y: np.ndarray | None = None
        self._failed: dict[int, str] = {}

    def missing(self) -> list[int]:
        return list(range(len(self.sizes)))

    def accept(self, report: Report) -> None:
        assert report.outcome is not None
        outcome: Outcome = report.outcome
        n, rows = int(self._starts[-1]), slice(self._starts[report.block], self._starts[report.block + 1])
        if self._phi is None:
            self._phi = np.empty((n, outcome.phi.shape[1]), dtype=np.float32)
        self._phi[rows] = outcome.phi
        if outcome.y is not None:
            if self._y is None:
                self._y = np.empty((n, *outcome.y.shape[1:]), dtype=np.float32)
            outcome = outcome.conform(self._y.shape[1:])
        if outcome.y is not None and self._y is not None:
            self._y[rows] = outcome.y
        self._failed |= {int(self._starts[report.block]) + row: reason for row, reason in outcome.failed.items()}

    def simulations(self) -> Simulations:
        if self._phi is None or self._y is None:
            raise SimulationError(f"none of {self._starts[-1]} simulations succeeded: {Counter(self._failed.values()).most_common(3)}")
        bad = sorted(self._failed)
        phi, y = torch.from_numpy(self._phi), torch.from_numpy(self._y)
        failures = Failures(phi[bad], tuple(self._failed[row] for row in bad))
        if bad:
            good = np.setdiff1d(np.arange(len(phi)), bad)
            phi, y = phi[good], y[good]
        return Simulations(phi, y, torch.arange(len(phi)), failures)


class _Stored:
    """Blocks in a store."""

    def __init__(self, path: str | Path, n: int, about: dict[str, Any], dimension: int, block_size: int | None, redo: str | None) -> None:
        from eande.simulation.store import Store

        self._store = Store.prepare(path, n, about, dimension=dimension, block_size=block_size, default_size=_BLOCK_SIZE)
        # Workers may have another working directory.
        self.path, self.sizes = str(Path(path).resolve()), self._store.sizes
        if redo is not None:
            check_choice("redo", redo, ("damaged", "failed"))
            damaged = list(self._store.check()) if redo == "damaged" else []
            failed = [block for block, record in self._store.records().items() if record.failed] if redo == "failed" else []
            self._store.discard(damaged + failed)

    def missing(self) -> list[int]:
        there = self._store.records()
        return [block for block in range(len(self.sizes)) if block not in there]

    def accept(self, report: Report) -> None:
        if self._store.record(report.block) is None:
            raise SimulationError(f"block {report.block} was reported as written, but it is not in {self.path}: workers must see that folder")

    def simulations(self) -> Simulations:
        return Simulations.open(self._store.path)
