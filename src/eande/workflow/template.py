"""The study file to begin with: one that runs as it is, or one for simulations in files."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eande.foundations.checks import InputError
from eande.foundations.files import replacing, storing
from eande.foundations.paths import as_path
from eande.simulation.read.contents import Contents, look_into
from eande.simulation.read.plain import TABLE, WHOLE
from eande.workflow.one_file import PARAMETERS, Box, OneFile, box_around, look_into_file, quoted

# What makes a path a pattern of several.
_MAGIC = re.compile(r"[*?\[]")
# Columns that say when or where a number was seen.
_PLACES = ("time", "t", "day", "days", "date", "hour", "year", "step", "index", "x", "place", "")

_EXAMPLE = '''\
"""How fast does the tea cool, and how cold is the kitchen?

A cup of tea is poured at 90 degrees and read twelve times in an hour, by a thermometer that is off
by two degrees. Replace all this by your own question: the report begins with it.
"""

import numpy as np

import eande

# What is believed of the parameters before any data are seen. A box: lower ends, upper ends.
# Parameters of other kinds: eande.ProductPrior(R0=LogNormal(1.0, 0.5), share=(0, 1), …).
prior = eande.BoxPrior([0.01, 10.0], [0.10, 30.0], names=["rate", "kitchen"])

MINUTES = np.arange(5, 65, 5)


def simulator(phi, rng):
    """Simulate a batch: phi has a row of parameters each, the result a row of data each.

    All randomness comes from rng. A function of a single vector of parameters becomes a simulator
    by simulator = eande.each(function).
    """
    rate = phi[:, :1]
    kitchen = phi[:, 1:]
    tea = kitchen + (90 - kitchen) * np.exp(-rate * MINUTES)
    return tea + 2 * rng.standard_normal(tea.shape)


# What was measured: numbers of the shape of one simulation, or the name of a file with them.
observed = [83.0, 77.0, 69.0, 61.0, 60.0, 55.0, 49.0, 48.0, 45.0, 42.0, 39.0, 38.0]

# Number of simulations. More can be added later: what is there is kept.
n = 2_500

# What follows from the parameters, for tables and figures.
derived = {"half-life": lambda phi: np.log(2) / phi["rate"]}

# Where the defaults do not do:
# title = "Tea"
# seed = 0                  # the same seed, the same result
# held_out = 0.1            # share of the simulations that checks the model and trains nothing
# predicted = 200           # simulations from the posterior, for checks near the observation
# encoder = "grid"          # what a simulation is: by its shape (d,) a "vector", (channels, length)
#                           # a "series", (channels, height, width) a "grid"; to be said: "grid" of
#                           # an image (height, width), "set" of numbers, or rows, in no order
# views = eande.RandomWindow(250)
# similarity = "cosine"     # the paper's
# settings = eande.FitSettings(max_steps=3_000)
'''

_WITHOUT_SIMULATOR = '''\
"""What do these data say? The report begins with this text: replace it by your question.

{what}.
"""

{imports}

HERE = Path(__file__).parent
{simulations}

# The law that the parameters of these simulations were drawn from. None takes their own values as
# its draws: posteriors are then made of these, coarse where few of them lie near, without modes.
{prior}

# What was measured: numbers of shape {shape}, or the name of a file with them, like the others.
observed = None

# Where the defaults do not do:
# title = "…"
# seed = 0                  # the same seed, the same result
# held_out = 0.1            # share of the simulations that checks the model and trains nothing
# derived = {{"ratio": lambda phi: phi["a"] / phi["b"]}}
# encoder = "grid"          # what a simulation is: by its shape (d,) a "vector", (channels, length)
#                           # a "series", (channels, height, width) a "grid"; to be said: "grid" of
#                           # an image (height, width), "set" of numbers, or rows, in no order
# similarity = "cosine"     # the paper's
# settings = eande.FitSettings(max_steps=3_000)
'''


# What a study says of the law: where parameters lie as draws of a box do, and where not.
_EVEN = """\
# They lie as evenly as draws of this box; say another law if you know it.
{box}"""
_NOT_EVEN = """\
# If you know the law, say it, such as:
# {box}
prior = None"""
# The lines that read files of one simulation each.
_FROM_FILES = """\
simulations = eande.Simulations.from_files(
    {where},
    phi={phi},
    y={y},  # what the data are called in the files; there are {variables}
    broken="failed",  # damaged files, or with NaN, count as failed simulations; "refuse" refuses
)"""


def write_template(
    path: str | Path,
    members: str | Path | None = None,
    parameters: Sequence[str] | None = None,
) -> Path:
    """Write a study file; one that is there already is left alone.

    Args:
        path: of the file.
        members: simulations that exist already: a folder with a file for each, a file with all of
            them, or a store.
        parameters: what the parameters are called there; None for what looks like them.
    """
    path = as_path("study", path)
    if path.suffix != ".py":
        raise InputError(f"study: expected a name that ends in .py, got {path}")
    if path.exists():
        raise InputError(f"study: expected a new file, got {path}, which exists already")
    if members is None and parameters is not None:
        raise InputError("parameters: expected --from, where they are called so, got none")
    text = _EXAMPLE if members is None else _for(path, as_path("from", members), parameters)
    with replacing(path) as file, storing(path):
        file.write(text.encode())
    return path


def _for(study: Path, given: Path, parameters: Sequence[str] | None) -> str:
    """Return a study of simulations that exist already."""
    if given.is_file() or (given / "zarr.json").exists():
        found = look_into_file(given, parameters)
        code = found.code.replace("{path}", _from_here(study, given))
        what = f"{found.count:,} simulations in {given.name}"
    elif not given.exists() and not _MAGIC.search(str(given)):
        raise InputError(
            f"from: expected a folder or a file of simulations, got {given}, where nothing is"
        )
    else:
        found, code = _of_folder(study, given, parameters)
        what = f"{found.count} simulations in {given.name}, one file each"
    lines = ["from pathlib import Path", *(f"import {module}" for module in found.modules)]
    third = "\n".join(lines[1:])
    imports = "\n\n".join(part for part in (lines[0], third, "import eande") if part)
    lower, upper = (", ".join(f"{end:g}" for end in ends) for ends in found.box[:2])
    named = f", names={quoted(list(found.names))}" if found.names else ""
    box = f"prior = eande.BoxPrior([{lower}], [{upper}]{named})"
    return _WITHOUT_SIMULATOR.format(
        what=what,
        imports=imports,
        simulations=code,
        shape=found.shape,
        prior=(_EVEN if found.box.even else _NOT_EVEN).format(box=box),
    )


def _of_folder(study: Path, folder: Path, parameters: Sequence[str] | None) -> tuple[OneFile, str]:
    """Return what a folder of files holds, as far as its first file tells, and what reads it."""
    found = look_into(folder)
    if found.beside is not None and found.table is not None:
        if parameters is not None:
            raise InputError(
                f"parameters: expected none where they lie in {found.beside}, got "
                f"{', '.join(parameters)}"
            )
        phi = _from_here(study, found.beside)
        names = list(found.table.names or ())
        box = box_around(found.table.phi.numpy())
    else:
        own = list(parameters) if parameters is not None else _parameters(found)
        names = [] if isinstance(own, str) else own
        size = found.shapes[own][0] if isinstance(own, str) and found.shapes[own] else len(names)
        box = Box([0.0] * size, [1.0] * size, even=False)
        phi = quoted(own)
    y = _data(found, names if names else [phi.strip('"')])
    code = _FROM_FILES.format(
        where=_from_here(study, folder), phi=phi, y=quoted(y), variables=_variables(found)
    )
    return OneFile(found.files, box, names, found.shapes[y], ""), code


def _from_here(study: Path, path: Path) -> str:
    """Return a path as a study file writes it, relative to itself where it can be."""
    if path.is_relative_to(study.parent):
        return f"HERE / {quoted(str(path.relative_to(study.parent)))}"
    return quoted(str(path))


def _parameters(found: Contents) -> str | list[str]:
    """Return which variables are the parameters: ``phi`` or ``theta``, else all single numbers."""
    for name in PARAMETERS:
        if name in found.shapes:
            return name
    single = [name for name, shape in found.shapes.items() if not shape]
    if not single:
        raise _unclear(
            found, "parameters as phi, single numbers, or in a table parameters.csv beside it"
        )
    return single


def _data(found: Contents, parameters: Sequence[str]) -> str:
    """Return which variable is the data: ``y``, else the largest."""
    others = {name: shape for name, shape in found.shapes.items() if name not in parameters}
    if "y" in others and found.first.suffix.lower() != TABLE:
        return "y"
    arrays = {name: shape for name, shape in others.items() if shape}
    if not arrays:
        raise _unclear(found, "data as y, or as another array")

    columns = [name for name in arrays if name.lower() not in _PLACES]
    if found.first.suffix.lower() == TABLE and len(columns) == 2:
        # One column, and all of them together: what stands beside it says when or where.
        return columns[0]
    return max(arrays, key=lambda name: math.prod(arrays[name]))


def _variables(found: Contents) -> str:
    """Return what there is to choose from, in words."""
    columns = [name for name in found.shapes if name != WHOLE]
    if found.first.suffix.lower() == TABLE and columns:
        return f'{", ".join(columns)}; "{WHOLE}" is all of them'
    return ", ".join(found.shapes)


def _unclear(found: Contents, expected: str) -> InputError:
    shown: Any = ", ".join(found.shapes) or "nothing"
    return InputError(f"{found.first}: expected {expected}, got {shown}")
