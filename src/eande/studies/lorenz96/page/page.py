"""The results page of the Lorenz 96 study: tables and figures made from the result files, and nothing else."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eande.diagnostics.diagnose import LEVELS
from eande.foundations.checks import InputError
from eande.plots import figures as plots
from eande.studies.lorenz96 import BASELINES, METHODS, read_pictures
from eande.studies.records import read_json, table
from eande.studies.ring import HALF_WIDTH

_HEAD = """# Lorenz 96: the study

Generated from the files in `results/` by `eande reproduce lorenz96 --only page`; do not edit. The task: (F₁, F₂) given one window of 250 × 396
numbers of the two-scale Lorenz 96 system (b = 10 unless said), prior uniform on [−15, 15]². The data determine F = √(F₁² + F₂²) and nothing
else: the reference posterior is the circle of radius F inside the square.

Methods: `plain` is the paper's; `anchored` learns the temperature, turns the ring at random and lets the negatives of L_ΦY push the encoder only;
`calibrated` is the anchored model and `ensemble` the mean of three, their exponents (β: the median) found on simulations used for nothing else,
which the other methods do not get; `aimed` is the anchored model whose embeddings the same simulations moved before. `nre-c` and `npe-c` are sbi's
networks and losses with every datum embedded once, on the same encoder, windows and selection; the ring is turned for them too, as it is for all
but `plain`, and NPE-C trains as long in smaller batches, without which its flow does not learn. `critic` is NRE-C's network under E&E's loss.
"""


def write_page(results: Path, pages: Path) -> Path:
    """Write ``lorenz96.md`` and its figures into a folder, from whatever result files there are."""
    sections = {
        "main": _main, "printed": _main, "timing": _timing, "training": _training, "views": _ablation, "symmetry": _ablation,
        "normalizer": _normalizer, "search": _search,
    }  # fmt: skip
    found = {
        name: path for name in sections if (path := results / f"lorenz96-{name}.json").exists()
    }
    if not found:
        raise InputError(
            f"output: expected a folder with results of the study, lorenz96-*.json, got none in {results}"
        )
    pages.mkdir(parents=True, exist_ok=True)
    parts = [_HEAD]
    for name, path in found.items():
        parts += sections[name](read_json(path), results, pages)
    page = pages / "lorenz96.md"
    page.write_text("\n".join(parts))
    return page


def _save(figure: Any, pages: Path, name: str, text: str) -> str:
    figure.savefig(pages / name, dpi=110)
    return f"![{text}]({name})\n"


def _by(
    runs: Sequence[dict[str, Any]], key: str, order: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Group runs by a field, in that order, others after."""
    names = sorted(
        {run[key] for run in runs},
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    return {name: [run for run in runs if run[key] == name] for name in names}


def _pooled(runs: Sequence[dict[str, Any]], measure: str) -> list[float]:
    return [value for run in runs for value in run["per_datum"][measure]]


def _range(values: Sequence[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _main(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    groups, samples = (
        _by(content["runs"], "method", [*METHODS, *BASELINES]),
        content["settings"]["samples"],
    )
    everything = [run for runs in groups.values() for run in runs]
    floors = {
        measure: float(np.median(_pooled(everything, f"mmd2_floor_{measure}")))
        for measure in ("0.01_100", "0.05_100", f"0.05_{samples}")
    }
    rows = []
    for name, runs in groups.items():
        medians = [f"{np.median(_pooled(runs, f'mmd2_{measure}')):.5f}" for measure in floors]
        others = [
            f"{np.median(_pooled(runs, measure)):.3f}"
            for measure in ("angular_tv", "radial_error", "crps")
        ]
        exponents = [run["calibrated"]["exponent"] for run in runs if "calibrated" in run]
        beta = f"{np.median(exponents):.2f}" if exponents else "–"
        nats = _range([run["mean_log_ratio"] for run in runs], 2)
        rows.append(
            [
                name,
                str(len(runs)),
                nats,
                *medians,
                *others,
                f"{np.sqrt(np.mean(np.square(_pooled(runs, 'z')))):.2f}",
                beta,
            ]
        )
    tv = np.median(_pooled(everything, "angular_tv_floor"))
    rows.append(
        [
            "floor",
            "",
            "",
            *(f"{floor:.5f}" for floor in floors.values()),
            f"{tv:.3f}",
            "",
            "",
            "1",
            "",
        ]
    )
    physics = {
        name: np.median([run["physics"][name] for run in everything])
        for name in everything[0]["physics"]
    }
    sizes = ["MMD² σ = 0.01, 100", "σ = 0.05, 100", f"σ = 0.05, {samples}"]
    head = [
        "method",
        "seeds",
        "log ratio, nats",
        *sizes,
        "angle TV",
        "error of F",
        "CRPS",
        "z",
        "β",
    ]
    boxes = plots.boxes(
        {name: _pooled(runs, "mmd2_0.05_100") for name, runs in groups.items()},
        label="MMD², σ = 0.05, 100 samples", floor=floors["0.05_100"], title="Distance to the reference circle",
    )  # fmt: skip
    used = content["settings"]
    sizes_of = f"{used['simulations']} simulations to train, {used['validation']} to select, {used['calibration']} to calibrate; encoder {used['encoder']}."
    recovered = {
        name: [
            min(run["calibration"]["prior_recovery"][f"p_value_of_{test}"] for run in runs)
            for test in ("counts", "radii")
        ]
        for name, runs in groups.items()
        # A flow's posteriors share too few draws for this test.
        if name != "npe-c" and all("calibration" in run for run in runs)
    }
    smallest = ", ".join(
        f"{name} {counts:.2g} and {radii:.2g}" for name, (counts, radii) in recovered.items()
    )
    return [
        f"## {'The printed system, b = 1' if content['settings']['b'] == 1 else 'Main comparison'}\n",
        f"{sizes_of} Fewest effective prior draws of any posterior: {min(run['fewest_effective_draws'] for run in everything):.0f}.\n",
        table(head, rows),
        "Medians over all seeds and test data; log ratio: mean over data, mean and range over seeds; z: root mean square of the radial z-score. "
        "MMD² is a V-statistic, of samples scaled to [−1, 1]², averaged over disjoint sets of that many samples. Physics alone: the energy budget "
        f"of a window gives F to {physics['median_radial_error_of_energy']:.1g}, the momentum budget to "
        f"{physics['median_radial_error_of_momentum']:.1g}.\n",
        _save(boxes, pages, f"{content['study']}-mmd.png", "Box plots of MMD² per method"),
        *_pictures(
            results / f"{content['study']}-pictures.npz",
            pages,
            f"{content['study']}-posteriors.png",
            [*METHODS, *BASELINES],
        ),
        *_agreement(groups, samples),
        *_coverage(groups),
        *(
            [
                "Does the average posterior give back the prior? One draw of each against it, smallest p-values over seeds, of counts in cells and "
                f"of radii: {smallest}.\n"
            ]
            if recovered
            else []
        ),
    ]


def _agreement(groups: dict[str, list[dict[str, Any]]], samples: int) -> list[str]:
    """Say where the ordering of methods is the paper's (E&E well under NRE-C and NPE-C, with less spread), per seed and per measure."""
    ours, others = (
        [name for name in METHODS if name in groups],
        [name for name in ("nre-c", "npe-c") if name in groups],
    )
    rows: list[list[str]] = []
    lower: dict[str, bool] = {}
    for name in ours:
        for other in others:
            pairs = [
                (mine, theirs)
                for mine in groups[name]
                for theirs in groups[other]
                if mine["seed"] == theirs["seed"]
            ]
            if not pairs:
                continue
            cells = []
            for measure, value, sign in _compared(samples):
                differences = [sign * (value(mine) - value(theirs)) for mine, theirs in pairs]
                if measure.startswith("MMD²"):
                    lower[name] = lower.get(name, True) and min(differences) > 0
                cells.append(
                    f"{sum(one > 0 for one in differences)} of {len(pairs)} ({np.mean(differences):+.2g})"
                )
            rows.append([f"{name} against {other}", *cells])
    if not rows:
        return []
    yes, no = (
        ", ".join(name for name, value in lower.items() if value == wanted)
        for wanted in (True, False)
    )
    return [
        "### Is the ordering the paper's?\n",
        "The paper finds E&E well under NRE-C and NPE-C in MMD, with less spread. Seeds in which the first is better than the second, by how much on "
        "average (positive: better):\n",
        table(["", *(name for name, _, _ in _compared(samples))], rows),
        f"In MMD², the ordering is the paper's in every seed for: {yes or 'none'}; not for: {no or 'none'}.\n",
    ]


def _compared(samples: int) -> list[tuple[str, Callable[[dict[str, Any]], float], int]]:
    """Return measures with what they are of a run, and 1 where more is better."""

    def spread(measure: str) -> Callable[[dict[str, Any]], float]:
        return lambda run: float(np.subtract(*np.quantile(run["per_datum"][measure], [0.75, 0.25])))

    def median(measure: str) -> Callable[[dict[str, Any]], float]:
        return lambda run: float(run[f"median_{measure}"])

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


def _coverage(groups: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = []
    for name, runs in groups.items():
        measured = [run["calibration"]["regions"] for run in runs if "calibration" in run]
        for region in measured[0] if measured else ():
            cells = [
                _range(
                    [
                        100 * one[region]["coverage"][f"{level}"]
                        for one in measured
                        if region in one
                    ],
                    0,
                )
                for level in LEVELS
            ]
            rows.append(
                [
                    name,
                    region,
                    *cells,
                    _range([one[region]["radial_z_rms"] for one in measured if region in one], 2),
                ]
            )
    head = ["method", "data", *(f"{level} %" for level in LEVELS), "z"]
    text = "How often highest-density regions cover the true parameters, in per cent, on fresh simulations: mean and range over seeds.\n"
    return ["### Calibration\n", table(head, rows), text] if rows else []


def _pictures(path: Path, pages: Path, name: str, order: Sequence[str]) -> list[str]:
    arrays = read_pictures(path)
    if not arrays:
        return []
    phi = arrays.pop("phi")
    densities = {
        key: arrays[key]
        for key in sorted(arrays, key=lambda key: order.index(key) if key in order else len(order))
    }
    return [
        _save(
            plots.posterior_grid(densities, phi, half_width=HALF_WIDTH),
            pages,
            name,
            "Posteriors of three test data",
        )
    ]


def _timing(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    ours, plain = content["seconds_recorded"], content["seconds_as_it_is"]
    rows = [["Embed & Emulate, compiled and recorded", f"{1e3 * ours:.2f} ms", "1"]]
    rows.append(["Embed & Emulate as it is", f"{1e3 * plain:.2f} ms", f"{plain / ours:.1f}"])
    for kind in ("nre-c", "npe-c"):
        if kind in content:
            # In chunks or all at once, whatever is faster.
            best = min(content[kind]["seconds"], content[kind].get("seconds_unchunked", math.inf))
            scaled = best * 10_000 / content[kind]["phis"]
            rows.append(
                [
                    f"{kind} as sbi evaluates it",
                    f"{1e3 * scaled:.0f} ms",
                    f"{scaled / ours:.0f} (as it is: {scaled / plain:.0f})",
                ]
            )
    grown = {int(number): value for number, value in content["seconds_by_number_of_phi"].items()}
    line = {"one observation": (list(grown), np.array([list(grown.values())]))}
    figure = plots.curves(
        line,
        x="number of φ",
        y="seconds",
        title="Posterior values, encoder included",
        log_x=True,
        log_y=True,
    )
    parameters = " and ".join(
        f"the {name} {number:,}" for name, number in content["parameters"].items()
    )
    return [
        f"## Timing ({_hardware(content)})\n",
        f"Posterior values of 10,000 φ for one observation, encoder included; {parameters} parameters.\n",
        table(["method", "time", "times ours"], rows),
        _save(figure, pages, "lorenz96-timing.png", "Time against the number of parameters"),
    ]


def _training(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    one, two = content["seconds_with_one_view"], content["seconds_with_two_views"]
    epochs = content["settings"]["epochs"]
    return [
        f"Training, {epochs} epochs, once compiled: {one:.0f} s with one view, {two:.0f} s with two ({_hardware(content)}).\n"
    ]


def _hardware(content: dict[str, Any]) -> str:
    hardware = content["provenance"]["hardware"]
    return hardware["gpu"] if content["device"] == "cuda" else f"{hardware['cores']} CPU cores"


def _ablation(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    name = content["study"].removeprefix("lorenz96-")
    groups, samples = (
        _by(content["runs"], "variant", list(content["settings"]["variants"])),
        content["settings"]["samples"],
    )
    quartiles = {
        label: np.quantile(_pooled(runs, f"mmd2_0.05_{samples}"), [0.25, 0.5, 0.75])
        for label, runs in groups.items()
    }
    medians, spreads = (
        {label: q[1] for label, q in quartiles.items()},
        {label: q[2] - q[0] for label, q in quartiles.items()},
    )
    rows = [
        [label, str(len(runs)), _range([run["mean_log_ratio"] for run in runs], 2), f"{medians[label]:.5f}", f"{spreads[label]:.5f}",
         f"{np.median(_pooled(runs, 'angular_tv')):.3f}"]
        for label, runs in groups.items()
    ]  # fmt: skip
    title, finding = {
        "views": (
            "The views' loss",
            "that λ leaves the mean of MMD as it is and lessens its spread",
        ),
        "symmetry": (
            "The symmetry of the loss",
            "both losses together better than L_ΦY, and that better than L_YΦ",
        ),
    }[name]
    return [
        f"## {title}\n",
        f"All with the plain method. The paper finds {finding}. Here the smallest median is that of {min(medians, key=medians.__getitem__)}, "
        f"the least spread that of {min(spreads, key=spreads.__getitem__)}.\n",
        table(
            [
                "variant",
                "seeds",
                "log ratio, nats",
                f"MMD² σ = 0.05, {samples}",
                "its interquartile range",
                "angle TV",
            ],
            rows,
        ),
        *_pictures(
            results / f"lorenz96-{name}-pictures.npz", pages, f"lorenz96-{name}.png", list(groups)
        ),
    ]


def _normalizer(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    groups = _by(content["runs"], "variant", list(content["settings"]["variants"]))
    lines, rows = {}, []
    for label, runs in groups.items():
        values = np.array([[record["cv_normalizer"] for record in run["history"]] for run in runs])
        lines[label] = ([record["epoch"] for record in runs[0]["history"]], values)
        last = [run["history"][-1] for run in runs]
        rows.append(
            [
                label,
                str(len(runs)),
                _range(values[:, -1].tolist(), 3),
                _range([record["held_out_log_ratio"] for record in last], 2),
            ]
        )
    figure = plots.curves(
        lines, x="epoch", y="CV of C(y)", title="Mean and one standard deviation over trials"
    )
    return [
        "## The normaliser during training\n",
        table(["variant", "trials", "CV(C) at the end", "log ratio at the end"], rows),
        f"The normaliser over up to 100,000 prior draws, on held-out data. {_one_sided(groups)}\n",
        _save(
            figure,
            pages,
            "lorenz96-normalizer.png",
            "Coefficient of variation of C during training",
        ),
    ]


def _one_sided(groups: dict[str, list[dict[str, Any]]]) -> str:
    """Say by how much CV(C) of the one-sided losses is over the symmetric one's, with standard errors."""
    last = {
        label: np.array([run["history"][-1]["cv_normalizer"] for run in runs])
        for label, runs in groups.items()
        if len(runs) > 1
    }
    told = []
    for label, values in last.items():
        same = last.get(f"L_sym,{label.partition(',')[2]}")
        if "only" in label and same is not None:
            error = math.hypot(*(one.std(ddof=1) / math.sqrt(len(one)) for one in (values, same)))
            told.append(f"{label}: {values.mean() - same.mean():+.3f} ± {error:.3f}")
    paper = "The paper finds the symmetric loss's CV(C) under the one-sided ones'. By how much theirs is over it here:"
    return f"{paper} {'; '.join(told)}." if told else ""


def _search(content: dict[str, Any], results: Path, pages: Path) -> list[str]:
    groups = _by(content["runs"], "variant", list(content["settings"]["variants"]))
    reached = {
        variant: [max(record["held_out_log_ratio"] for record in run["history"]) for run in runs]
        for variant, runs in groups.items()
    }
    rows = [[variant, _range(values, 2)] for variant, values in reached.items()]
    seeds = sorted({run["seed"] for run in content["runs"]})
    return [
        "## Settings tried\n",
        table(["settings", "held-out log ratio, nats"], rows),
        f"Best epoch of each, after half the epochs of the tables above; seeds {seeds}.\n",
    ]
