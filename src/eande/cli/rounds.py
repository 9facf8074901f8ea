"""``eande rounds``: simulations nearer and nearer to one observation's posterior."""

from typing import Annotated

import typer

from eande.cli.steps import begin, tell
from eande.cli.terminal import (
    DebugOption,
    JsonOption,
    RedoOption,
    RunOption,
    SettingsArgument,
    StudyFile,
    errors_in_one_line,
    settings_of,
)


def rounds(
    study: StudyFile,
    settings: SettingsArgument = None,
    n: Annotated[
        int | None,
        typer.Option("-n", min=1, help="Simulations of all rounds together; else the study's."),
    ] = None,
    number: Annotated[int, typer.Option("--rounds", min=1, help="How many rounds.")] = 4,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes for the simulations.")
    ] = None,
    redo: RedoOption = None,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Simulate and fit in rounds near the study's observation, sample, and report on that."""
    with errors_in_one_line(debug=debug):
        overrides = settings_of(settings)
        from eande.workflow.rounds import take_rounds

        context = begin(study, run, machine=machine)
        made = take_rounds(context, overrides, n=n, number=number, executor=workers, redo=redo)
        for taken in made:
            tell(taken, None, study, run, machine=machine)
