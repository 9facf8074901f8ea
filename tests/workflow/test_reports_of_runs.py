"""The report of a run: what it is made from, and what is not made twice."""

import json

import pytest

import eande
from eande.workflow.folder import run_folder
from eande.workflow.look import look_at
from eande.workflow.report import take_report
from eande.workflow.steps import Context, take_diagnose, take_fit, take_simulate
from eande.workflow.study import read_study
from helpers.small_studies import write_study
from helpers.stores import damage

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("undrawn"),
    pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning"),
]


def context_of(path):
    study = read_study(path)
    return Context(study, run_folder(study), command="eande report point.py", progress=False)


def states(taken):
    """By question, how it was answered."""
    return {one["question"]: one["state"] for one in taken.content["verdicts"]}


def test_simulations_from_the_posterior_are_made_once(tmp_path):
    context = context_of(write_study(tmp_path))
    take_simulate(context)
    take_fit(context)
    take_report(context)
    (store,) = (context.folder.path / "predicted").iterdir()
    assert len(eande.Simulations.open(store)) == 200
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    taken = take_report(context)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert "alarm" not in states(taken).values(), taken.text
    beside = json.loads(context.folder.path.joinpath("report.json").read_text())
    assert beside["title"] == "Where is the point?"
    page = context.folder.report.read_text()
    assert "Where is the point?" in page
    assert "eande report point.py" in page


def test_damaged_simulations_from_the_posterior_are_made_again(tmp_path):
    context = context_of(write_study(tmp_path))
    take_simulate(context)
    take_fit(context)
    taken = take_report(context)
    (store,) = (context.folder.path / "predicted").iterdir()
    whole = eande.Simulations.open(store).y[:]
    damage(store)
    assert take_report(context).content == taken.content
    assert (eande.Simulations.open(store).y[:] == whole).all()


def test_the_report_and_the_command_that_diagnoses_tell_the_same(tmp_path):
    context = context_of(write_study(tmp_path, more="predicted = 0"))
    take_simulate(context)
    take_fit(context)
    take_diagnose(context)
    take_report(context)
    told = json.loads(context.folder.diagnosis.read_text())
    page = json.loads(context.folder.path.joinpath("report.json").read_text())
    reported = page["sections"]["certainty"]["data"]["on average"]
    assert reported["p"] == told["ranks_p"]
    assert reported["covered"] == told["covered"]
    assert reported["verdicts"] == told["verdicts"]


def test_a_report_is_kept_while_nothing_it_depends_on_changes(tmp_path):
    context = context_of(write_study(tmp_path, more="predicted = 0"))
    take_simulate(context)
    take_fit(context)
    first = take_report(context, keep=True)
    page = context.folder.report
    before = page.stat().st_mtime_ns
    kept = take_report(context, keep=True)
    assert kept.again
    assert not first.again
    assert (kept.text, kept.content, kept.paths) == (first.text, first.content, first.paths)
    assert page.stat().st_mtime_ns == before
    assert not take_report(context).again, "asked for by its own command"
    assert "digest" not in str(look_at(context.folder.path))
    for more in (
        "title = 'Another title'",
        "observed = [0.2, -0.3, 0.25, -0.3]",
        "derived = {'sum': lambda phi: phi['a'] + phi['b']}",
        "derived = {'sum': lambda phi: phi['a'] - phi['b']}",
        "held_out = 0.2",
        "seed = 1\ndel simulator\nsimulations = "
        f"eande.Simulations.open({str(context.folder.store)!r})",
    ):
        changed = context_of(write_study(tmp_path, more=f"predicted = 0\n{more}"))
        assert not take_report(changed, keep=True).again, more
        assert take_report(changed, keep=True).again, more
    page.write_text(page.read_text() + " ")
    assert not take_report(changed, keep=True).again
    take_fit(changed, {"epochs": 2})
    assert not take_report(changed, keep=True).again


def test_a_simulator_of_another_law_is_seen_near_the_observation(tmp_path):
    """The sibling: data simulated anew do not look like those that were trained on."""
    context = context_of(write_study(tmp_path))
    take_simulate(context)
    take_fit(context)
    changed = context_of(
        write_study(
            tmp_path,
            more="""
            alone = simulator

            def simulator(phi, rng):
                return alone(phi, rng) + 0.5 * rng.standard_normal((len(phi), 4))
            """,
        )
    )
    # The store is of the former simulator: its simulations are given as they are.
    simulations = eande.Simulations.open(context.folder.store)
    object.__setattr__(changed.study, "simulations", simulations)
    assert "alarm" in states(take_report(changed)).values()


def test_where_none_are_wanted_none_are_made(tmp_path):
    context = context_of(write_study(tmp_path, more="predicted = 0"))
    take_simulate(context)
    take_fit(context)
    taken = take_report(context)
    assert not (context.folder.path / "predicted").exists()
    assert "not checked" in states(taken).values()
