"""``eande report``: one page of all that was found."""

from typing import Annotated

import typer

from eande.cli.steps import begin, tell
from eande.cli.terminal import DebugOption, JsonOption, RunOption, StudyFile, errors_in_one_line


def report(
    study: StudyFile,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes for simulations from the posterior.")
    ] = None,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write the report: one HTML file to send to a colleague."""
    with errors_in_one_line(debug=debug):
        from eande.workflow.report import take_report

        context = begin(study, run, machine=machine)
        tell(take_report(context, executor=workers), None, study, run, machine=machine)
