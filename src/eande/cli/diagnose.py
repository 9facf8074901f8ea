"""``eande diagnose``: is the model right? By simulations that it has not seen."""

from eande.cli.steps import begin, tell
from eande.cli.terminal import DebugOption, JsonOption, RunOption, StudyFile, errors_in_one_line


def diagnose(
    study: StudyFile,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check the model by the simulations held out from its training."""
    with errors_in_one_line(debug=debug):
        from eande.workflow.steps import take_diagnose

        context = begin(study, run, machine=machine)
        tell(take_diagnose(context), "report", study, run, machine=machine)
