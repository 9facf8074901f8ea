"""The JSON document beside a report: all that the page says, for machines.

Version 1 is an object of::

    kind        "eande report"
    format      1
    title, about, written (date and time), eande (version)
    verdicts    a list, alarms first, of: question, state ("ok", "alarm" or "not checked"), found,
                advice, section
    sections    by key, in the order of the page, each with: title, texts, asks (what to pass to see
                more), notes (warnings), tables (caption, columns, rows), figures (alt, caption),
                data (the same as numbers; None where one is not finite)

The keys are ``inferred``, ``belonging``, ``predictive``, ``certainty``, ``training``, ``simulated``
and ``origin``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from eande.reporting.blocks import (
    Beside,
    Block,
    Folded,
    Heading,
    Picture,
    Section,
    Table,
    Text,
    Verdict,
)

KIND = "eande report"
FORMAT = 1
# Levels of brackets; ours have fewer than ten.
_DEEPEST = 30


def as_document(
    head: Mapping[str, Any],
    verdicts: Sequence[tuple[Verdict, str]],
    sections: Sequence[Section],
) -> dict[str, Any]:
    """Return the document of a report.

    Args:
        head: title, about and so on.
        verdicts: each with the key of its section.
        sections: in their order.
    """
    found = {
        "kind": KIND,
        "format": FORMAT,
        **head,
        "verdicts": [vars(verdict) | {"section": key} for verdict, key in verdicts],
        "sections": {section.key: _section(section) for section in sections},
    }
    return {name: plain(value) for name, value in found.items()}


def _section(section: Section) -> dict[str, Any]:
    blocks = list(_all(section.blocks))
    texts = [block for block in blocks if isinstance(block, Text)]
    return {
        "title": section.title,
        "texts": [block.text for block in texts if block.tone == "plain"],
        "asks": [block.text for block in texts if block.tone == "ask"],
        "notes": [block.text for block in texts if block.tone == "note"],
        "tables": [
            {"caption": block.caption, "columns": block.columns, "rows": block.rows}
            for block in blocks
            if isinstance(block, Table)
        ],
        "figures": [
            {"alt": block.alt, "caption": block.caption}
            for block in blocks
            if isinstance(block, Picture)
        ],
        "data": section.data,
    }


def _all(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield all blocks, those that are folded away, too."""
    for block in blocks:
        if isinstance(block, Folded | Beside):
            yield from _all(block.blocks)
        elif not isinstance(block, Heading):
            yield block


def plain(value: Any, level: int = 0) -> Any:
    """Return a value as JSON can hold it; what it cannot becomes a text.

    Example:
        >>> plain({"a": (1, float("nan")), 2: np.float64(0.5), "path": {3}})
        {'a': [1, None], '2': 0.5, 'path': '{3}'}
    """
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.ndim == 0):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping) and level < _DEEPEST:
        return {str(name): plain(one, level + 1) for name, one in value.items()}
    if isinstance(value, list | tuple) and level < _DEEPEST:
        return [plain(one, level + 1) for one in value]
    return str(value)
