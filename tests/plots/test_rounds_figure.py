"""The figure of rounds shows what their table says."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import eande
from eande import plots
from helpers.rounds_runs import make, observe


@pytest.fixture(scope="module")
def made():
    return make(observe([0.5, -0.3]), rounds=2, simulations=600)


def test_every_round_is_drawn(made):
    model, info = made
    figure = plots.rounds(model, info)
    FigureCanvasAgg(figure).draw()
    where, kept, told = figure.axes
    assert where.get_xlabel() == "a"
    assert kept.lines[0].get_ydata().tolist() == [1, np.exp(info.rounds[1].log_mass)]
    assert [line.get_ydata()[0] for line in told.lines[-2:]] == [one.nats for one in info.rounds]
    last = where.lines[-1].get_xydata()
    assert len(last) == 1_000
    everything = where.lines[0].get_xydata()
    assert np.ptp(last[:, 0]) < 0.6 * np.ptp(everything[:, 0])


def test_a_round_that_is_not_to_be_trusted_is_a_cross(made):
    model, info = made
    rounds = (info.rounds[0], replace(info.rounds[1], alarms=("something",)))
    _, kept, _ = plots.rounds(model, replace(info, rounds=rounds)).axes
    assert [line.get_marker() for line in kept.lines[1:]] == ["o", "x"]


def test_no_rounds_are_refused(made):
    with pytest.raises(eande.InputError, match="info: expected at least one round, got none"):
        plots.rounds(made[0], eande.Rounds((), "never begun"))
