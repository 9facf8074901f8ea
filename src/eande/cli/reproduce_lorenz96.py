"""``eande reproduce lorenz96``: the paper's Section 5.2."""

import math
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from eande.cli.terminal import console, errors_in_one_line


class Device(StrEnum):
    """Where to run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Part(StrEnum):
    """Which table or figure."""

    search = "search"
    paper = "paper"
    selection = "selection"
    best = "best"
    calibrated = "calibrated"
    weights = "weights"
    losses = "losses"
    bank = "bank"
    ladder = "ladder"
    removed = "removed"
    efficiency = "efficiency"
    timing = "timing"
    training = "training"
    page = "page"


class System(StrEnum):
    """Of which system: b as the paper's reference has it, as the paper prints it, or both."""

    cited = "cited"
    printed = "printed"
    both = "both"


def lorenz96(
    size: Annotated[
        str,
        typer.Option(
            help="paper: ResNet-34, a GPU; small: a small encoder; smoke: paper's code in a "
            "minute; toy."
        ),
    ] = "small",
    only: Annotated[
        Part,
        typer.Option(
            help="Which comparison; search goes before any of them, and page writes "
            "docs/results/lorenz96.md from what was run."
        ),
    ] = Part.paper,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Rows of the comparison, or methods to search; all by default."),
    ] = None,
    system: Annotated[System, typer.Option(help="cited: b = 10; printed: b = 1.")] = System.both,
    baselines: Annotated[bool, typer.Option(help="sbi's NRE-C and NPE-C in timing, too.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; by default the comparison's.")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Trainings side by side.")] = 1,
    minutes: Annotated[
        float, typer.Option(min=0, help="After which no further run is begun.")
    ] = math.inf,
    device: Annotated[
        Device, typer.Option(help="auto takes a GPU where there is one.")
    ] = Device.auto,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the result files.")
    ] = Path("results"),
    pages: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the results page.")
    ] = Path("docs/results"),
) -> None:
    """Infer the forcing (F₁, F₂) of Lorenz 96 from windows of 250 × 396 numbers.

    The posterior is a ring (the paper's Section 5.2). Every run is written at once: the same
    command goes on where it was stopped.
    """
    with errors_in_one_line():
        if only is Part.page:
            from eande.studies.lorenz96.page.page import write_page

            console.print(f"wrote {write_page(output, pages)}")
            return
        chosen = _choose_device(device)
        if only is Part.timing:
            from eande.studies.lorenz96.timing import run_timing

            run_timing(size, output, baselines=baselines, device=chosen, progress=size != "toy")
        elif only is Part.training:
            from eande.studies.lorenz96.timing import run_training

            run_training(size, output, device=chosen, progress=size != "toy")
        else:
            _run(
                only.value,
                size,
                chosen,
                output,
                methods=method or [],
                system=system,
                seeds=None if seeds is None else range(first_seed, first_seed + seeds),
                first_seed=first_seed,
                workers=workers,
                until=time.time() + 60 * minutes,
            )
    console.print(f"wrote {output / f'lorenz96-{only.value}.json'}")


def _choose_device(device: Device) -> str:
    import torch

    if device is Device.auto:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device is Device.cuda and not torch.cuda.is_available():
        raise typer.BadParameter(
            "expected cpu or auto on a machine without a GPU, got cuda", param_hint="--device"
        )
    return device.value


def _run(
    part: str,
    size: str,
    device: str,
    output: Path,
    *,
    methods: list[str],
    system: System,
    seeds: range | None,
    first_seed: int,
    workers: int,
    until: float,
) -> None:
    from eande.studies.lorenz96.campaign import Campaign, run_comparison, run_search
    from eande.studies.lorenz96.comparisons import COMPARISONS

    systems = {System.cited: (10.0,), System.printed: (1.0,), System.both: (10.0, 1.0)}[system]
    with Campaign(output, workers=workers, until=until, report=_report) as campaign:
        if part == "search":
            run_search(campaign, size, device, kinds=methods, systems=systems)
            return
        if seeds is None:
            seeds = range(first_seed, first_seed + COMPARISONS[part].seeds)
        run_comparison(campaign, part, size, device, seeds=seeds, systems=systems, methods=methods)


def _report(run: Any) -> None:
    from eande.studies.lorenz96.tables import run_line

    console.print(run_line(run))
