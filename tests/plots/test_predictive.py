"""Predictive figures: bands that hold what they say, and the observed where it is."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import eande
from eande import plots

RNG = np.random.default_rng(0)


def edges(area):
    """The lower and the upper edge of a filled band, by place."""
    vertices = area.get_paths()[0].vertices
    places = np.unique(vertices[:, 0])
    at = [vertices[vertices[:, 0] == place, 1] for place in places]
    return np.array([values.min() for values in at]), np.array([values.max() for values in at])


def test_a_series_lies_over_the_bands_of_the_simulated_ones():
    simulated = RNG.normal(size=(2_000, 60)) * np.linspace(1, 3, 60)
    observed = np.linspace(-1, 1, 60)
    figure = plots.predictive(observed, simulated, names=["$x_"], title="An observation")
    (axis,) = figure.axes
    wide, narrow = axis.collections
    for area, (below, above) in ((wide, (0.05, 0.95)), (narrow, (0.25, 0.75))):
        low, high = edges(area)
        assert low == pytest.approx(np.quantile(simulated, below, axis=0), abs=1e-5)
        assert high == pytest.approx(np.quantile(simulated, above, axis=0), abs=1e-5)
    median, own = axis.lines
    assert own.get_ydata() == pytest.approx(observed)
    assert median.get_ydata() == pytest.approx(np.median(simulated, axis=0), abs=1e-5)
    assert axis.get_ylabel() == "$x_"
    assert not axis.yaxis.label.get_parse_math()
    assert axis.get_title() == "60 of 60 observed numbers lie within the 90 % band"
    assert figure.get_suptitle() == "An observation"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        "90 % of the predicted",
        "50 % of the predicted",
        "median of the predicted",
        "observed",
    ]
    FigureCanvasAgg(figure).draw()


def test_channels_have_a_panel_each_and_gaps_stay_gaps():
    simulated = RNG.normal([[0.0], [50.0]], size=(500, 2, 30))
    observed = np.zeros((2, 30))
    observed[1] = 50
    observed[0, 5:10] = np.nan
    observed[1, 0] = 99.0
    figure = plots.predictive(observed, simulated, names=["hare", "lynx"])
    assert [axis.get_ylabel() for axis in figure.axes] == ["hare", "lynx"]
    assert figure.axes[0].get_title() == "54 of 55 observed numbers lie within the 90 % band"
    drawn = figure.axes[0].lines[1].get_ydata()
    assert np.isnan(drawn[5:10]).all()
    unnamed = plots.predictive(observed, simulated)
    assert [axis.get_ylabel() for axis in unnamed.axes] == ["channel 1", "channel 2"]


def test_a_short_vector_has_an_interval_for_each_number():
    simulated = RNG.normal([1, 2, 3], size=(2_000, 3))
    figure = plots.predictive([1.0, 2.0, 9.0], simulated, names=["mean", "<b>", "max"])
    (axis,) = figure.axes
    bars = axis.containers[0]
    for d, bar in enumerate(bars):
        low, high = np.quantile(simulated[:, d], [0.05, 0.95])
        assert bar.get_x() == pytest.approx(low, abs=1e-5)
        assert bar.get_width() == pytest.approx(high - low, abs=1e-5)
    assert axis.lines[0].get_xdata() == pytest.approx([1, 2, 9])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["mean", "<b>", "max"]
    assert axis.get_title() == "2 of 3 observed numbers lie within their 90 % intervals"
    assert axis.get_xlabel() == "value"
    assert axis.yaxis_inverted(), "the first is above"


def test_numbers_of_very_different_size_are_drawn_in_deviations():
    scale = np.array([1e-3, 1.0, 1e4])
    simulated = RNG.normal(size=(2_000, 3)) * scale
    figure = plots.predictive(2 * scale, simulated)
    (axis,) = figure.axes
    assert "predictive standard deviation" in axis.get_xlabel()
    assert axis.lines[0].get_xdata() == pytest.approx([2, 2, 2], abs=0.1)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["y1", "y2", "y3"]


def test_a_grid_is_drawn_beside_mean_spread_and_residual():
    mean = np.arange(20 * 15, dtype=float).reshape(20, 15)
    simulated = mean + 2 * RNG.normal(size=(1_000, 20, 15))
    figure = plots.predictive(mean + 4, simulated)
    pictures = [axis.images[0].get_array().data for axis in figure.axes[:4]]
    assert pictures[0] == pytest.approx(mean + 4)
    assert pictures[1] == pytest.approx(mean, abs=0.3)
    assert pictures[2] == pytest.approx(np.full_like(mean, 2), abs=0.2)
    assert pictures[3] == pytest.approx(np.full_like(mean, 2), abs=0.4)
    assert [axis.get_title() for axis in figure.axes[:4]] == [
        "observed",
        "mean of the predicted",
        "standard deviation of the predicted",
        "(observed − mean) / deviation",
    ]
    scales = {axis.images[0].get_clim() for axis in figure.axes[:2]}
    assert len(scales) == 1, "observed and mean are on one scale"
    assert "of 300 observed numbers lie within their 90 % intervals" in figure.get_supxlabel()
    several = plots.predictive(np.zeros((8, 4, 5)), RNG.normal(size=(50, 8, 4, 5)))
    assert "2 more channels are not drawn" in several.get_supxlabel()
    FigureCanvasAgg(several).draw()


def test_simulations_are_taken_as_they_are():
    simulated = RNG.normal(size=(100, 30)).astype(np.float32)
    simulations = eande.Simulations.from_arrays(np.zeros((100, 2)), simulated)
    one = plots.predictive(np.zeros(30), simulations).axes[0].lines[0].get_ydata()
    other = plots.predictive(np.zeros(30), simulated).axes[0].lines[0].get_ydata()
    assert np.array_equal(one, other)


def test_mistakes_are_refused_in_a_line():
    for error, arguments in {
        r"simulated: expected shape \(n, 3\), got \(5, 4\)": (np.zeros(3), np.zeros((5, 4))),
        r"observed: expected a vector, a series": (
            np.zeros((1, 1, 1, 1)),
            np.zeros((5, 1, 1, 1, 1)),
        ),
        r"number of simulated data: expected a whole number of at least 2": (
            np.zeros(3),
            np.zeros((1, 3)),
        ),
        r"observed: expected finite float32 numbers": (np.full(3, np.inf), np.zeros((5, 3))),
    }.items():
        with pytest.raises(eande.InputError, match=error):
            plots.predictive(*arguments)
    with pytest.raises(eande.InputError, match="names: expected 3 different names"):
        plots.predictive(np.zeros(3), np.zeros((5, 3)), names=["a"])
