"""Figures show the numbers they are given."""

from eande import plots
from eande.diagnostics.diagnose import diagnose
from eande.diagnostics.identifiability import identifiability
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import exact_model


def test_figures_show_what_was_found(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    figure = plots.diagnosis(diagnose(model, held_out, draws=500))
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[0].startswith("ranks of phi1, p = ")
    assert titles[2].startswith("coverage, p = ")
    assert len(plots.ellipses(identifiability(model, held_out, points=5)).axes[0].lines) == 5
