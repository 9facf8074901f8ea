"""The page's sections on how long posterior values and training take."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from eande import plots
from eande.studies.lorenz96.page.parts import describe_hardware, save_figure
from eande.studies.markdown import table


def timing_section(content: dict[str, Any], _: Path, pages: Path) -> list[str]:
    """Return the table of times beside sbi, and their growth with the number of φ."""
    ours = content.get("seconds_recorded")
    plain = content.get("seconds_as_it_is")
    by_number = content.get("seconds_by_number_of_phi")
    if ours is None or plain is None or by_number is None:
        return []  # the study was stopped before
    rows = [
        ["Embed & Emulate, compiled, as CUDA graphs", f"{1e3 * ours:.2f} ms", "1"],
        ["Embed & Emulate as it is", f"{1e3 * plain:.2f} ms", f"{plain / ours:.1f}"],
    ]
    for kind in ("nre-c", "npe-c"):
        found = content.get(kind)
        if found:
            # In chunks or all at once, whatever is faster.
            best = min(found["seconds"], found.get("seconds_unchunked") or math.inf)
            scaled = best * 10_000 / found["phis"]
            times = f"{scaled / ours:.0f} (as it is: {scaled / plain:.0f})"
            rows.append([f"{kind} as sbi evaluates it", f"{1e3 * scaled:.0f} ms", times])
    grown = {int(number): value for number, value in by_number.items()}
    figure = plots.curves(
        {"one observation": (list(grown), np.array([list(grown.values())], dtype=float))},
        x="number of φ",
        y="seconds",
        title="Posterior values, encoder included",
        log_x=True,
        log_y=True,
    )
    parameters = " and ".join(
        f"the {name} {number:,}" for name, number in content.get("parameters", {}).items()
    )
    return [
        f"## Timing ({describe_hardware(content)})\n",
        "Posterior values of 10,000 φ for one observation, encoder included; "
        f"{parameters} parameters.\n",
        table(["method", "time", "times ours"], rows),
        save_figure(figure, pages, "lorenz96-timing.png", "Time against the number of parameters"),
    ]


def training_section(content: dict[str, Any], _: Path, __: Path) -> list[str]:
    """Return a line on how long training takes."""
    one = content.get("seconds_with_one_view")
    two = content.get("seconds_with_two_views")
    if one is None or two is None:
        return []  # the study was stopped before
    return [
        f"Training, {content['settings']['epochs']} epochs, once compiled: "
        f"{one:.0f} s with one view, {two:.0f} s with two ({describe_hardware(content)}).\n"
    ]
