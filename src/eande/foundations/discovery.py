"""Finding what a folder holds: a class in a new file of it is known without a list to extend."""

from importlib import import_module
from pkgutil import iter_modules


def import_modules(package: str) -> None:
    """Import every module of a package, so that the classes in them can make themselves known."""
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
