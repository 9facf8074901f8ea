"""What rounds have to say: a row of a table each, and why they ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eande.foundations.files import write_json
from eande.foundations.paths import as_path
from eande.foundations.tables import html_table
from eande.priors.truncated import percent
from eande.simulation.read.simulations import Simulations

_HEADER = ("round", "simulated", "inside", "prior kept", "accepted", "held-out nats", "gain", "s")
_WIDTHS = (5, 10, 8, 11, 9, 14, 7, 7)


@dataclass(frozen=True)
class Round:
    """One round.

    Args:
        number: from 1 on.
        simulations: made in it, failed ones included.
        failed: of these.
        inside: simulations of all rounds in its region that the model was fitted to.
        held_out: those in its region that it was judged by.
        log_mass: log p(R), of the region's mass under the prior.
        log_mass_error: its standard error.
        acceptance: share of the draws made for the region that lie in it.
        score: mean log ratio of the held-out ones in nats, relative to the region's prior; None
            where they were too few.
        error: its standard error.
        gain: what the model before it, under the same prior, has less on the same simulations.
        alarms: why it is not to be trusted near the observations.
        next_region: what became of the region after it, in words; empty after the last round.
        settled: whether the region shrinks no more, and the score rises no more.
        seconds_simulating: what simulating took; not compared.
        seconds_fitting: what fitting took; not compared.
    """

    number: int
    simulations: int
    failed: int
    inside: int
    held_out: int
    log_mass: float
    log_mass_error: float
    acceptance: float
    score: float | None
    error: float | None
    gain: float | None
    alarms: tuple[str, ...]
    next_region: str = ""
    settled: bool = False
    seconds_simulating: float = field(default=0.0, compare=False)
    seconds_fitting: float = field(default=0.0, compare=False)

    @property
    def nats(self) -> float | None:
        """The score relative to the whole prior, log r − log p(R): so rounds compare."""
        return None if self.score is None else self.score - self.log_mass

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        known = self.nats is not None and self.error is not None
        return (
            str(self.number),
            f"{self.simulations:,}",
            f"{self.inside:,}",
            percent(math.exp(self.log_mass)),
            percent(self.acceptance),
            f"{self.nats:.2f} ± {self.error:.2f}" if known else "not known",
            "" if self.gain is None else f"{self.gain:+.2f}",
            f"{self.seconds_simulating + self.seconds_fitting:.0f}",
        )

    def notes(self) -> list[str]:
        """Return what else there is to say of it, a line each."""
        notes = [f"ALARM: {text}" for text in self.alarms]
        return [*notes, self.next_region] if self.next_region else notes


@dataclass(frozen=True)
class Rounds:
    """What all rounds have to say; ``print(info)`` shows a table.

    Args:
        rounds: one after the other.
        stopped: why there were no more.
        fitted: simulations of the last region that the model was fitted to; not compared.
        held_out: those of it that no model was fitted to, for :func:`eande.diagnose` and
            :func:`eande.report`; not compared.

    Attributes:
        simulations: made in all rounds.

    Example:
        >>> settings = eande.FitSettings(epochs=5, start="linear", device="cpu")  # short
        >>> model, info = eande.rounds(
        ...     simulator,
        ...     prior,
        ...     y_observed,
        ...     simulations=400,
        ...     rounds=2,
        ...     settings=settings,
        ...     progress=False,
        ... )
        >>> print(info)
        round  simulated  inside ...
            1        200 ...
            2        200 ...
        stopped: all simulations are made
    """

    rounds: tuple[Round, ...]
    stopped: str
    fitted: Simulations | None = field(default=None, compare=False, repr=False)
    held_out: Simulations | None = field(default=None, compare=False, repr=False)

    @property
    def simulations(self) -> int:
        """The number of simulations made, failed ones included."""
        return sum(one.simulations for one in self.rounds)

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against the last model near the observations."""
        return not self.rounds[-1].alarms

    def __str__(self) -> str:
        """Return the table, notes below the rows they belong to."""
        lines = [table_header()]
        for one in self.rounds:
            lines += table_lines(one)
        return "\n".join([*lines, f"stopped: {self.stopped}"])

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        rows = [one.cells() for one in self.rounds]
        notes = [f"round {one.number}: {text}" for one in self.rounds for text in one.notes()]
        return html_table(
            f"{self.simulations:,} simulations in {len(self.rounds)} rounds",
            rows,
            header=_HEADER,
            notes=[*notes, f"stopped: {self.stopped}"],
        )

    def describe(self) -> dict[str, Any]:
        """Return all of it as values for JSON.

        Example:
            >>> Rounds((), "all simulations are made").describe()
            {'rounds': [], 'stopped': 'all simulations are made'}
        """
        rounds = [asdict(one) | {"nats": one.nats} for one in self.rounds]
        return {"rounds": rounds, "stopped": self.stopped}

    def save(self, path: str | Path) -> None:
        """Write all of it as JSON.

        Example:
            >>> Rounds((), "all simulations are made").save(folder / "rounds.json")
        """
        write_json(as_path("path", path), self.describe())


def table_header() -> str:
    """Return the line above the rounds."""
    return _aligned(_HEADER)


def table_lines(one: Round) -> list[str]:
    """Return the lines of a round."""
    return [_aligned(one.cells()), *(f"       {note}" for note in one.notes())]


def _aligned(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
