"""``eande reproduce sbibm``: the field's common benchmark."""

from pathlib import Path
from typing import Annotated

import typer

from eande.cli.terminal import console, errors_in_one_line


def sbibm(
    size: Annotated[
        str,
        typer.Option(
            help="paper: every cell, hours on two cores; "
            "quick: 10,000 simulations, few observations and samples; toy."
        ),
    ] = "paper",
    task: Annotated[
        list[str] | None, typer.Option(help="Which of the ten; all by default.")
    ] = None,
    simulations: Annotated[
        list[int] | None, typer.Option(help="1000, 10000 or 100000; all by default.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of simulations and networks; three by default, one of 100,000 simulations."
        ),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Train sbi's NPE instead, with its defaults, at 1,000 and 10,000 simulations.",
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            help="Where to fit and to sample: cpu, cuda, or auto for a GPU where there is one."
        ),
    ] = "auto",
    add: Annotated[
        list[Path] | None,
        typer.Option(
            file_okay=False, help="Run nothing; add the sbibm.json of this folder to the output's."
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Run nothing; write the page of what is there.")
    ] = False,
    wheel: Annotated[
        Path | None,
        typer.Option(
            help="sbibm-1.1.0-py2.py3-none-any.whl; by default pip downloads it. "
            "Nothing of it is run."
        ),
    ] = None,
    output: Annotated[Path, typer.Option(file_okay=False, help="Folder for sbibm.json.")] = Path(
        "results"
    ),
    pages: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for the results page; docs/results for the size paper, else the output.",
        ),
    ] = None,
) -> None:
    """Score the field's common benchmark against samples of exact posteriors.

    Ten tasks, three numbers of simulations, ten observations. Options choose a part of it; what is
    done is not done again.
    """
    with errors_in_one_line():
        from eande.studies.sbibm.page import write_page
        from eande.studies.sbibm.study import cells_of, collect, run_line, run_study

        if page or add:
            runs = collect(size, output, add or [])
        else:
            cells = cells_of(
                size, tasks=task or [], budgets=simulations or [], seed=seed, baseline=baseline
            )
            runs = run_study(
                size,
                cells,
                wheel,
                output,
                device=device,
                progress=size != "toy",
                report=lambda run: console.print(run_line(run)),
            )
        path = (pages or (Path("docs/results") if size == "paper" else output)) / "sbibm.md"
        write_page(runs, path)
    console.print(f"wrote {output / 'sbibm.json'} and {path}")
