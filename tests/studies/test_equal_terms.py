"""The Lorenz 96 study: all methods of a comparison get the same, by construction and on file."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from eande.foundations.checks import InputError
from eande.studies.lorenz96.comparisons import COMPARISONS, searched_kinds
from eande.studies.lorenz96.data import make_data
from eande.studies.lorenz96.page.page import write_page
from eande.studies.lorenz96.recipes import OURS, PAPER, Recipe, fit_settings
from eande.studies.lorenz96.search import SEEDS, STAGES, trials, winner
from eande.studies.lorenz96.sizes import SIZES
from eande.studies.lorenz96.terms import Terms
from eande.training.settings import FitSettings

RESULTS = Path(__file__).parents[2] / "results"


def differing(terms):
    return {name for name in terms[0] if len({repr(one[name]) for one in terms}) > 1}


@pytest.mark.parametrize("name", COMPARISONS)
def test_rows_differ_in_nothing_but_what_the_page_tells(name):
    comparison = COMPARISONS[name]
    for b in comparison.systems:
        rows = comparison.rows(lambda kind, _: searched_kinds()[kind].start, b)
        assert len(rows) > 2
        found = differing([row.terms.describe() for row in rows.values()])
        assert found == set(comparison.differs)
    assert bool(comparison.told) == bool(comparison.differs)


def test_runs_on_file_had_equal_terms():
    files = [RESULTS / f"lorenz96-{name}.json" for name in COMPARISONS]
    files = [path for path in files if path.exists()]
    assert files
    for path in files:
        comparison = COMPARISONS[path.stem.removeprefix("lorenz96-")]
        runs = json.loads(path.read_text())["runs"]
        for b in comparison.systems:
            terms = [run["settings"]["terms"] for run in runs if run["b"] == b]
            assert differing(terms) <= set(comparison.differs)
        sizes = {repr(run["settings"]["size"]) for run in runs}
        assert len(sizes) == 1, "one encoder, as many test data"


def test_no_table_uses_the_seeds_of_the_search():
    runs = json.loads((RESULTS / "lorenz96-search.json").read_text())["runs"]
    searched = {run["seed"] for run in runs}
    for name in COMPARISONS:
        path = RESULTS / f"lorenz96-{name}.json"
        if path.exists():
            assert not searched & {run["seed"] for run in json.loads(path.read_text())["runs"]}


def test_the_papers_recipe_is_the_papers_settings():
    """Nothing stands between the row of the paper's method and ``FitSettings.paper``."""
    terms = Terms(looks=50, select_by="density")
    found = fit_settings(Recipe("eande", 300, PAPER), SIZES["paper"], terms, 500, 7, "cpu")
    exact = FitSettings.paper(
        0.03,
        0.2,
        128,
        batch_size=500,
        candidates=500,
        epochs=300,
        validate_every=6,
        device="cpu",
        seed=7,
    )
    assert found.similarity.temperature == exact.similarity.temperature == pytest.approx(0.03)
    assert replace(found, similarity=exact.similarity) == exact
    ours = fit_settings(Recipe("eande", 300, OURS), SIZES["paper"], terms, 500, 7, "cpu")
    assert (ours.repulsion, ours.ema, found.ema) == ("encoder", 0.98, None)


def tried(kind, size, scores):
    """Make runs of a search: a score for each number of steps and seed."""
    searched = searched_kinds()[kind]
    return [
        {
            "method": kind,
            "b": 10.0,
            "seed": seed,
            "score": score,
            "settings": {
                "recipe": searched.start.changed(steps=steps).describe(),
                "terms": searched.terms.describe(),
                "size": asdict(SIZES[size]),
            },
        }
        for (steps, seed), score in scores.items()
    ]


def test_a_search_that_has_not_ended_has_no_winner(monkeypatch):
    first, second = SEEDS
    lengths = (300, 600, 1_200)
    monkeypatch.setitem(STAGES, "ours", [("steps", lengths)])
    scores = {(steps, first): steps / 1e4 for steps in lengths}
    best = sorted(lengths)[-2:]
    for steps in best:
        runs = tried("ours", "small", scores)
        assert trials(runs, "ours", 10.0, SIZES["small"]).missing()
        with pytest.raises(InputError, match="got none that has ended"):
            winner(runs, "ours", 10.0, SIZES["small"])
        # With the second seed the shorter one is better.
        scores[steps, second] = -steps / 1e3
    runs = tried("ours", "small", scores)
    found = trials(runs, "ours", 10.0, SIZES["small"])
    assert found.missing() == []
    assert found.winner().steps == best[0]
    assert winner(runs, "ours", 10.0, SIZES["small"]).steps == best[0]
    with pytest.raises(InputError, match="size paper"):
        winner(runs, "ours", 10.0, SIZES["paper"])


def test_data_depend_on_terms_and_seed_alone():
    size = SIZES["toy"]
    terms = Terms().at(size)
    one, same = (make_data(size, terms, 3, "cpu", progress=False) for _ in range(2))
    assert torch.equal(one.train.phi, same.train.phi)
    assert torch.equal(torch.as_tensor(one.train.y[:]), torch.as_tensor(same.train.y[:]))
    even = make_data(size, Terms(design="even").at(size), 3, "cpu", progress=False)
    assert not torch.equal(one.train.phi, even.train.phi)
    assert torch.equal(one.test_phi, even.test_phi), "what is tested on stays"
    assert torch.equal(one.test_y, even.test_y)
    assert one.calibration is None
    assert len(one.validation) == 4 * len(one.held_out)


def test_the_page_says_what_differs(tmp_path):
    write_page(RESULTS, tmp_path)
    written = (tmp_path / "lorenz96.md").read_text()
    for name, comparison in COMPARISONS.items():
        if comparison.told and (RESULTS / f"lorenz96-{name}.json").exists():
            assert f"What differs: {comparison.told}." in written
    assert "All rows: 500 simulations to train; 50 held out; draws of the prior" in written
