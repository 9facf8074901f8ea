"""The last step of a run: its report."""

from __future__ import annotations

from typing import Any

from eande.reporting.report import report
from eande.workflow.steps import Context, Taken, as_seen, parts, the_model


def take_report(context: Context) -> Taken:
    """Write the report of a run: always anew, for it says when and by which command."""
    study = context.study
    train, held_out = parts(context)
    model = the_model(context)
    observed = None if study.observed is None else as_seen(context, model, study.observed)
    with context.folder.alone():
        made = report(
            model,
            context.folder.report,
            observed=observed,
            held_out=held_out,
            simulator=study.simulator,
            simulations=train,
            views=study.views,
            derived=study.derived,
            title=study.title,
            about=study.about,
            provenance=_provenance(context),
            seed=study.seed,
            progress=context.progress,
        )
        context.remember("report", "", path=str(made.path))
    return Taken("report", str(made), [made.path, made.json_path])


def _provenance(context: Context) -> dict[str, Any]:
    """Return how the run was made: the commands, the seed, the settings."""
    record = context.folder.record()
    steps = {} if record is None else record.steps
    commands = {f"{name}, {step.date}": step.command for name, step in steps.items()}
    return {
        "study": str(context.study.path),
        "command": context.command,
        "seed": context.study.seed,
        "settings": context.study.settings.describe(),
        **commands,
    }
