"""Documents: JSON that a file holds, declared once as a dataclass, checked when read and written.

A dataclass says the type of every field; ranges and how fields belong together stand in its
``__post_init__``, which raises an :class:`~eande.foundations.checks.InputError`. msgspec compares
what was read with that, and a refusal names the file, the field, what was expected and what was
found.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from eande.foundations.checks import InputError, show
from eande.foundations.files import read_json

Document = TypeVar("Document")
Made = TypeVar("Made")
_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<place>.*)`)?", re.DOTALL)


def import_msgspec() -> Any:
    """Import msgspec, by which files are checked; models are trained and used without."""
    try:
        import msgspec
    except ImportError:
        raise ImportError(
            "reading and writing files needs msgspec, got none: pip install msgspec"
        ) from None
    return msgspec


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
    msgspec = import_msgspec()
    try:
        # In JSON all keys are texts, also those that are numbers.
        made: Document = msgspec.convert(content, kind, str_keys=True)
    except msgspec.ValidationError as error:
        found = _MESSAGE.fullmatch(str(error))
        assert found is not None
        place = (found["place"] or "").removeprefix(".")
        problem = found["problem"]
        problem = problem[0].lower() + problem[1:]
        if problem.startswith("expected") and ": expected" not in problem:
            # msgspec names the type of what it found, not the value.
            problem = f"{problem.partition(', got')[0]}, got {show(_at(content, place))}"
        if problem.startswith("invalid enum value"):
            problem = f"expected another word, got {show(_at(content, place))}"
        missing = re.fullmatch(r"object missing required field (.*)", problem)
        if missing:
            problem = f"expected a field {missing[1]}, got none"
        field = f"{place}: " if place else ""
        raise InputError(f"{where}: {field}{problem}") from None
    except (RecursionError, OverflowError, UnicodeError) as error:
        raise InputError(f"{where}: expected a document, got one that is not ({error})") from None
    return made


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
    content: dict[str, Any] = import_msgspec().to_builtins(document)
    as_document(type(document).__name__, content, type(document))
    return content


def make_from_settings(where: object, kind: type[Made], settings: Any) -> Made:
    """Make an object of a class by the arguments that a file holds, or say which of them is wrong.

    The constructor is their schema: of our own classes, its annotations are compared with the
    arguments' types before it is called.

    Args:
        where: what the arguments are settings of.
        kind: the class.
        settings: its arguments by name, as ``json`` read them.

    Example:
        >>> from eande.networks.mlp import ResidualMLP
        >>> make_from_settings("encoder", ResidualMLP, {"inputs": 2, "outputs": "4"})
        Traceback (most recent call last):
        eande.foundations.checks.InputError: encoder: outputs: expected `int`, got '4'
    """
    if not isinstance(settings, dict):
        raise InputError(f"{where}: expected settings by name, got {show(settings)}")
    constructor: Callable[..., Made] = kind
    schema = _settings_of(constructor)
    unknown = sorted(settings.keys() - {field.name for field in dataclasses.fields(schema)})
    if unknown:
        raise InputError(f"{where}: expected no setting {show(unknown[0])}, got one")
    as_document(where, settings, schema)
    try:
        return kind(**settings)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"{where}: expected settings of a {kind.__name__}, got some it refuses "
            f"({one_line(error)})"
        ) from error


@lru_cache
def _settings_of(kind: Callable[..., object]) -> type:
    """Return the arguments of a constructor as a dataclass."""
    # Whoever wrote another class may annotate it by types that no file holds.
    types = get_type_hints(kind.__init__) if kind.__module__.partition(".")[0] == "eande" else {}
    fields: list[Any] = []
    for name, parameter in inspect.signature(kind).parameters.items():
        required = parameter.default is inspect.Parameter.empty
        default = dataclasses.field() if required else dataclasses.field(default=None)
        fields.append((name, types.get(name, Any), default))
    return dataclasses.make_dataclass("Settings", fields, kw_only=True)


def one_line(error: BaseException) -> str:
    """Return the first line of what an exception says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _at(content: Any, place: str) -> Any:
    """Return what lies at a place such as ``sizes[1].seed``; of a dictionary's any value, all."""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", place):
        try:
            content = content[key] if key else content[int(index)]
        except (LookupError, TypeError, ValueError):
            break
    return content
