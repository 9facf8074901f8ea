"""The steps of a run: simulate, fit, sample, diagnose; each can be stopped and taken again.

A step reads what the one before it left in the folder, and leaves its own result there. It looks
first whether that is there already, made from the same things: then nothing is done.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn
from torch import Tensor, nn

from eande.diagnostics.diagnosis import Diagnosis
from eande.foundations.checks import EandeWarning, InputError, check_count, check_finite, show_shape
from eande.foundations.files import (
    digest_file,
    digest_of,
    read_json,
    read_tensors,
    replacing,
    storing,
    write_json,
)
from eande.inference.loading import AnotherPrior, load
from eande.inference.model import EmbedAndEmulate
from eande.inference.posterior import Posterior
from eande.inference.summary import Summary
from eande.networks.choose import encoder_in_words
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior
from eande.reporting.given import checked
from eande.reporting.judging import of_draws
from eande.similarities.prior_only import PriorOnly
from eande.simulation.read.entry import import_xarray, reading
from eande.simulation.read.simulations import Simulations, first_of_groups
from eande.simulation.read.views import fixed_views
from eande.simulation.run.bars import columns
from eande.simulation.simulate import simulate
from eande.simulation.store.provenance import (
    check_same_call,
    describe_prior,
    describe_simulator,
    digest_simulator,
)
from eande.simulation.store.zarr_store import Store
from eande.training.build import Networks
from eande.training.fit import fit
from eande.training.order import look_like_sets
from eande.training.prepare import call_fingerprint, check_encoder, training_prior
from eande.training.settings import FitSettings
from eande.workflow.folder import RunFolder
from eande.workflow.study import STUDY_NAMES, Study, read_observation, variable_of

# Samples of an observation, unless another number is asked for.
SAMPLES = 10_000
# The name under which samples of the study's own observation are kept.
OBSERVED = "observed"
# A diagnosis needs so many different parameters.
_FEWEST_HELD_OUT = 20


@dataclass(frozen=True)
class Taken:
    """What a step has to say.

    Args:
        step: its name.
        text: for people.
        paths: where its results are.
        content: for machines, values for JSON.
        again: whether everything was there already.
    """

    step: str
    text: str
    paths: Sequence[Path]
    content: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True)
class Context:
    """What all steps of a command share.

    Args:
        study: what is studied.
        folder: where its run lies.
        command: that was typed, for the record.
        progress: whether to show progress bars.
        prior: that of the model, where it is not the study's.
    """

    study: Study
    folder: RunFolder
    command: str = ""
    progress: bool = True
    prior: Prior | None = None

    def remember(self, step: str, inputs: str, **figures: Any) -> None:
        """Write down that a step was taken."""
        self.folder.remember(self.study, step, inputs, command=self.command, figures=figures)


def take_simulate(
    context: Context, *, n: int | None = None, executor: Any = None, redo: str | None = None
) -> Taken:
    """Simulate into the run's store; what is there already is kept, a larger ``n`` extends it.

    Args:
        context: study and folder.
        n: number of simulations; None for the study's, or what the store has if that is more.
        executor: as for :func:`eande.simulate`.
        redo: what to simulate again, as for :func:`eande.simulate`.
    """
    study, folder = context.study, context.folder
    if study.simulations is not None:
        if n is not None or executor is not None or redo is not None:
            raise InputError(
                "simulate: expected a study with a simulator, got one whose simulations exist "
                "already"
            )
        text = f"{_what(study, study.simulations)}; they exist already: nothing to simulate"
        return Taken("simulate", text, [], {"simulations": len(study.simulations)}, again=True)
    assert study.simulator is not None
    assert study.prior is not None
    inputs = check_simulator(context, "simulate", folder.store)
    check_prior(context)
    if n is None:
        n = max(study.n, extent(folder.store))
    check_extent(folder.store, n)
    there = folder.store.exists() and redo is None
    if there:
        before = len(Simulations.open(folder.store)) if extent(folder.store) == n else -1
    folder.path.mkdir(parents=True, exist_ok=True)
    # Before the first block: whoever interrupts this must not go on with another simulator.
    context.remember("simulate", inputs, wanted=n)
    simulations = simulate(
        study.simulator,
        study.prior,
        n,
        store=folder.store,
        executor=executor,
        seed=study.seed,
        redo=redo,
        progress=context.progress,
    )
    _check_observed(study, simulations)
    failed = len(simulations.failures)
    context.remember("simulate", inputs, wanted=n, simulations=len(simulations), failed=failed)
    content = {"simulations": len(simulations), "failed": failed, "y_shape": simulations.y_shape}
    again = there and before == len(simulations)
    text = _what(study, simulations)
    return Taken("simulate", text, [folder.store], content, again=again)


def take_fit(context: Context, overrides: Mapping[str, Any] | None = None) -> Taken:
    """Train on the run's simulations, all but those held out, and save the model.

    Args:
        context: study and folder.
        overrides: settings that take the place of the study's, by name.
    """
    study, folder = context.study, context.folder
    train, held_out = parts(context)
    _check_observed(study, train)
    settings = fit_settings(study, overrides or {})
    inputs = _fit_inputs(study, train, settings)
    with folder.alone():
        again = folder.is_done("fit", inputs, folder.model) and is_whole(folder.model)
        if not again:
            model = fit(
                train,
                study.prior,
                encoder=study.encoder,
                views=study.views,
                checkpoint=folder.training(inputs),
                settings=settings,
                progress=context.progress,
            )
            model.save(folder.model)
            score = _score(model)
            context.remember(
                "fit",
                inputs,
                simulations=len(train),
                held_out=0 if held_out is None else len(held_out),
                score=score,
                overrides={key: str(value) for key, value in (overrides or {}).items()},
            )
        model = load_model(context, folder.model)
        stale = folder.calibrated.exists() and folder.model_in_use() != folder.calibrated
    score = _score(model)
    content = {
        "simulations": len(train),
        "held_out": 0 if held_out is None else len(held_out),
        "score": score,
        "learned": not isinstance(model.similarity, PriorOnly),
        "tried": model.tried,
        "encoder": encoder_in_words(model.y_shape, study.encoder),
    }
    text = f"{_score_text(model, score)}, trained on {len(train):,} simulations"
    if again or not context.progress:
        # Else the fit has said so when it began.
        text += f"\nencoder: {content['encoder']}"
    if stale:
        text += "\nthe calibration was of another model: eande calibrate makes it anew"
    return Taken("fit", text, [folder.model], content, again=again)


def take_sample(
    context: Context,
    observed: Sequence[str | Path] = (),
    *,
    n: int = SAMPLES,
    seed: int | None = None,
) -> list[Taken]:
    """Sample the posterior of the study's observation, or of those in files.

    Args:
        context: study and folder.
        observed: files; none takes the study's own observation.
        n: number of samples of each.
        seed: of the samples; None for the study's.
    """
    study = context.study
    check_count("n", n, 2)
    if len({Path(path).stem for path in observed}) < len(observed):
        raise InputError("observed: expected files of different names, got the same name twice")
    variable = variable_of(study.simulations)
    observations = {Path(path).stem: read_observation(path, variable) for path in observed}
    if not observed:
        if study.observed is None:
            raise InputError(
                f"observed: expected an observation in {study.path.name} (observed = …) or as "
                "--observed FILE, got none"
            )
        observations = {OBSERVED: study.observed}
    model = the_model(context)
    seed = study.seed if seed is None else seed
    taken = []
    shown = (SpinnerColumn(), *columns(elapsed=True, remaining=True))
    bar = Progress(*shown, disable=not context.progress, transient=True)
    with context.folder.alone(), bar:
        task = bar.add_task("sampling", total=len(observations))
        for name, y in observations.items():
            bar.update(task, description=f"sampling {escape(name)}")
            taken.append(_sample_one(context, model, name, y, n, seed))
            bar.advance(task)
    return taken


def _sample_one(
    context: Context, model: EmbedAndEmulate, name: str, y: Tensor, n: int, seed: int
) -> Taken:
    """Sample one posterior and keep the samples and their summary."""
    folder = context.folder
    inputs = digest_of(
        model=digest_file(folder.model_in_use()),
        y=y.tolist(),
        n=n,
        seed=seed,
        derived=_derived(context),
    )
    path = folder.samples / f"{name}.nc"
    table = folder.samples / f"{name}.json"
    step = f"sample {name}"
    again = folder.is_done(step, inputs, path, table) and _can_be_read(path, table)
    posterior = posterior_of(context, model, y)
    # The summary is of the same samples: same number, same seed.
    summary = posterior.summary(samples=n, seed=seed, derived=context.study.derived)
    content = describe_summary(summary)
    _warn_of_few_draws(name, posterior, n, seed)
    if not again:
        _write_samples(path, posterior.to_xarray(n, seed=seed, derived=context.study.derived))
        write_json(table, content)
        context.remember(step, inputs, samples=n)
    return Taken("sample", f"{name}\n{summary}", [path, table], content, again=again)


def _warn_of_few_draws(name: str, posterior: Posterior, n: int, seed: int) -> None:
    """Warn where all samples are the same few draws of a prior that is known by draws only."""
    if not isinstance(posterior.prior, EmpiricalPrior):
        return
    few = of_draws(posterior.sample(n, seed=seed)[0], posterior.prior)
    if few is not None:
        text = f"{name}: {few.question} {few.found} {few.advice}"
        warnings.warn(text, EandeWarning, stacklevel=2)


def take_diagnose(context: Context) -> Taken:
    """Check the model by the simulations held out from its training."""
    folder = context.folder
    held_out = checking(context)
    missing = missing_for_diagnosis(context)
    if held_out is None or missing is not None:
        raise InputError(f"diagnose: {missing}")
    model = the_model(context)
    inputs = digest_of(
        model=digest_file(folder.model_in_use()),
        held_out=held_out.fingerprint(),
        seed=context.study.seed,
    )
    with folder.alone():
        again = folder.is_done("diagnose", inputs, folder.diagnosis)
        again = again and _can_be_read(folder.diagnosis)
        found = run_diagnosis(context, model, held_out)
        content = describe_diagnosis(found)
        if not again:
            write_json(folder.diagnosis, content)
            alarms = [one.name for one in found.verdicts if one.passed is False]
            context.remember("diagnose", inputs, alarms=alarms)
    return Taken("diagnose", str(found), [folder.diagnosis], content, again=again)


def missing_for_diagnosis(context: Context) -> str | None:
    """Say why the model cannot be diagnosed by the simulations held out; None where it can."""
    held_out = checking(context)
    got = 0 if held_out is None else len(held_out.groups.unique())
    if got >= _FEWEST_HELD_OUT:
        return None
    return (
        f"expected at least {_FEWEST_HELD_OUT} parameters held out from training, got {got}: "
        "simulate more, or set held_out in the study file to a larger share"
    )


def run_diagnosis(context: Context, model: EmbedAndEmulate, held_out: Simulations) -> Diagnosis:
    """Diagnose as the report does, so that both say the same."""
    study = context.study
    return checked(model, held_out, views=study.views, seed=study.seed, progress=context.progress)


def fit_settings(study: Study, overrides: Mapping[str, Any]) -> FitSettings:
    """Return the settings of a study's fit, some of them replaced by name."""
    settings = override(study.settings, overrides)
    if study.similarity is not None and "similarity" not in overrides:
        settings = replace(settings, similarity=study.similarity)
    return settings


def override(settings: FitSettings, overrides: Mapping[str, Any]) -> FitSettings:
    """Return settings with some of them replaced, by name."""
    known = settings.describe()
    for name in overrides:
        if name not in known:
            if name in STUDY_NAMES:
                raise InputError(
                    f"{name}: expected a setting of FitSettings, got what the study file says: "
                    f"write {name} = … there"
                )
            near = difflib.get_close_matches(name, known, n=1)
            if near:
                raise InputError(
                    f"{name}: expected a setting of FitSettings, got another; did you mean "
                    f"{near[0]}?"
                )
            raise InputError(
                f"{name}: expected a setting of FitSettings, one of {', '.join(known)}, got another"
            )
    return replace(settings, **overrides)


def all_simulations(context: Context) -> Simulations:
    """Return the run's simulations: those of its store that are complete, or the study's own."""
    study = context.study
    if study.simulations is not None:
        return study.simulations
    if not context.folder.store.exists():
        raise InputError(
            f"expected simulations in {context.folder.store}, got none; type: "
            f"eande simulate {study.path.name}"
        )
    check_simulator(context, "simulate", context.folder.store)
    check_prior(context)
    return Simulations.open(context.folder.store)


def parts(context: Context) -> tuple[Simulations, Simulations | None]:
    """Return the simulations to train on, and those held out for the diagnosis; None for none.

    Every tenth parameter (or what the study's share makes of it) is held out, in the order in which
    they were simulated: more simulations never move one from one side to the other.
    """
    simulations = all_simulations(context)
    share = context.study.held_out
    if share == 0:
        return simulations, None
    first = first_of_groups(simulations.groups)
    place = torch.arange(len(first))
    # One more is held out wherever the share, added up, passes a whole number.
    chosen = torch.floor((place + 1) * share) > torch.floor(place * share)
    held = torch.isin(simulations.groups, simulations.groups[first[chosen]])
    if held.all() or not held.any():
        return simulations, None
    return simulations[(~held).nonzero()[:, 0]], simulations[held.nonzero()[:, 0]]


def checking(context: Context) -> Simulations | None:
    """Return the simulations that check the model: held out, and not taken to calibrate it."""
    _, held_out = parts(context)
    calibrated = context.folder.model_in_use() == context.folder.calibrated
    if held_out is None or not calibrated or context.study.simulator is not None:
        return held_out
    return halves(held_out)[1]


def halves(held_out: Simulations) -> tuple[Simulations, Simulations]:
    """Return every other parameter of those held out, and the rest.

    Where there is no simulator to make fresh ones, the first half calibrates and the other checks.
    """
    groups = held_out.groups[first_of_groups(held_out.groups)]
    odd = torch.isin(held_out.groups, groups[1::2])
    return held_out[odd.nonzero()[:, 0]], held_out[(~odd).nonzero()[:, 0]]


def the_model(context: Context) -> EmbedAndEmulate:
    """Load the run's model: calibrated, where it was."""
    return load_model(context, context.folder.model_in_use())


def load_model(context: Context, path: Path) -> EmbedAndEmulate:
    """Load a model of the run.

    Args:
        context: study and folder.
        path: of the model.
    """
    if not context.folder.model.exists():
        raise InputError(
            f"expected a model at {context.folder.model}, got none; type: "
            f"eande fit {context.study.path.name}"
        )
    encoder = context.study.encoder
    prior = context.prior
    if prior is None and context.folder.step("rounds") is None:
        # Of rounds the file knows the prior: that of the study, cut off.
        prior = context.study.prior
    name = context.study.path.name
    try:
        return load(
            path,
            encoder=encoder if isinstance(encoder, nn.Module) else None,
            prior=prior,
        )
    except AnotherPrior:
        # Where there are simulations from the prior, no fit is the remedy: this says so.
        check_prior(context)
        raise InputError(
            f"{name}: expected the prior under which {path} was trained, got a changed one; undo "
            f"the change, or type: eande fit {name}"
        ) from None
    except InputError as error:
        if is_whole(path):
            raise
        command = "calibrate" if path == context.folder.calibrated else "fit"
        if context.folder.step("rounds") is not None:
            command = "rounds"
        raise InputError(f"{error}; to make it again type: eande {command} {name}") from None


def is_whole(path: Path) -> bool:
    """Return whether the file of a model is as it was written."""
    try:
        read_tensors(path, "model")
    except InputError:
        return False
    return True


def posterior_of(context: Context, model: EmbedAndEmulate, y: Tensor) -> Posterior:
    """Return the posterior of an observation, seen as the model sees data."""
    return model.posterior(as_seen(context, model, y))


def as_seen(context: Context, model: EmbedAndEmulate, y: Tensor) -> Tensor:
    """Return one fixed view of an observation where the study has views, as of held-out data.

    An observation that has a view's shape already is taken as it is, but for axes of length one.
    """
    if _alike(y.shape, model.y_shape):
        return y.reshape(model.y_shape)
    if context.study.views is None:
        return y
    (seen,) = torch.cat(list(fixed_views(context.study.views, y.unsqueeze(0))))
    return seen


def describe_summary(summary: Summary) -> dict[str, Any]:
    """Return a summary as values for JSON."""
    return {
        "names": list(summary.names),
        "mean": summary.mean.tolist(),
        "std": summary.std.tolist(),
        "lower": summary.lower.tolist(),
        "upper": summary.upper.tolist(),
        "level": summary.level,
        "modes": [
            {"phi": mode.phi.tolist(), "log_prob": mode.log_prob, "weight": mode.weight}
            for mode in summary.modes
        ],
        "sampler": str(summary.info),
    }


def describe_diagnosis(found: Diagnosis) -> dict[str, Any]:
    """Return the figures and verdicts of a diagnosis as values for JSON; None for what is NaN."""
    return {
        "verdicts": [
            {"name": one.name, "passed": one.passed, "text": one.text} for one in found.verdicts
        ],
        "held_out": found.data,
        "covered": {str(level): share for level, share in found.covered.items()},
        "log_ratio": _number(found.log_ratio),
        "log_ratio_error": _number(found.log_ratio_error),
        "names": list(found.names),
        "shrinkage": [_number(value) for value in found.shrinkage],
        "z_rms": [_number(value) for value in found.z_rms],
        "ranks_p": {name: _number(ranks.p_value) for name, ranks in found.checks.items()},
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def check_simulator(context: Context, name: str, made: Path) -> str:
    """Refuse a simulator that was changed since its simulations were made; return its digest.

    Args:
        context: study and folder.
        name: of the step that made them.
        made: where they are.
    """
    study, folder = context.study, context.folder
    inputs = digest_of(
        simulator=digest_simulator(study.simulator), settings=describe_simulator(study.simulator)
    )
    step = folder.step(name)
    if step is not None and step.inputs != inputs and made.exists():
        raise InputError(
            f"{study.path.name}: expected the simulator that made {made}, got a changed "
            "one; --run FOLDER starts another run, or undo the change"
        )
    return inputs


def check_prior(context: Context) -> None:
    """Refuse a prior that was changed since the run's simulations were drawn from it."""
    study, made = context.study, context.folder.store
    if study.prior is None or study.simulations is not None or not made.exists():
        return
    about = asdict(Store(made).about)
    described = {"prior": describe_prior(study.prior)}
    try:
        check_same_call(made, described, about)
    except InputError:
        raise InputError(
            f"{study.path.name}: expected the prior from which {made} was drawn, got a changed "
            "one; --run FOLDER starts another run, or undo the change"
        ) from None


def check_before_work(context: Context, overrides: Mapping[str, Any]) -> None:
    """Refuse what the fit or its posterior would refuse, before hours of simulations."""
    study = context.study
    settings = fit_settings(study, overrides)
    check_encoder(study.encoder)
    if study.observed is not None and settings.missing != "mask":
        check_finite(f"{study.path.name}: observed", study.observed)


def _check_observed(study: Study, simulations: Simulations) -> None:
    """Refuse an observation of another shape before hours of training."""
    if study.observed is None or study.views is not None:
        return
    if not _alike(study.observed.shape, simulations.y_shape):
        raise InputError(
            f"{study.path.name}: observed: expected shape {show_shape(simulations.y_shape)}, that "
            f"of the simulations, got {show_shape(study.observed.shape)}"
        )


def _alike(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes differ by axes of length one at most."""
    return [size for size in shape if size > 1] == [size for size in other if size > 1]


def _what(study: Study, simulations: Simulations) -> str:
    """Return how many simulations there are, of what shape, and what that is taken for."""
    text = f"{_count(simulations)} of shape {show_shape(simulations.y_shape)}"
    if study.encoder is not None or study.views is not None:
        return text
    if len(simulations.y_shape) == 2:
        channels = simulations.y_shape[0]
        return (
            f"{text}, taken for series of {channels} channel{'s' if channels > 1 else ''} "
            "(encoder = 'grid' for images, 'set' for rows in no order)"
        )
    if look_like_sets(simulations):
        return (
            f"{text}, alike in any order (encoder = 'set' learns more where the order means "
            "nothing)"
        )
    return text


def extent(store: Path) -> int:
    """Return the number of simulations that a store is made for, 0 where there is none yet."""
    return Store(store).about.extents[-1] if store.exists() else 0


def is_damaged(store: Path) -> bool:
    """Return whether anything in a store, all of which is read, is not as it was written."""
    return store.exists() and bool(Store(store).check())


def check_extent(store: Path, n: int) -> None:
    """Refuse fewer simulations than a store is made for, and say what gives them."""
    check_count("n", n, 1)
    have = extent(store)
    if n < have:
        raise InputError(
            f"n: expected at least {have}, what {store} is made for, got {n}; without -n all of "
            "them are taken, and --run FOLDER starts another run with fewer"
        )


def _fit_inputs(study: Study, train: Simulations, settings: FitSettings) -> str:
    """Return a digest of all that a fit depends on."""
    call = call_fingerprint(
        train,
        training_prior(study.prior, train, None),
        settings,
        study.views,
        Networks(study.encoder, None, None),
        None,
    )
    return digest_of(call=call)


def _derived(context: Context) -> dict[str, Any]:
    return {name: digest_simulator(function) for name, function in context.study.derived.items()}


def _score(model: EmbedAndEmulate) -> float | None:
    """Return the held-out log ratio that training reached, in nats; None where it is not known."""
    if model.tried:
        return max(float(one["score"]) for one in model.tried)
    scores = [record["score"] for record in model.history if "score" in record]
    return max(scores, default=None)


def _score_text(model: EmbedAndEmulate, score: float | None) -> str:
    if isinstance(model.similarity, PriorOnly):
        return "nothing learned: the posterior is the prior"
    if score is None:
        return "a model"
    return f"{score:.2f} nats about the parameters on held-out pairs (0: nothing learned)"


def _count(simulations: Simulations) -> str:
    failed = len(simulations.failures)
    more = f" ({failed:,} more failed)" if failed else ""
    return f"{len(simulations):,} simulations{more}"


def _can_be_read(*paths: Path) -> bool:
    """Return whether results of a step, NetCDF or JSON, are not damaged."""
    try:
        for path in paths:
            if path.suffix == ".json":
                read_json(path, "a result")
            else:
                with reading(path), import_xarray("samples").open_dataset(path) as dataset:
                    dataset.load()
    except InputError:
        return False
    return True


def _write_samples(path: Path, dataset: Any) -> None:
    """Write samples as NetCDF, in one step."""
    content = dataset.to_netcdf(engine="h5netcdf")
    with replacing(path) as file, storing(path):
        file.write(content)
