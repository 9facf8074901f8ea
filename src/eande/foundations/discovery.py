"""Finding what a folder holds: a class in a new file of it is known without a list to extend."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from eande.foundations.checks import InputError


@cache
def import_modules(package: str) -> None:
    """Import every module of a package, so that the classes in them can make themselves known.

    Its folder is looked at once in the life of a process.
    """
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


def register(known: dict[str, Any], name: str, one: Any) -> None:
    """Make a class or function known under a name; another's name is refused.

    The same definition may come again, as when a cell of a notebook is run twice.
    """
    other = known.get(name)
    if other is not None and _home(other) != _home(one):
        raise InputError(f"name: expected one that is free, got {name!r}, that of {_home(other)}")
    known[name] = one


def _home(one: Any) -> str:
    return f"{one.__module__}.{one.__qualname__}"
