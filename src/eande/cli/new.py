"""``eande new``: a study file to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from eande.cli.terminal import DebugOption, errors_in_one_line


def new(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The file to write: study.py.")],
    members: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A folder of simulations that exist already: .npz or NetCDF, one a file."
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Write a commented study file that runs as it is."""
    with errors_in_one_line(debug=debug):
        from eande.workflow.template import write_template

        write_template(study, members)
    typer.echo(f"wrote {study}\nnext: eande run {study}")
