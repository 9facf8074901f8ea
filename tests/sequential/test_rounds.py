"""Rounds from the first simulation to the last model, on a problem of known posterior."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.priors.truncated import TruncatedPrior
from eande.sequential import rounds as sequential
from eande.similarities.prior_only import PriorOnly
from helpers.rounds_runs import (
    BOX,
    exact_posterior,
    exact_samples,
    make,
    observe,
    simulator,
)
from helpers.sharp_gaussians import gaussian

Y = observe([0.5, -0.3])
# What is not linear is learned in seconds.
NOT_LINEAR = eande.FitSettings(
    epochs=60, batch_size=100, learning_rate=3e-3, width=48, blocks=1, device="cpu"
)


@pytest.fixture(scope="module")
def made():
    return make(Y)


def test_the_posterior_of_the_last_round_is_the_exact_one(made):
    model, _ = made
    found = model.posterior(Y).summary(samples=20_000)
    mean, covariance = exact_posterior(Y)
    deviation = np.sqrt(np.diag(covariance))
    assert np.abs((found.mean.numpy() - mean) / deviation).max() < 0.25
    assert found.std.numpy() == pytest.approx(deviation, rel=0.2)


def test_the_model_has_the_prior_that_it_was_fitted_under(made):
    model, info = made
    assert isinstance(model.prior, TruncatedPrior)
    assert model.prior.outer is BOX
    assert model.prior.log_mass == info.rounds[-1].log_mass < -1
    assert (~model.prior.contains(exact_samples(Y, 10_000))).float().mean() < 0.01


def test_another_observation_is_told(made):
    model, _ = made
    with pytest.warns(EandeWarning, match="lies where that was cut off, at the edge"):
        model.posterior(observe([-1.0, 1.2]))


def test_the_table_has_a_row_for_each_round(made):
    _, info = made
    text = str(info)
    assert text.splitlines()[0].split()[:3] == ["round", "simulated", "inside"]
    assert sum(line.startswith("    ") and line[4].isdigit() for line in text.splitlines()) == len(
        info.rounds
    )
    assert text.endswith(f"stopped: {info.stopped}")
    assert "the next region keeps" in text
    html = info._repr_html_()
    assert html.count("<tr>") == len(info.rounds) + 1
    assert info.rounds[1].nats == info.rounds[1].score - info.rounds[1].log_mass


def test_the_table_is_saved_as_json(made, tmp_path):
    _, info = made
    info.save(tmp_path / "rounds.json")
    content = json.loads((tmp_path / "rounds.json").read_text())
    assert content == json.loads(json.dumps(info.describe()))
    assert [one["number"] for one in content["rounds"]] == [1, 2]


def test_a_region_that_shrinks_no_more_ends_the_rounds(made):
    """The first model is as good as it gets: a third round is not needed."""
    _, info = made
    assert len(info.rounds) == 2
    assert info.rounds[-1].settled
    assert "300 simulations were not made" in info.stopped
    assert info.simulations == 600


def test_scores_of_rounds_compare_relative_to_the_whole_prior(made):
    """In the region the posterior says less than over the prior, by log p(R), about."""
    _, info = made
    first, second = info.rounds
    assert second.score < first.score - 1
    assert abs(second.nats - first.nats) < 1


def test_progress_is_a_line_for_every_round(capsys):
    make(Y, rounds=2, simulations=300, progress=True)
    shown = capsys.readouterr().out
    assert "prior kept" in shown
    assert "the next region keeps" in shown


def test_several_observations_share_their_rounds():
    ys = np.stack([observe([1.3, -1.2]), observe([-1.3, 1.2])])
    model, info = make(ys, rounds=2, simulations=800)
    assert -4 < info.rounds[-1].log_mass < -1
    for y in ys:
        assert (~model.prior.contains(exact_samples(y, 10_000))).float().mean() < 0.01
        mean, _ = exact_posterior(y)
        assert np.abs(model.posterior(y).summary(samples=5_000).mean.numpy() - mean).max() < 0.1


def test_without_reuse_only_the_simulations_of_the_last_round_are_fitted_to():
    both, alone = (make(Y, rounds=2, simulations=600, reuse=reuse)[1] for reuse in (True, False))
    assert alone.rounds[1].inside + alone.rounds[1].held_out == 300
    assert both.rounds[1].inside > alone.rounds[1].inside
    assert both.rounds[1].log_mass == alone.rounds[1].log_mass


def test_views_are_seen_by_fits_and_by_those_who_judge():
    """A third of the data is cut away: what is left tells less, and rounds go on as before."""
    views = eande.RandomWindow(2)
    model, info = make(Y[:2], rounds=2, simulations=600, views=views)
    assert model.y_shape == (2,)
    assert info.rounds[0].score is not None
    assert torch.isfinite(model.posterior(Y[:2]).sample(10)[0]).all()
    with pytest.raises(InputError, match=r"y_observed: expected shape \(2,\)"):
        make(Y, rounds=2, simulations=600, views=views)


def test_simulations_are_shared_out_to_the_last():
    _, info = make(Y, rounds=2, simulations=301)
    assert [one.simulations for one in info.rounds] == [151, 150]


def test_data_that_say_nothing_leave_the_prior_and_end_the_rounds():
    def silent(phi, rng):
        return rng.standard_normal((len(phi), 3))

    with warnings.catch_warnings():
        # That a model is no better than the prior; not of each.
        warnings.simplefilter("ignore", EandeWarning)
        model, info = make(np.zeros(3), simulator=silent, rounds=3, simulations=600)
    assert all(one.log_mass == 0 for one in info.rounds)
    assert model.prior is BOX
    assert info.rounds[0].next_region.startswith("the same region again")


def test_members_that_all_learned_nothing_do_not_end_the_rounds():
    """More simulations may tell what few did not; a single model goes on, too."""
    prior = eande.BoxPrior([-2, -2], [2, 2])
    model, _ = gaussian(prior, 0.5)
    nothing = model.with_similarity(PriorOnly(model.similarity))
    for found in (eande.ensemble([nothing, nothing]), nothing):
        run = SimpleNamespace(seed=0, sizes=[100, 100], observed=torch.zeros(1, 2))
        one = SimpleNamespace(number=1, log_mass=0.0)
        fitted = SimpleNamespace(phi=prior.sample(90, seed=0))
        judged = SimpleNamespace(alarms=())
        narrower, text, shrinking = sequential._Run._narrower(run, one, found, fitted, judged)
        assert narrower is None
        assert text.endswith("nothing was learned of what is in it")
        assert shrinking


# Where it is not to be trusted.


def test_a_model_that_is_not_to_be_trusted_makes_no_smaller_region(monkeypatch):
    right = sequential.judge

    def alarmed(model, *given, **options):
        return right(model, *given, **options)._replace(alarms=("its regions are too small",))

    monkeypatch.setattr(sequential, "judge", alarmed)
    with pytest.warns(EandeWarning, match="not to be trusted near it: its regions are too small"):
        _, info = make(Y, rounds=3)
    assert [one.log_mass for one in info.rounds] == [0, 0, 0]
    assert [one.inside + one.held_out for one in info.rounds] == [300, 600, 900]
    assert not info.trusted
    assert "ALARM: its regions are too small" in str(info)


def test_an_observation_unlike_all_simulations_is_told_and_cuts_nothing_off():
    with pytest.warns(EandeWarning, match="y_observed: the model is not to be trusted near it"):
        _, info = make(np.array([40.0, -40.0, 90.0]), rounds=2, simulations=600)
    assert "nothing like it was simulated" in info.rounds[0].alarms[0]
    assert info.rounds[1].log_mass == 0


@pytest.mark.thorough
def test_an_observation_that_no_parameters_explain_is_told():
    """Within the range of all data, and still nothing like it: the third is the others' sum."""
    with pytest.warns(EandeWarning, match="not to be trusted near it"):
        _, info = make(np.array([1.0, 1.0, -2.0]), rounds=1, simulations=1_500)
    assert any("is unlike" in alarm for alarm in info.rounds[0].alarms)


@pytest.mark.thorough
def test_a_simulator_that_fails_in_part_of_the_region():
    """Failures cut through the posterior: what succeeds has all of its mass."""

    def fails(phi, rng):
        y = simulator(phi, rng)
        y[phi[:, 0] > 0.5] = np.nan
        return y

    with pytest.warns(EandeWarning, match="simulations failed"):
        model, info = make(
            Y,
            simulator=fails,
            rounds=2,
            simulations=2_400,
            settings=NOT_LINEAR,
            failure_limit=0.9,
        )
    assert info.rounds[1].failed > 100
    exact = exact_samples(Y, 20_000)
    exact = exact[exact[:, 0] <= 0.5]
    phi, _ = model.posterior(Y).sample(10_000)
    assert (phi[:, 0] > 0.5).float().mean() < 0.35, "without failures it were two thirds"
    assert phi.mean(0).numpy() == pytest.approx(exact.mean(0).numpy(), abs=0.06)


@pytest.mark.slow
def test_two_far_modes_are_both_kept():
    def squared(phi, rng):
        return phi**2 + 0.1 * rng.standard_normal(phi.shape)

    y = np.array([1.0, 0.0])
    model, info = make(y, simulator=squared, rounds=3, simulations=2_100, settings=NOT_LINEAR)
    assert info.rounds[-1].log_mass < -1
    assert not model.prior.contains(torch.zeros(1, 2)).any(), "between them nothing is kept"
    phi, _ = model.posterior(y).sample(20_000)
    assert (phi[:, 0] > 0).float().mean().item() == pytest.approx(0.5, abs=0.12)
    assert phi[:, 0].abs().mean().item() == pytest.approx(1.0, abs=0.02)


def test_a_posterior_at_a_face_of_the_prior_stays_there():
    y = observe([2.0, 0.0], seed=1)
    model, _ = make(y, rounds=2, simulations=800)
    exact = exact_samples(y, 10_000)
    assert (exact[:, 0] > 1.9).float().mean() > 0.2
    assert (~model.prior.contains(exact)).float().mean() < 0.01
    phi, _ = model.posterior(y).sample(10_000)
    assert phi[:, 0].max() > 1.98
    assert phi.mean(0).numpy() == pytest.approx(exact.mean(0).numpy(), abs=0.06)


# What is refused.


def test_observations_of_another_shape_are_refused_before_the_first_fit():
    with pytest.raises(InputError, match=r"y_observed: expected shape \(3,\), as simulated, or"):
        make(np.zeros(4))


def test_rounds_of_too_few_simulations_are_refused():
    with pytest.raises(
        InputError, match="simulations: expected a whole number of at least 60, got 30"
    ):
        make(Y, simulations=30)


def test_an_observation_with_a_gap_is_refused_before_anything_is_simulated():
    def never(phi, rng):
        raise AssertionError

    with pytest.raises(InputError, match="y_observed"):
        make(np.array([0.1, np.nan, 0.2]), simulator=never)
