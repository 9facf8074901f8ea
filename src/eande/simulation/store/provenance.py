"""What a store says about who made its simulations, and whether a call would make the same ones."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import platform
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from eande.foundations.checks import InputError, check_same
from eande.simulation.run.blocks import Each

if TYPE_CHECKING:
    from eande.priors.prior import Prior

_PROBES = 64
_SETTINGS = (bool, int, float, str)


def describe_prior(prior: Prior) -> dict[str, Any]:
    """Describe a prior by its parameters, or by draws of a fixed seed.

    By draws where it has no parameters that can be written down.
    """
    described = prior.describe()
    if described["kind"] in ("sampler", "empirical") or described.get("distribution", ...) is None:
        draws = _plain(prior.sample(_PROBES, seed=0))
        if _plain(prior.sample(_PROBES, seed=0)) != draws:
            raise InputError(
                "prior: expected the same draws for the same seed, got others the second time: "
                "it cannot be compared with the one in the store"
            )
        described["draws"] = draws
    return described


def describe_simulator(simulator: Any, depth: int = 3) -> dict[str, Any]:
    """Describe a simulator by its name and settings.

    Settings are what ``simulator.settings`` says, the fields of a dataclass, the public attributes
    of another object (also of the one a method belongs to), the arguments of a
    ``functools.partial``, and the default arguments of a function with the numbers, texts, arrays,
    dictionaries and objects that it captures or finds among its globals. What a function or method
    changes itself, a counter for instance, is state and does not count; nor do lists, which are
    often logs.
    """
    if isinstance(simulator, Each):
        return {"each": describe_simulator(simulator.function)}
    if isinstance(simulator, functools.partial):
        arguments = _plain([list(simulator.args), simulator.keywords])
        return {**describe_simulator(simulator.func), "arguments": arguments}
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
    elif settings is None and not isinstance(simulator, type):
        settings = _public_attributes(simulator)
    if settings:
        described["settings"] = _plain(settings, depth)
    return described


def _public_attributes(simulator: Any) -> dict[str, Any]:
    """Return the attributes that are settings: no method but ``__init__`` assigns to them."""
    members = [member for kind in type(simulator).__mro__ for member in vars(kind).items()]
    changed: set[str] = set()
    for name, member in members:
        if inspect.isfunction(member) and name != "__init__":
            changed |= _assigned(member.__code__, "STORE_ATTR")
        if isinstance(member, functools.cached_property):
            changed.add(name)
    attributes = getattr(simulator, "__dict__", {})
    public = {name: value for name, value in attributes.items() if not name.startswith("_")}
    return _settings(public, changed)


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
        "captured": _settings(cells, _assigned(code, "STORE_DEREF")),
        "globals": _settings(found, _assigned(code, "STORE_GLOBAL")),
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


def _assigned(code: CodeType, instruction: str) -> set[str]:
    """Return the names that code, or a function inside it, assigns to with that instruction."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname == instruction}
    return own.union(*(_assigned(one, instruction) for one in _inner(code)))


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
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_contents(constant))
        elif isinstance(constant, frozenset):
            constants.append(sorted(map(repr, constant)))
        else:
            constants.append(repr(constant))
    return [code.co_code.hex(), code.co_names, constants]


def versions() -> dict[str, str]:
    """Return the versions of what made the simulations."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in ("embed-and-emulate", "numpy", "torch")
    }


def check_same_call(path: Path, given: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse a store made by another call and name the first difference."""
    # A store says more than a call does: its format, extents and versions may be others.
    comparable = {name: stored[name] for name in given if name in stored}
    check_same(
        path,
        given,
        comparable,
        what="a store",
        remedy="use another folder, or make the same call",
    )


def _plain(value: Any, depth: int = 3) -> Any:
    """Turn a value into what JSON can hold and compare.

    Arrays and networks are compared by their contents, other objects by kind and attributes.
    """
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
        contents = ""
        if not array.dtype.hasobject:
            contents = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        return f"array {array.dtype} {array.shape} {contents}"
    if callable(getattr(value, "state_dict", None)):
        return {"name": type(value).__qualname__, "state": _plain(dict(value.state_dict()))}
    has_attributes = hasattr(value, "__dict__")
    if depth > 0 and has_attributes and not isinstance(value, FunctionType | type | ModuleType):
        return describe_simulator(value, depth - 1)
    return getattr(value, "__qualname__", type(value).__qualname__)
