"""Result files: what was run, with what, where and when, beside every number."""

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from eande.foundations.checks import InputError, check_same
from eande.foundations.files import read_json, write_json

_LIBRARIES = ("embed-and-emulate", "torch", "numpy", "scipy", "lightning", "safetensors")
_REMEDY = "use another --output, or move the file away"


def provenance(*more: str) -> dict[str, Any]:
    """Return versions of libraries, hardware, commit and date.

    A commit ends in ``-dirty`` where files differ from it. Where the working tree is a copy without
    its history, the environment variable EANDE_COMMIT names the commit.

    Args:
        more: further libraries; the version is None where one is not installed.
    """
    installed = {found.name: found.version for found in metadata.distributions()}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": os.environ.get("EANDE_COMMIT") or _commit(),
        "python": platform.python_version(),
        "versions": {name: installed.get(name) for name in (*_LIBRARIES, *more)},
        "hardware": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _commit() -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    here = Path(__file__)

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [git, *words], cwd=here.parent, capture_output=True, text=True, check=False
        )

    if ask("ls-files", "--error-unmatch", here.name).returncode:
        return None  # installed inside somebody else's repository, or in none
    described = ask("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return described.stdout.strip() or None


def read_results(path: Path) -> dict[str, Any]:
    """Return what a result file holds."""
    try:
        return read_json(path, "a result file")
    except InputError as error:
        raise InputError(f"{error}; move it away, or use another --output") from None


def check_head(path: Path, head: Mapping[str, Any]) -> None:
    """Refuse to add to or to replace a result file whose head (study, size, settings) differs."""
    if path.exists():
        stored = read_results(path)
        found = {name: stored[name] for name in head if name in stored}
        check_same(path, head, found, what="a result file", remedy=_REMEDY)


class ResultFile:
    """A result file of named findings: each is printed and written at once, so none is lost.

    Args:
        path: where.
        head: what was run, with what settings, seeds and provenance.
    """

    def __init__(self, path: Path, **head: Any) -> None:
        self.path = path
        self.content = dict(head)
        self._began = time.perf_counter()

    def add(self, name: str, value: Any) -> None:
        """Add one finding, under a name that is not taken."""
        if name == "seconds" or name in self.content:
            raise ValueError(f"name: expected one that the file does not hold yet, got {name!r}")
        print(f"{name}: {value}", flush=True)
        self.content |= {name: value, "seconds": time.perf_counter() - self._began}
        write_json(self.path, self.content)


class StoredRuns:
    """The runs of a study and their result file: each is written at once, none is repeated.

    A file whose runs were made in another way is refused.

    Args:
        path: of the result file, which need not exist.
        head: what all runs have in common, such as the study, its size and its settings.
        settings: those of every method, where runs name a method and the settings it had.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, Any],
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        check_head(path, head)
        self.path = path
        self.head = dict(head)
        self.runs: list[dict[str, Any]] = (
            read_results(path).get("runs", []) if path.exists() else []
        )
        if settings is not None:
            for run in self.runs:
                method = run["method"]
                now = settings.get(method, {})
                check_same(path, now, run["settings"], what=f"a run of {method}", remedy=_REMEDY)

    def find(self, **key: Any) -> dict[str, Any] | None:
        """Return the run with these values, None where there is none."""
        for run in self.runs:
            if all(run[name] == value for name, value in key.items()):
                return run
        return None

    def add(self, run: dict[str, Any]) -> None:
        """Add a run and write the file."""
        self.runs.append(run)
        self.write()

    def write(self, **more: Any) -> None:
        """Write the file: the head, whatever else is to stand after it, and the runs."""
        write_json(self.path, self.head | more | {"runs": self.runs})
