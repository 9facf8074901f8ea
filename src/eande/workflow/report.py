"""The last step of a run: its report, with simulations near the observation."""

from __future__ import annotations

from typing import Any

from eande.foundations.files import digest_file, digest_of
from eande.foundations.seeds import derive_seed
from eande.inference.model import EmbedAndEmulate
from eande.inference.predict import predict
from eande.reporting.report import report
from eande.simulation.read.simulations import Simulations
from eande.workflow.steps import (
    Context,
    Taken,
    as_seen,
    checking,
    parts,
    posterior_of,
    the_model,
)

# Simulations from the posterior: this share of those trained on, from so many to so many.
_SHARE = 0.1
_FEWEST = 200
_MOST = 500


def take_report(
    context: Context,
    *,
    executor: Any = None,
    of: tuple[Simulations, Simulations | None] | None = None,
) -> Taken:
    """Write the report of a run: always anew, for it says when and by which command.

    Simulations from the posterior of the observation are made first, into a store of their own:
    they are not made again.

    Args:
        context: study and folder.
        executor: where to simulate, as for :func:`eande.simulate`.
        of: simulations that the model was fitted to, and those that check it; None for the run's.
    """
    study = context.study
    train, held_out = of or (parts(context)[0], checking(context))
    model = the_model(context)
    observed = None if study.observed is None else as_seen(context, model, study.observed)
    with context.folder.alone():
        made = report(
            model,
            context.folder.report,
            observed=observed,
            held_out=held_out,
            simulations=train,
            predicted=predictions(context, model, executor=executor),
            views=study.views,
            derived=study.derived,
            title=study.title,
            about=study.about,
            provenance=_provenance(context),
            seed=study.seed,
            progress=context.progress,
        )
        alarms = [verdict.question for verdict in made.alarms]
        context.remember("report", "", alarms=alarms)
    content = {"verdicts": [vars(verdict) for verdict in made.verdicts]}
    return Taken("report", str(made), [made.path, made.json_path], content)


def predictions(
    context: Context, model: EmbedAndEmulate, *, executor: Any = None
) -> Simulations | None:
    """Return simulations of parameters from the posterior; None where there can be none."""
    study = context.study
    if study.observed is None or study.simulator is None:
        return None
    n = study.predicted
    if n is None:
        n = min(_MOST, max(_FEWEST, round(_SHARE * study.n)))
    if n == 0:
        return None
    inputs = digest_of(
        model=digest_file(context.folder.model_in_use()),
        y=study.observed.tolist(),
        n=n,
        seed=study.seed,
    )
    return predict(
        posterior_of(context, model, study.observed),
        study.simulator,
        n,
        store=context.folder.predicted(inputs),
        executor=executor,
        seed=derive_seed(study.seed, "predicted"),
        progress=context.progress,
    )


def _provenance(context: Context) -> dict[str, Any]:
    """Return how the run was made: the commands, the seed, the settings."""
    record = context.folder.record()
    steps = {} if record is None else record.steps
    taken = {
        f"step {name}": f"{step.command} ({step.date})"
        for name, step in steps.items()
        if name != "report"
    }
    return {
        "study": str(context.study.path),
        "command": context.command,
        "seed": context.study.seed,
        **taken,
        "settings of the fit": context.study.settings.describe(),
    }
