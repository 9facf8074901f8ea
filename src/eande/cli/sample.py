"""``eande sample``: samples of the posterior of an observation."""

from pathlib import Path
from typing import Annotated

import typer

from eande.cli.steps import begin, tell
from eande.cli.terminal import DebugOption, JsonOption, RunOption, StudyFile, errors_in_one_line


def sample(
    study: StudyFile,
    observed: Annotated[
        list[Path] | None,
        typer.Option(help="Files of other observations: .npy, .npz, .nc, .csv or .txt."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=2, help="Samples of each.")] = 10_000,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the samples.")] = None,
    run: RunOption = None,
    machine: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Sample the posterior of the study's observation, or of those in files."""
    with errors_in_one_line(debug=debug):
        from eande.workflow.steps import take_sample

        context = begin(study, run, machine=machine)
        all_taken = take_sample(context, observed or [], n=n, seed=seed)
        for taken in all_taken:
            last = taken is all_taken[-1]
            tell(taken, "diagnose" if last else None, study, run, machine=machine)
