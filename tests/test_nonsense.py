"""Nonsense, given to every parameter of everything public: refused in a line that names it.

What is public is found by looking, so that a new function joins by existing: without a valid call
of it in ``helpers/valid_calls.py`` the first test fails.
"""

import inspect
import os
import pkgutil
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import eande
from eande import bridges, plots
from eande.foundations.files import StorageError
from helpers.nonsense import NONSENSE, Given
from helpers.valid_calls import CALLS, UNCHECKED, World

# One process: the small objects of all calls are made once.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.xdist_group("nonsense"),
    pytest.mark.usefixtures("undrawn"),
]

REFUSALS = (
    eande.InputError,
    StorageError,
    eande.SimulationError,
    eande.BudgetExceeded,
    ImportError,
)
_SECONDS = 5
_SECONDS_WAITING = 60
_MEMORY = 500 * 2**20
_LONGEST_LINE = 1_000
_SPECIAL = ("__call__", "__getitem__")


@cache
def public() -> dict[str, Callable[..., Any]]:
    """Everything public that takes an argument, by its name."""
    found = {name: getattr(eande, name) for name in eande.__all__}
    found |= {f"plots.{name}": getattr(plots, name) for name in plots.__all__}
    for module in pkgutil.iter_modules(bridges.__path__):
        home = import_module(f"eande.bridges.{module.name}")
        for name, value in vars(home).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == home.__name__:
                found[f"bridges.{module.name}.{name}"] = value
    every = {}
    for name, value in found.items():
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        if callable(value) and parameters(value):
            every[name] = value
        if inspect.isclass(value):
            every |= {f"{name}.{key}": method for key, method in methods(value)}
    return every


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class that are ours and take an argument."""
    for key in dir(kind):
        home = next(base for base in kind.__mro__ if key in vars(base))
        if (key.startswith("_") and key not in _SPECIAL) or not home.__module__.startswith("eande"):
            continue
        method = getattr(kind, key)
        if callable(method) and not inspect.isclass(method) and parameters(method):
            yield key, method


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of all parameters, without ``self`` and ``**options``."""
    signature = inspect.signature(function).parameters.values()
    return [one.name for one in signature if one.name != "self" and one.kind is not one.VAR_KEYWORD]


def test_everything_public_has_a_valid_call_here():
    every = public()
    calls = {name.partition(" ")[0] for name in CALLS}
    assert sorted(set(every) - calls - set(UNCHECKED)) == []
    assert sorted((calls | set(UNCHECKED)) - set(every)) == []
    assert calls.isdisjoint(UNCHECKED)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = World(tmp_path_factory.mktemp("world"))
        _ = made.model, made.diagnosis, made.identifiability, made.belongs, made.exact
    return made


def test_the_walk_is_a_long_one(world: World) -> None:
    arguments = [given for make in CALLS.values() for given in make(world)[1].values()]
    calls = sum(len(NONSENSE) - len(given.skipped) for given in arguments)
    print(f"{len(CALLS)} callables, {len(arguments)} parameters, {calls} calls")
    assert len(CALLS) >= 100
    assert len(arguments) >= 270
    assert calls >= 13_000


@pytest.mark.parametrize("name", CALLS)
def test_nonsense_is_refused_in_a_line_that_names_the_parameter(
    name: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function, arguments = CALLS[name](world)
    expected = parameters(public()[name.partition(" ")[0]])
    assert set(expected) <= set(arguments), "a parameter without a valid value"
    with bounded():
        call(function, arguments)
    wrong = []
    for parameter, given in arguments.items():
        for label in sorted(set(NONSENSE) - set(given.skipped)):
            complaint = judge(name, world, parameter, given, label)
            if complaint is not None:
                wrong.append(f"{name}({parameter}={label}): {complaint}")
    assert not wrong, f"{len(wrong)} calls:\n" + "\n".join(wrong)


def judge(name: str, world: World, parameter: str, given: Given, label: str) -> str | None:
    """Say what is wrong with the answer to a piece of nonsense; None where nothing is."""
    with warnings.catch_warnings():
        # That quantised tensors will be no more.
        warnings.simplefilter("ignore")
        value = NONSENSE[label]()
    # Made anew: a call may have changed what it was made on.
    function, arguments = CALLS[name](world)
    begin = time.process_time()
    try:
        with bounded():
            call(function, arguments, **{parameter: value})
    except REFUSALS as refusal:
        if given.runs(label):
            return None
        if label in given.accepts:
            return f"listed as accepted, but refused: {refusal}"
        also = (value,) if isinstance(value, str) and value else ()
        return complain(str(refusal), (parameter, *given.called, *also))
    except (Exception, TooLong) as error:
        if given.runs(label) and not isinstance(error, TooLong):
            return None
        return f"ended raw, {type(error).__name__}: {str(error)[:200]!r}"
    if given.reason(label) is None:
        return "accepted without a word"
    if time.process_time() - begin > _SECONDS:
        return "took too long"
    return None


def complain(line: str, called: tuple[str, ...]) -> str | None:
    """Say what is wrong with the words of a refusal."""
    if "\n" in line or len(line) > _LONGEST_LINE:
        return f"refused in more than a line: {line[:300]!r}"
    if not any(word in line for word in called):
        return f"refused without its name: {line!r}"
    return None


def call(function: Callable[..., Any], arguments: dict[str, Given], /, **instead: Any) -> None:
    """Call with the valid values, but for what is given instead."""
    values = {name: given.value for name, given in arguments.items()} | instead
    positional = [
        values.pop(one.name)
        for one in inspect.signature(function).parameters.values()
        if one.kind is one.VAR_POSITIONAL and one.name in values
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(*positional, **values)


class TooLong(BaseException):
    """Not an Exception, so that nothing takes it for a failure of its own."""


@contextmanager
def bounded() -> Iterator[None]:
    """Stop a call that takes too long or asks for too much memory."""

    def stop(*_: Any) -> None:
        raise TooLong

    limits = resource.getrlimit(resource.RLIMIT_AS)
    # Of its own time, for a busy machine is no hang; what waits uses none, and has a minute.
    clocks = {
        signal.SIGPROF: (signal.ITIMER_PROF, _SECONDS),
        signal.SIGALRM: (signal.ITIMER_REAL, _SECONDS_WAITING),
    }
    former = {sign: signal.signal(sign, stop) for sign in clocks}
    for clock, seconds in clocks.values():
        signal.setitimer(clock, seconds)
    try:
        if sys.platform == "linux":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for sign, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(sign, former[sign])
