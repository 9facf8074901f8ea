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

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    check_at_least,
    check_choice,
    check_count,
    check_positive,
)
from eande.foundations.seeds import derive_seed
from eande.priors.convert import as_prior
from eande.simulation.read.simulations import Simulations, in_words
from eande.simulation.run.blocks import Job, SimulationError, Simulator
from eande.simulation.run.executors import Pool, check_executor, make_pool
from eande.simulation.run.targets import Memory, Stored
from eande.simulation.run.workers import Report
from eande.simulation.store.provenance import describe_prior, describe_simulator

DESIGNS = ("random", "even")
_LARGEST_BLOCK = 1_000_000
# The share of failures is judged once so many simulations have ended.
_ENOUGH_TO_JUDGE = 50
# Seconds after which a block that another process holds is tried again.
_LOOK_AGAIN = 0.5


def simulate(
    simulator: Simulator,
    prior: Any,
    n: int,
    *,
    store: str | Path | None = None,
    executor: Any = None,
    seed: int = 0,
    design: str = "random",
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
        design: ``"random"`` draws the parameters; ``"even"`` (for a :class:`BoxPrior`) takes a scrambled Sobol sequence of the prior, which
            leaves smaller holes: worth it for expensive simulators.
        block_size: simulations per call of the simulator, and what a crash can lose; 100 or what the store has. For data of
            megabytes each, or simulations of minutes, take fewer.
        timeout: seconds one call of the simulator may take (one simulation for :func:`each`, else a block, whose simulations
            are then tried one by one); enforced in worker processes of our own only.
        failure_limit: stop when more than this share has failed.
        redo: ``"damaged"`` checks the whole store and simulates damaged blocks again, ``"failed"`` those with failures.
        progress: whether to show a progress bar.
    """
    _check(simulator, n, seed, design, block_size, timeout, failure_limit, redo)
    block_size = None if block_size is None else int(block_size)
    # Everything is checked before a store is made or extended.
    check_executor(executor)
    known, n = as_prior(prior), int(n)
    if design == "even":
        known.sample_evenly(1, first=0, seed=seed)
    target: Memory | Stored
    if store is None:
        if redo is not None:
            raise InputError(f"redo: expected None without a store, got {redo!r}")
        target = Memory(n, block_size)
    else:
        about = {
            "prior": describe_prior(known),
            "simulator": describe_simulator(simulator),
            "seed": int(seed),
            "design": design,
        }
        target = Stored(store, n, about, known.dimension, block_size, redo)

    def job(block: int) -> Job:
        size = target.sizes[block]
        if design == "even":
            phi = known.sample_evenly(size, first=sum(target.sizes[:block]), seed=seed)
        else:
            phi = known.sample(size, seed=derive_seed(seed, "phi", block))
        return Job(block, phi.numpy(), int(seed), ticket=uuid.uuid4().hex)

    missing = target.missing()
    if missing:
        run = _Run(target, job, n, failure_limit)
        pool = make_pool(executor, timeout, simulator, target.path, lambda: run.stopping)
        try:
            run.run(pool, missing, progress)
        finally:
            pool.close()
        if run.reasons:
            failed = f"{run.reasons.total()} of {run.ended} simulations failed ({in_words(run.reasons.elements())})"
            warnings.warn(f"{failed}: see simulations.failures", EandeWarning, stacklevel=2)
    return target.simulations()


def _check(
    simulator: Any,
    n: int,
    seed: int,
    design: str,
    block_size: int | None,
    timeout: float | None,
    failure_limit: float,
    redo: str | None,
) -> None:
    """Refuse what cannot be simulated."""
    if not callable(simulator):
        raise InputError(f"simulator: expected a function of (phi, rng), got {simulator!r}")
    check_count("n", n, 1)
    check_count("seed", seed, 0)
    check_choice("design", design, DESIGNS)
    check_at_least("failure_limit", failure_limit, 0)
    if failure_limit > 1:
        raise InputError(f"failure_limit: expected a share of at most 1, got {failure_limit}")
    if block_size is not None:
        check_count("block_size", block_size, 1)
        if block_size > _LARGEST_BLOCK:
            raise InputError(f"block_size: expected at most {_LARGEST_BLOCK}, got {block_size}")
    if timeout is not None:
        check_positive("timeout", timeout)
    if redo is not None:
        check_choice("redo", redo, ("damaged", "failed"))


class _Run:
    """One call of ``simulate`` at work: keeps a bounded number of blocks in flight until none is missing."""

    def __init__(
        self, target: Memory | Stored, job: Callable[[int], Job], n: int, failure_limit: float
    ) -> None:
        self.target, self.job, self.n, self.failure_limit = target, job, n, failure_limit
        self.reasons: Counter[str] = Counter()
        self.ended = 0
        self.stopping = False

    def run(self, pool: Pool, missing: list[int], progress: bool) -> None:
        """Simulate the missing blocks."""
        sizes = self.target.sizes
        self.there = self.n - sum(sizes[block] for block in missing)
        columns = (
            TextColumn("simulating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, disable=not progress) as bar, self._interruptible(bar):
            self._bar, self._task, self._began = (
                bar,
                bar.add_task("", total=self.n, completed=self.there, news=""),
                time.monotonic(),
            )
            self._work(pool, deque(missing))
        if self.stopping:
            raise KeyboardInterrupt(
                f"stopped: {self.there + self.ended} of {self.n} simulations are in {self.target.path}; the same call goes on from there"
            )

    def _work(self, pool: Pool, waiting: deque[int]) -> None:
        running: dict[Future[Report], int] = {}
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
                    self._bar.update(
                        self._task, news=f"waiting for {len(busy)} blocks that other processes hold"
                    )
                    time.sleep(0.05)
                for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    block = running.pop(future)
                    report = self._result(future, block)
                    if report is not None and not (
                        report.state in ("done", "there") and self._accept(report)
                    ):
                        # Another process is at it, or took it back: look again in a while.
                        busy[block] = time.monotonic() + _LOOK_AGAIN
                if self.stopping and pool.cancels:
                    # Those that have not begun; the others come to their end.
                    _cancel(running)
        finally:
            _cancel(running)

    def _submit(self, pool: Pool, block: int) -> Future[Report]:
        try:
            return pool.submit(self.job(block))
        except RuntimeError as error:
            raise SimulationError(f"the executor does not take block {block} ({error})") from None

    def _result(self, future: Future[Report], block: int) -> Report | None:
        """Return a job's report, None if it came to nothing because the run is stopping; what breaks outside the simulator stops the run."""
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
            stored = (
                ""
                if self.target.path is None
                else f"; {self.target.path} keeps what is complete, and the same call goes on"
            )
            raise SimulationError(
                f"the executor could not run block {block} ({type(error).__name__}: {error}){stored}"
            ) from error

    def _accept(self, report: Report) -> bool:
        """Take in a block, and stop where too many have failed; False if it is not there after all."""
        reasons = self.target.accept(report)
        if reasons is None:
            return False
        self.ended += self.target.sizes[report.block]
        self.reasons.update(reasons)
        failed, rate = self.reasons.total(), self.ended / (time.monotonic() - self._began + 1e-9)
        news = f"{rate:.3g}/s" + (f", {failed} failed" if failed else "")
        self._bar.update(self._task, completed=self.there + self.ended, news=news)
        if failed > self.failure_limit * self.ended and self.ended >= min(
            self.n - self.there, _ENOUGH_TO_JUDGE
        ):
            kept = (
                ""
                if self.target.path is None
                else f"; {self.target.path} keeps the rest, and redo='failed' tries the failed ones again"
            )
            why = in_words(self.reasons.elements())
            raise SimulationError(
                f"{failed} of {self.ended} simulations failed, more than failure_limit={self.failure_limit:g} allows: {why}{kept}"
            )
        return True

    @contextmanager
    def _interruptible(self, bar: Progress) -> Iterator[None]:
        """Let blocks in flight come to their end at the first Ctrl-C; without a store there is nothing to save."""
        if self.target.path is None or threading.current_thread() is not threading.main_thread():
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


def _cancel(running: dict[Future[Report], int]) -> None:
    for future in running:
        future.cancel()
