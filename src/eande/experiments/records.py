"""Result files: what was run, with what, where and when, beside every number."""

import json
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

_LIBRARIES = ("torch", "numpy", "scipy", "lightning", "safetensors")


def provenance(*more: str) -> dict[str, Any]:
    """Return versions (of the libraries named too, None where one is not installed), hardware, commit and date.

    Where the working tree is a copy without its history, the environment variable EANDE_COMMIT names the commit.
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
    asked = subprocess.run([git, "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


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
