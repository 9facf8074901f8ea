"""The page's figure of how many simulations a posterior needs, and what its curves say."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from eande import plots
from eande.studies.lorenz96.effects import simulations_needed
from eande.studies.lorenz96.page.parts import Run, save_figure

# What is asked is how many simulations the others need to be where this is.
OURS = "E&E"
NUMBER = 500


def efficiency_parts(rows: Mapping[str, Sequence[Run]], pages: Path, name: str) -> list[str]:
    """Return the figure, and a line on every other method.

    Args:
        rows: runs by their row's name, a method and a number of simulations.
        pages: the folder of the page.
        name: of the figure's file.
    """
    methods: dict[str, dict[int, Sequence[Run]]] = {}
    for row, runs in rows.items():
        method, _, number = row.rpartition(", ")
        methods.setdefault(method, {})[int(number)] = runs
    curves = {}
    for method, by_number in methods.items():
        numbers = sorted(by_number)
        seeds = sorted(set.intersection(*({run["seed"] for run in by_number[n]} for n in numbers)))
        scores = [
            [run["mean_log_ratio"] for run in by_number[n] if run["seed"] == seed]
            for seed in seeds
            for n in numbers
        ]
        if seeds:
            curves[method] = (numbers, np.array(scores, dtype=float).reshape(len(seeds), -1))
    if not curves:
        return []
    figure = plots.curves(
        curves,
        x="simulations",
        y="log ratio of test data, nats",
        title="How many simulations a posterior needs",
        log_x=True,
    )
    lines = [save_figure(figure, pages, name, "Log ratio against the number of simulations")]
    goal = methods.get(OURS, {}).get(NUMBER, [])
    for method, by_number in methods.items():
        found = simulations_needed(goal, by_number) if method != OURS else None
        if found is not None:
            lines.append(
                f"- {method} needs {_times(found.simulations, by_number)} as many simulations for "
                f"what {OURS} has with {NUMBER} (95 % of resampled seeds: "
                f"{_times(found.low, by_number)} to {_times(found.high, by_number)})."
            )
    return [*lines, ""]


def _times(simulations: float, by_number: Mapping[int, Sequence[Run]]) -> str:
    """Return a number of simulations as times that of the goal."""
    if math.isinf(simulations):
        return f"more than {max(by_number) / NUMBER:g} ×"
    least = "at most " if simulations <= min(by_number) else ""
    return f"{least}{simulations / NUMBER:.2g} ×"
