"""Rounds of a study: simulations near its observation, samples and a report of them."""

import json
from dataclasses import replace

import pytest
import xarray

import eande
from eande.foundations.checks import InputError
from eande.workflow.folder import RunFolder, run_folder
from eande.workflow.rounds import take_rounds
from eande.workflow.steps import Context, take_sample, the_model
from eande.workflow.study import read_study
from helpers.small_studies import write_study
from helpers.stores import damage

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning"),
]
# A wide prior, of which the observation says that most is impossible.
WIDE = """
prior = eande.BoxPrior([-10, -10], [10, 10], names=["a", "b"])
predicted = 100
"""


def context_of(path):
    study = read_study(path)
    return Context(study, run_folder(study), progress=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    context = context_of(write_study(tmp_path_factory.mktemp("rounds"), more=WIDE))
    return context, list(take_rounds(context, n=600, number=2))


def test_rounds_leave_a_model_samples_and_a_report(made):
    context, (rounds, sampled, reported) = made
    folder = context.folder.path / "rounds"
    assert rounds.content["simulations"] == 600
    assert [one["number"] for one in rounds.content["rounds"]] == [1, 2]
    assert rounds.content["rounds"][1]["log_mass"] < -0.7
    samples = xarray.open_dataset(sampled.paths[0])
    assert abs(float(samples["a"].mean()) - 0.225) < 0.15
    assert samples["a"].std() < 0.5
    found = json.loads((folder / "report.json").read_text())
    assert reported.paths[0] == folder / "report.html"
    assert any("near this observation" in one["question"] for one in found["verdicts"])
    # The run beside it is not touched.
    assert not context.folder.model.exists()


def test_they_are_not_made_again(made):
    context, (first, _, _) = made
    times = {path: path.stat().st_mtime_ns for path in context.folder.path.rglob("*.zarr/**/c/*")}
    again = next(iter(take_rounds(context, n=600, number=2)))
    assert again.content == first.content
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_damaged_simulations_of_a_round_are_made_again_where_asked(made):
    context, (first, _, _) = made
    (store,) = (context.folder.path / "rounds" / "rounds" / "simulations").glob("round-2-*")
    whole = eande.Simulations.open(store).y[:]
    damage(store)
    with pytest.raises(InputError, match="of its rounds, eande rounds STUDY --redo damaged"):
        eande.Simulations.open(store).y[:]
    again = next(iter(take_rounds(context, n=600, number=2, redo="damaged")))
    assert again.content == first.content
    assert (eande.Simulations.open(store).y[:] == whole).all()


def test_their_folder_is_a_run_that_can_be_sampled(made, tmp_path):
    context, _ = made
    own = replace(context, folder=RunFolder(context.folder.path / "rounds"))
    assert isinstance(the_model(own).prior, eande.TruncatedPrior)
    (taken,) = take_sample(own, n=200)
    assert taken.content["names"] == ["a", "b"]


def test_a_changed_simulator_is_refused(made):
    context, _ = made
    text = context.study.path.read_text()
    try:
        context.study.path.write_text(text.replace("0.1 * rng", "0.2 * rng"))
        with pytest.raises(InputError, match="got a changed one"):
            next(iter(take_rounds(context_of(context.study.path), n=600, number=2)))
    finally:
        context.study.path.write_text(text)


@pytest.mark.parametrize(
    ("more", "without", "message"),
    [
        ("observed = None", (), r"expected an observation in point.py"),
        (
            "simulations = eande.Simulations.from_arrays(np.ones((9, 2)), np.ones((9, 4)))",
            ("simulator",),
            "expected a study with a simulator",
        ),
    ],
)
def test_what_has_no_rounds_is_refused(more, without, message, tmp_path):
    context = context_of(write_study(tmp_path, more=more, without=without))
    with pytest.raises(InputError, match=message):
        next(iter(take_rounds(context)))
