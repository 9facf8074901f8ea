"""Blocks: the unit of work. Seed, number and size alone decide what a block holds.

A block's simulations come from one call of the simulator with the block's own random stream. Where
that call fails, and for a simulator made by :func:`eande.each`, they are run one by one, each with
a stream of its own, so that one bad simulation costs only itself. So are those that failed and are
tried again: each with the stream of its own, which depends on seed, block and row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eande.foundations.checks import InputError, check_function, show_shape
from eande.foundations.seeds import derive_seed

Simulator = Callable[[np.ndarray, np.random.Generator], Any]

_LONGEST_REASON = 200
# Why a row of a damaged block has no data, until it is simulated again: it had some, or nothing
# that can be read says whether it had.
UNREADABLE = "cannot be read"
UNKNOWN = "not known"


class SimulationError(RuntimeError):
    """Simulating stopped: too many failures, or a disk or an executor broke.

    Example:
        >>> def broken(phi, rng):
        ...     raise ValueError("the mesh has no cells")
        >>> eande.simulate(broken, prior, n=10, progress=False)
        Traceback (most recent call last):
        eande.simulation.run.blocks.SimulationError: ...the mesh has no cells...
    """


class Each:
    """A simulator of batches from a function of one parameter vector; see :func:`eande.each`."""

    def __init__(self, function: Callable[[np.ndarray, np.random.Generator], Any]) -> None:
        self.function = function

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate row by row."""
        return np.stack([np.atleast_1d(np.asarray(self.function(row, rng))) for row in phi])


def each(function: Callable[[np.ndarray, np.random.Generator], Any]) -> Simulator:
    """Make a simulator of batches from ``function(phi, rng) -> y`` of one parameter vector.

    Example:
        >>> simulator = each(lambda phi, rng: phi**2)
        >>> simulator(np.array([[1.0, 2.0], [3.0, 4.0]]), np.random.default_rng(0))
        array([[ 1.,  4.],
               [ 9., 16.]])
    """
    check_function("each", function, "(phi, rng)")
    return Each(function)


def block_sizes(extents: Sequence[int], block_size: int) -> list[int]:
    """Return the size of every block of a set of simulations.

    Args:
        extents: number of simulations the set was made for, then those it was extended to.
        block_size: largest size of a block.

    Example:
        >>> block_sizes([5, 9], 4)  # an extension starts a new block
        [4, 1, 4]
    """
    sizes: list[int] = []
    have = 0
    for n in extents:
        full, rest = divmod(n - have, block_size)
        sizes += [block_size] * full + [rest] * (rest > 0)
        have = n
    return sizes


@dataclass(frozen=True)
class Job:
    """A block to be simulated.

    Args:
        block: its number.
        phi: its parameters (size, D).
        seed: the user's.
        ticket: differs in every submission, so that no executor takes two for the same call and
            returns the earlier result.
        one_by_one: whether to leave out the call for the whole block, which is known to fail.
        excluded: rows not to run, with the reason; those known to fail.
        replaces: the version of a complete block that is simulated again; None for a new block.
        failed_only: whether to run no more than its failed rows.
    """

    block: int
    phi: np.ndarray
    seed: int
    ticket: str = ""
    one_by_one: bool = False
    excluded: dict[int, str] = field(default_factory=dict)
    replaces: str | None = None
    failed_only: bool = False

    def again(self, stored: Outcome) -> Job:
        """Return the job of a block that is complete, with its parameters as they are stored."""
        if not self.failed_only:
            return replace(self, phi=stored.phi)
        kept = {row: "kept" for row in range(len(stored.phi)) if row not in stored.failed}
        return replace(self, phi=stored.phi, one_by_one=True, excluded={**kept, **self.excluded})

    def without(self, call: int | None, reason: str) -> Job:
        """Return the job without a call that fails: that of a row, or (None) of the whole block."""
        if call is None and len(self.phi) > 1:
            return replace(self, one_by_one=True)
        return replace(self, one_by_one=True, excluded={**self.excluded, (call or 0): reason})


@dataclass(frozen=True)
class Outcome:
    """What became of a block.

    Args:
        phi: its parameters (size, D).
        y: its data (size, …), float32, NaN in failed rows; None if all failed.
        failed: reason of each failed row.
        smooth: whether nothing failed and no call had to be made again.
    """

    phi: np.ndarray
    y: np.ndarray | None
    failed: dict[int, str]
    smooth: bool = False

    def conform(self, shape: Sequence[int]) -> Outcome:
        """Return the outcome in a set whose data have that shape: rows of another have failed."""
        if self.y is None or self.y.shape[1:] == tuple(shape):
            return self
        reason = (
            f"data of shape {show_shape(self.y.shape[1:])} instead of {show_shape(shape)}, "
            "the shape of the first block"
        )
        failed = {row: self.failed.get(row, reason) for row in range(len(self.phi))}
        return Outcome(self.phi, None, failed)

    def lost(self, stored: Outcome) -> dict[int, str]:
        """Return the rows that failed, with the reason, and had data that cannot be read now."""
        return {
            row: reason
            for row, reason in self.failed.items()
            if stored.failed.get(row) == UNREADABLE
        }

    def over(self, stored: Outcome) -> Outcome:
        """Return the outcome with the stored data of rows that have none."""
        if stored.y is None:
            return self
        new = self.conform(stored.y.shape[1:])
        y = stored.y.copy()
        if new.y is not None:
            fresh = [row for row in range(len(y)) if row not in new.failed]
            y[fresh] = new.y[fresh]
        failed = {row: reason for row, reason in new.failed.items() if row in stored.failed}
        return Outcome(self.phi, y, failed)


def summarize_reasons(reasons: Iterable[str]) -> str:
    """Return the three commonest reasons of failure with their counts."""
    commonest = Counter(reasons).most_common(3)
    return "; ".join(f"{count} × {reason}" for reason, count in commonest)


def run_block(simulator: Simulator, job: Job, begin: Callable[[int | None], None]) -> Outcome:
    """Simulate a block.

    Args:
        simulator: takes ``(phi, rng)``.
        job: the block.
        begin: told before each call which row it is for, None for the whole block.
    """
    if not job.one_by_one and not isinstance(simulator, Each):
        begin(None)
        try:
            # Copied both ways: a simulator may change its argument in place, or return the same
            # buffer again and again.
            rng = np.random.default_rng(derive_seed(job.seed, "simulator", job.block))
            given = simulator(job.phi.copy(), rng)
        except (Exception, SystemExit) as error:
            job = job.without(None, _reason(error))
        else:
            y = _as_float32(_as_batch(given, len(job.phi)))
            return _screened(job.phi, y, {}, smooth=True)
    return _run_rows(simulator, job, begin)


def _run_rows(simulator: Simulator, job: Job, begin: Callable[[int | None], None]) -> Outcome:
    rows: dict[int, np.ndarray] = {}
    failed = dict(job.excluded)
    mistake: InputError | None = None
    for row in range(len(job.phi)):
        if row in failed:
            continue
        begin(row)
        rng = np.random.default_rng(derive_seed(job.seed, "simulator", job.block, row))
        try:
            if isinstance(simulator, Each):
                given = simulator.function(job.phi[row].copy(), rng)
            else:
                given = simulator(job.phi[row : row + 1].copy(), rng)
        except (Exception, SystemExit) as error:
            failed[row] = _reason(error)
            continue
        try:
            if isinstance(simulator, Each):
                datum = np.atleast_1d(_as_numbers(given))
            else:
                datum = _as_batch(given, 1)[0]
        except InputError as error:
            failed[row] = str(error)
            mistake = error
        else:
            rows[row] = _as_float32(datum)
    if mistake is not None and set(failed.values()) == {str(mistake)} and not rows:
        # Always the same mistake: no simulation can succeed.
        raise mistake
    if not rows:
        return Outcome(job.phi, None, failed)
    # The commonest shape, not the first: one odd simulation must not make all others odd.
    shape = Counter(datum.shape for datum in rows.values()).most_common(1)[0][0]
    y = np.full((len(job.phi), *shape), np.nan, dtype=np.float32)
    for row, datum in rows.items():
        if datum.shape == shape:
            y[row] = datum
        else:
            failed[row] = f"data of shape {show_shape(datum.shape)} instead of {show_shape(shape)}"
    return _screened(job.phi, y, failed, smooth=isinstance(simulator, Each))


def once_more(simulator: Simulator, job: Job, row: int) -> str:
    """Return the line of Python that runs one simulation of a block again, alone.

    It has the random stream that :func:`_run_rows` gives it, so that what raised an exception does
    so again.
    """
    seed = derive_seed(job.seed, "simulator", job.block, row)
    one = isinstance(simulator, Each)
    phi = (job.phi[row] if one else job.phi[row : row + 1]).tolist()
    name = "function" if one else "simulator"
    return f"{name}(np.array({phi}, dtype=np.float32), np.random.default_rng({seed}))"


def _as_numbers(given: Any) -> np.ndarray:
    """Take an array or tensor of real numbers; anything else is a mistake in the simulator."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    if isinstance(given, np.ma.MaskedArray):
        given = np.ma.filled(given.astype(np.float64), np.nan)
    try:
        numbers = np.asarray(given)
    except ValueError:
        raise InputError(
            "simulator output: expected an array or tensor, "
            f"got a {type(given).__name__} of unequal parts"
        ) from None
    if numbers.dtype.kind not in "biuf":
        raise InputError(
            "simulator output: expected real numbers in an array or tensor, "
            f"got {numbers.dtype} in {type(given).__name__}"
        )
    if numbers.size == 0:
        raise InputError(
            f"simulator output: expected at least one number, got an array of shape {numbers.shape}"
        )
    return numbers


def _as_batch(given: Any, size: int) -> np.ndarray:
    numbers = _as_numbers(given)
    if numbers.ndim < 2 or len(numbers) != size:
        hint = (
            "return y[:, None]"
            if numbers.shape == (size,)
            else "a function of one parameter vector comes in through eande.each(function)"
        )
        raise InputError(
            f"simulator output: expected first axis {size} and at least one axis per datum, "
            f"got shape {numbers.shape}; {hint}"
        )
    return numbers


def _as_float32(numbers: np.ndarray) -> np.ndarray:
    """Copy to float32; what is too large for it becomes infinity, and a failure."""
    with np.errstate(over="ignore"):
        return np.array(numbers, dtype=np.float32)


def _screened(phi: np.ndarray, y: np.ndarray, failed: dict[int, str], *, smooth: bool) -> Outcome:
    """Mark rows that are not finite as failed."""
    flat = y.reshape(len(y), -1)
    # One reduction settles the usual case without a mask the size of the data.
    for row in np.flatnonzero(~np.isfinite(flat.sum(axis=1, dtype=np.float64))).tolist():
        if np.isnan(flat[row]).any():
            failed.setdefault(row, "NaN in the data")
        elif np.isinf(flat[row]).any():
            failed.setdefault(row, "infinity in the data, in float32")
    y[list(failed)] = np.nan
    some_succeeded = len(failed) < len(y)
    return Outcome(
        phi,
        y if some_succeeded else None,
        dict(sorted(failed.items())),
        smooth and not failed,
    )


def _reason(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an exception that cannot be printed has a name at least
        lines = []
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
