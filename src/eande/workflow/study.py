"""Study files: a small Python file that says what is to be inferred, from what.

Its names at top level are the study: ``prior`` and ``simulator`` (or ``simulations``, where they
exist already), and, where the defaults do not do, ``observed``, ``views``, ``encoder``,
``similarity``, ``settings``, ``n``, ``seed``, ``held_out``, ``predicted``, ``derived`` and
``title``. Whatever else the file defines is its own affair. Reading a study runs it, as ``python
study.py`` would.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    as_float_tensor,
    check_at_least,
    check_count,
    check_function,
    check_instance,
    check_seed,
    check_share,
    check_text,
    show,
)
from eande.foundations.documents import one_line
from eande.foundations.files import read_regular
from eande.foundations.paths import as_path
from eande.priors.convert import as_prior
from eande.priors.prior import Prior
from eande.simulation.read.plain import WHOLE, PlainFile
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View
from eande.simulation.run.blocks import Simulator
from eande.training.settings import FitSettings

_N = 2_000
_HELD_OUT = 0.1
# The names that a study may have.
STUDY_NAMES = (
    "prior",
    "simulator",
    "simulations",
    "observed",
    "views",
    "encoder",
    "similarity",
    "settings",
    "n",
    "seed",
    "held_out",
    "predicted",
    "derived",
    "title",
)
# A study has one of them.
_EITHER = {"simulator", "simulations"}
# What else may be a function or a class; the others are values.
_CALLED = {"simulator", "views", "encoder", "similarity", "prior"}
# From this likeness on, of 1 at most, a name is taken for another one misspelt.
_ALIKE = 0.8
# What a file of an observation may be.
_READERS = (".npy", ".npz", ".csv", ".txt", ".nc")
_LARGEST_TABLE = 2**30


@dataclass(frozen=True)
class Study:
    """What a study file says.

    Args:
        path: the file.
        title: of the report; by default the first line of the file's docstring, or its name.
        about: the rest of the docstring.
        prior: of the parameters; None takes the parameters of ``simulations``.
        simulator: ``simulator(phi, rng) -> y``; None where simulations exist already.
        simulations: those that exist already.
        observed: the observation, None where the file names none.
        views: what the encoder sees of a datum in training.
        encoder: a network, or what the data are.
        similarity: where embeddings lie.
        settings: of the fit.
        n: number of simulations.
        seed: of simulations and samples.
        held_out: share of the simulations that training does not see, for the diagnosis.
        predicted: number of simulations of parameters from the posterior, by which the report
            checks the model near the observation; None for a tenth of ``n``, from 200 to 500.
        derived: quantities that follow from the parameters, by name.
    """

    path: Path
    title: str
    about: str
    prior: Prior | None
    simulator: Simulator | None
    simulations: Simulations | None
    observed: Any
    views: View | None
    encoder: Any
    similarity: Any
    settings: FitSettings
    n: int
    seed: int
    held_out: float
    predicted: int | None
    derived: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the file without its ending."""
        return self.path.stem


def read_study(path: str | Path) -> Study:
    """Run a study file and return what it says.

    Args:
        path: the file.
    """
    path = as_path("study", path)
    values = vars(_run(path))
    _warn_of_misspelt(path, values)
    try:
        return _check(path, values)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _run(path: Path) -> ModuleType:
    """Import a file by its path, as a module of its own."""
    if path.is_dir():
        raise InputError(f"study: expected a Python file, got the folder {path}")
    if not path.exists():
        raise InputError(
            f"study: expected a Python file, got nothing at {path}; 'eande new {path.name}' "
            "writes one to begin with"
        )
    if path.suffix != ".py":
        raise InputError(f"study: expected a Python file (.py), got {path}")
    # One name for one file: two studies of the same name in two folders are two modules.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"study_{digest}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"study: expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    # Modules beside the file are found, but after all others: a study called queue.py must not take
    # the place of a module that some library imports later.
    folder = str(path.parent.absolute())
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, OSError) and error.filename == str(path):
            raise InputError(f"study: {path} could not be read ({error.strerror})") from None
        raise InputError(f"{path.name}{_line(error, path)}: {_said(error)}") from error
    # Worker processes and clusters get its functions themselves: they cannot import the file.
    cloudpickle.register_pickle_by_value(module)
    return module


def _line(error: BaseException, path: Path) -> str:
    """Return where in the file an error arose, as ``, line 12``."""
    number = None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        number = error.lineno
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            number = trace.tb_lineno
        trace = trace.tb_next
    return "" if number is None else f", line {number}"


def _said(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {one_line(error)}"


def _check(path: Path, values: Mapping[str, Any]) -> Study:
    """Refuse a study that cannot be run, before anything is."""
    title, about = _words(path, values)
    simulator = values.get("simulator")
    simulations = values.get("simulations")
    if (simulator is None) == (simulations is None):
        got = "neither" if simulator is None else "both"
        raise InputError(f"expected a simulator, or simulations that exist already, got {got}")
    if simulator is not None:
        check_function("simulator", simulator, "(phi, rng)")
    check_instance(
        "simulations",
        simulations,
        Simulations,
        "Simulations (from files: eande.Simulations.from_files)",
        optional=True,
    )
    prior = values.get("prior")
    if prior is None and simulations is None:
        raise InputError(
            "expected a prior, such as prior = eande.BoxPrior([0, 0], [1, 1]), got none"
        )
    settings = values.get("settings")
    check_instance("settings", settings, FitSettings, "FitSettings", optional=True)
    if values.get("views") is not None:
        check_function("views", values["views"], "(y, generator)")
    check_count("n", values.get("n", _N), 1)
    check_seed("seed", values.get("seed", 0))
    predicted = values.get("predicted")
    if predicted is not None:
        check_count("predicted", predicted, 0)
    derived = values.get("derived") or {}
    check_instance("derived", derived, Mapping, "a dictionary of functions by name")
    return Study(
        path=path,
        title=title,
        about=about,
        prior=None if prior is None else as_prior(prior),
        simulator=simulator,
        simulations=simulations,
        observed=_observed(path, values.get("observed"), variable_of(simulations)),
        views=values.get("views"),
        encoder=values.get("encoder"),
        similarity=values.get("similarity"),
        settings=FitSettings() if settings is None else settings,
        n=int(values.get("n", _N)),
        seed=int(values.get("seed", 0)),
        held_out=_share(values.get("held_out", _HELD_OUT)),
        predicted=predicted,
        derived=derived,
    )


def _warn_of_misspelt(path: Path, values: Mapping[str, Any]) -> None:
    """Tell of a name that the study does not read, where it lacks one very like it."""
    lacking = [name for name in STUDY_NAMES if name not in values]
    if not _EITHER.issubset(lacking):
        lacking = [name for name in lacking if name not in _EITHER]
    for name, value in values.items():
        if name in STUDY_NAMES or name.startswith("_") or isinstance(value, ModuleType):
            continue
        near = difflib.get_close_matches(name, lacking, n=1, cutoff=_ALIKE)
        if near and (near[0] in _CALLED or not callable(value)):
            warnings.warn(
                f"{path.name}: {name} is no name that a study reads; did you mean {near[0]}?",
                EandeWarning,
                stacklevel=3,
            )


def _words(path: Path, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the title of a study and what it says of itself, from its docstring."""
    about = inspect.cleandoc(values.get("__doc__") or "")
    first, _, rest = about.partition("\n")
    if "title" in values:
        check_text("title", values["title"])
        return values["title"], about
    # A first line that ends with its paragraph says what it is about.
    if first and not rest.split("\n")[0].strip():
        return first.rstrip("."), rest.strip()
    return path.stem, about


def _share(held_out: Any) -> float:
    """Return the share to hold out; 0 for none."""
    check_at_least("held_out", held_out, 0)
    if held_out > 0:
        check_share("held_out", held_out)
    return float(held_out)


def variable_of(simulations: Simulations | None) -> str:
    """Return what the data are called in the files of simulations, ``y`` where there are none."""
    return str(getattr(simulations.y, "y", WHOLE)) if simulations is not None else WHOLE


def _observed(study: Path, observed: Any, variable: str) -> Any:
    """Return the observation of a study: numbers, or read from the file that it names."""
    if observed is None:
        return None
    if isinstance(observed, str | Path):
        given = Path(observed).expanduser()
        return read_observation(given if given.is_absolute() else study.parent / given, variable)
    return as_float_tensor("observed", observed)


def read_observation(path: str | Path, variable: str = WHOLE) -> torch.Tensor:
    """Read an observation from a file.

    Args:
        path: ``.npy``; ``.npz`` or NetCDF with the data under that name, as ``y``, or as its only
            variable; or ``.csv`` and ``.txt``, a column of that name, or numbers with one line of
            names above them at most.
        variable: what the data are called in files of simulations.

    Example:
        >>> read_observation("nowhere.npy")
        Traceback (most recent call last):
        eande.foundations.checks.InputError: observed: expected a file, got nothing at
            ...nowhere.npy
    """
    path = as_path("observed", path)
    if path.suffix.lower() not in _READERS:
        raise InputError(f"observed: expected one of {', '.join(_READERS)}, got {path}")
    if not path.exists():
        raise InputError(f"observed: expected a file, got nothing at {path}")
    # Refuses a pipe or a folder, which the readers would wait for.
    content = read_regular(path, at_most=_LARGEST_TABLE)
    try:
        values = _parse(path, content, variable)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: expected numbers, got what is not ({_said(error)})") from None
    found = as_float_tensor(str(path), values)
    if not found.numel():
        raise InputError(f"{path}: expected numbers, got none")
    return found


def _parse(path: Path, content: bytes, variable: str) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return np.load(BytesIO(content), allow_pickle=False)
    if suffix == ".npz":
        with np.load(BytesIO(content), allow_pickle=False) as file:
            return file[_only(path, list(file.files), variable)]
    if suffix == ".nc":
        from eande.simulation.read.entry import import_xarray

        with import_xarray("a NetCDF file").open_dataset(path, decode_times=False) as dataset:
            names = list(dataset.data_vars)
            return np.asarray(dataset[_only(path, names, variable)].values)
    table = PlainFile.of_text(str(path), content, by_spaces=suffix == ".txt")
    return table.values(variable if variable in table.names else WHOLE)


def _only(path: Path, names: list[str], variable: str) -> str:
    """Return the name of the observation among the variables of a file."""
    for name in (variable, WHOLE):
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    expected = "a variable y" if variable == WHOLE else f"a variable {variable} or y"
    raise InputError(
        f"{path}: expected {expected}, or one variable alone, got {show(', '.join(names))}"
    )
