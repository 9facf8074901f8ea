"""The last step of a run: its report, with simulations near the observation."""

from __future__ import annotations

import shutil
from typing import Any

from eande.foundations.files import digest_file, digest_of
from eande.foundations.provenance import provenance
from eande.foundations.seeds import derive_seed
from eande.inference.model import EmbedAndEmulate
from eande.inference.predict import predict
from eande.reporting.report import Report, read_report, report
from eande.simulation.read.simulations import Simulations
from eande.simulation.store.provenance import describe_simulator, digest_simulator
from eande.workflow.folder import DIGEST, RunFolder
from eande.workflow.steps import (
    Context,
    Taken,
    as_seen,
    checking,
    is_damaged,
    parts,
    posterior_of,
    the_model,
)

_STEP = "report"
# Of failures, as many as there can be.
_REASONS = 1_000_000
# Simulations from the posterior: this share of those trained on, from so many to so many.
_SHARE = 0.1
_FEWEST = 200
_MOST = 500


def take_report(
    context: Context,
    *,
    executor: Any = None,
    of: tuple[Simulations, Simulations | None] | None = None,
    keep: bool = False,
) -> Taken:
    """Write the report of a run: anew, for it says when and by which command.

    Simulations from the posterior of the observation are made first, into a store of their own:
    they are not made again.

    Args:
        context: study and folder.
        executor: where to simulate, as for :func:`eande.simulate`.
        of: simulations that the model was fitted to, and those that check it; None for the run's.
        keep: whether to keep a report that was made from the same things.
    """
    study, folder = context.study, context.folder
    train, held_out = of or (parts(context)[0], checking(context))
    model = the_model(context)
    observed = None if study.observed is None else as_seen(context, model, study.observed)
    with folder.alone():
        inputs = _inputs(context, train, held_out)
        if keep and folder.is_done(_STEP, inputs, folder.report) and _is_as_written(folder):
            return _taken(read_report(folder.report), again=True)
        made = report(
            model,
            folder.report,
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
        context.remember(_STEP, inputs, alarms=alarms, **{DIGEST: _digest(folder)})
    return _taken(made, again=False)


def _taken(made: Report, *, again: bool) -> Taken:
    content = {"verdicts": [vars(verdict) for verdict in made.verdicts]}
    return Taken("report", str(made), [made.path, made.json_path], content, again=again)


def _inputs(context: Context, train: Simulations, held_out: Simulations | None) -> str:
    """Return a digest of all that a report depends on, but for the date and the command."""
    study, folder = context.study, context.folder
    record = folder.record()
    steps = {} if record is None else record.steps
    by = provenance()
    functions = {"views": study.views, "simulator": study.simulator, **study.derived}
    return digest_of(
        steps={name: step.inputs for name, step in steps.items() if name != _STEP},
        model=digest_file(folder.model_in_use()),
        simulations=[
            None if one is None else [one.fingerprint(), one.failures.commonest(_REASONS)]
            for one in (train, held_out)
        ],
        observed=None if study.observed is None else study.observed.tolist(),
        functions={
            name: [digest_simulator(one), describe_simulator(one)]
            for name, one in functions.items()
            if one is not None
        },
        settings=study.settings.describe(),
        words=[str(study.path), study.title, study.about],
        numbers=[study.seed, study.n, study.predicted],
        made_by=[by["commit"], by["python"], by["versions"]],
    )


def _digest(folder: RunFolder) -> str:
    paths = (folder.report, folder.report.with_suffix(".json"))
    return digest_of(files=[digest_file(path) if path.exists() else None for path in paths])


def _is_as_written(folder: RunFolder) -> bool:
    """Return whether page and document are those of the last report."""
    step = folder.step(_STEP)
    return step is not None and step.figures.get(DIGEST) == _digest(folder)


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
    store = context.folder.predicted(inputs)
    if is_damaged(store):
        # A few hundred, which the same seed makes again.
        shutil.rmtree(store)
    return predict(
        posterior_of(context, model, study.observed),
        study.simulator,
        n,
        store=store,
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
        if name != _STEP
    }
    return {
        "study": str(context.study.path),
        "command": context.command,
        "seed": context.study.seed,
        **taken,
        "settings of the fit": context.study.settings.describe(),
    }
