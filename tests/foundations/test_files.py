"""Files written in one step, and the refusal of another call."""

import json

import pytest

from eande.foundations.checks import InputError, check_same
from eande.foundations.files import replacing, write_json

NESTED = {"seed": 0, "settings": {"epochs": 3, "rate": float("nan"), "deep": {"shape": (1, 2)}}}


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "folder" / "file"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
        assert not path.exists()
        assert len(list(path.parent.iterdir())) == 2
    assert path.read_bytes() == b"first"

    def fail_in_the_middle():
        with replacing(path) as file:
            file.write(b"half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_in_the_middle()
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_a_document_that_json_cannot_hold_leaves_the_old_one(tmp_path):
    path = tmp_path / "r.json"
    write_json(path, {"a": [1, 2]})
    assert path.read_text() == '{\n "a": [\n  1,\n  2\n ]\n}\n'
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [1, 2]}
    assert list(tmp_path.iterdir()) == [path]


def refusal(found, expected=NESTED):
    with pytest.raises(InputError) as caught:
        check_same("run/", expected, found, what="a checkpoint", remedy="use another folder")
    return str(caught.value)


def test_the_same_call_is_the_same_after_a_detour_through_json():
    found = json.loads(json.dumps(NESTED))
    check_same("run/", NESTED, found, what="a checkpoint", remedy="use another folder")


def test_another_call_is_refused_by_its_first_difference_alone():
    settings = NESTED["settings"]
    deeper = {**settings, "deep": {"shape": [1, 3]}}
    assert refusal({**NESTED, "settings": deeper}) == (
        "run/: expected a checkpoint with settings.deep.shape [1, 2], got one with [1, 3]; "
        "use another folder"
    )
    assert "with seed 0, got one with '0';" in refusal({**NESTED, "seed": "0"})
    assert "with seed 0, got one without;" in refusal({"settings": settings})
    assert "without settings.new, got one with 1;" in refusal(
        {**NESTED, "settings": {**settings, "new": 1}}
    )
    assert "with seed None, got one without;" in refusal({}, {"seed": None})
