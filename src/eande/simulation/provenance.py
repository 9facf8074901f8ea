"""What a store says about where its simulations come from, and whether a call would make the same ones."""

from __future__ import annotations

import dis
import functools
import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eande.core.checks import InputError
from eande.simulation.blocks import Each

if TYPE_CHECKING:
    from eande.core.prior import Prior

_PROBES = 64
_SETTINGS = (bool, int, float, str)


def describe_prior(prior: Prior) -> dict[str, Any]:
    """Describe a prior by its parameters or, where it has none that can be written down, by draws of a fixed seed."""
    described = prior.describe()
    if described["kind"] in ("sampler", "empirical") or described.get("distribution", ...) is None:
        probes = [_plain(prior.sample(_PROBES, seed=0)) for _ in range(2)]
        if probes[0] != probes[1]:
            raise InputError(
                "prior: expected the same draws for the same seed, got others the second time: it cannot be compared with the one in the store"
            )
        described["draws"] = probes[0]
    return described


def describe_simulator(simulator: Any) -> dict[str, Any]:
    """Describe a simulator by its name and settings.

    Settings are what ``simulator.settings`` says, the fields of a dataclass, the arguments of a ``functools.partial``, and
    the default arguments and captured numbers, texts and arrays of a function.
    """
    if isinstance(simulator, Each):
        return {"each": describe_simulator(simulator.function)}
    if isinstance(simulator, functools.partial):
        return {**describe_simulator(simulator.func), "arguments": _plain([list(simulator.args), simulator.keywords])}
    if hasattr(simulator, "__code__"):
        return _describe_function(simulator)
    described: dict[str, Any] = {"name": getattr(simulator, "__qualname__", type(simulator).__qualname__)}
    settings = getattr(simulator, "settings", None)
    if settings is None and is_dataclass(simulator) and not isinstance(simulator, type):
        settings = asdict(simulator)
    return described if settings is None else {**described, "settings": _plain(settings)}


def _describe_function(function: Any) -> dict[str, Any]:
    code = function.__code__
    # What a function changes itself (a counter, say) is state, not a setting.
    changed = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}
    captured = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name not in changed and (isinstance(cell.cell_contents, _SETTINGS) or hasattr(cell.cell_contents, "__array__")):
            captured[name] = cell.cell_contents
    given = {"defaults": function.__defaults__, "keywords": function.__kwdefaults__, "captured": captured}
    described = {"name": function.__qualname__} | {key: _plain(value) for key, value in given.items() if value}
    if function.__qualname__.endswith("<lambda>"):
        # Lambdas share one name: tell them apart by what they do.
        described["code"] = hashlib.sha256(code.co_code + repr((code.co_consts, code.co_names)).encode()).hexdigest()[:16]
    return described


def versions() -> dict[str, str]:
    """Return the versions of what made the simulations."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("embed-and-emulate", "numpy", "torch", "zarr")}


def check_same(path: Path, given: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse a store made by another call and name the first difference."""
    for name in given:
        if given[name] != stored.get(name):
            raise InputError(
                f"{path}: expected a store with {name} {given[name]}, got one with {stored.get(name)}; use another folder, or make the same call"
            )


def _plain(value: Any) -> Any:
    """Turn a value into what JSON can hold and compare: arrays by their contents, other objects by their kind."""
    if value is None or isinstance(value, _SETTINGS):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return f"array {array.dtype} {array.shape} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}"
    return getattr(value, "__qualname__", type(value).__qualname__)
