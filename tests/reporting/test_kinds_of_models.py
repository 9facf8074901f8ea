"""Reports of all kinds of models, priors, data and names."""

import json
import warnings

import numpy as np
import pytest
import torch

import eande
from helpers import linear_task
from helpers.models import quick_fit
from helpers.written_reports import document, read, states

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("reports")]

AWKWARD = ("<script>alert(1)</script>", "$\\frac{", "_x & y", "温度", "a name " * 12 + "of length")


def linear(phi, rng):
    return phi + 0.3 * rng.standard_normal(phi.shape)


def reported(path, prior, *, simulator=linear, views=None, y=None, epochs=4, **options):
    """Report on a quick fit, with all that can be given."""
    simulations = eande.simulate(simulator, prior, 200, seed=0, progress=False)
    held_out = eande.simulate(simulator, prior, 110, seed=1, progress=False)
    model = quick_fit(simulations, prior, epochs=epochs, views=views, temperature=0.2)
    return eande.report(
        model,
        path,
        observed=held_out.y[0] if y is None else y,
        held_out=held_out,
        simulator=simulator,
        simulations=simulations,
        views=views,
        progress=False,
        **options,
    )


def box(count, names=None):
    return eande.BoxPrior([-1.0] * count, [1.0] * count, names=names)


def test_ten_parameters_take_less_than_five_megabytes(tmp_path):
    report = reported(tmp_path / "ten.html", box(10))
    assert report.path.stat().st_size < 5_000_000
    assert report.json_path.stat().st_size < 5_000_000
    found = document(report)["sections"]["inferred"]
    assert len(found["data"]["parameters"]) == 10
    assert found["figures"]


@pytest.mark.usefixtures("undrawn")
def test_more_parameters_than_can_be_drawn_stand_in_the_table(tmp_path):
    found = document(reported(tmp_path / "many.html", box(12)))["sections"]["inferred"]
    assert len(found["data"]["parameters"]) == 12
    assert "2 more rows stand in the table only" in found["figures"][0]["caption"]


def test_one_parameter_is_enough(tmp_path):
    report = reported(tmp_path / "one.html", box(1, ["rate"]))
    assert "What the data say about rate" in read(report).text


def test_awkward_names_are_shown_as_they_are(tmp_path):
    report = reported(tmp_path / "awkward.html", box(5, list(AWKWARD)), title=AWKWARD[0])
    page = read(report)
    for name in AWKWARD:
        assert name in page.text
    # The page's own two, and the data for them: what a name holds is no element.
    assert len(page.scripts) == 2
    assert "<script>alert" not in report.path.read_text()
    shown = json.loads(page.scripts[0])
    assert shown["names"] == list(AWKWARD)
    rows = document(report)["sections"]["inferred"]["data"]["parameters"]
    assert [row["name"] for row in rows] == list(AWKWARD)


def test_reasons_and_words_of_others_are_escaped(small_model, tmp_path):
    def fails(phi, rng):
        if phi[0, 0] < 0:
            raise ValueError("<img src=x onerror=alert(1)>")
        return linear(phi, rng)

    simulator = eande.each(lambda row, rng: fails(row[None], rng)[0])
    with pytest.warns(eande.EandeWarning, match="of 40 simulations failed"):
        simulations = eande.simulate(
            simulator, linear_task.BOX, 40, progress=False, failure_limit=0.9
        )
    assert len(simulations.failures)
    report = eande.report(
        small_model,
        tmp_path / "a.html",
        simulations=simulations,
        about="<b>bold</b>",
        provenance={"<i>": "</script><script>alert(1)</script>"},
        progress=False,
    )
    page = read(report)
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "<b>bold</b>" in page.text
    assert "</script><script>alert(1)</script>" in page.text
    assert len(page.scripts) == 1
    found = document(report)["sections"]["simulated"]["data"]
    assert found["failed"] == len(simulations.failures)
    assert "onerror" in next(iter(found["reasons"]))


@pytest.mark.usefixtures("undrawn")
def test_ensembles_are_reported_on(joint, tmp_path):
    held_out = eande.simulate(linear, joint.prior, 110, seed=1, progress=False)
    report = eande.report(
        joint, tmp_path / "a.html", observed=held_out.y[0], held_out=held_out, progress=False
    )
    assert document(report)["sections"]["training"]["data"]["model"]["members"] == 3


@pytest.mark.usefixtures("undrawn")
def test_a_prior_without_a_density_has_no_modes_and_the_rest(tmp_path):
    prior = eande.SamplerPrior(lambda n, seed: np.random.default_rng(seed).normal(size=(n, 2)))
    report = reported(tmp_path / "draws.html", prior)
    found = document(report)["sections"]["inferred"]
    assert found["data"]["modes"] == []
    assert any("known by draws only" in text for text in found["texts"])
    known = eande.EmpiricalPrior(torch.rand(300, 2))
    assert states(reported(tmp_path / "listed.html", known))


@pytest.mark.usefixtures("undrawn")
def test_two_modes_are_told_with_their_weights(tmp_path):
    def absolute(phi, rng):
        return phi.__abs__() + 0.1 * rng.standard_normal(phi.shape)

    simulations = eande.simulate(absolute, box(1, ["x"]), 1_500, seed=0, progress=False)
    model = quick_fit(simulations, box(1, ["x"]), epochs=30, similarity="mixture", width=48)
    report = eande.report(model, tmp_path / "a.html", observed=[0.6], progress=False)
    modes = document(report)["sections"]["inferred"]["data"]["modes"]
    assert len(modes) == 2
    assert abs(modes[0]["weight"] - 0.5) < 0.25
    assert "2 modes" in read(report).text


def series(phi, rng):
    return phi + 0.3 * rng.standard_normal((len(phi), 60))


def test_data_seen_through_windows_may_be_given_whole(tmp_path):
    views = eande.RandomWindow(40)
    prior = box(1, ["rate"])
    whole = series(np.array([[0.5]]), np.random.default_rng(0))[0]
    report = reported(tmp_path / "a.html", prior, simulator=series, views=views, epochs=40, y=whole)
    found = document(report)["sections"]
    assert found["predictive"]["figures"]
    assert found["certainty"]["data"]["near the observation"]
    assert len(found["certainty"]["data"]["explorer"]["data"][0]["y"]) == 1
    part = reported(
        tmp_path / "b.html", prior, simulator=series, views=views, epochs=40, y=whole[:40]
    )
    assert document(part)["sections"]["inferred"]["data"]
    assert document(part)["sections"]["predictive"]["figures"]


def with_gaps(phi, rng):
    y = phi[:, :1] + 0.3 * rng.standard_normal((len(phi), 20))
    y[rng.random(y.shape) < 0.2] = np.nan
    return y


def test_data_with_gaps_are_reported_on(tmp_path):
    prior = box(1, ["level"])
    rng = np.random.default_rng(0)
    phi = prior.sample(310, seed=0)
    simulations = eande.Simulations.from_arrays(phi, with_gaps(phi.numpy(), rng), missing=True)
    model = quick_fit(simulations[:200], prior, epochs=20, missing="mask")
    report = eande.report(
        model,
        tmp_path / "a.html",
        observed=simulations.y[300],
        held_out=simulations[200:],
        simulations=simulations[:200],
        progress=False,
    )
    found = document(report)["sections"]
    assert 0.1 < found["simulated"]["data"]["data"]["missing"] < 0.3
    assert found["inferred"]["data"]["parameters"]
    lines = found["certainty"]["data"]["explorer"]["data"][0]["y"]
    assert None in lines[0]


def field(phi, rng):
    return phi[:, :, None, None] * np.ones((8, 8)) + 0.3 * rng.standard_normal((len(phi), 1, 8, 8))


def test_grids_are_reported_on(tmp_path):
    report = reported(tmp_path / "a.html", box(1, ["level"]), simulator=field, epochs=10)
    found = document(report)["sections"]
    assert found["predictive"]["figures"]
    assert found["certainty"]["data"]["explorer"]["data"][0]["y"] is None


def test_a_simulator_that_fails_costs_its_own_parts_only(small_model, unseen, tmp_path):
    def broken(phi, rng):
        raise RuntimeError("out of <memory>")

    report = eande.report(
        small_model,
        tmp_path / "a.html",
        observed=[0.1, 0.2],
        held_out=unseen,
        simulator=broken,
        progress=False,
    )
    found = document(report)["sections"]
    notes = [note for one in found.values() for note in one["notes"]]
    assert any("This part could not be made" in note for note in notes)
    assert found["inferred"]["data"]["parameters"]
    assert found["certainty"]["data"]["on average"]
    assert any(state == "not checked" for state in states(report).values())


def test_warnings_stand_on_the_page_and_are_not_raised(small_model, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = eande.report(small_model, tmp_path / "a.html", observed=[80, 80], progress=False)
    notes = document(report)["sections"]["inferred"]["notes"]
    assert any("nothing like it was simulated" in note for note in notes)


def test_calibrated_models_and_files_are_reported_on(small_model, unseen, tmp_path):
    calibrated, _ = eande.calibrate(small_model, unseen, kind="constant", progress=False)
    calibrated.save(tmp_path / "model.eande")
    loaded = eande.load(tmp_path / "model.eande")
    report = eande.report(loaded, tmp_path / "a.html", observed=[0.1, 0.2], progress=False)
    facts = document(report)["sections"]["training"]["data"]["model"]
    assert facts["calibrated"] in ("yes", "no")
    assert facts["encoder"].startswith("ResidualMLP")
