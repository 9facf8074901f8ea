"""Provenance: with which libraries, on what machine and when something was made."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("embed-and-emulate", "torch", "numpy", "scipy", "lightning", "safetensors")


def provenance(*more: str) -> dict[str, Any]:
    """Return versions of libraries, hardware, commit and date.

    A commit ends in ``-dirty`` where files differ from it. Where the working tree is a copy without
    its history, the environment variable EANDE_COMMIT names the commit.

    Args:
        more: further libraries; the version is None where one is not installed.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": os.environ.get("EANDE_COMMIT") or _commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in (*_LIBRARIES, *more)},
        "hardware": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


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
