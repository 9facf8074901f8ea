"""The figure of coverage reads a diagnosis off in plain words."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from eande import plots
from eande.diagnostics.diagnose import diagnose
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import exact_model

TASK = VonMisesFisher(8, seed=0)


@pytest.mark.parametrize(
    ("temperature", "words"),
    [
        (1 / TASK.kappa, "no sign of miscalibration among 400 data (p = "),
        (0.5 / TASK.kappa, "posteriors are too narrow: over-confident (p = "),
        (2 / TASK.kappa, "posteriors are too wide: under-confident (p = "),
    ],
)
def test_the_words_say_whether_posteriors_cover(held_out, temperature, words):
    found = diagnose(exact_model(TASK, temperature), held_out, draws=2_000, progress=False)
    figure = plots.coverage(found)
    (axis,) = figure.axes
    assert axis.get_title().startswith(words)
    assert f"95 % hold {100 * found.covered[95]:.0f} %" in axis.get_title()
    diagonal, share = axis.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    # A point of the curve: the share of data whose region of that level holds the truth.
    nominal, empirical = share.get_data()
    place = np.searchsorted(nominal, 0.8 - 1e-9)
    assert empirical[place] == pytest.approx((found.weighed.level <= 0.8).double().mean().item())
    band = axis.collections[0].get_paths()[0].vertices
    at = band[np.isclose(band[:, 0], 0.5), 1]
    assert at.min() == pytest.approx(found.coverage.band[49, 0])
    assert at.max() == pytest.approx(found.coverage.band[49, 1])
    # A binomial band: three standard deviations of a share, about, for all places at once.
    assert 2.5 < (at.max() - at.min()) / 2 / (0.25 / 400) ** 0.5 < 3.5
    assert "400 data" in figure.legends[0].get_texts()[0].get_text()
    FigureCanvasAgg(figure).draw()


def test_what_was_not_tested_is_not_read_off(held_out):
    found = diagnose(exact_model(TASK), held_out, draws=2_000, progress=False)
    untested = found.__class__(**(vars(found) | {"draws": 10}))
    assert plots.coverage(untested).axes[0].get_title().startswith("NOT TESTED")
