"""Result files: what was run, with what, where and when, beside every number."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from eande.foundations.checks import InputError, check_same
from eande.foundations.documents import as_document, import_msgspec
from eande.foundations.files import (
    check_writable,
    clear_strays,
    read_json,
    replacing,
    storing,
)
from eande.foundations.locks import locked
from eande.foundations.paths import as_path
from eande.studies.schema import Findings

_REMEDY = "use another --output, or move the file away"
# A file is locked while it is read and written, which takes far less.
_SECONDS_TO_LOCK = 60.0
# Levels of brackets; ours have fewer than ten.
_DEEPEST = 50


def read_results(path: Path, kind: type) -> dict[str, Any]:
    """Return what a result file holds, with whatever it holds beside what its kind declares.

    Args:
        path: the file.
        kind: the dataclass that declares it.
    """
    try:
        content = read_json(path, "a result file")
        _check_depth(path, content)
        _check_results(path, content, kind)
    except InputError as error:
        raise InputError(f"{error}; move it away, or use another --output") from None
    return content


def write_results(path: Path, content: Mapping[str, Any], kind: type) -> None:
    """Write a result file, checked as when it is read."""
    text = json.dumps(content, indent=1)
    _check_results(path, json.loads(text), kind)
    with replacing(path) as file, storing(path):
        file.write(f"{text}\n".encode())


def _check_results(path: Path, content: Mapping[str, Any], kind: type) -> None:
    # The names of a dataclass's fields have no hyphens.
    as_document(path, {name.replace("-", "_"): value for name, value in content.items()}, kind)


def _check_depth(path: Path, content: dict[str, Any]) -> None:
    """Refuse what is nested so deeply that it could be read but not written again."""
    layer: list[Any] = [content]
    for _ in range(_DEEPEST):
        inner = chain.from_iterable(one.values() if isinstance(one, dict) else one for one in layer)
        layer = [value for value in inner if isinstance(value, (dict, list))]
        if not layer:
            return
    raise InputError(f"{path}: expected at most {_DEEPEST} levels of brackets, got more")


def check_head(path: Path, head: Mapping[str, Any], kind: type) -> None:
    """Refuse to add to or to replace a result file whose head (study, size, settings) differs."""
    if path.exists():
        _compare_head(path, head, read_results(path, kind))


def _compare_head(path: Path, head: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    found = {name: stored[name] for name in head if name in stored}
    check_same(path, head, found, what="a result file", remedy=_REMEDY)


@contextmanager
def alone(path: Path, *, seconds: float = _SECONDS_TO_LOCK) -> Iterator[None]:
    """Let no other process change a file, as long as all of them ask here first.

    Args:
        path: the file; the lock is a hidden file beside it.
        seconds: to wait for another process.
    """
    busy = (
        f"{path}: expected a file that no other process writes, got one that is being written; "
        "wait for it, or use another --output"
    )
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock"), seconds=seconds, busy=busy):
        yield


class ResultFile:
    """A result file of named findings: each is printed and written at once, so none is lost.

    As long as this object lives, another process cannot write the same file.

    Args:
        path: where.
        kind: the dataclass that declares the file.
        head: what was run, with what settings, seeds and provenance.
    """

    def __init__(self, path: Path, kind: type = Findings, **head: Any) -> None:
        self.path = as_path("output", path)
        self._kind = kind
        self.content = dict(head)
        self._began = time.perf_counter()
        self._open = ExitStack()
        self._open.enter_context(alone(self.path, seconds=0))
        clear_strays(self.path)
        import_msgspec()
        check_writable(self.path)

    def add(self, name: str, value: Any) -> None:
        """Add one finding, under a name that is not taken."""
        if name == "seconds" or name in self.content:
            raise ValueError(f"name: expected one that the file does not hold yet, got {name!r}")
        print(f"{name}: {value}", flush=True)
        self.content |= {name: value, "seconds": time.perf_counter() - self._began}
        write_results(self.path, self.content, self._kind)

    def close(self) -> None:
        """Let other processes write the file."""
        self._open.close()


class StoredRuns:
    """The runs of a study and their result file: each is written at once, none is repeated.

    Several processes may add to one file: whoever writes takes up the runs of the others first. A
    file whose runs were made in another way is refused.

    Args:
        path: of the result file, which need not exist.
        kind: the dataclass that declares the file.
        head: what all runs have in common, such as the study, its size and its settings.
        key: the names of those values that tell one run from another.
        settings: those of every method, where runs name a method and the settings it had.
        summary: what is to stand beside the runs, made of them.
        in_order: whether the runs are sorted by their keys, else by when they were made.
    """

    def __init__(
        self,
        path: Path,
        kind: type,
        head: Mapping[str, Any],
        key: Sequence[str],
        *,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        summary: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda runs: {},
        in_order: bool = False,
    ) -> None:
        self.path = as_path("output", path)
        self._kind = kind
        self.head = dict(head)
        self.runs: list[dict[str, Any]] = []
        self._names = tuple(key)
        self._settings = settings
        self._summary = summary
        self._in_order = in_order
        # What the file held beside the runs when it was last read, and which file that was.
        self._beside: dict[str, Any] = {}
        self._seen: tuple[int, ...] | None = None
        self._take_up()
        clear_strays(self.path)
        import_msgspec()
        check_writable(self.path)

    def find(self, **key: Any) -> dict[str, Any] | None:
        """Return the run with these values, also one that another process has added meanwhile."""
        self._take_up()
        for run in self.runs:
            if all(run[name] == value for name, value in key.items()):
                return run
        return None

    def add(self, run: dict[str, Any]) -> None:
        """Add a run and write the file; where another process was faster, its run stays."""
        with alone(self.path):
            self._take_up()
            if self._key(run) in map(self._key, self.runs):
                return
            self.runs.append(run)
            if self._in_order:
                self.runs.sort(key=self._key)
            content = self._beside | self.head | self._summary(self.runs) | {"runs": self.runs}
            try:
                write_results(self.path, content, self._kind)
            except InputError:
                # It would be refused again with every other; what did not fit on the disk waits.
                self.runs.remove(run)
                raise
            self._seen = _identity(self.path)

    def _key(self, run: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(run[name] for name in self._names)

    def _take_up(self) -> None:
        """Add the runs that the file holds and we do not."""
        identity = _identity(self.path)
        if identity is None or identity == self._seen:
            return
        content = read_results(self.path, self._kind)
        _compare_head(self.path, self.head, content)
        runs = content.pop("runs")
        if self._settings is not None:
            for run in runs:
                method = run["method"]
                now = self._settings.get(method, {})
                what = f"a run of {method}"
                check_same(self.path, now, run["settings"], what=what, remedy=_REMEDY)
        known = set(map(self._key, self.runs))
        self.runs += [run for run in runs if self._key(run) not in known]
        self._beside = content
        self._seen = identity


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file from one that took its place; None where there is none."""
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(
            f"{path}: expected a file that can be read, got {error.strerror}"
        ) from None
    return (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
