"""To and from neighbouring libraries, one file each, loaded when it is asked for."""

from importlib import import_module
from typing import Any

_BRIDGES = ("arviz", "sbi")


def __getattr__(name: str) -> Any:
    """Load a bridge, and with it the library it leads to."""
    if name not in _BRIDGES:
        raise AttributeError(f"module 'eande.bridges' has no attribute {name!r}")
    return import_module(f"eande.bridges.{name}")


def __dir__() -> list[str]:
    """Return the bridges."""
    return list(_BRIDGES)
