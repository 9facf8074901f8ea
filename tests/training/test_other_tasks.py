"""The training loop trains whatever keeps to its protocol: here a regression, no E&E model."""

import io
import math

import pytest
import torch
from lightning.fabric import Fabric
from rich.console import Console
from rich.progress import Progress
from torch import nn

from eande.training.batches import Batches
from eande.training.checkpoints import CheckpointStore
from eande.training.loop import Loop, Validated
from eande.training.settings import FitSettings
from eande.training.state import TrainingState
from helpers.linear_task import NOISE

SETTINGS = FitSettings(
    epochs=30,
    batch_size=100,
    learning_rate=1e-2,
    validate_every=2,
    ema=0.9,
    checkpoint_seconds=0,
    device="cpu",
)


class Stopped(Exception):
    pass


class Regression:
    """The posterior mean by least squares, scored by how much smaller its errors are, in nats."""

    capturable = False

    def __init__(self, fabric, simulations, held_out, stop_at=math.inf):
        self.fabric = fabric
        self.settings = SETTINGS
        self.batches = Batches.of(simulations, None, SETTINGS)
        self.held_out = held_out
        self.stop_at = stop_at

    def inputs(self, batch):
        return batch.y, batch.phi

    def gradient(self, state, *inputs):
        y, phi = inputs
        if state.step == self.stop_at:
            raise Stopped
        with self.fabric.autocast():
            predicted = state.model(y)
        loss = (predicted - phi).square().mean()
        self.fabric.backward(loss)
        return {"loss": loss.detach()}

    @torch.no_grad()
    def validate(self, state):
        phi = self.held_out.phi
        error = (state.candidate(self.held_out.y[:]) - phi).square().mean()
        spread = (phi - phi.mean(0)).square().mean()
        return Validated(0.5 * (spread / error).log().item(), {"error": error.item()})


def train(simulations, folder=None, *, stop_at=math.inf, bar=None, seen=None):
    fabric = Fabric(accelerator="cpu", devices=1)
    task = Regression(fabric, simulations[:1_000], simulations[1_000:1_500], stop_at)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))
    state = TrainingState.begin(
        network,
        learning_rate=SETTINGS.learning_rate,
        weight_decay=0.0,
        decayed=SETTINGS.decayed,
        ema=SETTINGS.ema,
    )
    callback = None if seen is None else seen.append
    store = CheckpointStore(folder, {"task": "regression"}, SETTINGS.checkpoint_seconds)
    loop = Loop(fabric, task, store, bar, callback)
    loop.run(state, loop.schedule.epochs, "main", "regression")
    return state, task


def test_a_task_without_similarity_is_trained(linear_simulations):
    seen = []
    state, task = train(linear_simulations, seen=seen)
    assert state.epoch == 30
    assert state.step == 300
    assert seen == state.history
    assert [record["epoch"] for record in seen] == list(range(2, 31, 2))
    assert {"epoch", "step", "loss", "learning_rate", "error", "score"} == seen[0].keys()
    scores = [record["score"] for record in seen]
    assert state.best_score == max(scores)
    assert state.best_epoch == seen[scores.index(max(scores))]["epoch"]
    # The best weights are those of the average, which is what was validated.
    state.candidate.load_state_dict(state.best_weights)
    assert task.validate(state).score == pytest.approx(max(scores), abs=1e-6)
    # No more than the noise can be left of φ = y − noise, and little less: the box helps a little.
    assert 0.85 * NOISE < min(record["error"] for record in seen) ** 0.5 < NOISE


def test_it_goes_on_from_its_checkpoint(linear_simulations, tmp_path):
    whole, _ = train(linear_simulations)
    with pytest.raises(Stopped):
        train(linear_simulations, tmp_path, stop_at=134)
    resumed, _ = train(linear_simulations, tmp_path)
    assert resumed.history == whole.history
    for name, weight in whole.best_weights.items():
        assert torch.equal(resumed.best_weights[name], weight)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_its_progress_is_shown(linear_simulations):
    """A record holds what the task puts there: the bar needs its score only."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console=console) as bar:
        state, _ = train(linear_simulations, bar=bar)
        description = bar.tasks[0].description
        assert bar.finished
    assert description == f"held-out {state.best_score:.3f} nats, regression"
