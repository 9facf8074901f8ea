"""The registry of samplers, by name."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from eande.foundations.checks import InputError, show
from eande.foundations.discovery import import_modules
from eande.foundations.discovery import register as register_name
from eande.inference.target import Sampler

_SAMPLERS: dict[str, Sampler] = {}
_Function = TypeVar("_Function", bound=Callable[..., tuple[Tensor, Any]])


def sampler(name: str) -> Callable[[_Function], _Function]:
    """Register a function as the sampler of that name."""

    def register(function: _Function) -> _Function:
        register_name(_SAMPLERS, name, function)
        return function

    return register


def known_samplers() -> dict[str, Sampler]:
    """Return all samplers of this folder, and those registered elsewhere, by name."""
    import_modules("eande.inference.samplers")
    return _SAMPLERS


def find_sampler(name: str) -> Sampler:
    """Return the sampler of that name."""
    known = known_samplers()
    if name not in known:
        names = ", ".join(map(repr, sorted(known)))
        raise InputError(f"sampler: expected one of {names}, or a function, got {show(name)}")
    return known[name]
