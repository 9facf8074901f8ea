"""``eande reproduce lorenz96``: the paper's Section 5.2."""

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
    """Which table or figure; printed is the main table for the system as printed, b = 1."""

    main = "main"
    printed = "printed"
    timing = "timing"
    training = "training"
    views = "views"
    symmetry = "symmetry"
    normalizer = "normalizer"
    search = "search"
    page = "page"


def lorenz96(
    size: Annotated[
        str,
        typer.Option(
            help="paper: ResNet-34, a GPU; smoke: its code in a minute; small: two cores; "
            "demo: minutes; toy."
        ),
    ] = "small",
    only: Annotated[
        Part,
        typer.Option(
            help="Which table or figure; page writes docs/results/lorenz96.md from what was run."
        ),
    ] = Part.main,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="plain (the paper's), anchored, calibrated, aimed or ensemble; all by default."
        ),
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="NRE-C and NPE-C through sbi, and a generic critic, too.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    device: Annotated[
        Device, typer.Option(help="auto takes a GPU where there is one.")
    ] = Device.auto,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the result files and the figure.")
    ] = Path("results"),
    pages: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the results page.")
    ] = Path("docs/results"),
) -> None:
    """Infer the forcing (F₁, F₂) of Lorenz 96 from windows of 250 × 396 numbers.

    The posterior is a ring (the paper's Section 5.2).
    """
    with errors_in_one_line():
        if only is Part.page:
            from eande.studies.lorenz96.page.page import write_page

            console.print(f"wrote {write_page(output, pages)}")
            return
        from eande.studies.lorenz96.methods import choose_methods

        methods = choose_methods(method or [], baselines=baselines)
        common: dict[str, Any] = {"device": _choose_device(device), "progress": size != "toy"}
        chosen_seeds = range(first_seed, first_seed + seeds)
        if only is Part.timing:
            from eande.studies.lorenz96.timing import run_timing

            run_timing(size, output, baselines=baselines, **common)
        elif only is Part.training:
            from eande.studies.lorenz96.timing import run_training

            run_training(size, output, **common)
        elif only in (Part.main, Part.printed):
            printed = only is Part.printed
            _run_main(size, methods, chosen_seeds, output, printed=printed, **common)
        else:
            from eande.studies.lorenz96.variants import run_variants

            run_variants(only.value, size, chosen_seeds, output, report=_report, **common)
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


def _run_main(size: str, methods: list[str], seeds: range, output: Path, **options: Any) -> None:
    from eande.studies.lorenz96.main import run_main
    from eande.studies.lorenz96.sizes import choose_size
    from eande.studies.lorenz96.tables import results_table

    runs, figure = run_main(size, methods, seeds, output, report=_report, **options)
    console.print(results_table(runs, choose_size(size).samples))
    if figure is not None:
        console.print(f"wrote {figure}")


def _report(run: dict[str, Any]) -> None:
    from eande.studies.lorenz96.tables import run_line

    console.print(run_line(run))
