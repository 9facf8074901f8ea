"""What all result files declare: the kinds of values, and what was run with, where and when.

The schema of each study stands beside it, and declares whatever a table, a figure or a page reads.
Files may hold more than that, and keep it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eande.foundations.checks import InputError, show

# Larger numbers are none that a study measures, and no axis of a figure can show them.
_LARGEST = 1e100
_LONGEST_LABEL = 200


@dataclass
class Hardware:
    """What a study ran on."""

    machine: str
    cores: int | None
    gpu: str | None

    def __post_init__(self) -> None:
        if self.gpu is not None:
            check_labels("gpu", [self.gpu])


@dataclass
class Provenance:
    """Where numbers come from."""

    date: str
    commit: str | None
    python: str
    versions: dict[str, str | None]
    hardware: Hardware


@dataclass
class Findings:
    """A result file of a benchmark: named findings beside what they were made with."""

    study: str
    size: str
    settings: dict[str, Any]
    provenance: Provenance
    seconds: float
    seed: int = 0


def check_numbers(name: str, values: Iterable[float]) -> None:
    """Refuse numbers so large that nothing was measured; NaN and infinity can be a result."""
    for value in values:
        if math.isfinite(value) and abs(value) > _LARGEST:
            raise InputError(f"{name}: expected numbers of at most {_LARGEST:g}, got {value:g}")


def check_some(name: str, values: Sequence[Any] | Mapping[str, Any]) -> None:
    """Refuse an empty list or dictionary."""
    if not values:
        raise InputError(f"{name}: expected at least one entry, got none")


def check_list(name: str, values: Sequence[float]) -> None:
    """Refuse an empty list and numbers that are too large."""
    check_some(name, values)
    check_numbers(name, values)


def check_keys(name: str, found: Mapping[str, Any], expected: Iterable[str]) -> None:
    """Refuse a dictionary without one of the keys."""
    for key in expected:
        if key not in found:
            raise InputError(f"{name}: expected an entry {show(key)}, got none")


def check_labels(name: str, labels: Iterable[str]) -> None:
    """Refuse texts that pages, figures and terminals would not show as they are."""
    for label in labels:
        # Matplotlib reads formulas between dollar signs, a terminal's table styles in brackets.
        plain = label.isprintable() and not set(label) & set("$[]|")
        if not plain or len(label) > _LONGEST_LABEL:
            raise InputError(f"{name}: expected plain text, got {label[:80]!r}")
