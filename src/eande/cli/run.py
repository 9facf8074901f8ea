"""``eande run``: all steps of a study, from simulations to the report."""

from typing import Annotated

import typer

from eande.cli.steps import begin, tell
from eande.cli.terminal import (
    DebugOption,
    JsonOption,
    RunOption,
    SettingsArgument,
    StudyFile,
    errors_in_one_line,
    settings_of,
)


def run(
    study: StudyFile,
    settings: SettingsArgument = None,
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="Number of simulations; else the study's.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes for the simulations.")
    ] = None,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Simulate, fit, sample, diagnose and report; what is done already is not done again."""
    with errors_in_one_line(debug=debug):
        overrides = settings_of(settings)
        from eande.workflow.run import take_all

        context = begin(study, run, machine=machine)
        for taken in take_all(context, overrides, n=n, workers=workers):
            tell(taken, None, study, run, machine=machine)
