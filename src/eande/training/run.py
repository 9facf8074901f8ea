"""One run of a fit: a model is built, trained as its settings say, and its best weights are kept.

A fit of given length is one run, after short starts where several are asked for; a search
(:mod:`eande.training.search`) compares many.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from eande.inference.model import EmbedAndEmulate
from eande.inference.trained_on import digests_of_some
from eande.priors.prior import Prior
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View
from eande.training.batches import Batches
from eande.training.build import Networks, build_model
from eande.training.checkpoints import CheckpointStore
from eande.training.contrastive import ContrastiveTask
from eande.training.loop import Loop
from eande.training.negatives import MemoryBank
from eande.training.settings import FitSettings, Schedule
from eande.training.state import Record, TrainingState
from eande.training.trackers import Tracked
from eande.training.validation import HeldOut, QuickScore

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Call:
    """What all runs of a fit share.

    Args:
        prior: the law of the parameters.
        views: what the encoder sees of a datum.
        networks: those that were given.
        fabric: device and precision.
        bar: a progress bar, None for none.
        callback: called with every record of the history.
        tracked: what tells a tracker of every step, None for none.
        folder: of the fit's checkpoints, None for none.
        fingerprint: what identifies the call.
    """

    prior: Prior
    views: View | None
    networks: Networks
    fabric: "Fabric"
    bar: Progress | None
    callback: Callable[[Record], None] | None
    tracked: Tracked | None
    folder: Path | None
    fingerprint: dict[str, Any]


def tagged(
    callback: Callable[[Record], None] | None, **numbers: float
) -> Callable[[Record], None] | None:
    """Return a callback whose records also say which run or member they are of."""
    if callback is None:
        return None
    return lambda record: callback(record | numbers)


@contextmanager
def doing(bar: Progress | None, what: str) -> Iterator[None]:
    """Say in the progress bar, if there is one, what takes its time beside the steps."""
    if bar is None:
        yield
        return
    task = bar.add_task(what, total=None)
    try:
        yield
    finally:
        bar.remove_task(task)


@dataclass(frozen=True)
class Split:
    """Simulations to train on, and others to hold out."""

    train: Simulations
    held_out: Simulations


class Run:
    """The training of one model.

    Args:
        call: what all runs share.
        split: the simulations.
        settings: of this run; nothing is left open in them.
        number: of the first start: another number makes other networks.
        schedule: how long, and when to validate; None for that of the settings.
        files: how many checkpoints the fit may leave beside those that are there.
    """

    def __init__(
        self,
        call: Call,
        split: Split,
        settings: FitSettings,
        *,
        number: int = 0,
        schedule: Schedule | None = None,
        files: int = 1,
    ) -> None:
        self.call = call
        self.split = split
        self.settings = settings
        self.number = number
        seconds = settings.checkpoint_seconds
        self.store = CheckpointStore(call.folder, call.fingerprint, seconds, files)
        self.held_out = HeldOut(split.held_out, call.views, settings.normalizer_draws)
        # A schedule of its own validates often.
        quick = None if schedule is None else QuickScore(self.held_out, settings.seed)
        if settings.select_by != "log_ratio":
            quick = None
        batches = Batches.of(split.train, call.views, settings)
        self.task = ContrastiveTask(call.fabric, settings, batches, self.held_out, quick)
        self.loop = Loop(
            call.fabric, self.task, self.store, call.bar, call.callback, schedule, call.tracked
        )

    def begin(self, start: int = 0) -> TrainingState[EmbedAndEmulate]:
        """Return the state of a start before its first step."""
        call = self.call
        with doing(call.bar, "building the networks"):
            model = build_model(
                self.split.train,
                call.views,
                call.prior,
                self.settings,
                call.networks,
                start=self.number + start,
            ).to(call.fabric.device)
        # Validation must not need more memory than training does.
        rows = self.settings.micro_batch or self.settings.batch_size
        assert rows is not None
        assert self.settings.learning_rate is not None
        model.encoder_rows = min(model.encoder_rows, rows)
        bank = None
        if self.settings.memory_bank:
            dimension = self.settings.embedding_dimension
            bank = MemoryBank(self.settings.memory_bank, dimension).to(model.device)
        return TrainingState.begin(
            model,
            learning_rate=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            decayed=self.settings.decayed,
            ema=self.settings.ema,
            bank=bank,
        )

    def best_start(self) -> TrainingState[EmbedAndEmulate]:
        """Return the state to train on: the best of the short starts, where there are several."""
        state = self.begin()
        if self.settings.restarts == 1 or self.store.has("main"):
            return state
        for start in range(self.settings.restarts):
            challenger = self.begin(start)
            label = f"start {start + 1} of {self.settings.restarts}"
            self.loop.run(challenger, self.loop.schedule.short_epochs, f"start-{start}", label)
            if challenger.best_score > state.best_score:
                state = challenger
        return state

    def finished(self, state: TrainingState[EmbedAndEmulate]) -> EmbedAndEmulate:
        """Return the model of the best weights that a run came to."""
        if not state.best_weights or not math.isfinite(state.best_score):
            raise RuntimeError(
                "training failed: no validation gave a finite held-out score; does the encoder "
                "return NaN outside training?"
            )
        # A copy is not compiled: inference comes in other shapes, and would be compiled anew.
        model = copy.deepcopy(state.model) if self.settings.compile else state.model
        model = model.requires_grad_(False).eval()
        model.load_state_dict(state.best_weights)
        model.history = state.history
        model.trained_on = digests_of_some(self.split.train)
        return model
