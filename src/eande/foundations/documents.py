"""Documents: JSON that a file holds, declared once as a dataclass, checked when read and written.

A dataclass says the type of every field; ranges and how fields belong together stand in its
``__post_init__``, which raises an :class:`~eande.foundations.checks.InputError`. msgspec compares
what was read with that, and a refusal names the file, the field, what was expected and what was
found.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, TypeVar

from eande.foundations.checks import InputError
from eande.foundations.files import read_json

Document = TypeVar("Document")
# Longer values are cut in a message.
_LONGEST = 80
_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<place>.*)`)?", re.DOTALL)


def as_document(where: object, content: Any, kind: type[Document]) -> Document:
    """Turn JSON that was read into a document of that kind, or name the field that is wrong.

    Args:
        where: the file it comes from.
        content: what ``json`` made of it.
        kind: a dataclass.

    Example:
        >>> @dataclasses.dataclass
        ... class Plan:
        ...     seed: int
        ...     sizes: list[int]
        >>> as_document("plan.json", {"seed": 1, "sizes": [2, 3]}, Plan)
        Plan(seed=1, sizes=[2, 3])
        >>> as_document("plan.json", {"seed": 1, "sizes": [2, "3"]}, Plan)
        Traceback (most recent call last):
        eande.foundations.checks.InputError: plan.json: sizes[1]: expected `int`, got '3'
    """
    import msgspec

    try:
        # In JSON all keys are texts, also those that are numbers.
        return msgspec.convert(content, kind, str_keys=True)
    except msgspec.ValidationError as error:
        found = _MESSAGE.fullmatch(str(error))
        assert found is not None
        place = (found["place"] or "").removeprefix(".")
        problem = found["problem"]
        problem = problem[0].lower() + problem[1:]
        if problem.startswith("expected") and ": expected" not in problem:
            # msgspec names the type of what it found, not the value.
            problem = f"{problem.partition(', got')[0]}, got {_shown(_at(content, place))}"
        missing = re.fullmatch(r"object missing required field (.*)", problem)
        if missing:
            problem = f"expected a field {missing[1]}, got none"
        field = f"{place}: " if place else ""
        raise InputError(f"{where}: {field}{problem}") from None
    except (RecursionError, OverflowError) as error:
        raise InputError(f"{where}: expected a document, got one that {error}") from None


def read_document(path: Path, kind: type[Document], what: str) -> Document:
    """Read a file that holds one document.

    Args:
        path: the file.
        kind: a dataclass.
        what: it is, with its article.
    """
    return as_document(path, read_json(path, what), kind)


def as_json(document: Any) -> dict[str, Any]:
    """Return what a document consists of, for ``json``, checked as when it is read."""
    content: dict[str, Any] = dataclasses.asdict(document)
    as_document(type(document).__name__, content, type(document))
    return content


def _at(content: Any, place: str) -> Any:
    """Return what lies at a place such as ``sizes[1].seed``; of a dictionary's any value, all."""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", place):
        try:
            content = content[key] if key else content[int(index)]
        except (LookupError, TypeError, ValueError):
            break
    return content


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
