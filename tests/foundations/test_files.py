"""Files written in one step, and the refusal of another call."""

import errno
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from eande.foundations.checks import InputError, check_same
from eande.foundations.files import (
    StorageError,
    check_writable,
    clear_strays,
    open_regular,
    read_json,
    read_regular,
    read_tensors,
    replacing,
    write_json,
    write_tensors,
)
from eande.foundations.paths import as_path
from helpers.limits import files_of_at_most

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


def test_a_symbolic_link_is_replaced_and_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(other)
    write_json(link, {"a": 1})
    assert other.read_text() == "precious"
    assert not link.is_symlink()


def test_temporary_files_of_the_dead_are_cleared_and_those_of_the_living_stay(tmp_path):
    path = tmp_path / "file"
    stray = tmp_path / "file.1.00000000.tmp"
    stray.write_bytes(b"half")
    with replacing(path) as file:
        file.write(b"whole")
        clear_strays(path)
        assert not stray.exists()
        assert len(list(tmp_path.iterdir())) == 1
    assert path.read_bytes() == b"whole"


def test_threads_that_write_one_file_never_show_a_broken_one(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([i]) * 100_000 for i in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for content in contents * 10:
            threads.submit(write_whole, path, content).add_done_callback(lambda done: done.result())
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def write_whole(path, content):
    with replacing(path) as file:
        file.write(content)
        clear_strays(path)


def odd_files(tmp_path):
    """Return what may lie where a file is expected, with the words that name it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    return {
        pipe: "got a pipe",
        Path("/dev/zero"): "got a device",
        tmp_path: "got a folder",
        loop: "symbolic links",
        dangling: "got nothing there",
        tmp_path / "file" / "below": "got",
    }


def test_only_regular_files_are_opened_and_the_rest_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    for path, words in odd_files(tmp_path).items():
        with pytest.raises(InputError, match=words):
            open_regular(path)
    with pytest.raises(InputError, match="at most 2 bytes, got 3"):
        read_regular(tmp_path / "file", at_most=2)
    assert read_regular(tmp_path / "file") == b"123"


def test_a_huge_sparse_file_is_refused_unread(tmp_path):
    for kind, content in {"empty": b"", "header": (2).to_bytes(8, "little") + b"{}"}.items():
        path = tmp_path / kind
        path.write_bytes(content)
        os.truncate(path, 40 * 2**30)
        with pytest.raises(InputError, match=r"damaged|of other origin"):
            read_tensors(path, "model")
        with pytest.raises(InputError, match="at most"):
            read_json(path, "a result file")


def test_a_file_of_tensors_may_be_replaced_while_it_is_read(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, "model", {"number": 1}, {"x": torch.ones(1000)})

    def replace_it(document, shapes):
        assert shapes == {"x": (1000,)}
        write_tensors(path, "model", {"number": 2}, {"x": torch.zeros(10)})

    document, tensors = read_tensors(path, "model", replace_it)
    assert (document, tensors["x"].sum()) == ({"number": 1}, 1000)
    document, tensors = read_tensors(path, "model")
    assert (document, len(tensors["x"])) == ({"number": 2}, 10)


def test_a_disk_that_refuses_is_one_line(tmp_path):
    with pytest.raises(StorageError, match=r"x.json: could not be written \(Not a directory\)"):
        write_json(tmp_path / "file" / "below" / "x.json", write_json(tmp_path / "file", {}))
    with pytest.raises(StorageError, match="expected the name of a file, got a folder"):
        check_writable(tmp_path)
    check_writable(tmp_path / "new" / "x.json")
    assert not list((tmp_path / "new").iterdir())


def test_a_disk_with_too_little_room_is_refused_before_the_work(tmp_path):
    """A limit on the size of files stands for the disk: the system itself refuses."""
    with files_of_at_most(100_000):
        check_writable(tmp_path / "x", room=90_000)
        with pytest.raises(StorageError, match=r"x: could not be written \(File too large\)"):
            check_writable(tmp_path / "x", room=110_000)
    assert list(tmp_path.iterdir()) == []


def test_room_is_found_also_where_the_system_reserves_none(tmp_path, monkeypatch):
    monkeypatch.delattr("os.posix_fallocate")
    with files_of_at_most(3_000_000):
        check_writable(tmp_path / "x", room=2_900_000)
        with pytest.raises(StorageError, match=r"x: could not be written \(File too large\)"):
            check_writable(tmp_path / "x", room=3_100_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "nonsense", [None, 3, b"x", "", "a\0b", "s3://bucket/x", "\ud800", "x" * 5000, "~nosuchuser/x"]
)
def test_what_is_no_name_of_a_file_is_refused_in_one_line(nonsense):
    with pytest.raises(InputError, match=r"^store: expected the name of a folder, got ") as caught:
        as_path("store", nonsense, kind="folder")
    assert "\n" not in str(caught.value)


def test_a_name_is_absolute_and_knows_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert as_path("path", "~/x") == as_path("path", "x") == tmp_path / "x"


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"a": ' * 100_000, "[1]", "3", '{"n": ' + "9" * 5000 + "}"]
)
def test_what_is_no_json_object_is_refused_in_one_line(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"x.json: expected a result file, got "):
        read_json(path, "a result file")


def test_a_disk_that_stays_full_says_so_in_one_line_also_when_the_file_is_closed(tmp_path):
    class Full(io.FileIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    def opened(path, mode):
        return io.BufferedWriter(Full(path, mode.replace("b", "")))

    path = tmp_path / "file"
    path.write_text("before")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "open", opened)
        with pytest.raises(StorageError, match="No space left on device"):
            write_json(path, {"small": "enough to wait in the buffer"})
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_a_file_of_tensors_takes_the_temporary_files_of_dead_processes_with_it(tmp_path):
    (tmp_path / "model.123.0123abcd.tmp").write_text("half")
    write_tensors(tmp_path / "model", "model", {}, {"x": torch.zeros(2)})
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / "x.json.1.00000000.tmp").write_text("of a living or a dead process")
    write_json(tmp_path / "x.json", {"a": 1})
    clear_strays(tmp_path / "x.json")
    assert read_json(tmp_path / "x.json", "a document") == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_consistent_file_of_holes_is_refused_unread(tmp_path):
    path = tmp_path / "model"
    write_tensors(path, "model", {}, {"x": torch.ones(2**23)})
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    content = path.read_bytes()[:header]
    size = path.stat().st_size
    path.write_bytes(content)
    os.truncate(path, size)
    with pytest.raises(InputError, match="bytes on the disk instead of"):
        read_tensors(path, "model")
