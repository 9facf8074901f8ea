"""Names of files and folders, as users give them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from eande.foundations.checks import InputError, show

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def as_path(name: str, value: object, *, kind: str = "file") -> Path:
    """Return the absolute path of what a user called a file or folder.

    ``~`` is expanded, and a later change of the working directory does not move it.

    Args:
        name: of the argument.
        value: a text or a path.
        kind: what it is the name of.

    Example:
        >>> as_path("store", 3, kind="folder")
        Traceback (most recent call last):
        eande.foundations.checks.InputError: store: expected the name of a folder, got 3
    """
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    # Control characters, which a message of one line cannot show, and what is no text.
    if not isinstance(given, str) or not given or _UNPRINTABLE.search(given) or "://" in given:
        raise InputError(f"{name}: expected the name of a {kind}, got {show(value)}")
    try:
        os.fsencode(given)
        path = Path(given).expanduser().absolute()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        shown = given if len(given) <= 200 else f"{given[:200]}…"
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{name}: expected the name of a {kind}, got {shown!r} ({reason})"
        ) from None
    return path


def what_is(state: os.stat_result) -> str:
    """Say what lies at a path, as ``os.stat`` sees it."""
    return _KINDS.get(stat.S_IFMT(state.st_mode), "a file")
