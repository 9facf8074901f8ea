"""fit: from simulations to a model. The whole loop is in this file.

Data flow: simulations → split → batches of views → embeddings → loss → step → average → validation → best weights.
Every random choice depends on (seed, epoch, step), and a checkpoint holds the whole state between two epochs, so that a
run killed at any moment and started again ends in the same weights.
"""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from eande.foundations.checks import EandeWarning, InputError, check_count
from eande.foundations.seeds import derive_seed, seed_global
from eande.inference.acceleration import Recorder
from eande.inference.ensemble import ensemble
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    HeldOutScore,
    estimate_normalizer,
    held_out_score,
    refine_normalizer,
)
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take
from eande.simulation.read.views import View, fixed_views
from eande.training.batches import Batch, Batches
from eande.training.checkpoints import CheckpointStore, TrainingState
from eande.training.gradients import backward
from eande.training.losses import inter_domain_info_nce, view_info_nce
from eande.training.settings import FitSettings
from eande.training.setup import (
    build_model,
    check_members,
    check_types,
    describe_call,
    split,
    training_prior,
)

Record = dict[str, float]
_MOST_DRAWS = 1_000_000
# Data on disk of no more bytes than this are read once and kept in memory.
_SMALL = 100_000_000


def fit(
    simulations: Simulations,
    prior: Any = None,
    *,
    encoder: nn.Module | None = None,
    emulator: nn.Module | None = None,
    views: View | None = None,
    validation: float | Simulations | None = None,
    checkpoint: str | Path | None = None,
    settings: FitSettings | None = None,
    warm_start: EmbedAndEmulate | None = None,
    members: int = 1,
    callback: Callable[[Record], None] | None = None,
    progress: bool = True,
) -> EmbedAndEmulate:
    """Train an encoder and a latent emulator on simulations and return the model with the best held-out score.

    Args:
        simulations: pairs (φ, y).
        prior: the law the parameters were drawn from; None takes the simulations' own parameters as its draws.
        encoder: maps standardised data (m, …) to (m, n); None chooses by the shape of y.
        emulator: maps standardised parameters (m, D) to (m, n); None makes a residual MLP.
        views: what the encoder sees of a datum, drawn anew in every step.
        validation: a fraction to hold out (whole groups), or simulations of their own; None holds out a tenth, 2,000 different parameters at most.
        checkpoint: a folder. A run killed at any moment goes on from there when the same call is made again.
        settings: how to train.
        warm_start: a model to go on from, for instance when more simulations have arrived; its networks and standardisation are kept.
        members: how many models to fit, each from networks and random numbers of its own; more than one are returned as an ensemble, whose
            ratio is the mean of theirs.
        callback: called with every record of the history, for loggers; of several members, with the number of theirs as ``member``.
        progress: whether to show a progress bar.
    """
    settings = FitSettings() if settings is None else settings
    networks = {"encoder": encoder, "emulator": emulator, "warm_start": warm_start}
    check_types(
        simulations,
        settings,
        validation,
        views=views,
        checkpoint=checkpoint,
        callback=callback,
        **networks,
    )
    check_count("members", members, 1)
    if members > 1 and warm_start is not None:
        raise InputError(
            f"members: expected 1 with warm_start=, got {members}: every member would start alike"
        )
    check_members(members, encoder, emulator)
    train, held_out = (
        part.in_memory(_SMALL) for part in split(simulations, validation, settings.seed)
    )
    prior = training_prior(prior, simulations, validation)
    share = float(validation) if isinstance(validation, Real) else validation
    fingerprint = (
        {}
        if checkpoint is None
        else describe_call(simulations, prior, settings, views, networks | {"validation": share})
    )
    device = (
        settings.device
        if settings.device != "auto"
        else "cuda"
        if torch.cuda.is_available()
        else "cpu"
    )
    fabric = Fabric(accelerator=device, devices=1, precision=settings.precision)

    def fit_one(member: int, bar: Progress | None) -> EmbedAndEmulate:
        own = (
            settings
            if member == 0
            else replace(settings, seed=derive_seed(settings.seed, "member", member))
        )
        folder = (
            checkpoint
            if checkpoint is None or members == 1
            else Path(checkpoint) / f"member-{member}"
        )
        report = (
            callback
            if callback is None or members == 1
            else lambda record: callback(record | {"member": member})
        )
        trainer = _Trainer(fabric, own, Batches.of(train, views, own), held_out, report)

        def begin(start: int) -> TrainingState:
            number = member * own.restarts + start
            model = build_model(
                train,
                views,
                prior,
                own,
                encoder=encoder,
                emulator=emulator,
                warm_start=warm_start,
                start=number,
            )
            return TrainingState.begin(model.to(fabric.device), own)

        label = "training" if members == 1 else f"member {member + 1} of {members}"
        return _finish(
            trainer,
            _train_all(trainer, begin, CheckpointStore(folder, fingerprint, own), bar, label),
        )

    shown: Any = (
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        if progress
        else nullcontext()
    )
    models: list[EmbedAndEmulate] = []
    try:
        with (
            torch.random.fork_rng(devices=[fabric.device] if device == "cuda" else []),
            shown as bar,
        ):
            for member in range(members):
                models.append(fit_one(member, bar))
    except KeyboardInterrupt:
        if checkpoint is not None:
            raise KeyboardInterrupt(
                f"stopped; the same call goes on from the latest checkpoint in {checkpoint}"
            ) from None
        raise
    return models[0] if members == 1 else ensemble(models)


def _train_all(
    trainer: "_Trainer",
    begin: Callable[[int], TrainingState],
    store: CheckpointStore,
    bar: Progress | None,
    label: str,
) -> TrainingState:
    """Run the short starts, then let the best of them go on to the end."""
    settings, schedule, state = trainer.settings, trainer.schedule, begin(0)
    if settings.restarts > 1 and not store.has("main"):
        for start in range(settings.restarts):
            challenger = begin(start)
            trainer.run(
                challenger,
                schedule.short_epochs,
                store,
                f"start-{start}",
                bar,
                f"start {start + 1} of {settings.restarts}",
            )
            if challenger.best_score > state.best_score:
                state = challenger
    trainer.run(state, schedule.epochs, store, "main", bar, label)
    store.forget_starts()
    return state


class _Trainer:
    """Runs epochs; holds what does not change while it does."""

    def __init__(
        self,
        fabric: Fabric,
        settings: FitSettings,
        batches: Batches,
        held_out: Simulations,
        callback: Callable[[Record], None] | None,
    ) -> None:
        self.fabric, self.settings, self.batches, self.callback = (
            fabric,
            settings,
            batches,
            callback,
        )
        self.schedule = settings.schedule(batches.per_pass)
        self.held_out, views = held_out, batches.views
        # The same in every epoch: drawn once where they are few.
        few = (
            4
            * math.prod(
                (len(held_out), *next(fixed_views(views, take(held_out.y, slice(1)))).shape[1:])
            )
            <= _SMALL
        )
        self._held_out_views = (
            [torch.cat(list(fixed_views(views, held_out.y)))]
            if few
            else partial(fixed_views, views, held_out.y)
        )

    def run(
        self,
        state: TrainingState,
        until: int,
        store: CheckpointStore,
        name: str,
        bar: Progress | None,
        label: str,
    ) -> None:
        """Train from where the state (or its checkpoint) stands until that epoch, or until patience ends."""
        store.restore(state, name)
        if self.settings.compile:
            state.model.encoder.compile(dynamic=False)
        module, optimizer = self.fabric.setup(state.model, state.optimizer)
        # Micro-batches and the bank do work between their passes that a recording would not repeat.
        whole = self.settings.micro_batch is None and state.bank is None
        gradient = Recorder(
            partial(self._gradient, state),
            enabled=self.settings.compile and whole and self.fabric.device.type == "cuda",
        )
        task = bar.add_task(label, total=until, completed=state.epoch) if bar is not None else None
        state.model.train()
        while state.epoch < until and not self._out_of_patience(state):
            for batch in self.batches.epoch(state.epoch):
                state.losses.append(self._step(state, module, optimizer, gradient, batch))
            state.epoch += 1
            if state.epoch % self.schedule.validate_every == 0 or state.epoch == until:
                state.model.eval()
                self._validate(state)
                state.model.train()
            store.save(state, name, final=state.epoch == until or self._out_of_patience(state))
            if bar is not None and task is not None:
                bar.update(
                    task,
                    completed=state.epoch,
                    description=f"{label}, held-out {state.best_score:.3f} nats",
                )
        if bar is not None and task is not None:
            bar.update(task, completed=until)

    def _step(
        self, state: TrainingState, module: Any, optimizer: Any, gradient: Recorder, batch: Batch
    ) -> dict[str, Tensor]:
        """Take one step of the optimiser."""
        settings = self.settings
        for group in optimizer.param_groups:
            factor = learning_rate_factor(
                state.step, self.batches.steps_per_epoch * self.schedule.epochs, settings.warmup
            )
            group["lr"] = group["rate"] * settings.learning_rate * factor
        optimizer.zero_grad(set_to_none=not gradient.recorded)
        seed_global(derive_seed(settings.seed, "step", state.step), self.fabric.device)
        y = batch.y if batch.y_view is None else torch.cat([batch.y, batch.y_view])
        inputs = (y, torch.cat([batch.phi, batch.failed_phi]), batch.groups)
        parts = gradient(*(x.to(self.fabric.device, non_blocking=True) for x in inputs))
        if settings.gradient_clip is not None:
            self.fabric.clip_gradients(
                module, optimizer, max_norm=settings.gradient_clip, error_if_nonfinite=False
            )
        optimizer.step()
        state.step += 1
        state.update_average(settings.ema or 0.0)
        return parts

    def _gradient(
        self, state: TrainingState, y: Tensor, phi: Tensor, groups: Tensor
    ) -> dict[str, Tensor]:
        """Accumulate the gradient of a batch and return the parts of its loss; rows of ``y`` past the groups' number are second views."""
        settings, model, bank, pairs = self.settings, state.model, state.bank, len(groups)
        parts: dict[str, Tensor] = {}

        def loss(embeddings: Sequence[Tensor]) -> Tensor:
            embedded, emulated = embeddings
            f, view, g, failed = (
                embedded[:pairs],
                embedded[pairs:],
                emulated[:pairs],
                emulated[pairs:],
            )
            parts["loss_phi_y"], parts["loss_y_phi"] = inter_domain_info_nce(
                f, g, model.similarity.score,
                # Within a batch every group occurs once: only the bank needs the ids.
                groups=groups if bank is not None else None, bank=bank, failed=failed if len(failed) else None,
                push_emulator=settings.repulsion == "both",
            )  # fmt: skip
            wanted = {
                "symmetric": ("loss_phi_y", "loss_y_phi"),
                "phi_y": ("loss_phi_y",),
                "y_phi": ("loss_y_phi",),
            }[settings.loss]
            total = torch.stack([parts[name] for name in wanted]).sum()
            if len(view):
                parts["loss_views"] = view_info_nce(f, view, model.similarity.score)
                total = total + settings.view_weight * parts["loss_views"]
            parts["loss"] = total
            return total

        inputs = [(model.embed, y), (model.emulate, phi)]
        f, g = backward(
            self.fabric,
            model,
            inputs=inputs,
            loss=loss,
            micro_batch=settings.micro_batch,
            seed=derive_seed(settings.seed, state.step),
        )
        if bank is not None:
            bank.push(f[:pairs], g[:pairs], groups)
        return {name: value.detach() for name, value in parts.items()}

    def _validate(self, state: TrainingState) -> None:
        """Score the candidate on held-out pairs, keep it if it is the best, and write the record."""
        record: Record = {"epoch": state.epoch, "step": state.step}
        record |= {
            name: values.double().mean().item() for name, values in state.losses_since().items()
        }
        state.losses = []
        if not math.isfinite(record["loss"]):
            raise RuntimeError(
                f"training diverged: the loss became {record['loss']} in epoch {state.epoch}; lower learning_rate, "
                "or look for NaN in what views= returns"
            )
        score = self.score(state.candidate)
        record |= {
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "scale": state.candidate.similarity.factor().item(),
            "held_out_log_ratio": score.log_ratio,
            "held_out_error": score.error,
            "held_out_density_sum": score.density_sum,
            "held_out_density_median": score.density_median,
            "cv_normalizer": score.cv_normalizer,
            "effective_draws": score.effective_draws,
        }
        state.keep_if_best(score.log_ratio)
        state.history.append(record)
        if self.callback is not None:
            self.callback(dict(record))

    def score(self, model: EmbedAndEmulate, *, widest: int = 10) -> HeldOutScore:
        """Score a model on the held-out pairs, one fixed view each, with up to ``widest`` times the draws where they are too few."""
        similarity, draws = model.similarity, self.settings.normalizer_draws
        seen = self._held_out_views() if callable(self._held_out_views) else self._held_out_views
        embedded = torch.cat([model.embed_all(y) for y in seen])
        emulated = model.emulate_all(self.held_out.phi)
        with torch.no_grad():
            normalizer = estimate_normalizer(
                similarity, embedded, model.prior_bank(model.prior, draws)
            )
            for factor in (10, 100):
                if factor <= widest and normalizer.effective_draws.min() < ENOUGH_DRAWS:
                    bank = model.prior_bank(
                        model.prior, min(factor * draws, max(_MOST_DRAWS, draws))
                    )
                    normalizer = refine_normalizer(normalizer, similarity, embedded, bank)
            return held_out_score(similarity, embedded, emulated, normalizer)

    def _out_of_patience(self, state: TrainingState) -> bool:
        validated = bool(state.history) and state.history[-1]["epoch"] == state.epoch
        return (
            validated
            and self.settings.patience is not None
            and state.epoch - state.best_epoch >= self.settings.patience
        )


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Return the schedule's factor: linear warm-up over that share of all steps, then cosine decay to zero."""
    warm = warmup * steps
    if step < warm:
        return (step + 1) / (warm + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, steps - warm)))


def _finish(trainer: _Trainer, state: TrainingState) -> EmbedAndEmulate:
    """Return the best model seen; the prior itself counts, with its score of 0."""
    if not state.best_weights:
        raise RuntimeError(
            "training failed: no validation gave a finite held-out score; does the encoder return NaN outside training?"
        )
    # A copy is not compiled: inference comes in other shapes, and would be compiled anew for each.
    model = (
        (copy.deepcopy(state.model) if trainer.settings.compile else state.model)
        .requires_grad_(False)
        .eval()
    )
    model.load_state_dict(state.best_weights)
    model.history = state.history
    best = next(record for record in state.history if record["epoch"] == state.best_epoch)
    reached, draws = state.best_score, best["effective_draws"]
    if draws < ENOUGH_DRAWS:
        # Too few draws flatter a sharp model: look once more, with many.
        score = trainer.score(model, widest=100)
        reached, draws = score.log_ratio, score.effective_draws
    if reached <= 0:
        model.similarity.exponent.zero_()
        warnings.warn(
            f"on held-out data the model is no better than the prior ({reached:.3g} nats, the prior's own score is 0), so it returns the prior: "
            f"{state.advice()}", EandeWarning, stacklevel=4,
        )  # fmt: skip
    elif draws < ENOUGH_DRAWS:
        warnings.warn(
            f"the held-out score ({reached:.3g} nats) rests on {draws:.0f} effective prior draws for some data and may flatter the model; "
            "raise normalizer_draws", EandeWarning, stacklevel=4,
        )  # fmt: skip
    return model
