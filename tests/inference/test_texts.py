"""What models, posteriors and the rest say of themselves: in a line, and in notebooks."""

import hashlib
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from torch import nn

import eande
from eande.diagnostics.diagnosis import Verdict
from eande.inference.describing import held_out_nats
from eande.inference.model import layers_of
from eande.similarities.calibrated import Calibrated
from eande.similarities.prior_only import PriorOnly
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import exact_model

SCRIPT = "<script>alert('a')</script>"


def mixture_model(names=None, history=()):
    model = eande.EmbedAndEmulate(
        nn.Sequential(nn.Flatten(), nn.Linear(50, 4)),
        nn.Linear(2, 4),
        eande.Mixture(16, dimension=4),
        eande.BoxPrior([0, 0], [1, 1], names=names),
        y_shape=(1, 50),
        embedding_dimension=4,
    )
    model.history = list(history)
    return model


def cells(html):
    """The text of each row, as a browser shows it; what is no well-formed HTML is an error."""
    root = ET.fromstring(html)
    assert {one.tag for one in root.iter()} <= {"div", "strong", "table", "tr", "td", "th"}
    return [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]


def test_a_model_is_a_line():
    history = [{"step": 1, "score": 3.174}, {"step": 2, "score": 2.0}]
    assert repr(mixture_model(history=history)) == (
        "EmbedAndEmulate(2 parameters from data of shape (1, 50), mixture of 16 heads, "
        "3.17 nats held out)"
    )
    assert repr(mixture_model()).endswith("mixture of 16 heads, no history of training)")
    fallen = mixture_model(history=history)
    fallen = fallen.with_similarity(PriorOnly(fallen.similarity))
    assert repr(fallen).endswith("mixture of 16 heads, no better than the prior, which it returns)")


def test_an_ensemble_and_a_calibrated_model_say_so(joint):
    assert "ensemble of 3, each a " in repr(joint)
    nats = sum(held_out_nats(member.history) for member in joint.members) / 3
    assert f"{nats:.3g} nats held out" in repr(joint)
    assert "\n" not in repr(joint)
    assert "calibrated ensemble of 3" in repr(
        joint.with_similarity(Calibrated(joint.similarity, 1.5))
    )


def test_the_score_is_the_log_ratio_whatever_models_were_selected_by():
    history = [
        {"score": 9.0, "held_out_log_ratio": 1.5},
        {"score": 8.0, "held_out_log_ratio": 2.0},
    ]
    assert held_out_nats(history) == 1.5
    assert held_out_nats([]) is None


def test_digests_are_of_the_layers_as_before():
    """Files and checkpoints know networks of the user's by the text that torch writes."""
    network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    assert layers_of(network) == repr(network) == str(network)
    model = mixture_model()
    inside = nn.Sequential(model, nn.Linear(4, 2))
    before = nn.Module.__repr__(model)
    assert before.startswith("EmbedAndEmulate(\n  (encoder): Sequential(")
    assert layers_of(model) == before
    indented = "\n".join("  " + line for line in before.splitlines()).strip()
    assert f"(0): {indented}" in layers_of(inside)
    # Whatever it scored: the digest of a network that has a model inside stays.
    digest = hashlib.sha256(layers_of(inside).encode()).hexdigest()
    model.history = [{"score": 1.0}]
    assert hashlib.sha256(layers_of(inside).encode()).hexdigest() == digest
    assert repr(model).startswith("EmbedAndEmulate(2 parameters"), "the line again"


def test_notebooks_show_tables_in_which_names_are_text():
    model = mixture_model(names=[SCRIPT, "b & c"], history=[{"step": 1, "score": 1.25}])
    rows = dict(cells(model._repr_html_()))
    assert rows["parameters"] == f"{SCRIPT}, b & c"
    assert rows["encoder"] == "Sequential, 204 weights"
    assert rows["reached"] == "1.25 nats held out"
    posterior = model.posterior(torch.zeros(1, 50))
    assert dict(cells(posterior._repr_html_()))["parameters"] == f"{SCRIPT}, b & c"
    header, first, *_ = cells(posterior.summary(samples=200)._repr_html_())
    assert header == ["", "mean", "std", "90% interval"]
    assert first[0] == SCRIPT
    for shown in (model, posterior, posterior.summary(samples=200)):
        assert "<script>" not in shown._repr_html_()


def test_a_posterior_computes_nothing_for_its_table():
    posterior = exact_model(VonMisesFisher(8, seed=0)).posterior(np.ones(2))
    before = set(vars(posterior))
    rows = dict(cells(posterior._repr_html_()))
    assert set(vars(posterior)) == before
    assert rows["log C"] in repr(posterior).replace("log C = ", "")


def test_simulations_show_their_shape_failures_and_ranges():
    phi = torch.tensor([[0.0, 10.0], [1.0, 30.0], [0.5, 20.0]])
    simulations = eande.Simulations.from_arrays(phi, torch.zeros(3, 7), failed_phi=phi[:1])
    assert cells(simulations._repr_html_()) == [
        ["simulations", "3"],
        ["data", "shape (7,)"],
        ["failed", "1"],
        ["phi1", "0 to 1"],
        ["phi2", "10 to 30"],
    ]
    cells(simulations[:0]._repr_html_())


def test_a_diagnosis_shows_its_verdicts(held_out):
    found = eande.diagnose(exact_model(VonMisesFisher(8, seed=0)), held_out, progress=False)
    rows = cells(found._repr_html_())
    assert [row[1:] for row in rows] == [[one.name, one.text] for one in found.verdicts]
    assert rows[0][0] == "ok"


@pytest.mark.parametrize("name", ["a", "log_kappa", "a name that is longer than its column"])
def test_names_of_checks_stand_apart_from_their_texts(held_out, name):
    found = eande.diagnose(exact_model(VonMisesFisher(8, seed=0)), held_out, progress=False)
    verdicts = [Verdict(f"ranks of {name}", True, "p = 0.91")]
    renamed = eande.Diagnosis(**(vars(found) | {"verdicts": tuple(verdicts)}))
    assert f"ranks of {name}  " in str(renamed)
    assert str(renamed).endswith("  p = 0.91")
