"""The wheel of the package sbibm: its data are read, its code is never run."""

import subprocess
import sys
from pathlib import Path

from eande.foundations.checks import InputError

WHEEL = "sbibm-1.1.0-py2.py3-none-any.whl"


def fetch_wheel(folder: Path) -> Path:
    """Return the path of the wheel in a folder; pip downloads it the first time."""
    path = folder / WHEEL
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "sbibm==1.1.0"]
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([*pip, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise InputError(f"wheel: expected {path}, which pip could not download: {reason}")
    return path
