"""What a store says about where its simulations come from, and whether a call would make the same ones."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from eande.foundations.checks import InputError
from eande.simulation.run.blocks import Each

if TYPE_CHECKING:
    from eande.priors.prior import Prior

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


def describe_simulator(simulator: Any, depth: int = 3) -> dict[str, Any]:
    """Describe a simulator by its name and settings.

    Settings are what ``simulator.settings`` says, the fields of a dataclass, the public attributes of another object (also of
    the one a method belongs to), the arguments of a ``functools.partial``, and the default arguments of a function with the
    numbers, texts, arrays, dictionaries and objects that it captures or finds among its globals. What a function or method
    changes itself, a counter for instance, is state and does not count; nor do lists, which are often logs.
    """
    if isinstance(simulator, Each):
        return {"each": describe_simulator(simulator.function)}
    if isinstance(simulator, functools.partial):
        return {
            **describe_simulator(simulator.func),
            "arguments": _plain([list(simulator.args), simulator.keywords]),
        }
    if inspect.ismethod(simulator):
        return {"method": simulator.__name__, "of": describe_simulator(simulator.__self__)}
    if inspect.isfunction(simulator):
        return _describe_function(simulator)
    described: dict[str, Any] = {
        "name": getattr(simulator, "__qualname__", type(simulator).__qualname__)
    }
    settings = getattr(simulator, "settings", None)
    if settings is None and is_dataclass(simulator) and not isinstance(simulator, type):
        settings = asdict(simulator)
    if settings is None and not isinstance(simulator, type):
        members = [member for kind in type(simulator).__mro__ for member in vars(kind).items()]
        methods = [
            method for name, method in members if inspect.isfunction(method) and name != "__init__"
        ]
        changed = {name for method in methods for name in _stored(method.__code__, "STORE_ATTR")}
        changed |= {
            name for name, member in members if isinstance(member, functools.cached_property)
        }
        settings = _settings(
            {
                name: value
                for name, value in getattr(simulator, "__dict__", {}).items()
                if not name.startswith("_")
            },
            changed,
        )
    return {**described, "settings": _plain(settings, depth)} if settings else described


def _describe_function(function: Any) -> dict[str, Any]:
    code = function.__code__
    cells = {
        name: cell.cell_contents
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    }
    found = {
        name: function.__globals__[name]
        for name in sorted(_named(code))
        if name in function.__globals__
    }
    given = {
        "defaults": function.__defaults__,
        "keywords": function.__kwdefaults__,
        "captured": _settings(cells, _stored(code, "STORE_DEREF")),
        "globals": _settings(found, _stored(code, "STORE_GLOBAL")),
    }
    described = {"name": function.__qualname__} | {
        key: _plain(value) for key, value in given.items() if value
    }
    if function.__qualname__.endswith("<lambda>"):
        # Lambdas share one name: tell them apart by what they do.
        described["code"] = hashlib.sha256(repr(_contents(code)).encode()).hexdigest()[:16]
    return described


def _inner(code: CodeType) -> list[CodeType]:
    """Return the functions and comprehensions inside a piece of code."""
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _named(code: CodeType) -> set[str]:
    """Return the names that a piece of code, or a function inside it, looks up."""
    return set(code.co_names).union(*map(_named, _inner(code)))


def _stored(code: CodeType, instruction: str) -> set[str]:
    """Return the names that a piece of code, or a function inside it, assigns to with that instruction."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname == instruction}
    return own.union(*(_stored(one, instruction) for one in _inner(code)))


def _settings(values: Mapping[str, Any], changed: set[str]) -> dict[str, Any]:
    """Choose what is a setting rather than a state, a log or a tool."""
    tools = (list, set, ModuleType, FunctionType, BuiltinFunctionType, type)
    # Compiled functions have a py_func, and are functions.
    return {
        name: value
        for name, value in values.items()
        if name not in changed and not isinstance(value, tools) and not hasattr(value, "py_func")
    }


def _contents(code: CodeType) -> list[Any]:
    """Return what a piece of code consists of, without anything that differs between processes."""
    constants = [
        _contents(constant)
        if isinstance(constant, CodeType)
        else sorted(map(repr, constant))
        if isinstance(constant, frozenset)
        else repr(constant)
        for constant in code.co_consts
    ]
    return [code.co_code.hex(), code.co_names, constants]


def versions() -> dict[str, str]:
    """Return the versions of what made the simulations."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in ("embed-and-emulate", "numpy", "torch", "zarr")
    }


def check_same(path: Path, given: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse a store made by another call and name the first difference."""
    stored = {"design": "random"} | dict(stored)  # stores made before there was a choice
    for name in given:
        # As texts: a NaN is not equal to itself.
        if json.dumps(given[name], sort_keys=True) != json.dumps(stored.get(name), sort_keys=True):
            raise InputError(
                f"{path}: expected a store with {name} {given[name]}, got one with {stored.get(name)}; use another folder, or make the same call"
            )


def _plain(value: Any, depth: int = 3) -> Any:
    """Turn a value into what JSON can hold and compare: arrays and networks by their contents, other objects by kind and attributes."""
    if value is None or isinstance(value, _SETTINGS):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth) for item in value]
    if hasattr(value, "__array__"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        contents = (
            ""
            if array.dtype.hasobject
            else hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        )
        return f"array {array.dtype} {array.shape} {contents}"
    if callable(getattr(value, "state_dict", None)):
        return {"name": type(value).__qualname__, "state": _plain(dict(value.state_dict()))}
    if (
        depth > 0
        and hasattr(value, "__dict__")
        and not isinstance(value, FunctionType | type | ModuleType)
    ):
        return describe_simulator(value, depth - 1)
    return getattr(value, "__qualname__", type(value).__qualname__)
