"""``eande reproduce synthetic``: the paper's Table 1 and Figure 3."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from eande.cli.terminal import console, errors_in_one_line


def synthetic(
    size: Annotated[
        str,
        typer.Option(help="paper: the published figures; quick: minutes; toy: seconds, for tests."),
    ] = "paper",
    method: Annotated[
        str,
        typer.Option(help="ours, or paper: trained by FitSettings.paper."),
    ] = "ours",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per task.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for synthetic.json and the figures.")
    ] = Path("results"),
) -> None:
    """Fit the four synthetic tasks and compare every posterior with the exact one.

    The paper's Table 1 and Figure 3.
    """
    with errors_in_one_line():
        # The figures too, which need matplotlib: before hours of work, not after.
        from eande.studies.synthetic.figures import save_figures
        from eande.studies.synthetic.schema import PAPER_L1
        from eande.studies.synthetic.study import make_cells, run_study, study_name
        from eande.studies.synthetic.tables import results_table, run_line, summarize

        chosen = range(first_seed, first_seed + seeds)
        bar = Progress(
            SpinnerColumn(),
            TextColumn("fitting"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        task = bar.add_task("runs", total=len(make_cells(size, chosen, method)))

        def report(run: dict[str, Any]) -> None:
            bar.advance(task)
            console.print(run_line(run))

        with bar:
            runs, pictures = run_study(
                size, chosen, output, processes=processes, report=report, method=method
            )
        console.print(results_table(summarize(runs, PAPER_L1)))
        if method == "ours":
            for path in save_figures(runs, pictures, output):
                console.print(f"wrote {path}")
    console.print(f"wrote {output / f'{study_name(method)}.json'}")
