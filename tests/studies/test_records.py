"""Result files: written by several processes, and refused before any work where they cannot be."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest

from eande.foundations.checks import InputError
from eande.foundations.files import StorageError
from eande.studies.records import ResultFile, StoredRuns

WRITER = """
import sys, time
from dataclasses import dataclass
from pathlib import Path
from eande.studies.records import StoredRuns

@dataclass
class Kind:
    study: str
    runs: list[dict]

stored = StoredRuns(Path(sys.argv[1]), Kind, {"study": "some"}, ("method", "seed"))
print("ready", flush=True)
sys.stdin.readline()
for seed in range(4):
    stored.add({"method": sys.argv[2], "seed": seed})
    time.sleep(0.02)
"""
HOLDER = """
import sys
from dataclasses import dataclass
from pathlib import Path
from eande.studies.records import ResultFile

@dataclass
class Kind:
    study: str

file = ResultFile(Path(sys.argv[1]), Kind, study="some")
file.add("first", 1)
sys.stdin.readline()
file.add("second", 2)
"""


@dataclass
class Kind:
    study: str
    runs: list[dict] = field(default_factory=list)


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def begin(process):
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.thorough
def test_two_processes_with_one_result_file_lose_no_run(tmp_path):
    path = tmp_path / "some.json"
    writers = [start(WRITER, path, name) for name in "ab"]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        begin(writer)
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            json.loads(path.read_text())  # whole at every moment
        time.sleep(0.001)
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0]
    runs = json.loads(path.read_text())["runs"]
    expected = [(name, seed) for name in "ab" for seed in range(4)]
    assert sorted((run["method"], run["seed"]) for run in runs) == expected


@pytest.mark.thorough
def test_a_second_writer_of_findings_is_refused_at_the_start(tmp_path):
    path = tmp_path / "some.json"
    first = start(HOLDER, path)
    assert first.stdout.readline() == "first: 1\n"
    with pytest.raises(InputError, match=r"expected a file that no other process writes, got"):
        ResultFile(path, Kind, study="some")
    first.communicate("\n")
    assert json.loads(path.read_text())["second"] == 2
    ResultFile(path, Kind, study="some").add("third", 3)


def test_a_run_that_another_process_has_added_is_found_and_kept(tmp_path):
    path = tmp_path / "some.json"
    mine, theirs = (StoredRuns(path, Kind, {"study": "some"}, ["seed"]) for _ in range(2))
    theirs.add({"seed": 0, "by": "them"})
    assert mine.find(seed=0) == {"seed": 0, "by": "them"}
    assert mine.find(seed=1) is None
    theirs.add({"seed": 1, "by": "them"})
    mine.add({"seed": 1, "by": "me"})
    mine.add({"seed": 2, "by": "me"})
    stored = json.loads(path.read_text())["runs"]
    assert [(run["seed"], run["by"]) for run in stored] == [(0, "them"), (1, "them"), (2, "me")]


def test_what_else_a_file_holds_stays_in_it(tmp_path):
    path = tmp_path / "some.json"
    path.write_text('{"study": "some", "remark": "keep me", "runs": [{"seed": 0, "more": 1}]}')
    StoredRuns(path, Kind, {"study": "some"}, ["seed"]).add({"seed": 1})
    assert json.loads(path.read_text()) == {
        "study": "some",
        "remark": "keep me",
        "runs": [{"seed": 0, "more": 1}, {"seed": 1}],
    }


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "some.json"
    for make in (lambda: StoredRuns(path, Kind, {}, ["seed"]), lambda: ResultFile(path)):
        with pytest.raises(StorageError, match=r"some\.json: could not be written"):
            make()


def test_a_full_disk_is_found_at_the_start(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for make in (
        lambda: StoredRuns(tmp_path / "some.json", Kind, {}, ["seed"]),
        lambda: ResultFile(tmp_path / "some.json"),
    ):
        with pytest.raises(StorageError, match=r"some\.json: .* \(No space left on device\)"):
            make()
    assert [path.name for path in tmp_path.iterdir()] in ([], [".some.json.lock"])


def test_a_run_that_does_not_fit_on_the_disk_leaves_the_others(tmp_path, monkeypatch):
    path = tmp_path / "some.json"
    stored = StoredRuns(path, Kind, {"study": "some"}, ["seed"])
    stored.add({"seed": 0})
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            stored.add({"seed": 1})
    assert path.read_bytes() == before
    stored.add({"seed": 2})
    assert [run["seed"] for run in json.loads(path.read_text())["runs"]] == [0, 1, 2]


def test_temporary_files_of_dead_processes_are_removed(tmp_path):
    stray = tmp_path / "some.json.123.0123abcd.tmp"
    stray.write_text("{")
    StoredRuns(tmp_path / "some.json", Kind, {}, ["seed"])
    assert not stray.exists()
