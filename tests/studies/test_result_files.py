"""Result files: what is stored is as declared, and what is not is refused in one line."""

import json
import os
import random
import time
import warnings

import numpy as np
import pytest

from eande.foundations.checks import InputError
from eande.studies.lorenz96.pictures import read_pictures
from eande.studies.records import StoredRuns, read_results
from helpers.command_line import refused
from helpers.fuzz import fuzzed
from helpers.result_files import KINDS, RESULTS, consume, kind_of, small

# More for a search of hours: EANDE_FUZZ=5000.
COUNT = int(os.environ.get("EANDE_FUZZ", "60"))
STORED = sorted(RESULTS.rglob("*.json"))
NAMES = [*KINDS, "samplers"]


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_stored_result_file_is_as_declared(path):
    assert read_results(path, kind_of(path)) == json.loads(path.read_text())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thorough
def test_the_small_documents_of_these_tests_are_read_by_all(name, tmp_path):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(small(name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        consume(name, path, small(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thorough
def test_a_fuzzed_result_file_gives_a_result_or_one_line(name, tmp_path):
    rng = random.Random(name)
    base = small(name)
    raw = []
    for number in range(COUNT // len(NAMES)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / f"{name}.json"
        text, change = fuzzed(base, rng)
        path.write_text(text)
        # The process's own time: a machine that is busy with something else is no hang.
        began = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                consume(name, path, base)
        except InputError as error:
            if "\n" in str(error) or len(str(error)) > 600:
                raw.append(f"{number}, {change}: {error}")
        except Exception as error:
            raw.append(f"{number}, {change}: {error!r:.300}")
        if time.process_time() - began > 5:
            raw.append(f"{number}, {change}: took {time.process_time() - began:.1f} s")
    assert raw == []


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "synthetic",
            lambda content: content["runs"][1].pop("r2_f"),
            "runs[1]: expected a field `r2_f`, got none",
        ),
        (
            "sbibm",
            lambda content: content["runs"][0].update(scores="many"),
            "runs[0].scores: expected `array`, got 'many'",
        ),
        (
            "lorenz96-main",
            lambda content: content["runs"][0]["per_datum"].pop("crps"),
            "per_datum: expected an entry 'crps', got none",
        ),
        (
            "lorenz96-symmetry",
            lambda content: content["runs"][0]["coverage"].update({"x" * 500: 2.0}),
            "runs[0]: coverage: expected plain text, got 'xxx",
        ),
        (
            "lorenz96-main",
            lambda content: content["runs"][0]["per_datum"].update({"x" * 500: [1e300]}),
            "runs[0]: per_datum: expected plain text, got 'xxx",
        ),
        (
            "lorenz96-views",
            lambda content: content.update(study="../../elsewhere"),
            "study: ",
        ),
    ],
)
def test_a_refusal_names_file_and_field_and_says_what_to_do(name, change, message, tmp_path):
    content = small(name)
    change(content)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        read_results(path, KINDS[name])
    assert str(caught.value).startswith(f"{path}: {message}")
    assert str(caught.value).endswith("; move it away, or use another --output")


def test_a_run_that_is_not_as_declared_is_not_written(tmp_path):
    base = small("sbibm")
    path = tmp_path / "sbibm.json"
    path.write_text(json.dumps(base))
    head = {name: base[name] for name in ("study", "size", "settings", "published")}
    stored = StoredRuns(path, KINDS["sbibm"], head, ("task", "simulations", "seed"))
    with pytest.raises(InputError, match="expected a field `seconds_training`, got none"):
        stored.add({"task": "slcp", "simulations": 7, "seed": 0})
    assert json.loads(path.read_text()) == base
    # And does not stand in the way of the next.
    stored.add(base["runs"][0] | {"seed": 7})
    assert [run["seed"] for run in json.loads(path.read_text())["runs"]].count(7) == 1


def _make_sparse(path):
    with path.open("wb") as file:
        file.truncate(2**40)


ODD = {
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "at most": _make_sparse,
    "a loop": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_file_is_refused_within_a_second(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("synthetic.json", "lorenz96-paper.json", "sbibm.json"):
        ODD[what](tmp_path / name)
    for study in ("synthetic", "lorenz96", "sbibm"):
        command = ["reproduce", study, "--size", "toy", "--output", str(tmp_path)]
        refused(*command[:3], "nothing")  # what the study needs is imported
        began = time.perf_counter()
        # Wherever the terminal has broken the line.
        assert ".json:expected" in refused(*command).replace(" ", "")
        assert time.perf_counter() - began < 1


@pytest.mark.parametrize("what", ODD)
def test_pictures_that_are_no_file_are_refused_at_once(what, tmp_path):
    path = tmp_path / "lorenz96-main-pictures.npz"
    ODD[what](path)
    if what == "a loop":
        return
    with pytest.raises(InputError, match=r"pictures\.npz: expected"):
        read_pictures(path)


def test_pictures_of_another_shape_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "lorenz96-main-pictures.npz"
    np.savez_compressed(path, phi=np.zeros((3, 2)), plain=np.zeros((3, 9, 9)))
    with pytest.raises(InputError, match=r"plain: expected numbers of shape \(3, 200, 200\)"):
        read_pictures(path)
