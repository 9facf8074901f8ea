"""The page's section on the main table under older terms, and for the system as printed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eande import plots
from eande.diagnostics.diagnose import LEVELS
from eande.studies.lorenz96.baselines import BASELINES
from eande.studies.lorenz96.page.parts import (
    Run,
    group,
    pool,
    save_figure,
    show_pictures,
    show_range,
)
from eande.studies.lorenz96.schema import OLDER_METHODS
from eande.studies.lorenz96.tables import median_over_data
from eande.studies.markdown import table


def comparison_section(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    """Return the table, box plots of MMD², posteriors, the ordering of methods and calibration."""
    study = content["study"]
    used = content["settings"]
    samples = used["samples"]
    runs = content["runs"]
    groups = group(runs, "method", [*OLDER_METHODS, *BASELINES])
    floors = {
        measure: float(np.median(pool(runs, f"mmd2_floor_{measure}")))
        for measure in ("0.01_100", "0.05_100", f"0.05_{samples}")
    }
    physics = {
        name: np.median([run["physics"][name] for run in runs])
        for name in ("median_radial_error_of_energy", "median_radial_error_of_momentum")
    }
    boxes = plots.boxes(
        {name: pool(of_method, "mmd2_0.05_100") for name, of_method in groups.items()},
        label="MMD², σ = 0.05, 100 samples",
        floor=floors["0.05_100"],
        title="Distance to the reference circle",
    )
    return [
        f"## {'The printed system, b = 1' if used['b'] == 1 else 'The main table'}\n",
        f"{used['simulations']} simulations to train, {used['validation']} to select, "
        f"{used['calibration']} to calibrate; encoder {used['encoder']}. Fewest effective prior "
        f"draws of any posterior: {min(run['fewest_effective_draws'] for run in runs):.0f}.\n",
        _main_table(groups, floors, samples),
        "Medians over all seeds and test data; log ratio: mean over data, mean and range over "
        "seeds; z: root mean square of the radial z-score. MMD² is a V-statistic, of samples "
        "scaled to [−1, 1]², averaged over disjoint sets of that many samples. Physics alone: the "
        f"energy budget of a window gives F to {physics['median_radial_error_of_energy']:.1g}, the "
        f"momentum budget to {physics['median_radial_error_of_momentum']:.1g}.\n",
        save_figure(boxes, pages, f"{study}-mmd.png", "Box plots of MMD² per method"),
        *show_pictures(
            results / f"{study}-pictures.npz",
            pages,
            f"{study}-posteriors.png",
            [*OLDER_METHODS, *BASELINES],
        ),
        *_ordering(groups, samples),
        *_calibration(groups),
        *_prior_recovery(groups),
    ]


def _main_table(
    groups: Mapping[str, Sequence[Run]], floors: Mapping[str, float], samples: int
) -> str:
    rows = []
    for name, runs in groups.items():
        exponents = [run["calibrated"]["exponent"] for run in runs if run.get("calibrated")]
        rows.append(
            [
                name,
                str(len(runs)),
                show_range([run["mean_log_ratio"] for run in runs], 2),
                *(f"{np.median(pool(runs, f'mmd2_{measure}')):.5f}" for measure in floors),
                f"{np.median(pool(runs, 'angular_tv')):.3f}",
                f"{np.median(pool(runs, 'radial_error')):.3f}",
                f"{np.median(pool(runs, 'crps')):.3f}",
                f"{np.sqrt(np.mean(np.square(pool(runs, 'z')))):.2f}",
                f"{np.median(exponents):.2f}" if exponents else "–",
            ]
        )
    everything = [run for runs in groups.values() for run in runs]
    mmd = [f"{floor:.5f}" for floor in floors.values()]
    tv = f"{np.median(pool(everything, 'angular_tv_floor')):.3f}"
    rows.append(["floor", "", "", *mmd, tv, "", "", "1", ""])
    head = [
        "method",
        "seeds",
        "log ratio, nats",
        "MMD² σ = 0.01, 100",
        "σ = 0.05, 100",
        f"σ = 0.05, {samples}",
        "angle TV",
        "error of F",
        "CRPS",
        "z",
        "β",
    ]
    return table(head, rows)


def _ordering(groups: Mapping[str, Sequence[Run]], samples: int) -> list[str]:
    """Say where the ordering of methods is the paper's, per seed and per measure.

    The paper's: E&E well under NRE-C and NPE-C, with less spread.
    """
    measures = _measures(samples)
    rows: list[list[str]] = []
    lower: dict[str, bool] = {}
    for name in [name for name in OLDER_METHODS if name in groups]:
        for other in [other for other in ("nre-c", "npe-c") if other in groups]:
            pairs = [
                (mine, theirs)
                for mine in groups[name]
                for theirs in groups[other]
                if mine["seed"] == theirs["seed"]
            ]
            if not pairs:
                continue
            cells = []
            for measure, value, sign in measures:
                differences = [sign * (value(mine) - value(theirs)) for mine, theirs in pairs]
                if measure.startswith("MMD²"):
                    lower[name] = lower.get(name, True) and min(differences) > 0
                better = sum(one > 0 for one in differences)
                cells.append(f"{better} of {len(pairs)} ({np.mean(differences):+.2g})")
            rows.append([f"{name} against {other}", *cells])
    if not rows:
        return []
    yes = ", ".join(name for name, always in lower.items() if always)
    no = ", ".join(name for name, always in lower.items() if not always)
    return [
        "### Is the ordering the paper's?\n",
        "The paper finds E&E well under NRE-C and NPE-C in MMD, with less spread. Seeds in which "
        "the first is better than the second, by how much on average (positive: better):\n",
        table(["", *(name for name, _, _ in measures)], rows),
        f"In MMD², the ordering is the paper's in every seed for: {yes or 'none'}; "
        f"not for: {no or 'none'}.\n",
    ]


def _measures(samples: int) -> list[tuple[str, Callable[[Run], float], int]]:
    """Return the measures compared: a name, its value of a run, and 1 where more is better."""

    def spread(measure: str) -> Callable[[Run], float]:
        return lambda run: float(np.subtract(*np.quantile(pool([run], measure), [0.75, 0.25])))

    def median(measure: str) -> Callable[[Run], float]:
        return lambda run: median_over_data(run, measure)

    return [
        ("log ratio", lambda run: float(run["mean_log_ratio"]), 1),
        ("MMD² σ = 0.05, 100", median("mmd2_0.05_100"), -1),
        ("its interquartile range", spread("mmd2_0.05_100"), -1),
        (f"MMD² σ = 0.05, {samples}", median(f"mmd2_0.05_{samples}"), -1),
        ("its interquartile range", spread(f"mmd2_0.05_{samples}"), -1),
        ("angle TV", median("angular_tv"), -1),
        ("error of F", median("radial_error"), -1),
        ("CRPS", median("crps"), -1),
    ]


def _calibration(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    rows = []
    for name, runs in groups.items():
        measured = [run["calibration"]["regions"] for run in runs if run.get("calibration")]
        for region in measured[0] if measured else ():
            found = [one[region] for one in measured if region in one]
            covered = [
                show_range([100 * one["coverage"][f"{level}"] for one in found], 0)
                for level in LEVELS
            ]
            z = show_range([one["radial_z_rms"] for one in found], 2)
            rows.append([name, region, *covered, z])
    if not rows:
        return []
    head = ["method", "data", *(f"{level} %" for level in LEVELS), "z"]
    return [
        "### Calibration\n",
        table(head, rows),
        "How often highest-density regions cover the true parameters, in per cent, on fresh "
        "simulations: mean and range over seeds.\n",
    ]


def _prior_recovery(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    smallest = []
    for name, runs in groups.items():
        # A flow's posteriors share too few draws for this test.
        if name != "npe-c" and all(run.get("calibration") for run in runs):
            tests = [run["calibration"]["prior_recovery"] for run in runs]
            counts = min(one["p_value_of_counts"] for one in tests)
            radii = min(one["p_value_of_radii"] for one in tests)
            smallest.append(f"{name} {counts:.2g} and {radii:.2g}")
    if not smallest:
        return []
    return [
        "Does the average posterior give back the prior? One draw of each against it, smallest "
        f"p-values over seeds, of counts in cells and of radii: {', '.join(smallest)}.\n"
    ]
