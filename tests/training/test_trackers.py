"""Trackers are told the settings, every step's losses and the held-out scores."""

import numpy as np
import pytest
from sbi.utils.tracking import TensorBoardTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard.writer import SummaryWriter

import eande
from helpers import linear_task

pytestmark = pytest.mark.thorough
PRIOR = eande.BoxPrior([-1, -1], [1, 1], names=["a", "b"])


class Notes:
    """A tracker that remembers what it is told."""

    def __init__(self):
        self.metrics = []
        self.params = {}
        self.flushed = 0

    def log_metrics(self, metrics, step=None):
        self.metrics += [(name, step, value) for name, value in metrics.items()]

    def log_params(self, params):
        assert self.params.keys().isdisjoint(params), "some trackers refuse a setting told twice"
        self.params |= params

    def flush(self):
        self.flushed += 1

    def of(self, name):
        return [(step, value) for known, step, value in self.metrics if known == name]


def settings(**changes):
    small = {"embedding_dimension": 2, "width": 4, "blocks": 1, "normalizer_draws": 100}
    return eande.FitSettings(**({"epochs": 4, "batch_size": 60, "device": "cpu"} | small | changes))


def fit(simulations, tracker, **options):
    return eande.fit(
        simulations,
        PRIOR,
        **({"settings": settings(), "progress": False} | options),
        tracker=tracker,
    )


@pytest.mark.filterwarnings("ignore::eande.EandeWarning")
def test_tensorboard_reads_what_a_fit_told_the_tracker_of_sbi(few_simulations, tmp_path):
    writer = SummaryWriter(tmp_path)
    model = fit(few_simulations, TensorBoardTracker(writer), validation=0.1)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, 25)), "4 epochs of 6 steps"
    assert np.isfinite([event.value for event in losses]).all()
    for name in ("score", "held_out_log_ratio", "learning_rate"):
        told = [(event.step, event.value) for event in events.Scalars(name)]
        kept = [(record["step"], pytest.approx(record[name])) for record in model.history]
        assert told == kept
    texts = events.Tags()["tensors"]
    assert {"params/epochs/text_summary", "params/parameters/text_summary"} <= set(texts)
    parameters = events.Tensors("params/parameters/text_summary")[0]
    assert parameters.tensor_proto.string_val == [b"a, b"]


@pytest.mark.filterwarnings("ignore::eande.EandeWarning")
def test_losses_are_told_of_every_step_and_average_to_the_history(few_simulations):
    notes = Notes()
    model = fit(few_simulations, notes, validation=0.1)
    per_step = dict(notes.of("loss"))
    earlier = 0
    for record in model.history:
        steps = range(earlier + 1, int(record["step"]) + 1)
        assert record["loss"] == pytest.approx(np.mean([per_step[step] for step in steps]))
        earlier = int(record["step"])
    assert notes.params["epochs"] == 4
    assert notes.params["simulations"] == len(few_simulations)
    assert notes.flushed == 1


@pytest.mark.filterwarnings("ignore::eande.EandeWarning")
def test_members_and_runs_are_told_apart(few_simulations):
    notes = Notes()
    fit(few_simulations, notes, validation=0.1, members=2)
    assert len(notes.of("member-0/loss")) == len(notes.of("member-1/loss")) == 24
    assert notes.of("member-0/loss") != notes.of("member-1/loss")
    notes = Notes()
    searched = settings(epochs=None, max_steps=300, start="random", repulsion="both")
    fit(few_simulations, notes, validation=0.1, settings=searched)
    assert notes.params["run-0/plan"] == "random start, repulsion both, 300 steps"
    assert len(notes.of("run-0/loss")) > 100
    assert notes.of("run-0/score")[0][0] == 0


@pytest.mark.filterwarnings("ignore::eande.EandeWarning")
def test_a_tracker_changes_nothing_and_its_errors_say_whose_they_are(few_simulations, tmp_path):
    with_one = fit(few_simulations, Notes(), checkpoint=tmp_path)
    without = fit(few_simulations, None)
    for one, other in zip(with_one.parameters(), without.parameters(), strict=True):
        assert one.equal(other)
    # A tracker is no part of the call that a checkpoint resumes.
    fit(few_simulations, None, checkpoint=tmp_path)

    class Broken(Notes):
        def log_metrics(self, metrics, step=None):
            raise ConnectionError("no server")

    with pytest.raises(eande.UserCodeError, match=r"tracker: raised ConnectionError \(no server\)"):
        fit(few_simulations, Broken())


def test_what_is_no_tracker_is_refused(few_simulations):
    for wrong in (print, "runs", TensorBoardTracker, linear_task):
        with pytest.raises(eande.InputError, match="tracker: expected an object with log_metrics"):
            fit(few_simulations, wrong)
