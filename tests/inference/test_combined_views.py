"""One observation in several views: scores averaged, their power found by calibration."""

import math

import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import EandeWarning, InputError, UserCodeError
from eande.foundations.files import read_tensors, write_tensors
from eande.inference.model import EmbedAndEmulate
from eande.inference.views import EvenWindows, combine_views
from eande.networks.mlp import ResidualMLP
from eande.similarities.calibrated import Calibrated
from helpers.exact_series import PRIOR, WHOLE, WINDOW, exact, series
from helpers.models import quick_fit
from helpers.several_members import BOX, SIMULATIONS, fit
from helpers.sharp_gaussians import gaussian

GRID = torch.linspace(-2.9, 2.9, 101).unsqueeze(1)


@pytest.fixture(scope="module")
def joint():
    return fit()


def to_the_power(model, exponent):
    return model.with_similarity(Calibrated(model.similarity, exponent))


def halves(y):
    return [y[:, :2], y[:, 2:]]


# Windows.


@pytest.mark.parametrize(
    ("whole", "count", "expected"),
    [
        (60, None, [0, 20, 40]),
        (50, None, [0, 15, 30]),
        (20, None, [0]),
        (21, None, [0, 1]),
        (60, 5, [0, 10, 20, 30, 40]),
        (61, 1, [20]),
    ],
)
def test_windows_are_evenly_spread_from_end_to_end(whole, count, expected):
    windows = EvenWindows(20, count)
    assert windows.starts(whole) == expected
    y = torch.arange(2.0 * whole).view(2, whole)
    for start, window in zip(expected, windows(y), strict=True):
        assert torch.equal(window, y[:, start : start + 20])


def test_windows_lie_along_any_axis():
    y = torch.arange(24.0).view(1, 3, 8)
    first, last = EvenWindows(5, 2, axis=1)(y)
    assert torch.equal(first, y[:, :, :5])
    assert torch.equal(last, y[:, :, 3:])
    with pytest.raises(InputError, match="expected data with an axis 2"):
        EvenWindows(5, axis=2)(y)
    with pytest.raises(InputError, match="at least 9 entries along axis 1, got 8"):
        EvenWindows(9, axis=1)(y)


# What they are worth together.


def test_independent_views_to_the_power_of_their_number_are_the_whole():
    """Without memory, the score of a series is the sum of those of its windows."""
    y = series(3, 0.0, 0).y[:]
    combined = to_the_power(combine_views(exact(WINDOW, 0.0), (WHOLE,)), 3.0)
    whole = exact(WHOLE, 0.0)
    for ours, right in zip(combined.posteriors(y), whole.posteriors(y), strict=True):
        torch.testing.assert_close(ours.log_prob(GRID), right.log_prob(GRID), atol=2e-3, rtol=0)


def test_uncalibrated_posteriors_are_as_sharp_as_those_of_one_view():
    simulations = series(5, 0.8, 0)
    # Around zero, where the prior cuts nothing off.
    y = simulations.y[:] - simulations.phi
    single = exact(WINDOW, 0.8)
    combined = combine_views(single, (WHOLE,))
    for whole, window in zip(combined.posteriors(y), single.posteriors(y[:, :WINDOW]), strict=True):
        ours, one = whole.summary(samples=4_000), window.summary(samples=4_000)
        assert ours.std.item() == pytest.approx(one.std.item(), rel=0.1)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_calibration_finds_what_views_add_to_each_other(memory):
    """At .9, three windows are worth two: what a whole series knows over what a window knows.

    Coverage at the end has a false-alarm rate of one in a thousand; without calibration, or with
    windows taken for independent ones, it fails.
    """
    model = combine_views(exact(WINDOW, memory), (WHOLE,))
    calibrated, info = eande.calibrate(model, series(600, memory, 1), progress=False)
    right = {0.0: 3.0, 0.9: 2.06}[memory]
    assert info.exponent == pytest.approx(right, rel=0.2)
    assert info.after > info.before + 3 * info.error
    fresh = series(600, memory, 2)
    found = eande.diagnose(calibrated, fresh, draws=4_000, progress=False)
    assert found.passed
    reached = eande.diagnose(exact(WHOLE, memory), fresh, draws=4_000, progress=False).log_ratio
    assert found.log_ratio == pytest.approx(reached, abs=0.1)
    wide = eande.diagnose(model, fresh, draws=4_000, progress=False)
    assert not wide.passed
    assert wide.log_ratio < found.log_ratio - 0.03
    if memory:
        narrow = eande.diagnose(to_the_power(model, 3.0), fresh, draws=4_000, progress=False)
        assert not narrow.passed


def test_more_independent_views_than_powers_are_looked_for_are_told():
    """A hundred numbers that know as much as each other: the power would be a hundred."""

    def each(y):
        return list(y.split(1, dim=1))

    prior = eande.BoxPrior([-1.0], [1.0])
    model, simulated = gaussian(prior, 2.0)
    combined = combine_views(model, (100,), each)
    phi = prior.sample(300, seed=3)
    y = torch.cat([simulated(300, seed, phi=phi).y for seed in range(100)], 1)
    simulations = eande.Simulations.from_arrays(phi, y)
    with pytest.warns(EandeWarning, match="the exponent is 32, the largest one"):
        _, info = eande.calibrate(
            combined, simulations, kind="constant", draws=1_000, progress=False
        )
    assert info.exponent == pytest.approx(32)


# A model like any other.


def test_a_combined_ensemble_does_all_that_a_model_does(joint, tmp_path):
    y = torch.tensor([[0.1, -0.2, 0.12, -0.25], [0.5, 0.4, 0.45, 0.5]])
    model = combine_views(joint, (4,), halves)
    phi = BOX.sample(50, seed=0)
    for i, posterior in enumerate(model.posteriors(y)):
        views = joint.posteriors(y[i].view(2, 2))
        mean = torch.stack([view.score(phi) for view in views]).mean(0)
        torch.testing.assert_close(posterior.score(phi), mean, atol=1e-4, rtol=1e-4)
        assert (posterior.score(phi) <= posterior.bound()).all()
        # Normalised: the mean of e^(log r) over the prior is one.
        ratio = posterior.log_ratio(BOX.sample(20_000, seed=1)).exp()
        assert ratio.mean().item() == pytest.approx(1, abs=0.1)
    f, g = model.embed(y), model.emulate(phi)
    pairs = model.similarity.score(f, g)
    torch.testing.assert_close(
        model.similarity.grouped_score(f, g.expand(2, -1, -1)), pairs, atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        model.similarity.paired_score(f, g[:2]), pairs[:, :2].diagonal(), atol=1e-4, rtol=1e-4
    )
    exact_samples, _ = model.posterior(y[0]).sample(2_000, sampler="rejection", bound="exact")
    summary = model.summaries(y, progress=False)[0]
    error = exact_samples.std(0) / 2_000**0.5 + summary.std / summary.info.effective_draws**0.5
    assert ((summary.mean - exact_samples.mean(0)).abs() < 4 * error).all()
    drawn, _ = model.samples(y, 500, progress=False)
    assert ((drawn[0].mean(0) - exact_samples.mean(0)).abs() < 0.05).all()
    assert "mean of 2 views, each with a ensemble of 3" in repr(model)
    # What a CUDA graph does instead, where nothing may be asked on the way.
    bank = model.prior_bank(BOX, 1_000)
    captured = model.locate(y, bank, captured=True)["values"]
    torch.testing.assert_close(captured, model.locate(y, bank)["values"], atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match=r"views a file can hold, eande\.EvenWindows"):
        model.save(tmp_path / "m.eande")


def test_the_given_model_is_left_alone_and_what_it_is_later_changes_nothing(joint):
    y = torch.tensor([0.1, -0.2, 0.12, -0.25])
    model = combine_views(joint, (4,), halves)
    before = model.posterior(y).log_ratio(BOX.sample(20, seed=0))
    with torch.no_grad():
        changed = joint.members[0].emulator.last.bias
        changed += 1
    try:
        after = model.posterior(y).log_ratio(BOX.sample(20, seed=0))
        assert torch.equal(after, before)
    finally:
        with torch.no_grad():
            changed -= 1
    assert joint.combined_views is None
    assert joint.y_shape == (2,)


def test_gaps_in_a_view_are_seen(joint):
    encoder = ResidualMLP(2, 4, width=16, blocks=1, gaps=True)
    gappy = quick_fit(SIMULATIONS, BOX, encoder=encoder, epochs=2)
    model = combine_views(gappy, (4,), halves)
    y = torch.tensor([0.1, torch.nan, 0.12, -0.25])
    assert model.posterior(y).log_ratio(BOX.sample(5, seed=0)).isfinite().all()
    with pytest.raises(InputError, match="y: expected finite float32 numbers, got 1 NaN"):
        combine_views(joint, (4,), halves).posterior(y)


def test_a_view_far_from_all_simulations_is_told(joint):
    model = combine_views(joint, (4,), halves)
    with pytest.warns(eande.EandeWarning, match="times as far from the mean"):
        model.posterior(torch.tensor([0.1, -0.2, 50.0, -0.25]))


# Files.


class Levels(nn.Module):
    """A network of one's own."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 4)

    def forward(self, y):
        return self.last(torch.stack([y.mean(1), y[:, 0], y[:, -1]], 1))


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("members", [1, 2])
def test_a_model_of_windows_comes_back_from_a_file(members, calibrated, tmp_path):
    short = first_windows()
    models = [quick_fit(short, PRIOR, epochs=2, seed=i) for i in range(members)]
    model = combine_views(
        models[0] if members == 1 else eande.ensemble(models), [WHOLE], EvenWindows(WINDOW, 4)
    )
    if calibrated:
        model = to_the_power(model, 1.7)
    model.save(tmp_path / "m.eande")
    loaded = eande.load(tmp_path / "m.eande")
    y = series(2, 0.5, 1).y[:]
    assert torch.equal(
        loaded.posterior(y[0]).log_ratio(GRID), model.posterior(y[0]).log_ratio(GRID)
    )
    assert loaded.y_shape == (WHOLE,)
    assert loaded.history == model.history
    assert repr(loaded) == repr(model)
    assert repr(loaded.combined_views) == "EvenWindows(20, 4)"
    again, _ = eande.calibrate(loaded, series(100, 0.5, 2), progress=False)
    again.save(tmp_path / "again.eande")
    assert eande.load(tmp_path / "again.eande").y_shape == (WHOLE,)


def test_a_network_of_ones_own_is_passed_again(tmp_path):
    torch.manual_seed(0)
    encoder, emulator = Levels(), nn.Linear(1, 4)
    single = EmbedAndEmulate(
        encoder, emulator, eande.Dot(4), PRIOR, y_shape=(WINDOW,), embedding_dimension=4
    )
    model = combine_views(single, (WHOLE,))
    model.save(tmp_path / "m.eande")
    with pytest.raises(InputError, match="expected encoder=, the module it was trained with"):
        eande.load(tmp_path / "m.eande")
    loaded = eande.load(tmp_path / "m.eande", encoder=encoder, emulator=emulator)
    y = series(1, 0.5, 1).y[0]
    assert torch.equal(loaded.posterior(y).log_ratio(GRID), model.posterior(y).log_ratio(GRID))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_shape": [19]}, "windows: y_shape: EvenWindows: expected data of at least 20 entries"),
        ({"y_shape": [60, 2]}, "windows: views: expected data of the model's shape"),
        ({"length": 10}, "windows: views: expected data of the model's shape"),
        ({"length": 0}, "windows: length: expected a whole number of at least 1"),
        ({"axis": 1}, "EvenWindows: expected data with an axis 1"),
        ({"count": 10**9}, "windows: count: expected a whole number"),
        ({"similarity": {"name": "dot"}}, "similarity: expected 'mean of views' or 'calibrated'"),
        ({"y_shape": [2**40]}, "y_shape: expected at most"),
    ],
)
def test_a_file_that_says_something_else_of_windows_is_refused(changes, message, tmp_path):
    single = quick_fit(first_windows(), PRIOR, epochs=1)
    combine_views(single, (WHOLE,)).save(tmp_path / "m.eande")
    document, tensors = read_tensors(tmp_path / "m.eande", "model")
    document["windows"] |= changes
    write_tensors(tmp_path / "m.eande", "model", document, tensors)
    with pytest.raises(InputError, match=message):
        eande.load(tmp_path / "m.eande")


def first_windows():
    whole = series(200, 0.5, 0)
    return eande.Simulations.from_arrays(whole.phi, whole.y[:, :WINDOW])


# What is refused.


def test_views_that_do_not_fit_are_refused(joint):
    for views, message in (
        (lambda y: y, "expected a list of tensors, one for each view, got Tensor"),
        (lambda y: [], "expected a list of tensors"),
        (lambda y: [y[:, :3]], r"the model's shape, \(2, 2\) of two, got \(2, 3\)"),
        (lambda y: [y[:, :2], "x"], "the model's shape"),
        ("halves", "views: expected a function of a batch of data"),
    ):
        with pytest.raises(InputError, match=message):
            combine_views(joint, (4,), views)
    with pytest.raises(UserCodeError, match="views: raised IndexError"):
        combine_views(joint, (4,), lambda y: [y[:, 7]])
    with pytest.raises(InputError, match="y_shape: expected the shape of one observation"):
        combine_views(joint, 4)
    with pytest.raises(InputError, match="at least 2 entries along axis 0, got 1"):
        combine_views(joint, (1,))
    twice = combine_views(joint, (4,), halves)
    with pytest.raises(InputError, match="expected one of a single view"):
        combine_views(twice, (8,))
    with pytest.raises(InputError, match="expected models of a single view"):
        eande.ensemble([twice, twice])
    with pytest.raises(InputError, match="expected a model of a single view"):
        eande.fit(SIMULATIONS, BOX, warm_start=twice, progress=False)
    with pytest.raises(InputError, match=r"y: expected shape \(4,\)"):
        twice.posterior([0.1, -0.2])


def test_more_of_the_same_view_adds_nothing_after_calibration():
    """Copies of one window: no exponent above one is found, whatever their number."""
    single = exact(WINDOW, 0.5)
    model = combine_views(single, (WHOLE,), lambda y: 4 * [y[:, :WINDOW]])
    calibrated, info = eande.calibrate(model, series(200, 0.5, 3), progress=False)
    assert math.isclose(info.exponent, 1, abs_tol=0.1)
    y = series(1, 0.5, 4).y[0]
    torch.testing.assert_close(
        calibrated.posterior(y).log_ratio(GRID),
        single.posterior(y[:WINDOW]).log_ratio(GRID),
        atol=1e-3,
        rtol=1e-3,
    )
