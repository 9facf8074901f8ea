"""Small tables for notebooks: what an object says of itself in HTML, every text escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;padding:0.15em 0.8em 0.15em 0;border:0"


def html_table(
    title: str,
    rows: Iterable[Sequence[object]],
    *,
    header: Sequence[object] = (),
    notes: Iterable[str] = (),
) -> str:
    """Return a table with a title as HTML; names and values are shown as the text they are.

    Args:
        title: above the table.
        rows: of cells.
        header: of the columns, none if empty.
        notes: a line each below the table.

    Example:
        >>> "&lt;script&gt;" in html_table("A model", [("parameter", "<script>")])
        True
    """
    head = _row("th", header) if header else ""
    body = "".join(_row("td", row) for row in rows)
    below = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return (
        f'<div class="eande"><strong>{escape(title)}</strong>'
        f'<table style="border-collapse:collapse">{head}{body}</table>{below}</div>'
    )


def _row(kind: str, cells: Sequence[object]) -> str:
    filled = (f'<{kind} style="{_CELL}">{escape(str(cell))}</{kind}>' for cell in cells)
    return f"<tr>{''.join(filled)}</tr>"
