"""fit: from simulations to a model.

Data flow: simulations → split → batches of views → embeddings → loss → step → average → validation
→ best weights. What is trained for how long is found in :mod:`eande.training.search`, where it is
not given; one run is in :mod:`eande.training.run`, its loop in :mod:`eande.training.loop`, the loss
of a batch in :mod:`eande.training.contrastive`, the equations in :mod:`eande.training.losses`.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import Progress
from torch import nn

from eande.foundations.checks import EandeWarning, InputError, check_count, check_flag, show_shape
from eande.foundations.paths import as_path
from eande.foundations.seeds import derive_seed
from eande.inference.ensemble import ensemble
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.networks.choose import encoder_in_words
from eande.priors.prior import Prior
from eande.similarities.prior_only import PriorOnly
from eande.similarities.similarity import Similarity
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View
from eande.simulation.run.bars import columns
from eande.training.build import Networks, check_members
from eande.training.checkpoints import using
from eande.training.guide import with_learned_guide
from eande.training.order import look_like_sets
from eande.training.prepare import call_fingerprint, check_axes, check_types, split, training_prior
from eande.training.run import Call, Run, Split, doing, tagged
from eande.training.search import Found, Search, folds, standard_error
from eande.training.settings import MANY, FitSettings
from eande.training.state import Record, TrainingState
from eande.training.trackers import Tracker, as_tracked
from eande.training.validation import held_out_log_ratios

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# Data on disk of no more bytes than this are read once and kept in memory.
_SMALL = 100_000_000
_MOST_MEMBERS = 1_000
# Fewer different parameters than this cannot be held out in turn.
_FEWEST_IN_FOLDS = 10
# A found model is kept if its score is so many standard errors above the prior's: the best of many
# looks is above by chance.
_TIMES_ERROR = 2.0
_REMEDIES = (
    "more simulations help, fewer weights (width, blocks), or an encoder that knows what the data "
    "are: a series of n numbers given as shape (1, n), a field as (1, height, width), or encoder= "
    "of your own"
)


def fit(
    simulations: Simulations,
    prior: Any = None,
    *,
    encoder: nn.Module | str | None = None,
    emulator: nn.Module | None = None,
    similarity: Similarity | str | None = None,
    views: View | None = None,
    validation: float | Simulations | None = None,
    checkpoint: str | Path | None = None,
    settings: FitSettings | None = None,
    warm_start: EmbedAndEmulate | None = None,
    members: int = 1,
    guide: bool | None = None,
    callback: Callable[[Record], None] | None = None,
    tracker: Tracker | None = None,
    progress: bool = True,
) -> EmbedAndEmulate:
    """Train an encoder and a latent emulator on simulations; return the best on held-out pairs.

    Args:
        simulations: pairs (φ, y).
        prior: the law the parameters were drawn from; None takes the simulations' own parameters as
            its draws. Without names of its own it takes those of the simulations.
        encoder: what the data are: ``"vector"``; ``"series"``, of shape (channels, length) or
            (length,); ``"grid"``, (channels, height, width) or (height, width); ``"set"``,
            (elements, columns) or (elements,), whose order means nothing. Or a network of your
            own: it gets a batch of m data, first axis m, and returns one vector of n numbers for
            each, shape (m, n), where n is ``settings.embedding_dimension`` (16 where nothing is
            said). None goes by the number of axes: one is a vector, two are a series, three a
            grid.
        emulator: a network for the parameters: it gets m of them, shape (m, D), and returns the
            same shape (m, n) as the encoder; None makes a residual MLP.
        similarity: where embeddings lie and how near they are, such as ``Cosine(temperature=0.05)``
            or ``"mixture"``; None takes that of the settings.
        views: what the encoder sees of a datum, drawn anew in every step, such as a window. The
            model then knows data of a view's shape only: cut an observation to it before you ask
            for a posterior (``model.posterior(y_observed[:250])``), and give the same ``views`` to
            functions that take simulations, such as :func:`eande.diagnose`.
        validation: a fraction to hold out (whole groups), or simulations of their own; None holds
            out a tenth, 2,000 different parameters at most, and below 2,000 each of five folds in
            turn where the length is searched for.
        checkpoint: a folder. A run killed at any moment goes on from there when the same call is
            made again.
        settings: how to train; ``FitSettings.paper(...)`` is the paper's method. None takes the
            defaults, with the similarity of a ``warm_start``.
        warm_start: a model to go on from, for instance when more simulations have arrived; its
            networks and standardisation are kept. Hold out simulations that it has not seen
            (``validation=``), or it looks better than it is.
        members: how many models to fit, each from networks and random numbers of its own; more than
            one are returned as an ensemble, whose ratio is the mean of theirs. A search may return
            an ensemble for one, too: of five folds, or of runs that do better together.
        guide: whether the model learns where its posteriors lie, in some seconds, so that samples
            of sharp ones are quick; none of its answers changes by it. None for where fewer than
            250 of 10,000 prior draws are effective for more than a tenth of the held-out data.
        callback: called with every record of the history, for loggers; of several members, with the
            number of theirs as ``member``, and where the length is searched for, with the number of
            the run as ``run``.
        tracker: told the settings, the losses of every step and the held-out scores: one of sbi's,
            such as ``sbi.utils.tracking.TensorBoardTracker(SummaryWriter("runs"))``, or any object
            with their ``log_params``, ``log_metrics`` and ``flush``. Names are those of the
            history; of several runs or members they begin with ``run-0/`` or ``member-0/``.
        progress: whether to show a progress bar.

    Example:
        >>> settings = eande.FitSettings(epochs=3, start="linear", device="cpu")  # short
        >>> model = fit(simulations, prior, settings=settings, progress=False)
        >>> posterior = model.posterior(y_observed)
        >>> phi, info = posterior.sample(100, seed=0)
        >>> phi.shape
        torch.Size([100, 2])
    """
    settings = _default_settings(warm_start) if settings is None else settings
    networks = Networks(encoder, emulator, warm_start)
    folder = None if checkpoint is None else as_path("checkpoint", checkpoint, kind="folder")
    check_types(
        simulations,
        settings,
        validation,
        networks,
        views=views,
        checkpoint=folder,
        callback=callback,
        progress=progress,
    )
    if similarity is not None:
        settings = replace(settings, similarity=similarity)
    check_count("members", members, 1, _MOST_MEMBERS)
    if members > 1 and warm_start is not None:
        raise InputError(
            f"members: expected 1 with warm_start=, got {members}: every member would start alike"
        )
    if guide is not None:
        check_flag("guide", guide)
    check_members(members, encoder, emulator)
    if views is None and warm_start is None:
        check_axes(simulations.y_shape, encoder)
        if encoder is None and look_like_sets(simulations):
            _warn_of_sets(simulations)
    tracked = as_tracked(tracker)
    prior = training_prior(prior, simulations, validation)
    fingerprint = {}
    if folder is not None:
        share = float(validation) if isinstance(validation, Real) else validation
        fingerprint = call_fingerprint(simulations, prior, settings, views, networks, share)
    splits = _splits(simulations, validation, settings, members)
    fabric = _make_fabric(settings)
    try:
        devices = [fabric.device] if fabric.device.type == "cuda" else []
        with (
            using(folder),
            torch.random.fork_rng(devices=devices),
            _progress(progress) as bar,
        ):
            if bar is not None and views is None and warm_start is None:
                bar.console.print(
                    f"encoder: {encoder_in_words(simulations.y_shape, encoder)}",
                    highlight=False,
                    soft_wrap=True,
                )
            call = Call(prior, views, networks, fabric, bar, callback, tracked, folder, fingerprint)
            if tracked is not None:
                tracked.settings(settings.describe() | _described(simulations, prior))
            if settings.epochs is None:
                model = _search(Search(call, settings, splits, members))
            else:
                model = _train(call, settings, splits[0], members)
            return with_learned_guide(call, model, splits[0], asked=guide, seed=settings.seed)
    except KeyboardInterrupt:
        if folder is not None:
            raise KeyboardInterrupt(
                f"stopped; the same call goes on from the latest checkpoint in {folder}"
            ) from None
        raise
    finally:
        if tracked is not None:
            tracked.flush()


def _described(simulations: Simulations, prior: Prior) -> dict[str, str | int]:
    """Return what a tracker is told beside the settings."""
    return {
        "simulations": len(simulations),
        "shape of y": show_shape(simulations.y_shape),
        "parameters": ", ".join(prior.names),
    }


def _splits(
    simulations: Simulations,
    validation: float | Simulations | None,
    settings: FitSettings,
    members: int,
) -> list[Split]:
    """Return the simulations to train on and those to hold out: once, or in folds where few."""
    small = len(simulations.groups.unique())
    by_folds = settings.epochs is None and validation is None and members == 1
    if by_folds and _FEWEST_IN_FOLDS <= small < MANY:
        return folds(simulations.in_memory(_SMALL), settings.seed)
    parts = split(simulations, validation, settings.seed)
    train, held_out = (part.in_memory(_SMALL) for part in parts)
    return [Split(train, held_out)]


def _train(call: Call, settings: FitSettings, split: Split, members: int) -> EmbedAndEmulate:
    """Return the model of a run of given length, or the ensemble of several."""
    models = []
    for number in range(members):
        own = settings.resolved(len(split.train))
        label = "training"
        # Which member, not of how many: a later call may add some.
        fingerprint = call.fingerprint | {"member": number if members > 1 else None}
        shared = replace(call, fingerprint=fingerprint)
        if members > 1 and call.tracked is not None:
            shared = replace(shared, tracked=call.tracked.of("member", number))
        if number > 0:
            own = replace(own, seed=derive_seed(settings.seed, "member", number))
        if members > 1:
            label = f"member {number + 1} of {members}"
            folder = None if call.folder is None else call.folder / f"member-{number}"
            shared = replace(shared, folder=folder, callback=tagged(call.callback, member=number))
        # One for each member still to come, and those of the short starts.
        files = members - number + (settings.restarts if settings.restarts > 1 else 0)
        run = Run(shared, split, own, number=number * settings.restarts, files=files)
        state = run.best_start()
        run.loop.run(state, run.loop.schedule.epochs, "main", label)
        run.store.forget_starts(settings.restarts)
        models.append(_finish(run, state))
    return models[0] if members == 1 else ensemble(models)


def _search(search: Search) -> EmbedAndEmulate:
    """Return the model of a run whose length was found, or the ensemble of several."""
    found = search.find()
    made = search.models(found)
    models = [one.model for one in made]
    model = models[0] if len(models) == 1 else ensemble(models)
    model.tried = models[0].tried
    # Of folds, each pair is held out once; else all models hold out the same.
    log_ratios = made[0].log_ratios
    if len(search.splits) > 1:
        log_ratios = torch.cat([one.log_ratios for one in made])
    reached = log_ratios.mean().item()
    error = standard_error(log_ratios)
    if reached > _TIMES_ERROR * error:
        return model
    _warn_of_prior(f"{reached:.3g} ± {error:.2g} nats", _advice_after(found))
    return model.with_similarity(PriorOnly(model.similarity))


def _default_settings(warm_start: object) -> FitSettings:
    """Return the default settings; a warm start goes on with its own similarity."""
    if not isinstance(warm_start, EmbedAndEmulate) or warm_start.members:
        return FitSettings()
    return FitSettings(
        similarity=warm_start.similarity.trained,
        embedding_dimension=warm_start.embedding_dimension,
    )


def _make_fabric(settings: FitSettings) -> "Fabric":
    # Inside: its import takes longer than many a command that trains nothing.
    from lightning.fabric import Fabric

    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Fabric(accelerator=device, devices=1, precision=settings.precision)


def _progress(shown: bool) -> Any:
    if not shown:
        return nullcontext()
    return Progress(*columns(remaining=True))


def _finish(run: Run, state: TrainingState[EmbedAndEmulate]) -> EmbedAndEmulate:
    """Return the best model seen; the prior itself counts, with its score of 0."""
    model = run.finished(state)
    reached = state.best_score
    if state.best_record().get("effective_draws", 0.0) < ENOUGH_DRAWS:
        # Too few draws flatter a sharp model: look once more, where its posteriors are.
        with doing(run.call.bar, "scoring on held-out pairs"):
            log_ratios = held_out_log_ratios(model, run.held_out, run.settings.seed)
        reached = min(reached, log_ratios.mean().item())
    if reached > 0:
        return model
    _warn_of_prior(f"{reached:.3g} nats", _advice(state))
    return model.with_similarity(PriorOnly(model.similarity))


def _warn_of_sets(simulations: Simulations) -> None:
    warnings.warn(
        f"the {simulations.y_shape[0]} numbers of a datum look alike in any order: encoder='set' "
        "learns more where the order means nothing, and encoder='vector' says that it means "
        "something",
        EandeWarning,
        stacklevel=3,
    )


def _warn_of_prior(reached: str, advice: str) -> None:
    warnings.warn(
        "on held-out data the model is no better than the prior "
        f"({reached}, the prior's own score is 0), so it returns the prior: {advice}",
        EandeWarning,
        stacklevel=5,
    )


def _advice(state: TrainingState[EmbedAndEmulate]) -> str:
    """Return what may help a run that found nothing."""
    if not state.fell():
        return (
            "either the data say nothing about the parameters, or it needs more epochs or more "
            "simulations"
        )
    return (
        f"it over-fits, for that score fell to {state.history[-1]['score']:.3g} in training; "
        f"{_REMEDIES}"
    )


def _advice_after(found: Found) -> str:
    """Return what may help a search that found nothing."""
    return (
        f"in {len(found.trials)} runs of up to {max(trial.steps for trial in found.trials)} steps "
        f"nothing was learned that holds on other data. If the data say something, {_REMEDIES}"
    )
