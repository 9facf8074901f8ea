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
            "quick: 10,000 simulations, few observations; toy."
        ),
    ] = "paper",
    task: Annotated[
        list[str] | None, typer.Option(help="Which of the five; all by default.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of simulations and networks.")] = 0,
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

    Five tasks, three numbers of simulations, ten observations.
    """
    with errors_in_one_line():
        from eande.studies.sbibm.page import write_page
        from eande.studies.sbibm.study import run_line, run_study

        runs = run_study(
            size,
            task or [],
            wheel,
            output,
            seed=seed,
            progress=size != "toy",
            report=lambda run: console.print(run_line(run)),
        )
        page = (pages or (Path("docs/results") if size == "paper" else output)) / "sbibm.md"
        write_page(runs, page)
    console.print(f"wrote {output / 'sbibm.json'} and {page}")
