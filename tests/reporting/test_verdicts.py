"""Verdicts: right models pass, wrong ones raise the alarm that names what is wrong."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import eande
from eande.reporting import judging
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers import linear_task
from helpers.models import exact_model, quick_fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.xdist_group("reports"),
    pytest.mark.usefixtures("undrawn"),
]


def verdict(report, question):
    return next(one for one in report.verdicts if one.question == question)


def checked(temperature, held_out, tmp_path, **options):
    model = exact_model(VonMisesFisher(8, seed=0), temperature)
    return eande.report(
        model, tmp_path / "report.html", held_out=held_out, progress=False, **options
    )


def test_a_right_model_passes(held_out, tmp_path):
    report = checked(None, held_out, tmp_path)
    assert not report.alarms
    assert verdict(report, judging.REGIONS).state == "ok"
    assert verdict(report, judging.PARAMETERS).state == "ok"
    assert verdict(report, judging.LEARNED).found.startswith("Yes: the true parameters of 400")


@pytest.mark.parametrize(
    ("temperature", "fault", "advice"),
    [(1 / 24, "over-confident", "do not trust"), (1 / 3, "under-confident", "are safe")],
)
def test_regions_of_the_wrong_size_are_an_alarm_with_what_to_do(
    temperature, fault, advice, held_out, tmp_path
):
    found = verdict(checked(temperature, held_out, tmp_path), judging.REGIONS)
    assert found.state == "alarm"
    assert fault in found.found
    assert "calibrate" in found.advice
    assert advice in found.advice


def test_few_held_out_simulations_clear_nothing(held_out, tmp_path):
    report = checked(None, held_out[:40], tmp_path)
    found = verdict(report, judging.REGIONS)
    assert found.state == "not checked"
    assert "only 40 simulations: too few" in found.found
    # An alarm is right however few there are.
    found = verdict(checked(1 / 60, held_out[:40], tmp_path), judging.REGIONS)
    assert found.state == "alarm"
    report = checked(None, held_out[:10], tmp_path)
    found = verdict(report, judging.REGIONS)
    assert "Only 10 held-out simulations" in found.found
    learned = verdict(report, judging.LEARNED)
    assert "Only 10 held-out simulations" in learned.found
    assert "in a study file: a larger n" in learned.advice


@pytest.mark.parametrize(
    ("question", "advice"),
    [
        (judging.BELONGS, "Pass held_out= .* 300 or more"),
        (judging.PREDICTS, "from the posterior 300 times .* predicted = 300"),
    ],
)
def test_stranger_than_too_few_simulations_says_which_to_add_and_how_many(question, advice):
    said = judging.of_belonging(strangest_of(60), question)
    assert said.state == "not checked"
    assert re.search(advice, said.advice)


@pytest.mark.parametrize("question", [judging.BELONGS, judging.PREDICTS])
def test_stranger_than_all_of_two_hundred_is_an_alarm(question):
    """As many as a study holds out and simulates from its posterior, where nobody says more."""
    said = judging.of_belonging(strangest_of(200), question)
    assert said.state == "alarm"
    assert "one of 67 genuine ones (p = 0.015)" in said.found


def strangest_of(simulations):
    p = torch.tensor([1 / (simulations + 1)])
    each = dict.fromkeys(("image", "activations", "summaries"), p)
    return SimpleNamespace(p_value=3 * p, each=each, resolution=(3 * p).item())


def test_an_alarm_is_not_said_by_a_share_that_does_not_show_it():
    def said(share):
        coverage = SimpleNamespace(lacking=False, p_value=0.003)
        found = SimpleNamespace(
            verdicts=[SimpleNamespace(name="coverage", passed=False)],
            coverage=coverage,
            covered={50: share, 80: 0.80, 95: 0.95},
            data=196,
        )
        return judging.of_regions(found)

    assert said(0.54).state == said(0.64).state == "alarm"
    assert "unevenly spread (p = 0.003)" in said(0.54).found
    assert "under-confident" in said(0.64).found


def test_held_out_simulations_that_were_trained_on_are_an_alarm(
    small_model, training, unseen, tmp_path
):
    def questions(held_out):
        report = eande.report(small_model, tmp_path / "a.html", held_out=held_out, progress=False)
        return [one.question for one in report.alarms]

    assert judging.UNSEEN in questions(training)
    assert judging.UNSEEN not in questions(unseen)


def test_an_observation_like_the_simulations_belongs_and_a_strange_one_does_not(
    small_model, unseen, training, tmp_path
):
    def judged(y, held_out):
        report = eande.report(
            small_model, tmp_path / "a.html", observed=y, held_out=held_out, progress=False
        )
        return verdict(report, judging.BELONGS)

    assert judged(training.y[3], training).state == "ok"
    strange = judged(np.array([9.0, -9.0]), training)
    assert strange.state == "alarm"
    assert "unlike anything simulated" in strange.found
    assert "Do not use" in strange.advice
    # Without enough simulations to rank among, only what is far out is known.
    assert judged(training.y[3], unseen[:50]).state == "not checked"
    far = judged(np.array([90.0, -90.0]), unseen[:50])
    assert far.state == "alarm"
    assert "times as far" in far.found


def test_a_posterior_far_from_the_data_does_not_predict_them(small_model, tmp_path):
    def displaced(phi, rng):
        return linear_task.linear(phi, rng) + 3

    def report(simulator):
        return eande.report(
            small_model,
            tmp_path / "a.html",
            observed=np.array([0.2, -0.3]),
            simulator=simulator,
            progress=False,
        )

    assert verdict(report(displaced), judging.PREDICTS).state == "alarm"
    right = report(linear_task.linear)
    assert verdict(right, judging.PREDICTS).state == "ok"
    assert "500 fresh simulations" in verdict(right, judging.NEAR).found


def test_a_model_that_is_too_sure_near_the_observation_is_an_alarm(small_model, tmp_path):
    """The data scatter three times as much as those it was trained on."""

    def noisier(phi, rng):
        return phi + 3 * linear_task.NOISE * rng.standard_normal(phi.shape)

    report = eande.report(
        small_model,
        tmp_path / "a.html",
        observed=np.array([0.0, 0.0]),
        simulator=noisier,
        progress=False,
    )
    found = verdict(report, judging.NEAR)
    assert found.state == "alarm"
    assert "near this observation" in found.advice


def test_a_model_that_fell_back_to_the_prior_says_so(tmp_path):
    rng = np.random.default_rng(0)
    nothing = eande.Simulations.from_arrays(rng.uniform(-1, 1, (200, 2)), rng.normal(size=(200, 2)))
    model = quick_fit(nothing, linear_task.BOX, epochs=4)
    assert judging.is_prior(model)
    report = eande.report(
        model,
        tmp_path / "a.html",
        observed=np.zeros(2),
        held_out=nothing,
        simulator=linear_task.linear,
        simulations=nothing,
        progress=False,
    )
    found = verdict(report, judging.LEARNED)
    assert found.state == "alarm"
    assert "every posterior here is the prior" in found.found
    assert verdict(report, judging.NEAR).state == "not checked"
