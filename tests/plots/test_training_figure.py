"""The figure of a fit shows its history, its best moments and what was tried."""

import copy
import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import eande
from eande import plots
from eande.similarities.prior_only import PriorOnly
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import exact_model, quick_fit


@pytest.fixture(scope="module")
def model(few_simulations):
    box = eande.BoxPrior([-1, -1], [1, 1])
    return quick_fit(few_simulations, box, epochs=20, learning_rate=5e-3, validate_every=2)


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_every_record_is_drawn_and_the_best_moment_is_marked(model):
    figure = plots.training(model)
    above, below, _ = figure.axes
    steps = [record["step"] for record in model.history]
    scores = [record["score"] for record in model.history]
    assert above.lines[0].get_xdata().tolist() == steps
    assert above.lines[0].get_ydata().tolist() == scores
    assert below.lines[0].get_ydata().tolist() == [record["loss"] for record in model.history]
    star = above.lines[1]
    assert star.get_marker() == "*"
    assert star.get_xydata().tolist() == [[steps[np.argmax(scores)], max(scores)]]
    assert legend(figure) == ["this model", "best moment", "the prior's own score"]
    assert above.get_ylabel() == "held-out log ratio, nats"
    assert f"at best {max(scores):.2f} on held-out pairs" in figure.get_suptitle()
    FigureCanvasAgg(figure).draw()


def test_members_of_an_ensemble_have_a_line_each(joint):
    figure = plots.training(joint)
    assert legend(figure)[:3] == ["member 1", "member 2", "member 3"]
    lines = figure.axes[0].lines[::2][:3]
    assert len({str(line.get_linestyle()) for line in lines}) == 3
    for line, member in zip(lines, joint.members, strict=True):
        assert line.get_ydata().tolist() == [record["score"] for record in member.history]


def test_runs_that_were_tried_are_points_with_errors_and_written_out(model):
    searched = copy.copy(model)
    searched.tried = [
        {"start": start, "repulsion": "both", "inputs": inputs, "steps": steps, "score": score}
        | {"error": 0.1, "best_step": best}
        for start, inputs, steps, score, best in [
            ("random", "all", 300, 0.4, 120),
            ("linear", "telling", 300, 0.7, 60),
            *[("linear", "all", 900 + i, 0.1, 100) for i in range(6)],
        ]
    ]
    figure = plots.training(searched)
    (points,) = figure.axes[0].containers
    assert points[0].get_xydata().tolist()[:2] == [[120, 0.4], [60, 0.7]]
    assert points[2][0].get_segments()[0][:, 1] == pytest.approx([0.3, 0.5])
    (text,) = figure.axes[2].texts
    lines = text.get_text().splitlines()
    assert lines[1] == "0.70 ± 0.10   linear start, repulsion both, telling inputs, 300 steps"
    assert lines[2] == "0.40 ± 0.10   random start, repulsion both, 300 steps"
    assert lines[-1] == "2 more are in model.tried"
    FigureCanvasAgg(figure).draw()
    box = text.get_window_extent()
    assert box.y0 >= 0
    assert box.y1 <= figure.axes[1].xaxis.label.get_window_extent().y0


def test_a_model_that_fell_back_to_the_prior_says_so_and_shows_its_curve(model):
    fallen = model.with_similarity(PriorOnly(model.similarity))
    fallen.history = [{"step": 10, "score": -3.0}, {"step": 20, "score": -0.5, "loss": 1.0}]
    figure = plots.training(fallen)
    assert "no better than the prior" in figure.get_suptitle()
    low, high = figure.axes[0].get_ylim()
    assert low < -3
    assert high > 0


def test_a_bad_beginning_leaves_room_for_the_rest(model):
    begun = copy.copy(model)
    begun.history = [{"step": 0, "score": -80.0}, {"step": 20, "score": 3.0, "loss": 1.0}]
    low, high = plots.training(begun).axes[0].get_ylim()
    assert -2.5 < low < -1
    assert 3 < high < 3.5


def test_scores_other_than_the_log_ratio_are_called_scores(model):
    other = copy.copy(model)
    other.history = [record | {"score": record["score"] + 1} for record in model.history]
    assert plots.training(other).axes[0].get_ylabel() == "held-out score"


def test_a_model_without_a_history_is_refused():
    with pytest.raises(eande.InputError, match="model: expected one with a history"):
        plots.training(exact_model(VonMisesFisher(8, seed=0)))


def test_files_of_older_versions_are_drawn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = eande.load("tests/data/format4/ensemble.eande")
    lines = plots.training(old).axes[0].lines
    assert lines[0].get_ydata()[0] == old.history[0]["held_out_log_ratio"]
