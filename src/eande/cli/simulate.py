"""``eande simulate``: fill the store of a run."""

from typing import Annotated, Any

import typer

from eande.cli.steps import begin, tell
from eande.cli.terminal import (
    DebugOption,
    JsonOption,
    RedoOption,
    RunOption,
    StudyFile,
    errors_in_one_line,
)


def simulate(
    study: StudyFile,
    n: Annotated[
        int | None,
        typer.Option("-n", min=1, help="Number of simulations; else the study's. More extends."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes on this machine.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of a dask scheduler.")
    ] = None,
    redo: RedoOption = None,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Draw parameters from the prior and simulate each; the same command goes on, or extends."""
    with errors_in_one_line(debug=debug):
        from eande.foundations.checks import InputError

        if workers is not None and dask is not None:
            raise InputError("expected --workers or --dask, got both")
        from eande.workflow.steps import take_simulate

        context = begin(study, run, machine=machine)
        taken = take_simulate(context, n=n, executor=_executor(workers, dask), redo=redo)
        tell(taken, "fit", study, run, machine=machine)


def _executor(workers: int | None, dask: str | None) -> Any:
    if dask is None:
        return workers
    try:
        from distributed import Client
    except ImportError:
        raise ImportError(
            "--dask needs distributed, got none: pip install 'embed-and-emulate[scale]'"
        ) from None
    from eande.foundations.checks import InputError

    try:
        # One that finds nobody would stay the default of all that uses dask.
        return Client(dask, timeout="20s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"dask: expected the address of a scheduler, got {dask!r} ({error})"
        ) from None
