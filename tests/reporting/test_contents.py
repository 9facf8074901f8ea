"""What a report says: of everything, of nothing, and in what form."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.distributions import LogNormal

import eande
from eande.reporting import report as written
from eande.reporting.words import flattened
from helpers.written_reports import document, read, states

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("reports")]


def test_everything_given_is_shown_in_order(everything):
    found = document(everything)
    keys = ["inferred", "belonging", "predictive", "certainty", "training", "simulated", "origin"]
    assert list(found["sections"]) == keys
    assert all(section["data"] for section in found["sections"].values())
    assert not any(section["asks"] for section in found["sections"].values())
    assert len(found["verdicts"]) == 6
    page = read(everything)
    places = [page.text.index(section["title"]) for section in found["sections"].values()]
    assert places == sorted(places)
    first = page.text.index(found["verdicts"][0]["found"])
    assert first < page.text.index("The posterior in numbers")
    rows = [row["name"] for row in found["sections"]["inferred"]["data"]["parameters"]]
    assert rows == ["a", "b", "sum"]
    assert "eande run <study.py>" in page.text
    assert "Two numbers & their noise." in page.text


def test_the_prior_is_shown_as_people_write_it(everything, small_model):
    tables = document(everything)["sections"]["simulated"]["tables"]
    (table,) = (one for one in tables if one["caption"].startswith("As the model"))
    assert table["rows"][0] == ["prior", str(small_model.prior)]
    law = eande.ProductPrior(rate=(0.6, 1.7), R0=LogNormal(torch.tensor(0.1), torch.tensor(0.3)))
    rows = flattened(law.describe())
    assert not any("{" in value or "000" in value for _, value in rows), rows
    assert "0.6, 1.7" in dict(rows).values()


def test_the_page_says_all_that_the_document_says(everything):
    text = read(everything).text
    found = document(everything)
    said = [verdict["found"] for verdict in found["verdicts"]]
    for section in found["sections"].values():
        said += [section["title"], *section["texts"], *section["notes"]]
        said += [cell for table in section["tables"] for row in table["rows"] for cell in row]
        said += [figure["caption"] for figure in section["figures"]]
    assert len(said) > 100
    missing = [one for one in said if " ".join(one.split()) not in text]
    assert not missing


def test_alarms_come_first_and_are_printed(everything):
    order = [verdict["state"] for verdict in document(everything)["verdicts"]]
    assert order == sorted(order, key=["alarm", "not checked", "ok"].index)
    printed = str(everything)
    assert str(everything.path) in printed
    for verdict in everything.verdicts:
        assert verdict.found in printed
    assert everything.title in everything._repr_html_()


def test_the_page_needs_nothing_else(everything):
    page = read(everything)
    assert page.addresses
    assert all(one.startswith(("#", "data:image/png;base64,")) for one in page.addresses)
    text = everything.path.read_text()
    assert not re.search(r"@import|url\((?!#)|<link|<iframe|<img", text)
    assert "default-src &#39;none&#39;" in text


def test_headings_go_down_one_step_at_a_time_and_identifiers_are_unique(everything):
    page = read(everything)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    steps = zip(page.headings, page.headings[1:], strict=False)
    assert all(after - before <= 1 for before, after in steps)
    assert len(page.identifiers) == len(set(page.identifiers))
    assert len(page.identifiers) > 100


def test_posterior_means_are_those_of_the_posterior(everything, small_model):
    rows = document(everything)["sections"]["inferred"]["data"]["parameters"]
    phi, _ = small_model.posterior(np.array([0.2, -0.3])).sample(4_000, seed=3)
    for row, column in zip(rows, phi.T, strict=False):
        assert abs(row["mean"] - column.mean()) < 0.1 * column.std()
        assert abs(row["standard deviation"] - column.std()) < 0.1 * column.std()
    assert abs(rows[2]["mean"] - phi.sum(1).mean()) < 0.1 * phi.sum(1).std()


def test_the_explorer_has_the_true_parameters_and_posteriors_that_sum_to_one(everything, unseen):
    shown = document(everything)["sections"]["certainty"]["data"]["explorer"]
    assert shown["names"] == ["a", "b"]
    assert len(shown["data"]) == 50
    for datum in shown["data"]:
        assert np.allclose(datum["truth"], unseen.phi[datum["number"]], atol=1e-5)
        assert np.allclose([sum(mass) for mass in datum["mass"]], 1, atol=0.02)
        assert all(low < high for low, high in zip(datum["low"], datum["high"], strict=True))
    inside = [
        low <= truth <= high
        for one in shown["data"]
        for low, truth, high in zip(one["low"], one["truth"], one["high"], strict=True)
    ]
    assert np.mean(inside) > 0.6


def test_the_same_seed_writes_the_same_document(everything, small_model, unseen, tmp_path):
    def written_with(seed, name):
        again = eande.report(
            small_model, tmp_path / name, held_out=unseen, seed=seed, progress=False
        )
        found = document(again)
        for made in (found, found["sections"]["origin"]["data"]["report"]):
            made.pop("written", made.pop("date", None))
        del found["sections"]["origin"]["tables"]
        return found

    first = written_with(1, "first.html")
    assert first == written_with(1, "second.html")
    assert first != written_with(2, "third.html")


def test_a_model_alone_is_enough_and_the_page_says_what_to_pass(small_model, tmp_path):
    report = eande.report(small_model, tmp_path / "bare.html", progress=False)
    assert set(states(report).values()) == {"not checked"}
    found = document(report)
    asked = " ".join(ask for one in found["sections"].values() for ask in one["asks"])
    for name in ("observed=", "held_out=", "simulator=", "simulations=", "provenance="):
        assert name in asked
    assert found["sections"]["training"]["figures"]
    assert read(report).text.count("Pass ") >= 5


def test_titles_and_seeds_are_taken_and_dates_written(small_model, tmp_path):
    report = eande.report(small_model, tmp_path / "a.html", title="A <title>", progress=False)
    found = document(report)
    assert found["title"] == report.title == "A <title>"
    assert (found["kind"], found["format"]) == ("eande report", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["written"])
    assert "<title>A &lt;title&gt;</title>" in report.path.read_text()


def test_a_report_replaces_an_older_one_but_no_other_file(small_model, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    eande.report(small_model, path, progress=False)
    eande.report(small_model, path, progress=False)
    assert "old" not in path.read_text()[:10]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["report.html", "report.json"]
    (tmp_path / "data.json").write_text('{"kind": "mine"}')
    with pytest.raises(eande.InputError, match=r"path: expected a name beside which data\.json"):
        eande.report(small_model, tmp_path / "data.html", progress=False)
    assert (tmp_path / "data.json").read_text() == '{"kind": "mine"}'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "report.pdf"}, r"path: expected a name that ends in \.html, got 'report\.pdf'"),
        ({"observed": np.zeros(3)}, r"observed: expected shape \(2,\), got \(3,\)"),
        ({"observed": [0.0, np.nan]}, "observed: expected finite"),
        ({"derived": {"a": abs}}, "derived: expected names that no parameter has"),
        ({"provenance": ["seed", 0]}, "provenance: expected a dictionary"),
    ],
)
def test_what_cannot_be_reported_on_is_refused_before_any_work(
    options, message, small_model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = options.pop("path", "report.html")
    with pytest.raises(eande.InputError, match=message):
        eande.report(small_model, path, progress=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_held_out_simulations_of_another_shape_are_refused(small_model, tmp_path):
    other = eande.Simulations.from_arrays(np.zeros((4, 2)), np.zeros((4, 5)))
    with pytest.raises(eande.InputError, match=r"held_out: expected data of shape \(2,\)"):
        eande.report(small_model, tmp_path / "a.html", held_out=other, progress=False)


@pytest.mark.usefixtures("undrawn")
def test_progress_has_a_bar_over_the_sections(small_model, tmp_path):
    code = (
        "import sys, eande\n"
        "eande.report(eande.load(sys.argv[1]), sys.argv[2], progress=sys.argv[3] == 'shown')"
    )
    small_model.save(tmp_path / "model.eande")

    def said(progress):
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "model.eande", tmp_path / "a.html", progress],
            env=os.environ | {"TTY_COMPATIBLE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert "10/10" in said("shown")
    assert said("quiet") == ""


def test_parts_of_one_section_have_one_title():
    titles = {}
    for key, title, _ in written.PARTS:
        assert titles.setdefault(key, title) == title


def test_data_are_compared_with_what_the_posterior_predicts(everything):
    found = document(everything)["sections"]["predictive"]
    assert found["data"]["simulations"] == 500
    assert found["figures"]
