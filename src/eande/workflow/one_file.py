"""What a single file of simulations holds, and the line of a study file that reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import kstest, norm

from eande.foundations.checks import InputError, show, show_shape
from eande.simulation.read.entry import import_xarray, reading
from eande.simulation.read.from_table import COLUMNAR, TEXT, as_pattern, open_table, tell_apart
from eande.simulation.read.npz import NpzFile
from eande.simulation.read.simulations import Simulations

# What parameters and data are called.
PARAMETERS = ("phi", "theta", "params", "parameters", "parameter")
_DATA = ("y", "x", "data", "obs", "observations")
NETCDF = (".nc", ".nc4", ".h5", ".hdf5", ".netcdf")
ENDINGS = (*TEXT, *COLUMNAR, ".npz", *NETCDF)

# Of fewer parameters nobody can tell by what law they were drawn; and how unlikely they may be.
_ENOUGH_TO_TELL = 100
_UNLIKELY = 0.01

Shapes = Mapping[str, tuple[int, ...]]


class Box(NamedTuple):
    """A box around parameters.

    Args:
        lower: its lower ends.
        upper: its upper ends.
        even: whether the parameters lie in it as draws of it would.
    """

    lower: Sequence[float]
    upper: Sequence[float]
    even: bool


@dataclass(frozen=True)
class OneFile:
    """A file, or a store of ours, that holds all simulations.

    Args:
        count: of simulations.
        box: around the parameters; of zeros and ones where they were not read.
        names: of the parameters, empty where nobody named them.
        shape: of one datum.
        code: the lines of a study that read them; ``{path}`` stands for the path.
        modules: that these lines need, as ``numpy as np``.
    """

    count: int
    box: Box
    names: Sequence[str]
    shape: tuple[int, ...]
    code: str
    modules: Sequence[str] = ()


def look_into_file(path: Path, parameters: Sequence[str] | None = None) -> OneFile:
    """Return what a file of simulations holds, as far as names and shapes tell.

    Args:
        path: a table, an ``.npz`` file, a NetCDF file, or a store of ours.
        parameters: names of the parameters; None for what looks like them.
    """
    if path.is_dir():
        return _of_store(path)
    suffix = path.suffix.lower()
    if suffix not in ENDINGS:
        raise InputError(
            "from: expected a folder, a store, or a file of simulations, one of "
            f"{', '.join(ENDINGS)}, got {path}"
        )
    if suffix in TEXT + COLUMNAR:
        return _of_table(path, parameters)
    return _of_npz(path, parameters) if suffix == ".npz" else _of_netcdf(path, parameters)


def _of_store(path: Path) -> OneFile:
    simulations = Simulations.open(path)
    return OneFile(
        len(simulations),
        box_around(simulations.phi.numpy()),
        simulations.names or (),
        simulations.y_shape,
        "simulations = eande.Simulations.open({path})",
    )


def _of_table(path: Path, parameters: Sequence[str] | None) -> OneFile:
    columns = open_table(path)
    phi, data = tell_apart(columns, parameters)
    if not phi or not data:
        raise InputError(f"{path}: expected columns of parameters and of data, got one kind only")
    code = (
        "simulations = eande.Simulations.from_table(\n"
        "    {path},\n"
        f"    phi={quoted(phi)},\n"
        f"    y={quoted(as_pattern(columns, data) or data)},\n"
        '    broken="failed",  # rows with gaps count as failed simulations; "refuse" refuses\n'
        ")"
    )
    box = box_around(np.stack([columns.numbers(name) for name in phi], axis=1))
    return OneFile(len(columns), box, phi, (len(data),), code)


def _of_npz(path: Path, parameters: Sequence[str] | None) -> OneFile:
    with reading(path), NpzFile.open(path) as file:
        shapes = {name: file.described(name)[0] for name in file.names}
        phi, y = _parts(path, shapes, parameters)
        known = [phi] if isinstance(phi, str) else phi
        values = [file.few(name).reshape(shapes[y][0], -1) for name in known]
    if isinstance(phi, str):
        names: Sequence[str] = ()
        taken = f"file[{quoted(phi)}]" + ("" if len(shapes[phi]) > 1 else "[:, None]")
    else:
        names = phi
        taken = f"pd.DataFrame({{name: file[name] for name in {quoted(phi)}}})"
    code = (
        "with np.load({path}) as file:\n"
        f"    simulations = eande.Simulations.from_arrays({taken}, file[{quoted(y)}])"
    )
    modules = ("numpy as np", "pandas as pd") if names else ("numpy as np",)
    box = box_around(np.concatenate(values, axis=1))
    return OneFile(shapes[y][0], box, names, shapes[y][1:], code, modules)


def _of_netcdf(path: Path, parameters: Sequence[str] | None) -> OneFile:
    with reading(path), import_xarray("a NetCDF file").open_dataset(path) as dataset:
        variables = {str(name): x for name, x in dataset.data_vars.items()}
        largest = max(variables, key=lambda name: variables[name].size, default=None)
        if largest is None:
            raise InputError(f"{path}: expected variables, got none")
        y = next((name for name in _DATA if name in variables), largest)
        (dimension, *_) = (*map(str, variables[y].dims), None)
        if dimension is None:
            raise InputError(f"{path}: expected a dimension along which simulations lie, got none")
        along = {
            name: (x.sizes[dimension], *(x.sizes[one] for one in x.dims if one != dimension))
            for name, x in variables.items()
            if dimension in x.dims
        }
        phi, y = _parts(path, along, parameters)
        known = [phi] if isinstance(phi, str) else phi
        values = [
            variables[name].transpose(dimension, ...).values.reshape(along[y][0], -1)
            for name in known
        ]
    box = box_around(np.concatenate(values, axis=1))
    names = known if len(known) == len(box[0]) else []
    code = (
        "simulations = eande.Simulations.from_xarray(\n"
        "    xr.open_dataset({path}),\n"
        f"    phi={quoted(phi)},\n"
        f"    y={quoted(y)},\n"
        f"    dimension={quoted(dimension)},  # along which the simulations lie\n"
        ")"
    )
    return OneFile(along[y][0], box, names, along[y][1:] or (1,), code, ("xarray as xr",))


def _parts(
    path: Path, shapes: Shapes, parameters: Sequence[str] | None
) -> tuple[str | list[str], str]:
    """Return which arrays are the parameters, one or several of single numbers, and the data."""
    if parameters is not None:
        _check_names(path, parameters, shapes)
        one = len(parameters) == 1 and len(shapes[parameters[0]]) > 1
        phi: str | list[str] = parameters[0] if one else list(parameters)
    else:
        phi = next((name for name in PARAMETERS if name in shapes), "")
        phi = phi or [name for name, shape in shapes.items() if len(shape) == 1]
    known = [phi] if isinstance(phi, str) else phi
    count = shapes[known[0]][0] if known and shapes[known[0]] else 0
    others = {
        name: math.prod(shape)
        for name, shape in shapes.items()
        if name not in known and shape and shape[0] == count
    }
    if not others:
        found = ", ".join(f"{name} {show_shape(shape)}" for name, shape in shapes.items())
        raise InputError(
            f"{path}: expected parameters as phi or theta, or as arrays of one number for each "
            f"simulation, beside data as y or x, got {found or 'nothing'}; --parameters A,B names "
            "them"
        )
    y = next((name for name in _DATA if name in others), "")
    return phi, y or max(others, key=lambda name: others[name])


def box_around(phi: np.ndarray) -> Box:
    """Return a box around parameters (n, D), its ends rounded outwards to a few digits.

    Example:
        >>> box_around(np.array([[0.0051, -2.97], [0.0298, 2.9]]))
        Box(lower=[0.005, -3.0], upper=[0.03, 2.9], even=False)
    """
    lower, upper = np.nanmin(phi, axis=0), np.nanmax(phi, axis=0)
    ends: tuple[list[float], list[float]] = ([], [])
    for low, high in zip(lower.tolist(), upper.tolist(), strict=True):
        width = high - low
        digits = 1 - math.floor(math.log10(width)) if width > 0 and math.isfinite(width) else 0
        step = 10.0**-digits
        ends[0].append(round(math.floor(low / step) * step, max(digits, 0)))
        ends[1].append(round(math.ceil(high / step) * step, max(digits, 0)))
    return Box(*ends, _fills_evenly(phi, *ends))


def _fills_evenly(phi: np.ndarray, lower: Sequence[float], upper: Sequence[float]) -> bool:
    """Return whether nothing tells parameters (n, D) from independent draws of a box."""
    count = len(phi)
    if count < _ENOUGH_TO_TELL or not np.isfinite(phi).all():
        return False
    width = np.subtract(upper, lower)
    if not (width > 0).all():
        return False
    shares = (phi - lower) / width
    p_values = [kstest(column, "uniform").pvalue for column in shares.T]
    if phi.shape[1] > 1:
        between = np.atleast_2d(np.corrcoef(shares.T))[np.triu_indices(phi.shape[1], 1)]
        p_values += (2 * norm.sf(np.abs(between) * count**0.5)).tolist()
    return min(p_values) * len(p_values) > _UNLIKELY


def _check_names(path: Path, names: Sequence[str], known: Sequence[str] | Shapes) -> None:
    for name in names:
        if name not in known:
            raise InputError(
                f"parameters: expected names in {path}, among {', '.join(list(known)[:12])}, got "
                f"{show(name)}"
            )


def quoted(value: str | Sequence[str]) -> str:
    """Return a text, or a list of them, as Python writes it, in the quotes of this house."""
    return json.dumps(value, ensure_ascii=False)
