"""The steps of a run: each leaves its result, and does nothing twice."""

import json
import warnings
from dataclasses import replace
from textwrap import dedent

import numpy as np
import pytest
import torch
import xarray

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.foundations.locks import locked
from eande.workflow import steps
from eande.workflow.calibrate import take_calibrate
from eande.workflow.folder import LAYOUT, run_folder
from eande.workflow.report import take_report
from eande.workflow.run import take_all
from eande.workflow.steps import (
    Context,
    parts,
    take_diagnose,
    take_fit,
    take_sample,
    take_simulate,
    the_model,
)
from eande.workflow.study import read_study
from helpers.small_studies import write_study

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning"),
]


def context_of(path):
    study = read_study(path)
    return Context(study, run_folder(study), progress=False)


@pytest.fixture
def context(tmp_path):
    return context_of(write_study(tmp_path))


def edited(context, more):
    """The same study after an edit of its file."""
    path = context.study.path
    path.write_text(f"{path.read_text()}\n{more}\n")
    return context_of(path)


def weights(context):
    return torch.cat([x.flatten() for x in the_model(context).state_dict().values()])


def test_a_run_step_by_step(context):
    simulated = take_simulate(context)
    assert simulated.content["simulations"] == 300
    assert not simulated.again
    fitted = take_fit(context)
    assert fitted.content["simulations"] == 270
    assert fitted.content["held_out"] == 30
    assert fitted.content["score"] > 1
    (sampled,) = take_sample(context, n=1_000)
    samples = xarray.open_dataset(sampled.paths[0])
    assert set(samples.data_vars) == {"a", "b"}
    assert samples["a"].size == 1_000
    # The point is measured twice with an error of .1 each.
    assert abs(float(samples["a"].mean()) - 0.225) < 0.1
    summary = json.loads(sampled.paths[1].read_text())
    assert summary["names"] == ["a", "b"]
    assert summary["mean"][0] == pytest.approx(float(samples["a"].mean()), abs=1e-5)
    diagnosed = take_diagnose(context)
    found = json.loads(diagnosed.paths[0].read_text())
    assert found["held_out"] == 30
    assert {verdict["name"] for verdict in found["verdicts"]} >= {"coverage", "log ratio"}


def test_what_was_done_is_not_done_again(context):
    def steps():
        return [
            take_simulate(context),
            take_fit(context),
            *take_sample(context, n=100),
            take_diagnose(context),
        ]

    first = steps()
    changed = {path: path.stat().st_mtime_ns for taken in first for path in taken.paths}
    second = steps()
    assert not any(taken.again for taken in first)
    assert all(taken.again for taken in second)
    assert [taken.text for taken in second] == [taken.text for taken in first]
    assert changed == {path: path.stat().st_mtime_ns for path in changed}


def test_another_setting_trains_anew_and_the_former_is_not_lost(context):
    take_simulate(context)
    take_fit(context)
    before = weights(context)
    assert not take_fit(context, {"epochs": 3}).again
    assert not torch.equal(weights(context), before)
    # From its checkpoint, which is complete.
    records = len(list(context.folder.training("").parent.iterdir()))
    assert not take_fit(context).again
    assert torch.equal(weights(context), before)
    assert len(list(context.folder.training("").parent.iterdir())) == records


def test_more_simulations_extend_and_keep_their_sides(context):
    take_simulate(context, n=100)
    train, held_out = parts(context)
    take_simulate(context, n=250)
    more_train, more_held_out = parts(context)
    assert (len(train), len(held_out)) == (90, 10)
    assert (len(more_train), len(more_held_out)) == (225, 25)
    assert torch.equal(more_train.phi[:90], train.phi)
    assert torch.equal(more_held_out.phi[:10], held_out.phi)
    # Without a number what is there is enough.
    assert take_simulate(context).content["simulations"] == 300


def test_replicates_lie_on_one_side(tmp_path):
    more = """
    n = None
    phi = np.repeat(np.linspace(-1, 1, 60)[:, None], 3, 0) * np.ones(2)
    simulations = eande.Simulations.from_arrays(
        phi, np.tile(phi, 2), groups=np.repeat(np.arange(60), 3)
    )
    held_out = 0.2
    del simulator, n
    """
    context = context_of(write_study(tmp_path, more=more))
    train, held_out = parts(context)
    assert (len(train), len(held_out)) == (144, 36)
    assert not set(train.groups.tolist()) & set(held_out.groups.tolist())
    assert "exist already" in take_simulate(context).text


def test_nothing_is_held_out_where_none_is_asked_for(context):
    edited_context = edited(context, "held_out = 0")
    take_simulate(edited_context, n=50)
    assert parts(edited_context)[1] is None
    with pytest.raises(InputError, match="held out from training, got 0"):
        take_diagnose(edited_context)


def test_a_changed_simulator_is_refused_a_comment_is_not(context):
    take_simulate(context, n=50)
    commented = edited(context, "# A word on the simulator.\ntitle = 'Another title'")
    assert take_simulate(commented, n=50).again
    text = context.study.path.read_text().replace("0.1 * rng", "0.2 * rng")
    context.study.path.write_text(text)
    changed = context_of(context.study.path)
    with pytest.raises(InputError, match=r"expected the simulator that made .*got a changed one"):
        take_simulate(changed, n=50)
    with pytest.raises(InputError, match="got a changed one"):
        take_fit(changed)


def test_a_step_says_what_is_missing_before_it(context):
    with pytest.raises(InputError, match=r"got none; type: eande simulate point.py"):
        take_fit(context)
    take_simulate(context, n=50)
    with pytest.raises(InputError, match=r"got none; type: eande fit point.py"):
        take_sample(context)


def test_an_observation_of_another_shape_is_refused_before_the_training(context):
    wrong = edited(context, "observed = [1.0, 2.0]")
    with pytest.raises(InputError, match=r"observed: expected shape \(4,\), .*got \(2,\)"):
        take_simulate(wrong, n=50)
    with pytest.raises(InputError, match="observed: expected shape"):
        take_fit(wrong)
    assert not wrong.folder.model.exists()


def test_settings_that_do_not_exist_are_refused(context):
    take_simulate(context, n=50)
    with pytest.raises(InputError, match=r"epocs: expected .*; did you mean epochs\?"):
        take_fit(context, {"epocs": 3})
    with pytest.raises(InputError, match="nonsense: expected a setting of FitSettings, one of"):
        take_fit(context, {"nonsense": 3})
    with pytest.raises(InputError, match="epochs: expected a whole number"):
        take_fit(context, {"epochs": "many"})


def test_other_observations_are_sampled_beside_the_studys_own(context, tmp_path):
    take_simulate(context)
    take_fit(context)
    np.save(tmp_path / "other.npy", np.array([0.5, 0.5, 0.5, 0.5], dtype=np.float32))
    (other,) = take_sample(context, [tmp_path / "other.npy"], n=200)
    assert other.paths[0].name == "other.nc"
    assert abs(float(xarray.open_dataset(other.paths[0])["a"].mean()) - 0.5) < 0.15
    with pytest.raises(InputError, match="the same name twice"):
        take_sample(context, [tmp_path / "other.npy", tmp_path / "x" / "other.npy"])
    without = edited(context, "observed = None")
    with pytest.raises(InputError, match=r"expected an observation in point.py"):
        take_sample(without)


def test_sampling_shows_what_it_is_at(context, tmp_path, monkeypatch):
    shown = []

    class Seen(steps.Progress):
        def advance(self, task, advance=1):
            super().advance(task, advance)
            if not self.disable:
                shown.append((self.tasks[0].description, self.tasks[0].completed))

    monkeypatch.setattr(steps, "Progress", Seen)
    take_simulate(context)
    take_fit(context)
    np.save(tmp_path / "[red] day.npy", np.array([0.5, 0.5, 0.5, 0.5], dtype=np.float32))
    take_sample(context, [tmp_path / "[red] day.npy"], n=300)
    assert shown == []
    take_sample(replace(context, progress=True), [tmp_path / "[red] day.npy"], n=200)
    assert shown == [("sampling \\[red] day", 1)]


def test_an_observation_may_lack_axes_of_length_one(context, tmp_path):
    single = edited(context, "one = simulator\nsimulator = lambda phi, rng: one(phi, rng)[:, None]")
    text = take_simulate(single).text
    assert "taken for series of 1 channel" in text
    take_fit(single)
    (own,) = take_sample(single, n=200)
    assert xarray.open_dataset(own.paths[0])["a"].shape == (200,)


def test_what_data_are_taken_for_is_said(context, tmp_path):
    more = "simulator = lambda phi, rng: rng.normal(phi[:, :1], 1, size=(len(phi), 20))"
    sets = edited(context, f"{more}\nobserved = None")
    assert "alike in any order (encoder = 'set' learns" in take_simulate(sets, n=100).text
    said = "encoder: a residual MLP: data of shape (20,) are taken for a vector"
    assert said in take_fit(sets, {"epochs": 1}).text
    told = edited(sets, "encoder = 'set'")
    assert "any order" not in take_simulate(told, n=100).text
    taken = take_fit(told, {"epochs": 1})
    assert taken.content["encoder"] == "a deep set, for encoder='set'"


def test_derived_quantities_are_among_samples_and_summary(context):
    derived = edited(context, "derived = {'sum': lambda phi: phi['a'] + phi['b']}")
    take_simulate(derived)
    take_fit(derived)
    (taken,) = take_sample(derived, n=500)
    samples = xarray.open_dataset(taken.paths[0])
    assert np.allclose(samples["sum"], samples["a"] + samples["b"], atol=1e-6)
    assert taken.content["names"][-1] == "sum"


def test_views_are_taken_of_observations_too(tmp_path):
    more = """
    views = eande.RandomWindow(2)
    prior = eande.BoxPrior([-1], [1], names=["a"])

    def simulator(phi, rng):
        return np.tile(phi, 6) + 0.1 * rng.standard_normal((len(phi), 6))

    observed = [0.2] * 6
    """
    context = context_of(write_study(tmp_path, more=more))
    take_simulate(context)
    take_fit(context)
    assert the_model(context).y_shape == (2,)
    (taken,) = take_sample(context, n=500)
    assert abs(taken.content["mean"][0] - 0.2) < 0.2
    take_diagnose(context)


def test_a_network_of_the_users_own_is_found_in_the_study(tmp_path):
    more = """
    import torch
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 16))
    """
    context = context_of(write_study(tmp_path, more=more))
    take_simulate(context)
    take_fit(context)
    assert isinstance(the_model(context).encoder, torch.nn.Sequential)
    assert take_fit(context).again


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps({"layout": LAYOUT + 1}), "got 2: it was made by a newer eande; --run FOLDER"),
        (json.dumps({"layout": "x"}), "got 'x': it is damaged"),
        ("{", "expected the record of a run, got something damaged .*; without it .* move it away"),
        (json.dumps({"layout": LAYOUT, "study": 3}), "study: expected `str`, got 3"),
    ],
)
def test_a_folder_of_another_layout_is_refused(content, message, context):
    context.folder.path.mkdir(parents=True)
    (context.folder.path / "run.json").write_text(content)
    with pytest.raises(InputError, match=message):
        take_simulate(context, n=10)


def test_without_its_record_a_run_goes_on_from_what_is_there(context):
    take_simulate(context)
    take_fit(context)
    before = weights(context)
    (context.folder.path / "run.json").unlink()
    assert take_simulate(context).again
    take_fit(context)
    assert torch.equal(weights(context), before)


def test_posteriors_of_few_draws_of_a_prior_known_by_draws_say_what_to_do(tmp_path):
    more = """
    _phi = prior.sample(n, seed=1)
    _y = simulator(_phi.numpy(), np.random.default_rng(1))
    simulations = eande.Simulations.from_arrays(_phi, _y)
    del simulator
    """
    context = context_of(write_study(tmp_path, more=f"{dedent(more)}\nprior = None"))
    take_fit(context)
    with pytest.warns(EandeWarning, match="of the 270 parameters .* prior = eande.BoxPrior"):
        take_sample(context, n=500)
    said = take_diagnose(context).text
    assert "these draws only: give its law" in said
    assert "raise draws" not in said
    verdicts = {one["question"]: one for one in take_report(context).content["verdicts"]}
    assert verdicts["Is the posterior made of enough draws?"]["state"] == "alarm"
    # Its sibling: under the law itself nothing is said.
    other = context_of(write_study(tmp_path, name="known.py", more=more))
    take_fit(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EandeWarning)
        take_sample(other, n=500)


def test_damaged_results_are_made_again(context):
    take_simulate(context)
    take_fit(context)
    for step in (lambda: take_sample(context, n=100)[0], lambda: take_diagnose(context)):
        for path in step().paths:
            # What a file says of itself, its date, differs.
            size = path.stat().st_size
            path.write_text("x")
            assert not step().again
            assert path.stat().st_size == pytest.approx(size, rel=0.1)
        assert step().again


def test_a_damaged_model_is_made_again_by_the_command_that_is_named(context):
    take_simulate(context)
    take_fit(context)
    before = weights(context)
    content = context.folder.model.read_bytes()
    for damaged in (b"x", content[:-1] + bytes([content[-1] ^ 1])):
        context.folder.model.write_bytes(damaged)
        with pytest.raises(InputError, match=r"to make it again type: eande fit point.py"):
            take_sample(context, n=100)
        assert not take_fit(context).again
        assert torch.equal(weights(context), before)
    take_calibrate(context, n=100)
    context.folder.calibrated.write_bytes(b"x")
    with pytest.raises(InputError, match=r"to make it again type: eande calibrate point.py"):
        take_sample(context, n=100)
    take_calibrate(context, n=100)
    take_sample(context, n=100)


def test_two_commands_do_not_work_in_one_folder(context):
    take_simulate(context, n=50)
    with (
        locked(context.folder.path / ".lock"),
        pytest.raises(InputError, match="another eande command is at work there"),
    ):
        take_fit(context)


def test_a_run_may_lie_elsewhere(context, tmp_path):
    study = context.study
    assert run_folder(study).path == tmp_path / "runs" / "point"
    elsewhere = Context(study, run_folder(study, tmp_path / "elsewhere"), progress=False)
    take_simulate(elsewhere, n=20)
    assert len(eande.Simulations.open(tmp_path / "elsewhere" / "simulations.zarr")) == 20
    with pytest.raises(InputError, match="run: expected a folder, got the file"):
        run_folder(study, study.path)


def test_a_changed_prior_is_refused_by_every_step_that_uses_the_simulations(context):
    take_simulate(context, n=50)
    take_fit(context, {"epochs": 1})
    text = context.study.path.read_text()
    context.study.path.write_text(text.replace("([-1, -1], [1, 1]", "([-1, -1], [1, 2]"))
    changed = context_of(context.study.path)
    for take in (take_simulate, take_fit, take_sample, take_diagnose):
        with pytest.raises(InputError, match=r"expected the prior from which .*got a changed one"):
            take(changed)
    context.study.path.write_text(text)
    assert take_simulate(context_of(context.study.path), n=50).again


def test_a_changed_prior_of_simulations_that_exist_names_the_fit(tmp_path):
    more = """
    phi = prior.sample(100, seed=0).numpy()
    simulations = eande.Simulations.from_arrays(phi, np.tile(phi, 2))
    del simulator
    """
    context = context_of(write_study(tmp_path, more=more))
    take_fit(context, {"epochs": 1})
    wider = edited(context, "prior = eande.BoxPrior([-2, -2], [2, 2], names=['a', 'b'])")
    with pytest.raises(InputError, match=r"got a changed one; undo .*type: eande fit point.py$"):
        take_sample(wider)


@pytest.mark.parametrize(
    ("more", "overrides", "message"),
    [
        ("", {"epocs": 3}, "did you mean epochs"),
        ("encoder = 'vectr'", {}, "encoder: expected one of"),
        ("observed[1] = np.nan", {}, "point.py: observed: expected finite .* at index 1"),
    ],
)
def test_a_whole_run_refuses_before_it_simulates(more, overrides, message, tmp_path):
    wrong = context_of(write_study(tmp_path, more=more))
    with pytest.raises(InputError, match=message):
        list(take_all(wrong, overrides))
    assert not wrong.folder.store.exists()
