"""What a store says about who made its simulations, and whether a call would make the same ones."""

from __future__ import annotations

import bisect
import dis
import functools
import hashlib
import inspect
import platform
import sysconfig
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
# A function that a function uses is described with those that it uses, so many times over.
_DEPTH = 6
# Instructions that do nothing.
_IDLE = ("NOP", "CACHE", "EXTENDED_ARG", "RESUME")
# Where installed libraries, and Python's own, lie.
_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "purelib", "platlib")
)


def describe_prior(prior: Prior) -> dict[str, Any]:
    """Describe a prior by its parameters, or by draws of a fixed seed.

    By draws where it has no parameters that can be written down.
    """
    described = prior.describe()
    by_draws = ("sampler", "empirical", "truncated")
    if described["kind"] in by_draws or None in described.values():
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
    often logs. Functions of the user's own that it is given, captures or finds among its globals
    count with their code, wherever they are defined; those of libraries do not.
    """
    if isinstance(simulator, Each):
        return {"each": describe_simulator(simulator.function)}
    if isinstance(simulator, functools.partial):
        arguments = _plain([list(simulator.args), simulator.keywords])
        described = describe_simulator(simulator.func)
        given = {str(place): value for place, value in enumerate(simulator.args)}
        functions = _describe_functions({**given, **simulator.keywords})
        described["functions"] = {**described.get("functions", {}), **functions}
        return {**described, "arguments": arguments}
    if inspect.ismethod(simulator):
        return {"method": simulator.__name__, "of": describe_simulator(simulator.__self__)}
    if inspect.isfunction(simulator):
        return _describe_function(simulator)
    described = {"name": getattr(simulator, "__qualname__", type(simulator).__qualname__)}
    if not isinstance(simulator, type):
        described["functions"] = _describe_functions(getattr(simulator, "__dict__", {}))
    settings = getattr(simulator, "settings", None)
    if settings is None and is_dataclass(simulator) and not isinstance(simulator, type):
        settings = asdict(simulator)
    elif settings is None and not isinstance(simulator, type):
        settings = _public_attributes(simulator)
    if settings:
        described["settings"] = _plain(settings, depth)
    return described


def digest_simulator(simulator: Any) -> str | None:
    """Return a digest of what a simulator does: of its own code, and of functions that it uses.

    It is the same however the code is laid out and commented. None for one that is not the user's
    own, or whose code cannot be seen.
    """
    if isinstance(simulator, Each):
        return digest_simulator(simulator.function)
    if isinstance(simulator, functools.partial):
        return digest_simulator(simulator.func)
    function = _as_function(getattr(simulator, "__func__", simulator))
    if function is None or not _is_users(function):
        return None
    return _digest_function(function, ())


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
    cells = _captured(function)
    found = _found(function)
    given = {
        "defaults": function.__defaults__,
        "keywords": function.__kwdefaults__,
        "captured": _settings(cells, _assigned(code, "STORE_DEREF")),
        "globals": _settings(found, _assigned(code, "STORE_GLOBAL")),
    }
    described = {"name": function.__qualname__} | {
        key: _plain(value) for key, value in given.items() if value
    }
    # Also where there are none: stores that do not say are older than this description.
    described["functions"] = _describe_functions({**_defaults(function), **found, **cells})
    if function.__qualname__.endswith("<lambda>"):
        # Lambdas share one name: tell them apart by what they do.
        described["code"] = _digest(_contents(code))
    return described


def _captured(function: Any) -> dict[str, Any]:
    """Return what a function captures, by name."""
    captured: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            captured[name] = cell.cell_contents
        except ValueError:
            # Empty: assigned after the function was made, or never.
            continue
    return captured


def _found(function: Any) -> dict[str, Any]:
    """Return what a function finds among its globals, by name."""
    return {
        name: function.__globals__[name]
        for name in sorted(_named(function.__code__))
        if name in function.__globals__
    }


def _defaults(function: Any) -> dict[str, Any]:
    """Return the default arguments of a function, by name."""
    code = function.__code__
    values = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    last = names[len(names) - len(values) :]
    return {**dict(zip(last, values, strict=True)), **(function.__kwdefaults__ or {})}


def _describe_functions(values: Mapping[str, Any], within: tuple[Any, ...] = ()) -> dict[str, str]:
    """Return, by name, a digest of each function of the user's own among values.

    Args:
        values: by name; of dictionaries, lists and tuples the functions in them.
        within: functions that are being described, by which a function may use itself.
    """
    described: dict[str, str] = {}
    for name, value in values.items():
        for place, member in _members(value).items():
            function = _as_function(member)
            if function is not None and _is_users(function):
                described[f"{name}{place}"] = _digest_function(function, within)
    return described


def _members(value: Any, depth: int = _DEPTH) -> dict[str, Any]:
    """Return what a dictionary, list or tuple holds, by place; of another value, itself."""
    if depth > 0 and isinstance(value, list | tuple):
        found = {f"[{place}]": member for place, member in enumerate(value)}
    elif depth > 0 and isinstance(value, Mapping):
        found = {f"[{key}]": member for key, member in value.items()}
    else:
        return {"": value}
    return {
        f"{place}{inner}": member
        for place, outer in found.items()
        for inner, member in _members(outer, depth - 1).items()
    }


def _as_function(value: Any) -> Any:
    """Return the Python function that a value is, was compiled from, or does when it is called."""
    if isinstance(value, type):
        return None
    function = getattr(value, "py_func", value)
    if isinstance(function, FunctionType):
        return function
    called = getattr(type(value), "__call__", None)  # noqa: B004 (the function itself is wanted)
    return called if isinstance(called, FunctionType) else None


def _is_users(function: Any) -> bool:
    """Return whether a function is of the user's own, rather than of a library or of eande."""
    if (function.__module__ or "").partition(".")[0] == "eande":
        return False
    file = function.__code__.co_filename
    return not file.startswith((*_LIBRARIES, "<frozen", "<__array_function__"))


def _digest_function(function: Any, within: tuple[Any, ...]) -> str:
    """Return a digest of a function: of what it does, its settings, and the functions it uses."""
    if len(within) >= _DEPTH or any(function is other for other in within):
        return str(function.__qualname__)
    code = function.__code__
    cells = _captured(function)
    found = _found(function)
    settings = {
        "defaults": _settings(_defaults(function), set()),
        "captured": _settings(cells, _assigned(code, "STORE_DEREF")),
        "globals": _settings(found, _assigned(code, "STORE_GLOBAL")),
    }
    if _assigned(code, "STORE_SUBSCR") or _assigned(code, "STORE_SLICE"):
        # It fills something: a cache or a buffer is no setting.
        settings = {
            key: {
                name: value
                for name, value in values.items()
                if value is None or isinstance(value, _SETTINGS)
            }
            for key, values in settings.items()
        }
    used = {**_defaults(function), **found, **cells}
    return _digest([_steps(code), _plain(settings), _describe_functions(used, (*within, function))])


def _digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


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


def _steps(code: CodeType) -> list[Any]:
    """Return what a piece of code does, step by step, however it is laid out and documented."""
    instructions = [step for step in dis.get_instructions(code) if step.opname not in _IDLE]
    offsets = [step.offset for step in instructions]
    steps: list[Any] = []
    for step in instructions:
        value = step.argval
        if step.opcode in (*dis.hasjrel, *dis.hasjabs):
            value = bisect.bisect_left(offsets, value)
        elif step.opcode in dis.haslocal:
            # The name of a local variable does not matter.
            value = step.arg
        elif isinstance(value, CodeType):
            value = _steps(value)
        elif isinstance(value, frozenset):
            value = sorted(map(repr, value))
        steps.append([step.opname, repr(value)])
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [code.co_argcount, arguments, steps]


def versions() -> dict[str, str]:
    """Return the versions of what made the simulations."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in ("embed-and-emulate", "numpy", "torch")
    }


def check_same_call(path: Path, given: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse a store made by another call and name the first difference."""
    # A store says more than a call does: its format, extents and versions may be others.
    comparable = {name: stored[name] for name in given if name in stored}
    # Another Python compiles the same function to other code.
    compiled = stored["versions"].get("python", "").split(".")[:2]
    if compiled != platform.python_version().split(".")[:2]:
        comparable = _without_functions(comparable)
    check_same(
        path,
        _as_far_as(given, comparable),
        comparable,
        what="a store",
        remedy="use another folder, or make the same call",
    )


def _without_functions(described: Any) -> Any:
    """Return a description without what it says of functions that are used."""
    if not isinstance(described, Mapping):
        return described
    return {
        key: _without_functions(value) for key, value in described.items() if key != "functions"
    }


def _as_far_as(given: Any, stored: Any) -> Any:
    """Return a description without functions where the stored one says nothing of them.

    Older stores do not.
    """
    if not isinstance(given, Mapping) or not isinstance(stored, Mapping):
        return given
    return {
        key: _as_far_as(value, stored.get(key))
        for key, value in given.items()
        if key != "functions" or key in stored
    }


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
