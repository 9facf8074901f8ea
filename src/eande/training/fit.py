"""fit: from simulations to a model.

Data flow: simulations → split → batches of views → embeddings → loss → step → average → validation
→ best weights. The loop is in :mod:`eande.training.loop`, the loss of a batch in
:mod:`eande.training.contrastive`, the equations in :mod:`eande.training.losses`.
"""

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from torch import nn

from eande.foundations.checks import EandeWarning, InputError, check_count
from eande.foundations.paths import as_path
from eande.foundations.seeds import derive_seed
from eande.inference.ensemble import ensemble
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.priors.prior import Prior
from eande.similarities.prior_only import PriorOnly
from eande.similarities.similarity import Similarity
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View
from eande.training.batches import Batches
from eande.training.build import Networks, build_model, check_members
from eande.training.checkpoints import CheckpointStore, using
from eande.training.contrastive import ContrastiveTask
from eande.training.loop import Loop
from eande.training.negatives import MemoryBank
from eande.training.prepare import call_fingerprint, check_types, split, training_prior
from eande.training.settings import FitSettings
from eande.training.state import Record, TrainingState
from eande.training.validation import HeldOut

# Data on disk of no more bytes than this are read once and kept in memory.
_SMALL = 100_000_000
_MOST_MEMBERS = 1_000


def fit(
    simulations: Simulations,
    prior: Any = None,
    *,
    encoder: nn.Module | None = None,
    emulator: nn.Module | None = None,
    similarity: Similarity | str | None = None,
    views: View | None = None,
    validation: float | Simulations | None = None,
    checkpoint: str | Path | None = None,
    settings: FitSettings | None = None,
    warm_start: EmbedAndEmulate | None = None,
    members: int = 1,
    callback: Callable[[Record], None] | None = None,
    progress: bool = True,
) -> EmbedAndEmulate:
    """Train an encoder and a latent emulator on simulations; return the best on held-out pairs.

    Args:
        simulations: pairs (φ, y).
        prior: the law the parameters were drawn from; None takes the simulations' own parameters as
            its draws.
        encoder: maps standardised data (m, …) to (m, n); None chooses by the shape of y.
        emulator: maps standardised parameters (m, D) to (m, n); None makes a residual MLP.
        similarity: where embeddings lie and how near they are, such as ``Cosine(temperature=0.05)``
            or ``"mixture"``; None takes that of the settings.
        views: what the encoder sees of a datum, drawn anew in every step.
        validation: a fraction to hold out (whole groups), or simulations of their own; None holds
            out a tenth, 2,000 different parameters at most.
        checkpoint: a folder. A run killed at any moment goes on from there when the same call is
            made again.
        settings: how to train; ``FitSettings.paper(...)`` is the paper's method. None takes the
            defaults, with the similarity of a ``warm_start``.
        warm_start: a model to go on from, for instance when more simulations have arrived; its
            networks and standardisation are kept.
        members: how many models to fit, each from networks and random numbers of its own; more than
            one are returned as an ensemble, whose ratio is the mean of theirs.
        callback: called with every record of the history, for loggers; of several members, with the
            number of theirs as ``member``.
        progress: whether to show a progress bar.
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
    check_members(members, encoder, emulator)
    train, held_out = (
        part.in_memory(_SMALL) for part in split(simulations, validation, settings.seed)
    )
    prior = training_prior(prior, simulations, validation)
    fingerprint = {}
    if folder is not None:
        share = float(validation) if isinstance(validation, Real) else validation
        fingerprint = call_fingerprint(simulations, prior, settings, views, networks, share)
    fabric = _make_fabric(settings)
    call = _Call(train, held_out, prior, views, settings, networks, fabric, members)
    models: list[EmbedAndEmulate] = []
    try:
        devices = [fabric.device] if fabric.device.type == "cuda" else []
        with (
            using(folder),
            torch.random.fork_rng(devices=devices),
            _progress(progress) as bar,
        ):
            for number in range(members):
                run = _Run(call, number, folder, fingerprint, bar, callback)
                state = run.best_start()
                run.loop.run(state, run.loop.schedule.epochs, "main", run.label)
                models.append(run.finish(state))
    except KeyboardInterrupt:
        if folder is not None:
            raise KeyboardInterrupt(
                f"stopped; the same call goes on from the latest checkpoint in {folder}"
            ) from None
        raise
    return models[0] if members == 1 else ensemble(models)


@dataclass(frozen=True)
class _Call:
    """What all members of a fit share."""

    train: Simulations
    held_out: Simulations
    prior: Prior
    views: View | None
    settings: FitSettings
    networks: Networks
    fabric: Fabric
    members: int


class _Run:
    """The fit of one model: short starts, then the best of them to the end.

    Args:
        call: what all members share.
        number: of the member.
        folder: of the fit's checkpoints, None for none.
        fingerprint: what identifies the call.
        bar: a progress bar, None for none.
        callback: called with every record of the history.
    """

    def __init__(
        self,
        call: _Call,
        number: int,
        folder: Path | None,
        fingerprint: dict[str, Any],
        bar: Progress | None,
        callback: Callable[[Record], None] | None,
    ) -> None:
        self.call = call
        self.number = number
        self.settings = call.settings
        if number > 0:
            seed = derive_seed(call.settings.seed, "member", number)
            self.settings = replace(call.settings, seed=seed)
        self.label = "training"
        # Which member, not of how many: a later call may add some.
        fingerprint = fingerprint | {"member": number if call.members > 1 else None}
        if call.members > 1:
            self.label = f"member {number + 1} of {call.members}"
            folder = None if folder is None else folder / f"member-{number}"
            callback = None if callback is None else _of_member(callback, number)
        # One for each member still to come, and those of the short starts.
        starts = self.settings.restarts if self.settings.restarts > 1 else 0
        files = call.members - number + starts
        seconds = self.settings.checkpoint_seconds
        self.store = CheckpointStore(folder, fingerprint, seconds, files)
        self.task = ContrastiveTask(
            call.fabric,
            self.settings,
            Batches.of(call.train, call.views, self.settings),
            HeldOut(call.held_out, call.views, self.settings.normalizer_draws),
        )
        self.loop = Loop(call.fabric, self.task, self.store, bar, callback)

    def begin(self, start: int) -> TrainingState[EmbedAndEmulate]:
        """Return the state of a start before its first step."""
        call = self.call
        number = self.number * self.settings.restarts + start
        model = build_model(
            call.train, call.views, call.prior, self.settings, call.networks, start=number
        )
        return _first_state(model.to(call.fabric.device), self.settings)

    def best_start(self) -> TrainingState[EmbedAndEmulate]:
        """Return the state to train on: the best of the short starts, where there are several."""
        state = self.begin(0)
        if self.settings.restarts == 1 or self.store.has("main"):
            return state
        for start in range(self.settings.restarts):
            challenger = self.begin(start)
            label = f"start {start + 1} of {self.settings.restarts}"
            self.loop.run(challenger, self.loop.schedule.short_epochs, f"start-{start}", label)
            if challenger.best_score > state.best_score:
                state = challenger
        return state

    def finish(self, state: TrainingState[EmbedAndEmulate]) -> EmbedAndEmulate:
        """Return the model of a run that came to its end."""
        self.store.forget_starts(self.settings.restarts)
        return _finish(self.task, state)


def _default_settings(warm_start: object) -> FitSettings:
    """Return the default settings; a warm start goes on with its own similarity."""
    if not isinstance(warm_start, EmbedAndEmulate) or warm_start.members:
        return FitSettings()
    return FitSettings(
        similarity=warm_start.similarity.trained,
        embedding_dimension=warm_start.embedding_dimension,
    )


def _make_fabric(settings: FitSettings) -> Fabric:
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Fabric(accelerator=device, devices=1, precision=settings.precision)


def _progress(shown: bool) -> Any:
    if not shown:
        return nullcontext()
    text = TextColumn("{task.description}")
    return Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def _of_member(callback: Callable[[Record], None], member: int) -> Callable[[Record], None]:
    return lambda record: callback(record | {"member": member})


def _first_state(model: EmbedAndEmulate, settings: FitSettings) -> TrainingState[EmbedAndEmulate]:
    """Return the state of a run before its first step."""
    # Validation must not need more memory than training does.
    rows = settings.micro_batch or settings.batch_size
    model.encoder_rows = min(model.encoder_rows, rows)
    bank = None
    if settings.memory_bank:
        bank = MemoryBank(settings.memory_bank, settings.embedding_dimension).to(model.device)
    return TrainingState.begin(
        model,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        decayed=settings.decayed,
        ema=settings.ema,
        bank=bank,
    )


def _finish(task: ContrastiveTask, state: TrainingState[EmbedAndEmulate]) -> EmbedAndEmulate:
    """Return the best model seen; the prior itself counts, with its score of 0."""
    if not state.best_weights or not math.isfinite(state.best_score):
        raise RuntimeError(
            "training failed: no validation gave a finite held-out score; does the encoder return "
            "NaN outside training?"
        )
    # A copy is not compiled: inference comes in other shapes, and would be compiled anew for each.
    model = copy.deepcopy(state.model) if task.settings.compile else state.model
    model = model.requires_grad_(False).eval()
    model.load_state_dict(state.best_weights)
    model.history = state.history
    reached = state.best_score
    draws = state.best_record().get("effective_draws", 0.0)
    if draws < ENOUGH_DRAWS:
        # Too few draws flatter a sharp model: look once more, with many.
        score = task.held_out.score(model, widest=100)
        reached = score.by(task.settings.select_by)
        draws = score.effective_draws
    if reached <= 0:
        warnings.warn(
            "on held-out data the model is no better than the prior "
            f"({reached:.3g} nats, the prior's own score is 0), so it returns the prior: "
            f"{_advice(state)}",
            EandeWarning,
            stacklevel=4,
        )
        return model.with_similarity(PriorOnly(model.similarity))
    if draws < ENOUGH_DRAWS:
        warnings.warn(
            f"the held-out score ({reached:.3g} nats) rests on an effective sample size of "
            f"{draws:.0f} prior draws for some data and may flatter the model; raise "
            "normalizer_draws",
            EandeWarning,
            stacklevel=4,
        )
    return model


def _advice(state: TrainingState[EmbedAndEmulate]) -> str:
    """Return what may help a run that found nothing."""
    if not state.fell():
        return (
            "either the data say nothing about the parameters, or it needs more epochs or more "
            "simulations"
        )
    return (
        f"it over-fits, for that score fell to {state.history[-1]['score']:.3g} in training; more "
        "simulations help, fewer weights (width, blocks), or an encoder that knows what the data "
        "are: a series of n numbers given as shape (1, n), a field as (1, height, width), or "
        "encoder= of your own"
    )
