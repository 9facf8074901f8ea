"""Figures and bridges: there after ``import eande`` alone, their libraries loaded when used."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import eande
from eande import plots


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.thorough
def test_figures_and_bridges_are_there_after_importing_the_package_alone():
    code = (
        "import eande\n"
        "print(eande.bridges.arviz.to_arviz.__name__)\n"
        "print(eande.bridges.sbi.EE.__name__)\n"
        "print(eande.plots.diagnosis.__name__)"
    )
    assert run(code).split() == ["to_arviz", "EE", "diagnosis"]
    assert {"plots", "bridges"} <= set(dir(eande))


def test_what_is_loaded_is_what_is_used():
    code = "import sys; from eande import bridges, plots; "
    loaded = "print([name for name in ('torch', 'matplotlib', 'sbi') if name in sys.modules])"
    assert run(code + loaded) == "[]"


def test_without_matplotlib_a_figure_says_what_to_install():
    code = (
        "import sys, eande\n"
        "sys.modules['matplotlib'] = None\n"
        "try:\n    eande.plots.diagnosis\nexcept ImportError as error:\n    print(error)"
    )
    assert run(code) == "figures need matplotlib: pip install matplotlib"


@pytest.mark.parametrize("name", plots.__all__)
def test_every_figure_has_a_home_and_a_docstring(name):
    assert getattr(plots, name).__doc__
    assert set(plots._HOMES) == set(plots.__all__) == set(dir(plots))


@pytest.mark.parametrize("module", [plots, eande.bridges])
def test_an_unknown_figure_or_bridge_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match="has no attribute 'figures'"):
        _ = module.figures


def densities(half_width):
    place = np.linspace(-half_width, half_width, 30)
    radius = np.hypot(place[:, None], place)
    return np.exp(-((radius - 8) ** 2))


def test_figures_show_every_method_and_every_parameter():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(50, 2))
    density = densities(15.0)
    ring = plots.ring(density, samples, samples, half_width=15.0, method="theirs")
    assert "line theirs" in ring.get_suptitle()
    grid = plots.posterior_grid(
        {"ours": density[None], "flat": 0 * density[None]}, np.array([[8.0, 0.0]]), half_width=15.0
    )
    assert [axis.get_title() for axis in grid.axes] == ["ours", "flat"]
    boxes = plots.boxes({"ours": [1.0, 2.0], "theirs": [2.0, 3.0]}, label="MMD²", floor=0.5)
    assert boxes.axes[0].get_yscale() == "log"
    distances = plots.distance_boxes({"a": [0.1, 0.2]}, {"a": 0.15}, label="L1")
    assert distances.axes[0].get_ylim()[0] == 0
    curves = plots.curves({"ours": ([1, 2], rng.normal(size=(3, 2)))}, x="n", y="loss", log_x=True)
    assert curves.axes[0].get_xscale() == "log"
    assert [label.get_text() for label in curves.axes[0].get_xticklabels()] == ["1", "2"]
    for figure in (ring, grid, boxes, distances, curves):
        FigureCanvasAgg(figure).draw()
