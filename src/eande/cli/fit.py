"""``eande fit``: train on the simulations of a run."""

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


def fit(
    study: StudyFile,
    settings: SettingsArgument = None,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train on the simulations; the same command goes on where it was stopped."""
    with errors_in_one_line(debug=debug):
        overrides = settings_of(settings)
        from eande.workflow.steps import take_fit

        context = begin(study, run, machine=machine)
        taken = take_fit(context, overrides)
        then = "sample" if context.study.observed is not None else "diagnose"
        tell(taken, then, study, run, machine=machine)
