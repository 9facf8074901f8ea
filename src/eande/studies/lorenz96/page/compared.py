"""The page's sections on comparisons under equal terms: tables, effects, boxes, calibration."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eande import plots
from eande.diagnostics.diagnose import LEVELS
from eande.studies.lorenz96.comparisons import COMPARISONS, row_names
from eande.studies.lorenz96.effects import Effect, effect
from eande.studies.lorenz96.page.efficiency import efficiency_parts
from eande.studies.lorenz96.page.parts import (
    Run,
    group,
    pool,
    save_figure,
    show_pictures,
    show_range,
)
from eande.studies.lorenz96.ring import REGIONS
from eande.studies.lorenz96.tables import size_of, terms_of
from eande.studies.markdown import table

_UNCALIBRATED = ", uncalibrated"


@dataclass(frozen=True)
class Shown:
    """How a comparison is shown.

    Args:
        title: of its section.
        about: what it asks.
        against: the row that a row is compared with, given all rows; itself for none.
    """

    title: str
    about: str
    against: Callable[[str, Sequence[str]], str]


def _first(_: str, names: Sequence[str]) -> str:
    return names[0]


def _before(name: str, names: Sequence[str]) -> str:
    return names[max(0, names.index(name) - 1)]


def _symmetric(name: str, _: Sequence[str]) -> str:
    return f"L_sym,{name.partition(',')[2]}"


def _without_bank(name: str, names: Sequence[str]) -> str:
    return name.removesuffix(" and a bank") if name.endswith(" and a bank") else names[0]


def _before_calibration(name: str, _: Sequence[str]) -> str:
    return name if name.endswith(_UNCALIBRATED) else name + _UNCALIBRATED


def _same_number(name: str, _: Sequence[str]) -> str:
    return f"E&E,{name.rpartition(',')[2]}"


SHOWN = {
    "paper": Shown(
        "The paper's method",
        "The paper's method (`FitSettings.paper`, but for the score that selects the weights, "
        "which all rows share), and the baselines at the paper's settings. The paper reports a "
        "median MMD² (σ = 0.05, 2,000 samples) of 0.0032 and an angular distance of 0.090.",
        _first,
    ),
    "selection": Shown(
        "The same, selected by Σ q̂",
        "As above, but the weights are those of the largest Σ q̂ of the simulations held out, the "
        "paper's own score, for all rows. A few very sure posteriors decide it: it keeps a flow "
        "that has long over-fitted.",
        _first,
    ),
    "best": Shown(
        "Every method at its best",
        "`E&E` is the paper's method with a learned temperature, a moving average of its weights "
        "and negatives that push the encoder only; `E&E, three` is an ensemble of it; `critic` is "
        "NRE-C's network under E&E's loss.",
        lambda *_: "E&E",
    ),
    "calibrated": Shown(
        "One exponent each",
        "Every method before and after one constant exponent, found by cross-fitting on the "
        "simulations it was trained on.",
        _before_calibration,
    ),
    "efficiency": Shown(
        "How many simulations",
        "The same methods with more and fewer simulations.",
        _same_number,
    ),
    "ladder": Shown(
        "From the paper's method to ours",
        "One step at a time; each row against the one before it.",
        _before,
    ),
    "removed": Shown(
        "Ours without one of its parts", "Each row against that with all parts.", _first
    ),
    "weights": Shown(
        "The views' loss",
        "λ, the weight of L_YY. The paper finds that it leaves the mean of MMD as it is and "
        "lessens its spread.",
        _first,
    ),
    "losses": Shown(
        "The symmetry of the loss",
        "The paper finds both losses together better than L_ΦY, and that better than L_YΦ. Each "
        "row against L_sym at its temperature.",
        _symmetric,
    ),
    "bank": Shown(
        "The memory bank",
        "Smaller batches, as many passes over the simulations; each with and without a bank.",
        _without_bank,
    ),
}


def compared_section(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    """Return the section on one comparison: what all rows got, and what they made of it."""
    name = content["study"].removeprefix("lorenz96-")
    shown = SHOWN[name]
    parts = [f"## {shown.title}\n", f"{shown.about}\n", f"{_terms(name, content['runs'])}\n"]
    for b, of_system in group(content["runs"], "b", COMPARISONS[name].systems).items():
        done = [run for run in of_system if not run.get("failed")]
        rows = group([run | {"row": _row(run)} for run in done], "row", row_names(name, b))
        parts.append(f"### b = {b:g}, {'as cited' if b == 10 else 'as printed'}\n")
        for run in of_system:
            if run.get("failed"):
                parts.append(f"{run['method']}, seed {run['seed']}, has failed: {run['failed']}\n")
        if not rows:
            continue
        waiting = [row for row in row_names(name, b) if row not in rows]
        if waiting:
            parts.append(f"Not run yet: {', '.join(waiting)}.\n")
        if name == "efficiency":
            parts += efficiency_parts(rows, pages, f"lorenz96-efficiency-b{b:g}.png")
        parts += [_table(rows), *_physics(done), *_effects(rows, shown), *_calibration(rows)]
        for bandwidth in ("0.05", "0.01"):
            boxes = plots.boxes(
                {row: pool(runs, f"mmd2_{bandwidth}_100") for row, runs in rows.items()},
                label=f"MMD², σ = {bandwidth}, 100 samples",
                floor=float(
                    np.median([run["medians"][f"mmd2_floor_{bandwidth}_100"] for run in done])
                ),
                title=f"Distance to the reference circle, b = {b:g}",
            )
            figure = f"lorenz96-{name}-b{b:g}-mmd-{bandwidth.replace('.', '')}.png"
            parts.append(save_figure(boxes, pages, figure, "Box plots of MMD² per row"))
        parts += show_pictures(
            results / f"lorenz96-{name}-b{b:g}-pictures.npz",
            pages,
            f"lorenz96-{name}-b{b:g}-posteriors.png",
            list(rows),
        )
    return parts


def _row(run: Run) -> str:
    """Return the name of a run's row; a method before its calibration has one of its own."""
    before = run["calibration"] == "none" and terms_of(run).calibration != "none"
    return run["method"] + _UNCALIBRATED if before else run["method"]


def _terms(name: str, runs: Sequence[Run]) -> str:
    """Say what every row got, and what differs between rows."""
    one = terms_of(runs[0])
    size = size_of(runs[0])
    scores = {"log_ratio": "the mean log ratio", "density": "the paper's Σ q̂"}
    said = {
        "simulations": f"{one.simulations} simulations to train",
        "validation": f"{one.validation} held out",
        "design": "draws of the prior" if one.design == "random" else "an even design",
        "turned": "the ring turned at random" if one.turned else "windows at random places",
        "select_by": f"weights of the best of {one.looks} looks at the simulations held out, by "
        f"{scores[one.select_by]}",
    }
    comparison = COMPARISONS[name]
    told = f" What differs: {comparison.told}." if comparison.told else ""
    return (
        f"All rows: {'; '.join(said[term] for term in said if term not in comparison.differs)}; "
        f"encoder {size.encoder}, {size.test} test data a seed, {size.samples} samples of each "
        f"posterior.{told} Settings were searched on other seeds, as below. Seconds of training "
        "are as they came, with compilation, of trainings side by side."
    )


def _table(rows: Mapping[str, Sequence[Run]]) -> str:
    lines = []
    samples = size_of(next(iter(rows.values()))[0]).samples
    for name, runs in rows.items():
        exponents = [run["exponent"] for run in runs if run.get("exponent")]
        lines.append(
            [
                name,
                str(len(runs)),
                show_range([run["mean_log_ratio"] for run in runs], 2),
                *(
                    f"{np.median(pool(runs, f'mmd2_{measure}')):.5f}"
                    for measure in ("0.01_100", "0.05_100", f"0.05_{samples}")
                ),
                f"{np.median(pool(runs, 'angular_tv')):.3f}",
                f"{np.median(pool(runs, 'radial_error')):.3f}",
                f"{np.median(pool(runs, 'crps')):.3f}",
                f"{np.sqrt(np.mean(np.square(pool(runs, 'z')))):.2f}",
                f"{np.median(exponents):.2f}" if exponents else "–",
                f"{runs[0]['parameters'] / 1e6:.1f}",
                f"{np.median([run['seconds_training'] for run in runs]):.0f}",
            ]
        )
    done = [run for runs in rows.values() for run in runs]
    floors = [
        f"{np.median([run['medians'][measure] for run in done]):.{digits}f}"
        for measure, digits in (
            ("mmd2_floor_0.01_100", 5),
            ("mmd2_floor_0.05_100", 5),
            (f"mmd2_floor_0.05_{samples}", 5),
            ("angular_tv_floor", 3),
        )
    ]
    lines.append(["floor", "", "", *floors, "", "", "1", "", "", ""])
    head = [
        "method",
        "seeds",
        "log ratio, nats",
        "MMD² σ = 0.01, 100",
        "σ = 0.05, 100",
        "σ = 0.05, all samples",
        "angle TV",
        "error of F",
        "CRPS",
        "z",
        "β",
        "weights, 10⁶",
        "training, s",
    ]
    return table(head, lines)


def _physics(runs: Sequence[Run]) -> list[str]:
    """Say how well F is known without any training."""
    known = [run["physics"] for run in runs if run.get("physics")]
    if not known:
        return []
    energy, momentum = (
        np.median([one[f"median_radial_error_of_{budget}"] for one in known])
        for budget in ("energy", "momentum")
    )
    return [
        f"Physics alone: the energy budget of a window gives F to {energy:.1g}, the momentum "
        f"budget to {momentum:.1g}.\n"
    ]


def _effects(rows: Mapping[str, Sequence[Run]], shown: Shown) -> list[str]:
    """Return by how much each row is better than the one that it is compared with."""
    names = list(rows)
    lines = []
    for name in names:
        reference = shown.against(name, names)
        if reference == name or reference not in rows:
            continue
        samples = size_of(rows[name][0]).samples
        measures = ("log_ratio", "crps", "mmd2_0.05_100", f"mmd2_0.05_{samples}", "angular_tv")
        found = [effect(rows[name], rows[reference], measure) for measure in measures]
        lines.append([f"{name} against {reference}", *map(_show_effect, found)])
    if not lines:
        return []
    head = ["", "log ratio", "CRPS", "MMD² σ = 0.05, 100", "all samples", "angle TV"]
    return [
        table(head, lines),
        "How much better, positive for better: mean difference datum by datum, with a 95 % "
        "interval over seeds and data (Student's, of at least three seeds), the seeds in which it "
        "is better, and what the interval says.\n",
    ]


def _show_effect(found: Effect | None) -> str:
    if found is None:
        return "–"
    if math.isinf(found.high):
        return f"{found.mean:+.2g}, {found.won} of {found.seeds}, too few seeds"
    return (
        f"{found.mean:+.2g} ({found.low:+.2g} to {found.high:+.2g}), "
        f"{found.won} of {found.seeds}, {found.verdict}"
    )


def _calibration(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return how often regions cover the truth, over fresh data and ranges of F."""
    lines = []
    for name, runs in rows.items():
        measured = [run["fresh"]["regions"] for run in runs if run.get("fresh")]
        for region in ("all", *REGIONS):
            found = [one[region] for one in measured if region in one]
            if found:
                covered = [
                    show_range([100 * one["coverage"][f"{level}"] for one in found], 0)
                    for level in LEVELS
                ]
                z = show_range([one["radial_z_rms"] for one in found], 2)
                lines.append([name, region, *covered, z])
    if not lines:
        return []
    return [
        table(["method", "fresh data", *(f"{level} %" for level in LEVELS), "z"], lines),
        "How often highest-density regions cover the true parameters, in per cent: mean and "
        "range over seeds.\n",
    ]
