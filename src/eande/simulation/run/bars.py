"""Columns of progress bars that can be read in a terminal of 80 columns."""

from __future__ import annotations

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

_BAR = 20


class Description(ProgressColumn):
    """What is done, cut where there is no room: bar and times keep theirs."""

    def __init__(self) -> None:
        # A column that may be wrapped is the first to be made narrower.
        super().__init__(Column(no_wrap=False))

    def render(self, task: Task) -> Text:
        """Return the description in one line."""
        text = Text.from_markup(task.description)
        text.no_wrap = True
        text.overflow = "ellipsis"
        return text


def columns(*, elapsed: bool = False, remaining: bool = False) -> tuple[ProgressColumn, ...]:
    """Return the columns of a progress bar: description, bar, count and times.

    Args:
        elapsed: whether to show the time since the beginning.
        remaining: whether to show the time that is left.
    """
    found: list[ProgressColumn] = [
        Description(),
        BarColumn(_BAR, table_column=Column(no_wrap=True)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
    ]
    if elapsed:
        found.append(TimeElapsedColumn(table_column=Column(no_wrap=True)))
    if remaining:
        found.append(TimeRemainingColumn(table_column=Column(no_wrap=True)))
    return tuple(found)
