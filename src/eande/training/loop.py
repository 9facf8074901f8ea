"""The training loop: epochs of steps, an average of the weights, validation, the best weights.

What is trained is a task: E&E's own (:mod:`eande.training.contrastive`), or a baseline that is to
be trained on equal terms. Every random choice depends on (seed, epoch, step), and a checkpoint
holds the whole state between two epochs, so that a run killed at any moment and started again ends
in the same weights.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from rich.progress import Progress
from torch import Tensor, nn

from eande.foundations.checks import InputError, calling
from eande.foundations.seeds import derive_seed, seed_global
from eande.inference.cuda_graphs import Function, GraphedFunction
from eande.training.batches import Batch, Batches
from eande.training.checkpoints import CheckpointStore
from eande.training.settings import FitSettings, Schedule
from eande.training.state import Record, TrainingState
from eande.training.trackers import Tracked

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Model = TypeVar("Model", bound=nn.Module)


class DivergedError(RuntimeError):
    """The loss of a run is no number any more."""


class Validated(NamedTuple):
    """The score a model is selected by, higher is better and 0 the prior's; and its record."""

    score: float
    record: Record


class Task(Protocol[Model]):
    """What the loop trains."""

    settings: FitSettings
    batches: Batches

    @property
    def capturable(self) -> bool:
        """Whether a step may be captured as a CUDA graph."""

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the tensors of a batch that :meth:`gradient` takes."""

    def gradient(self, state: TrainingState[Model], *inputs: Tensor) -> dict[str, Tensor]:
        """Accumulate the gradient of a batch and return the parts of its loss, ``loss`` in all."""

    def validate(self, state: TrainingState[Model]) -> Validated:
        """Score the candidate of a run on held-out pairs."""


class Loop(Generic[Model]):
    """Runs epochs of a task.

    Args:
        fabric: device and precision.
        task: what to train.
        store: where checkpoints go.
        bar: a progress bar, None for none.
        callback: called with every record of the history.
        schedule: how long, and when to validate; None for that of the settings.
        tracked: what tells a tracker of every step, None for none.
    """

    def __init__(
        self,
        fabric: "Fabric",
        task: Task[Model],
        store: CheckpointStore,
        bar: Progress | None = None,
        callback: Callable[[Record], None] | None = None,
        schedule: Schedule | None = None,
        tracked: Tracked | None = None,
    ) -> None:
        self.fabric = fabric
        self.task = task
        self.store = store
        self.bar = bar
        self.callback = callback
        self.tracked = tracked
        self.settings = task.settings
        self.schedule = schedule or self.settings.schedule()
        self._steps = task.batches.steps_per_epoch * self.schedule.epochs

    def run(self, state: TrainingState[Model], until: int, name: str, label: str) -> None:
        """Train from where the state (or its checkpoint) stands.

        Args:
            state: of the run.
            until: the last epoch, unless patience ends first.
            name: of the checkpoint.
            label: of the progress bar.
        """
        resumed = self.store.restore(state, name)
        if state.step != state.epoch * self.task.batches.steps_per_epoch or state.epoch > until:
            raise InputError(
                f"checkpoint: expected {until} epochs of {self.task.batches.steps_per_epoch} steps "
                f"at most, got {state.step} steps in {state.epoch} epochs; delete it to begin anew"
            )
        if state.epoch < until and not self._ended(state):
            self.store.check_room(state, name)
        module, optimizer = self.fabric.setup(state.model, state.optimizer)
        gradient = self._gradient_of(state)
        shown = None if self.bar is None else self.bar.add_task(label, total=until)
        if self.bar is not None and resumed:
            self.bar.console.print(f"{label}: resumed at step {state.step:,}")
        if state.step == 0 and not state.history and self.schedule.validates(0):
            state.model.eval()
            self.validate(state)
        self._show(shown, label, state)
        state.model.train()
        while state.epoch < until and not self._ended(state):
            for batch in self.task.batches.epoch(state.epoch):
                state.note(self.step(state, module, optimizer, gradient, batch))
            state.epoch += 1
            if self.schedule.validates(state.epoch) or state.epoch == until:
                state.model.eval()
                self.validate(state)
                state.model.train()
            final = state.epoch == until or self._ended(state)
            self.store.save(state, name, final=final)
            self._show(shown, label, state)
        if self.bar is not None and shown is not None:
            self.bar.update(shown, completed=until)

    def _gradient_of(self, state: TrainingState[Model]) -> Function:
        """Return the gradient as a function of a batch's tensors, a CUDA graph where it may be."""
        gradient = partial(self.task.gradient, state)
        if not self.settings.compile:
            return gradient
        encoder = getattr(state.model, "encoder", None)
        if isinstance(encoder, nn.Module):
            encoder.compile(dynamic=False)
        capture = self.task.capturable and self.fabric.device.type == "cuda"
        return GraphedFunction(gradient, enabled=capture)

    def step(
        self,
        state: TrainingState[Model],
        module: Any,
        optimizer: Any,
        gradient: Function,
        batch: Batch,
    ) -> dict[str, Tensor]:
        """Take one step of the optimiser and return the parts of the loss."""
        settings = self.settings
        assert settings.learning_rate is not None
        factor = learning_rate_factor(state.step, self._steps, settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * settings.learning_rate * factor
        captured = isinstance(gradient, GraphedFunction) and gradient.captured
        optimizer.zero_grad(set_to_none=not captured)
        seed_global(derive_seed(settings.seed, "step", state.step), self.fabric.device)
        # The loss is the task's: for E&E, ContrastiveTask.gradient and .losses.
        inputs = self.task.inputs(batch)
        losses = gradient(*(x.to(self.fabric.device, non_blocking=True) for x in inputs))
        if settings.gradient_clip is not None:
            self.fabric.clip_gradients(
                module, optimizer, max_norm=settings.gradient_clip, error_if_nonfinite=False
            )
        optimizer.step()
        state.step += 1
        state.update_average(settings.ema or 0.0)
        return losses

    def validate(self, state: TrainingState[Model]) -> None:
        """Score the candidate on held-out pairs, keep it if it is the best, write the record."""
        record: Record = {"epoch": state.epoch, "step": state.step}
        losses = state.losses_since()
        record |= {name: values.double().mean().item() for name, values in losses.items()}
        if self.tracked is not None:
            self.tracked.losses(state.step, losses)
        state.losses = []
        if not math.isfinite(record.get("loss", 0.0)):
            raise DivergedError(
                f"training diverged: the loss became {record['loss']} in epoch {state.epoch}; "
                "lower learning_rate, or look for NaN in what views= returns"
            )
        validated = self.task.validate(state)
        record["learning_rate"] = state.optimizer.param_groups[0]["lr"]
        record |= validated.record | {"score": validated.score}
        if self.settings.select_by == "last":
            state.keep(validated.score)
        else:
            state.keep_if_best(validated.score)
        state.history.append(record)
        if self.tracked is not None:
            self.tracked.record(record, losses)
        if self.callback is not None:
            again = partial(self.callback, dict(record))
            with calling("callback", again, epoch=state.epoch, step=state.step):
                self.callback(dict(record))

    def _show(self, shown: Any, label: str, state: TrainingState[Model]) -> None:
        if self.bar is None or shown is None:
            return
        reached = ""
        if math.isfinite(state.best_score):
            # First, for a narrow terminal cuts the end.
            reached = f"held-out {state.best_score:.3f} nats, "
        self.bar.update(shown, completed=state.epoch, description=reached + label)

    def _ended(self, state: TrainingState[Model]) -> bool:
        """Return whether a run ends before its time: its best moment is long past."""
        if not state.history or state.history[-1]["epoch"] != state.epoch:
            return False
        if self.schedule.gives_up(state.epoch, state.best_epoch) and state.fell():
            return True
        patience = self.settings.patience
        return patience is not None and state.epoch - state.best_epoch >= patience


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Return the schedule's factor: linear warm-up over that share of all steps, then a cosine."""
    warm = warmup * steps
    if step < warm:
        return (step + 1) / (warm + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, steps - warm)))
