"""Nonsense of many kinds, and what each kind of argument may take of it.

An argument of a public function belongs to one kind. A kind names the nonsense that is none for it,
with the reason; all other nonsense must be refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

NONSENSE: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "zero": lambda: 0,
    "negative": lambda: -1,
    "fraction": lambda: 0.5,
    "huge": lambda: 10**12,
    "gigantic": lambda: 10**400,
    "more digits than Python writes": lambda: 10**5000,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "complex": lambda: 1j,
    "text": lambda: "nonsense",
    "empty text": lambda: "",
    "number as text": lambda: "3",
    "newline": lambda: "a\nb",
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "\udcff",
    "unknown home": lambda: "~nosuchuser/x",
    "long text": lambda: "x" * 100_000,
    "bytes": lambda: b"nonsense",
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "object": object,
    "class": lambda: dict,
    "function": lambda: lambda *arguments, **options: None,
    "generator": lambda: (i for i in range(3)),
    "slice": lambda: slice(2),
    "empty list": list,
    "ragged list": lambda: [[1.0], [1.0, 2.0]],
    "list of None": lambda: [None, None],
    "list of texts": lambda: ["a", "b"],
    "list of one text twice": lambda: ["a", "a"],
    "list of texts with newlines": lambda: ["a", "b\nc"],
    "list of bytes": lambda: [b"a", b"b"],
    "list of numbers": lambda: [1, 2],
    "list of gigantic numbers": lambda: [10**400, 10**400],
    "empty array": lambda: np.zeros(0),
    "array without rows": lambda: np.zeros((0, 2)),
    "wide array": lambda: np.zeros((3, 7)),
    "deep array": lambda: np.zeros((2, 2, 2, 5)),
    "array of NaN": lambda: np.full((3, 2), np.nan),
    "array of objects": lambda: np.array([object(), None]),
    "array of texts": lambda: np.array(["a", "b"]),
    "complex array": lambda: np.zeros((3, 2), dtype=complex),
    "array of dates": lambda: np.array(["2020-01-01"] * 2, dtype="datetime64[D]"),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "meta tensor": lambda: torch.empty(3, 2, device="meta"),
    "quantised tensor": lambda: torch.quantize_per_tensor(torch.zeros(3, 2), 0.1, 0, torch.qint8),
    "nested tensor": lambda: torch.nested.nested_tensor(
        [torch.zeros(2), torch.zeros(2)], layout=torch.jagged
    ),
    "half tensor": lambda: torch.zeros(3, 7, dtype=torch.bfloat16),
    "tensor with gradient": lambda: torch.zeros(3, 7, requires_grad=True),
}

TEXTS = {
    "text",
    "empty text",
    "number as text",
    "newline",
    "NUL",
    "surrogate",
    "unknown home",
    "long text",
}


@dataclass(frozen=True)
class Kind:
    """What arguments of a kind may take of the nonsense, with the reason for each."""

    name: str
    accepts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """A valid value of an argument, its kind, and what else this argument accepts.

    Args:
        value: valid.
        kind: of the argument.
        accepts: further nonsense that is none here, with the reason.
        called: how a refusal may name it besides by its name.
        skipped: nonsense that is not tried, with the reason.
    """

    value: Any
    kind: Kind
    accepts: Mapping[str, str]
    called: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    def runs(self, label: str) -> bool:
        """Whether this is a function that is run: its errors are its own."""
        return self.kind.name == "function" and label in ("class", "function")

    def reason(self, label: str) -> str | None:
        """Why this nonsense is accepted; None where it must be refused."""
        return self.accepts.get(label) or self.kind.accepts.get(label)


def maker(name: str, **accepts: str) -> Callable[..., Given]:
    """Return what makes arguments of a kind; underscores in labels stand for spaces."""
    kind = Kind(name, {label.replace("_", " "): reason for label, reason in accepts.items()})

    def make(
        value: Any,
        *,
        called: tuple[str, ...] = (),
        skipped: Mapping[str, str] | None = None,
        **more: str,
    ) -> Given:
        also = {label.replace("_", " "): reason for label, reason in more.items()}
        return Given(value, kind, also, called, skipped or {})

    return make


count = maker("count")
seed = maker("seed", zero="a seed", huge="a seed")
flag = maker("flag", true="a flag")
share = maker("share", fraction="a share")
positive = maker("positive number", fraction="a number above 0", huge="a number above 0")
choice = maker("choice")
names = maker("names", list_of_texts="two names")
function = maker("function", function="a function", **{"class": "a class can be called"})
instance = maker("instance")
array = maker("array")
path = maker("path")
label = maker("label", **dict.fromkeys(TEXTS - {"NUL"}, "any text"))
