"""``eande info``: what is in this study, run, store, model or result?"""

from pathlib import Path
from typing import Annotated

import typer

from eande.cli.terminal import DebugOption, JsonOption, errors_in_one_line, say


def info(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A study, run, store, model, samples, report, or results."
        ),
    ],
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what is at a path."""
    with errors_in_one_line(debug=debug):
        from eande.workflow.look import look_at

        what, found = look_at(path)
    known = {name: value for name, value in found.items() if value is not None and value != []}
    width = max(map(len, known), default=0)
    lines = [f"{path}: {what}", *(f"  {name:{width}}  {_text(x)}" for name, x in known.items())]
    say("\n".join(lines), {"what": what, **found}, machine=machine)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
