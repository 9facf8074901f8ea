"""Result files: what was run, with what, where and when, beside every number."""

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from eande.foundations.checks import InputError

_LIBRARIES = ("embed-and-emulate", "torch", "numpy", "scipy", "lightning", "safetensors")


def provenance(*more: str) -> dict[str, Any]:
    """Return versions (of the libraries named too, None where one is not installed), hardware, commit and date.

    A commit ends in ``-dirty`` where files differ from it. Where the working tree is a copy without its history, the environment variable
    EANDE_COMMIT names it.
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
    return (
        ask("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").stdout.strip() or None
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return what a result file holds."""
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: expected a result file, got something damaged ({error}); move it away, or use another --output"
        ) from None
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: expected a result file, got a {type(content).__name__}; move it away, or use another --output"
        )
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a result file in one step: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


class ResultFile:
    """A result file that grows: every finding is printed and written as it comes, so that nothing is lost.

    Args:
        path: where.
        head: what was run, with what settings, seeds and provenance.
    """

    def __init__(self, path: Path, **head: Any) -> None:
        self.path, self.content, self._began = path, dict(head), time.perf_counter()

    def add(self, name: str, value: Any) -> None:
        """Add one finding, under a name that is not taken."""
        if name == "seconds" or name in self.content:
            raise ValueError(f"name: expected one that the file does not hold yet, got {name!r}")
        print(f"{name}: {value}", flush=True)
        self.content |= {name: value, "seconds": time.perf_counter() - self._began}
        write_json(self.path, self.content)


def stored_runs(
    path: Path, head: dict[str, Any], settings: dict[str, dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the runs a result file holds; refuse one whose runs were made in another way, or with other settings of a method."""
    check_head(path, head)
    runs: list[dict[str, Any]] = read_json(path).get("runs", []) if path.exists() else []
    for run in runs:
        if settings is not None and run["settings"] != _stored(settings.get(run["method"])):
            raise InputError(
                f"{path}: expected {run['method']} with the settings it has now, got others; use another --output, or move the file away"
            )
    return runs


def check_head(path: Path, head: dict[str, Any]) -> None:
    """Refuse to add to or replace a result file that was made in another way."""
    stored = read_json(path) if path.exists() else head
    for name, value in head.items():
        if _stored(stored.get(name)) != _stored(value):
            raise InputError(
                f"{path}: expected runs with the same {name} to add to, got others; use another --output, or move the file away"
            )


def _stored(value: Any) -> Any:
    """Return a value as a result file gives it back."""
    return json.loads(json.dumps(value))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
