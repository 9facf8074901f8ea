"""Documents: what is not as declared is refused by field, with what was expected and found."""

from dataclasses import dataclass, field

import pytest

from eande.foundations.checks import InputError, check_count
from eande.foundations.documents import as_document, as_json, read_document
from eande.foundations.files import write_json


@dataclass
class Part:
    size: int

    def __post_init__(self):
        check_count("size", self.size, 1)


@dataclass
class Whole:
    seed: int
    parts: list[Part]
    named: dict[str, Part] = field(default_factory=dict)
    score: float | None = None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seed": "1", "parts": []}, "f: seed: expected `int`, got '1'"),
        ({"seed": True, "parts": []}, "f: seed: expected `int`, got True"),
        ({"seed": 1}, "f: expected a field `parts`, got none"),
        ({"seed": 1, "parts": [{}]}, "f: parts[0]: expected a field `size`, got none"),
        ({"seed": 1, "parts": [{"size": 0}]}, "f: parts[0]: size: expected a whole number of at "),
        ({"seed": 1, "parts": [], "named": {"x": []}}, "f: named[...]: expected `object`, got "),
        ({"seed": 1, "parts": [], "score": "x" * 200}, "f: score: expected `float | null`, got 'x"),
        ([], "f: expected `object`, got []"),
    ],
)
def test_what_is_not_as_declared_is_named(content, message):
    with pytest.raises(InputError) as caught:
        as_document("f", content, Whole)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 150


def test_a_document_survives_a_detour_through_a_file(tmp_path):
    document = Whole(1, [Part(2)], {"x": Part(3)}, float("-inf"))
    write_json(tmp_path / "f.json", as_json(document))
    assert read_document(tmp_path / "f.json", Whole, "a whole") == document


def test_a_document_is_checked_before_it_is_written():
    with pytest.raises(InputError, match=r"Whole: seed: expected `int`, got 1\.5"):
        as_json(Whole(1.5, []))
