"""What a report consists of: sections of texts, tables, figures; plain data without any markup.

Whatever stands here as a text came from anywhere (names of parameters, reasons of failures, words
of a simulator): the page escapes all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

OK = "ok"
ALARM = "alarm"
NOT_CHECKED = "not checked"
# In which order readers want them.
STATES = (ALARM, NOT_CHECKED, OK)


@dataclass(frozen=True)
class Verdict:
    """The answer to one question about a posterior, with what to do.

    Args:
        question: that was asked, such as "Is the stated uncertainty right on average?".
        state: ``"ok"``, ``"alarm"`` or ``"not checked"``.
        found: what was found, or why nothing was looked at.
        advice: what to do; empty where there is nothing to do.
    """

    question: str
    state: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        """Return it in one or two lines."""
        line = f"{self.state.upper():<12} {self.question} {self.found}"
        return f"{line}\n{'':<12} → {self.advice}" if self.advice else line


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Args:
        text: of it.
        tone: ``"plain"``; ``"note"`` for a warning; ``"ask"`` for what to pass to get more.
    """

    kind: ClassVar[str] = "text"
    text: str
    tone: str = "plain"


@dataclass(frozen=True)
class Table:
    """Rows of cells.

    Args:
        caption: what is shown.
        columns: their heads.
        rows: of texts, the first of each its head.
        numbers: whether all but the first column are numbers, set to the right.
        texts: columns that are none all the same.
        copy: whether a button copies it.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool = True
    texts: Sequence[int] = ()
    copy: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure.

    Args:
        svg: its markup, of :func:`eande.reporting.figures.as_svg`.
        width: in pixels, where there is room.
        alt: what it shows, for who cannot see it.
        caption: how to read it.
    """

    kind: ClassVar[str] = "picture"
    svg: str
    width: int
    alt: str
    caption: str


@dataclass(frozen=True)
class Explorer:
    """Held-out data to choose from, with the posterior of each.

    Args:
        data: see :mod:`eande.reporting.sections.explorer`.
    """

    kind: ClassVar[str] = "explorer"
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Heading:
    """A title within a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Folded:
    """Details to open.

    Args:
        title: of them.
        blocks: what is inside.
    """

    kind: ClassVar[str] = "folded"
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Beside:
    """Blocks that stand side by side where there is room."""

    kind: ClassVar[str] = "beside"
    blocks: Sequence[Block]


Block = Text | Table | Picture | Explorer | Heading | Folded | Beside


@dataclass
class Section:
    """A part of the report.

    Args:
        key: its place in the JSON document, and the anchor on the page.
        title: of it.
        blocks: what it shows.
        verdicts: what it found; the page shows them first.
        data: the same as numbers, for the JSON document.
    """

    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str, tone: str = "plain") -> None:
        """Add a paragraph."""
        self.blocks.append(Text(text, tone))

    def ask(self, text: str) -> None:
        """Say what to pass to see more."""
        self.say(text, "ask")
