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
            "--from",
            help="Simulations that exist already: a folder with a file for each, a table with a "
            "row for each, an .npz or NetCDF file with all of them, or a store.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="What the parameters are called there, if unclear."),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Write a commented study file that runs as it is."""
    with errors_in_one_line(debug=debug):
        from eande.workflow.template import write_template

        names = None if parameters is None else [one.strip() for one in parameters.split(",")]
        write_template(study, members, names)
    typer.echo(f"wrote {study}\nnext: eande run {study}")
