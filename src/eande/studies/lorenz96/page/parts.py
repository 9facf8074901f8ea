"""What the sections of the page share: groups of runs, ranges, figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eande import plots
from eande.studies.lorenz96.pictures import read_pictures
from eande.studies.lorenz96.ring import HALF_WIDTH
from eande.studies.outputs import write_figure

Run = dict[str, Any]


def group(runs: Sequence[Run], key: str, order: Sequence[Any]) -> dict[Any, list[Run]]:
    """Group runs by a field: values in that order first, others after them by their own."""
    names = sorted(
        {run[key] for run in runs},
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    return {name: [run for run in runs if run[key] == name] for name in names}


def pool(runs: Sequence[Run], measure: str) -> list[float]:
    """Return a measure of all test data of all runs."""
    # As floats: a file may also hold whole numbers, which numpy need not be able to.
    return [float(value) for run in runs for value in run["per_datum"][measure]]


def show_range(values: Sequence[float], digits: int) -> str:
    """Return the mean with the smallest and the largest value."""
    return f"{np.mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def save_figure(figure: Any, pages: Path, name: str, text: str) -> str:
    """Write a figure beside the page and return the line that shows it."""
    write_figure(pages / name, figure, dpi=110)
    return f"![{text}]({name})\n"


def show_pictures(path: Path, pages: Path, name: str, order: Sequence[str]) -> list[str]:
    """Draw the posteriors of a file of pictures, one column per method, in that order."""
    arrays = read_pictures(path)
    phi = arrays.pop("phi", None)
    if phi is None or not arrays:
        return []
    columns = sorted(arrays, key=lambda key: order.index(key) if key in order else len(order))
    densities = {key: arrays[key] for key in columns}
    figure = plots.posterior_grid(densities, phi, half_width=HALF_WIDTH)
    return [save_figure(figure, pages, name, "Posteriors of three test data")]


def describe_hardware(content: dict[str, Any]) -> str:
    """Return on what a study was run."""
    hardware = content["provenance"]["hardware"]
    return hardware["gpu"] if content["device"] == "cuda" else f"{hardware['cores']} CPU cores"
