"""The scheduler: a bounded number of blocks in flight until none is missing.

It stops early when too large a share of the simulations fails, when something outside the
simulator breaks, or at Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eande.foundations.checks import InputError
from eande.simulation.run.blocks import Job, SimulationError, summarize_reasons
from eande.simulation.run.executors import Pool
from eande.simulation.run.jobs import Report

# The share of failures is judged once this many simulations have ended.
_ENOUGH_TO_JUDGE = 50
# Seconds after which a block that another process holds is tried again.
_RETRY_AFTER = 0.5


class Collector(Protocol):
    """Where finished blocks go."""

    @property
    def path(self) -> str | None:
        """The store's folder; None where blocks stay in memory."""
        ...

    @property
    def sizes(self) -> list[int]:
        """The size of every block."""
        ...

    def accept(self, report: Report) -> Iterable[str] | None:
        """Take in a block and return the reasons of its failures; None if it is not there."""
        ...


class Scheduler:
    """One call of :func:`eande.simulate` at work.

    Args:
        collector: where finished blocks go.
        make_job: makes the job of a block.
        n: number of simulations, with those that are there already.
        failure_limit: stop when more than this share has failed.

    Attributes:
        reasons: of all failures so far, counted.
        once_more: how to run the first of them again.
        ended: simulations that have ended in this call.
        stopping: whether the user has asked to stop.
    """

    def __init__(
        self,
        collector: Collector,
        make_job: Callable[[int], Job],
        n: int,
        failure_limit: float,
    ) -> None:
        self._collector = collector
        self._make_job = make_job
        self._n = n
        self._failure_limit = failure_limit
        self.reasons: Counter[str] = Counter()
        self.once_more = ""
        self.ended = 0
        self.stopping = False

    def run(self, pool: Pool, missing: list[int], progress: bool) -> None:
        """Simulate the missing blocks."""
        sizes = self._collector.sizes
        self._there = self._n - sum(sizes[block] for block in missing)
        columns = (
            TextColumn("simulating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, disable=not progress) as bar, self._interruptible(bar):
            self._bar = bar
            self._task = bar.add_task("", total=self._n, completed=self._there, news="")
            self._began = time.monotonic()
            self._work(pool, deque(missing))
        if self.stopping:
            raise KeyboardInterrupt(
                f"stopped: {self._there + self.ended} of {self._n} simulations are in "
                f"{self._collector.path}; the same call goes on from there"
            )

    def _work(self, pool: Pool, waiting: deque[int]) -> None:
        running: dict[Future[Report], int] = {}
        # When to try a block again that another process holds.
        busy: dict[int, float] = {}
        try:
            while running or ((waiting or busy) and not self.stopping):
                now = time.monotonic()
                waiting += [block for block, until in busy.items() if until <= now]
                busy = {block: until for block, until in busy.items() if until > now}
                at_once = pool.at_once
                while waiting and len(running) < at_once and not self.stopping:
                    block = waiting.popleft()
                    running[self._submit(pool, block)] = block
                if not running:
                    news = f"waiting for {len(busy)} blocks that other processes hold"
                    self._bar.update(self._task, news=news)
                    time.sleep(0.05)
                for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    block = running.pop(future)
                    if not self._settled(future, block):
                        busy[block] = time.monotonic() + _RETRY_AFTER
                if self.stopping and pool.cancels:
                    # Those that have not begun; the others are finished.
                    _cancel(running)
        finally:
            _cancel(running)

    def _submit(self, pool: Pool, block: int) -> Future[Report]:
        try:
            return pool.submit(self._make_job(block))
        except RuntimeError as error:
            raise SimulationError(f"the executor does not take block {block} ({error})") from None

    def _settled(self, future: Future[Report], block: int) -> bool:
        """Return whether a block needs no second look.

        It does when another process holds it, or has discarded it to simulate it again.
        """
        report = self._result(future, block)
        if report is None:
            return True
        return report.state in ("done", "there") and self._accept(report)

    def _result(self, future: Future[Report], block: int) -> Report | None:
        """Return a job's report; None if it has none because the run is stopping.

        Whatever breaks outside the simulator stops the run.
        """
        try:
            return future.result()
        except (InputError, SimulationError, CancelledError):
            if self.stopping and future.cancelled():
                return None
            raise
        except (Exception, KeyboardInterrupt) as error:
            if self.stopping:
                # Ctrl-C in a terminal reaches the processes of a pool, too.
                return None
            path = self._collector.path
            kept = f"; {path} keeps what is complete, and the same call goes on" if path else ""
            raise SimulationError(
                f"the executor could not run block {block} ({type(error).__name__}: {error}){kept}"
            ) from error

    def _accept(self, report: Report) -> bool:
        """Take in a block, and stop where too many have failed; False if it is not there."""
        reasons = self._collector.accept(report)
        if reasons is None:
            return False
        self.ended += self._collector.sizes[report.block]
        self.reasons.update(reasons)
        self.once_more = self.once_more or report.once_more
        failed = self.reasons.total()
        rate = self.ended / (time.monotonic() - self._began + 1e-9)
        news = f"{rate:.3g}/s" + (f", {failed} failed" if failed else "")
        self._bar.update(self._task, completed=self._there + self.ended, news=news)
        self._check_failures(failed)
        return True

    def _check_failures(self, failed: int) -> None:
        enough = min(self._n - self._there, _ENOUGH_TO_JUDGE)
        if self.ended < enough or failed <= self._failure_limit * self.ended:
            return
        path = self._collector.path
        kept = ""
        if path:
            again = "redo='failed' (eande simulate STUDY --redo failed)"
            kept = f"; {path} keeps the rest, and {again} tries the failed ones again"
        raise SimulationError(
            f"{failed} of {self.ended} simulations failed, more than "
            f"failure_limit={self._failure_limit:g} allows: "
            f"{summarize_reasons(self.reasons.elements())}; the first alone: {self.once_more}{kept}"
        )

    @contextmanager
    def _interruptible(self, bar: Progress) -> Iterator[None]:
        """Finish the blocks in flight at the first Ctrl-C, where there is a store to keep them."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self._collector.path is None or not in_main_thread:
            yield
            return

        def interrupted(*_: object) -> None:
            if self.stopping:
                raise KeyboardInterrupt(
                    "stopped at once; the same call goes on from what is stored"
                )
            self.stopping = True
            bar.console.print(
                "stopping when the blocks in flight are done; Ctrl-C again stops at once"
            )

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _cancel(running: Iterable[Future[Report]]) -> None:
    for future in running:
        future.cancel()
