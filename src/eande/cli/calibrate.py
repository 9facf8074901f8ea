"""``eande calibrate``: regions that cover as often as they say."""

from typing import Annotated

import typer

from eande.cli.steps import begin, tell
from eande.cli.terminal import DebugOption, JsonOption, RunOption, StudyFile, errors_in_one_line


def calibrate(
    study: StudyFile,
    n: Annotated[
        int | None,
        typer.Option(
            "-n", min=1, help="Fresh simulations; else a fifth of the study's, 300 to 1,000."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes for the simulations.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Go back to the model as fitted.")] = False,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Calibrate the model by fresh simulations; the steps after it then take the result."""
    with errors_in_one_line(debug=debug):
        from eande.workflow.calibrate import take_calibrate, undo_calibrate

        context = begin(study, run, machine=machine)
        taken = undo_calibrate(context) if undo else take_calibrate(context, n=n, executor=workers)
        then = "sample" if context.study.observed is not None else "diagnose"
        tell(taken, then, study, run, machine=machine)
