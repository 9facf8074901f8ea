"""Jobs: a block simulated, in whatever process, and written to the store where there is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from eande.simulation.run.blocks import (
    Job,
    Outcome,
    SimulationError,
    Simulator,
    once_more,
    run_block,
    summarize_reasons,
)

# What ``begin`` is told before a block is written.
WRITING = "writing"


class Committed(Protocol):
    """The record of a block that is complete."""

    @property
    def failed(self) -> dict[int, str]:
        """Reason of each failed row."""
        ...


class BlockStore(Protocol):
    """What a job needs of a store; :class:`eande.Store` is one."""

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of one datum; empty as long as nobody has written any."""
        ...

    def record(self, block: int) -> Committed | None:
        """Return the record of a complete block; None for any other."""
        ...

    def writing(self, block: int) -> AbstractContextManager[bool]:
        """Lock a block for writing; gives False, and locks nothing, while another process does."""
        ...

    def readable(self, block: int, version: str, phi: np.ndarray, *, whole: bool) -> Outcome | None:
        """Return what can be read of a complete block; None if it is of another version by now."""
        ...

    def write(self, block: int, outcome: Outcome) -> Outcome:
        """Write a block that is locked; returns what was written."""
        ...


# Sent to the process that writes, which opens the store itself.
OpenStore = Callable[[], BlockStore]


@dataclass(frozen=True)
class Report:
    """What became of a job.

    Args:
        block: its number.
        state: ``"done"``, ``"there"`` (another process had done it), ``"busy"`` (another process
            is simulating it) or ``"dropped"`` (not kept).
        reasons: of its failed simulations.
        outcome: the simulations themselves where there is no store.
        once_more: how to run the first of the failed simulations again.
    """

    block: int
    state: str
    reasons: tuple[str, ...] = ()
    outcome: Outcome | None = None
    once_more: str = ""


def run_job(
    simulator: Simulator,
    open_store: OpenStore | None,
    job: Job,
    begin: Callable[[Any], None] = lambda call: None,
    keep: Callable[[Outcome], bool] = lambda outcome: True,
) -> Report:
    """Simulate a block and write it to the store; without one, return it.

    Args:
        simulator: takes ``(phi, rng)``.
        open_store: opens the store.
        job: the block.
        begin: told before each call of the simulator which one it is, and before writing.
        keep: says whether to write the outcome.
    """
    if open_store is None:
        outcome = run_block(simulator, job, begin)
        return _done(simulator, job, outcome, outcome)
    store = open_store()
    with store.writing(job.block) as held:
        if not held:
            return Report(job.block, "busy")
        stored = None
        if job.replaces is not None:
            stored = store.readable(job.block, job.replaces, job.phi, whole=job.failed_only)
        if stored is not None:
            job = job.again(stored)
        elif (there := store.record(job.block)) is not None:
            return Report(job.block, "there", tuple(there.failed.values()))
        outcome = run_block(simulator, job, begin)
        if not keep(outcome):
            return Report(job.block, "dropped")
        if stored is not None:
            if store.y_shape:
                outcome = outcome.conform(store.y_shape)
            outcome = outcome.over(stored)
            _refuse_losses(simulator, job, stored, outcome)
        begin(WRITING)
        written = store.write(job.block, outcome)
        return _done(simulator, job, written)


def _refuse_losses(simulator: Simulator, job: Job, stored: Outcome, made: Outcome) -> None:
    """Refuse to write failures over damaged data: a copy, or a later run, brings those back.

    A row that fails is tried again with a random stream of its own, not that of its block, and
    would come back as another simulation.
    """
    lost = made.lost(stored)
    if lost:
        raise SimulationError(
            f"block {job.block} stays as it is, damaged: {len(lost)} of its simulations succeeded "
            f"before and fail now ({summarize_reasons(lost.values())}); mend the simulator and "
            "make the same call again, or put the block's files back from a copy; the first alone: "
            f"{once_more(simulator, job, min(lost))}"
        )


def _done(simulator: Simulator, job: Job, made: Outcome, returned: Outcome | None = None) -> Report:
    first = next(iter(made.failed), None)
    line = "" if first is None else once_more(simulator, job, first)
    return Report(job.block, "done", tuple(made.failed.values()), returned, line)
