"""An ensemble: the mean of its members' ratios."""

import copy

import pytest
import torch
from scipy import stats
from torch import nn

import eande
from eande.foundations.checks import InputError
from eande.inference import ensemble as ensembles
from eande.networks.mlp import ResidualMLP
from eande.similarities.calibrated import Aim, Calibrated, Slope
from eande.similarities.dot import Dot
from helpers.exact_line import GRID, LINE, NOISE, circle, fallen, gaussian, log_mean_exp, pairs


def exact_log_ratio(y, phi, prior_grid, sharpness=1.0, shift=0.0):
    """The log ratio of ``gaussian`` by quadrature over equidistant points of the prior."""

    def score(phi):
        return -sharpness * (phi[:, 0].double() - y - shift) ** 2 / (2 * NOISE**2)

    return score(phi) - log_mean_exp(score(prior_grid))


@pytest.mark.parametrize(
    "members",
    [
        lambda: [gaussian(), gaussian(0.25, shift=0.2), gaussian(4.0, shift=-0.3)],
        lambda: [circle(0.1), circle(0.01), circle(1.0)],
        lambda: [gaussian(), fallen(gaussian(3.0))],
    ],
    ids=["dot", "cosine", "one of them the prior"],
)
def test_the_ratio_is_the_mean_of_the_members_ratios(members):
    """Over one bank of prior draws every normaliser is the same sum, so that only float32 rounding
    remains.
    """
    models = members()
    draws = 20_000
    joint = eande.ensemble(models)
    phi = models[0].prior.sample(500, seed=1)
    ys = torch.tensor([[0.3], [-0.7], [1.0]])
    each = torch.stack(
        [torch.stack([p.log_ratio(phi) for p in m.posteriors(ys, draws=draws)]) for m in models]
    )
    for posterior, expected in zip(
        joint.posteriors(ys, draws=draws), log_mean_exp(each), strict=True
    ):
        assert posterior.log_normalizer == pytest.approx(0, abs=1e-4), (
            "a mean of normalised ratios is normalised"
        )
        assert torch.allclose(posterior.log_ratio(phi), expected, atol=2e-4)
    # Means of unnormalised scores, or of log ratios, would not pass.
    unnormalised = log_mean_exp(
        torch.stack([m.posterior(ys[0], draws=draws).score(phi) for m in models])
    )
    assert (unnormalised - log_mean_exp(each)[0]).std() > 0.01 or not isinstance(
        models[0].similarity, Dot
    )
    assert (each.mean(0) - log_mean_exp(each)).abs().max() > 0.1


def test_the_ratio_under_another_prior_is_the_exact_one():
    """p̃(φ) Σ r_j(φ, y), r_j normalised under the training prior.

    Draws: 40,000; normalisers err by 2 %, tolerance 10 %.
    """
    joint = eande.ensemble([gaussian(), gaussian(0.25, shift=0.2)])
    narrow = eande.BoxPrior([-0.2], [0.6])
    y = 0.1
    phi = narrow.sample(300, seed=1)
    narrow_grid = torch.linspace(-0.2, 0.6, 4_001).unsqueeze(1)
    members = ({"sharpness": 1.0}, {"sharpness": 0.25, "shift": 0.2})

    def mean_ratio(points):
        return log_mean_exp(
            torch.stack([exact_log_ratio(y, points, GRID, **member) for member in members])
        )

    expected = mean_ratio(phi) - log_mean_exp(mean_ratio(narrow_grid))
    found = joint.posterior([y], prior=narrow, draws=40_000).log_ratio(phi).double()
    assert (found - expected).abs().max() < 0.1


@pytest.mark.parametrize(
    "prior",
    [
        eande.EmpiricalPrior(LINE.sample(3_000, seed=5)),
        eande.SamplerPrior(lambda n, seed: LINE.sample(n, seed=seed)),
        # A sampler that does not repeat itself is still one and the same prior.
        eande.SamplerPrior(lambda n, seed: torch.rand(n, 1) * 2 - 1),
    ],
    ids=["empirical", "sampler", "careless sampler"],
)
def test_priors_known_by_draws_only(prior):
    joint = eande.ensemble([gaussian(prior=prior), gaussian(0.25, shift=0.2, prior=prior)])
    phi = LINE.sample(50, seed=1)
    expected = log_mean_exp(
        torch.stack([exact_log_ratio(0.1, phi, GRID), exact_log_ratio(0.1, phi, GRID, 0.25, 0.2)])
    )
    assert (joint.posterior([0.1]).log_ratio(phi).double() - expected).abs().max() < 0.2
    assert joint.posterior([0.1]).sample(100)[0].shape == (100, 1)


def test_samples_follow_the_mixture():
    """Kolmogorov–Smirnov against the exact mixture, false-alarm rate 1e-4.

    Weighing members by their e^s instead fails it.
    """
    centres = (-0.3, 0.5)
    widths = (NOISE, NOISE / 2)
    joint = eande.ensemble([gaussian(shift=centres[0]), gaussian(4.0, shift=centres[1])])
    samples = joint.posterior([0.0]).sample(2_000, seed=3)[0][:, 0].numpy()

    def mixture(weights):
        return lambda x: sum(
            weight * stats.norm.cdf(x, centre, width)
            for weight, centre, width in zip(weights, centres, widths, strict=True)
        )

    assert stats.kstest(samples, mixture((1 / 2, 1 / 2))).pvalue > 1e-4
    assert stats.kstest(samples, mixture((2 / 3, 1 / 3))).pvalue < 1e-4


def test_the_exact_bound_is_never_exceeded_and_attained(monkeypatch):
    """At τ = 0.005 scores of 200 nats cancel against normalisers as large.

    Rounding alone would pierce a bound without room for it.
    """
    joint = eande.ensemble([circle(0.005), circle(0.01), circle(0.2)])
    ys = torch.linspace(-3, 3, 40).unsqueeze(1)
    highest = []
    exceeded = {"as it is": 0, "without room": 0}
    for posterior in joint.posteriors(ys):
        f = posterior.scorer.f
        y = f[0, 1].atan2(f[0, 0])
        phi = torch.cat(
            [
                joint.prior.sample(5_000, seed=0),
                (y + 1e-4 * torch.linspace(-1, 1, 2_001)).unsqueeze(1),
            ]
        )
        top = posterior.score(phi).max().double()
        for name, rounding in (("as it is", ensembles._ROUNDING), ("without room", 0.0)):
            monkeypatch.setattr(ensembles, "_ROUNDING", rounding)
            bound = posterior.bound()
            exceeded[name] += int(top > bound * (1 + 1e-6) + 1e-6)
        monkeypatch.undo()
        highest.append((posterior.bound() - top).item())
    assert exceeded["as it is"] == 0 < exceeded["without room"]
    assert max(highest) < 0.01
    samples, info = joint.posterior(ys[3]).sample(500, sampler="rejection", bound="exact")
    assert info.exceedances == 0
    assert (samples - ys[3]).abs().median() < 0.2


def test_a_member_without_a_bound_leaves_none():
    posterior = eande.ensemble([circle(0.1), gaussian(0.5, prior=circle(0.1).prior)]).posterior(
        [0.0]
    )
    assert posterior.bound() is None
    with pytest.raises(
        InputError,
        match="bound: expected 'estimated' for a similarity without an upper bound, got 'exact'",
    ):
        posterior.sample(10, sampler="rejection", bound="exact")


@pytest.mark.filterwarnings("ignore:pooling 3 observations")
def test_pooled_observations_multiply_their_ratios():
    joint = eande.ensemble([gaussian(), gaussian(0.25, shift=0.2)])
    ys = torch.tensor([[0.1], [0.2], [0.15]])
    pooled = joint.posterior(ys, pooled=True, draws=50_000)
    each = joint.posteriors(ys, draws=50_000)
    log_ratio = sum(posterior.log_ratio(GRID) for posterior in each)
    exact = log_ratio - log_mean_exp(log_ratio)
    near = exact > exact.max() - 10
    # Normalisers of 50,000 draws err by 1 %.
    torch.testing.assert_close(pooled.log_ratio(GRID)[near], exact[near], rtol=0, atol=0.05)
    samples = pooled.sample(2_000, seed=0)[0][:, 0].double()
    mean = (GRID[:, 0].double() * exact.double().softmax(0)).sum()
    assert abs(samples.mean() - mean) < 4 * samples.std() / 2_000**0.5
    assert torch.equal(
        joint.posterior(ys[:1], pooled=True).log_ratio(GRID), joint.posterior(ys[0]).log_ratio(GRID)
    )


@pytest.mark.filterwarnings("ignore:pooling 2 observations")
def test_the_bound_of_pooled_observations_is_the_sum_of_theirs():
    joint = eande.ensemble([circle(0.1), circle(0.05)])
    ys = torch.tensor([[0.1], [0.1]])
    pooled = joint.posterior(ys, pooled=True)
    one = joint.posterior(ys[0])
    twice = pooled.bound()
    once = one.bound()
    assert twice == pytest.approx(2 * once)
    assert 0 <= twice - pooled.score(torch.tensor([[0.1]])).item() < 1e-3


def test_what_happens_to_a_model_later_does_not_change_the_ensemble():
    models = [gaussian(3.0), gaussian(2.0)]
    joint = eande.ensemble(models)
    phi = LINE.sample(20, seed=0)
    before = joint.posterior([0.2]).log_ratio(phi)
    calibrated, found = eande.calibrate(models[0], pairs(100, 0), draws=1_000, progress=False)
    assert found.exponent < 1
    assert calibrated.posterior([0.2]).log_normalizer != models[0].posterior([0.2]).log_normalizer
    models[0].similarity.root.mul_(2)
    models[1].similarity = Calibrated(models[1].similarity, 0.5)
    assert torch.equal(joint.posterior([0.2]).log_ratio(phi), before)


CASES = {
    "one model": (
        lambda: eande.ensemble([gaussian()]),
        "models: expected a list of at least 2, got 1",
    ),
    "a model": (
        lambda: eande.ensemble(gaussian()),
        "models: expected a list of fitted models .*got EmbedAndEmulate",
    ),
    "names of files": (
        lambda: eande.ensemble(["a.eande"]),
        "models: expected a list of fitted models .*got 'a.eande'",
    ),
    "networks": (
        lambda: eande.ensemble([nn.Linear(1, 1), nn.Linear(1, 1)]),
        "models: expected a list of fitted models .*got Linear",
    ),
    "other priors": (
        lambda: eande.ensemble([gaussian(), gaussian(prior=eande.BoxPrior([0.0], [1.0]))]),
        "models: expected one prior and one shape of y, got models that differ",
    ),
    "an ensemble of ensembles": (
        lambda: eande.ensemble([gaussian(), eande.ensemble([gaussian(), gaussian()])]),
        "models: expected plain models as fitted, got an ensemble or a calibrated one",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_calibrated_models_are_no_members():
    """Whatever kind of exponent it came to, or only moved."""
    plain = gaussian()
    slope = Slope(torch.ones(2), torch.zeros(2))
    aim = Aim(torch.zeros(2, 2), torch.ones(2))
    for corrections in ((0.5,), (0.5, slope), (1.0, None, aim)):
        model = plain.with_similarity(Calibrated(plain.similarity, *corrections))
        with pytest.raises(
            InputError,
            match="models: expected plain models as fitted, got an ensemble or a calibrated "
            "one; combine first",
        ):
            eande.ensemble([model, gaussian()])


def test_what_is_kept_of_the_last_data_is_of_these_weights():
    """A member's C is another one as soon as its emulator is."""
    torch.manual_seed(0)
    prior = eande.BoxPrior([-1, -1], [1, 1])
    models = [
        eande.EmbedAndEmulate(
            ResidualMLP(2, 3, width=8),
            ResidualMLP(2, 3, width=8),
            eande.Cosine(0.1),
            prior,
            y_shape=(2,),
            embedding_dimension=3,
        )
        for _ in range(2)
    ]
    joint = eande.ensemble(models)
    y = torch.zeros(1, 2)
    before = joint.embed(y)
    assert torch.equal(joint.embed(y), before)
    with torch.no_grad():
        for parameter in joint.members[0].emulator.parameters():
            parameter.add_(torch.randn_like(parameter))
    after = joint.embed(y)
    assert torch.equal(after[:, :3], before[:, :3])
    assert (after[:, 3] - before[:, 3]).abs() > 0.1
    assert torch.equal(copy.deepcopy(joint).embed(y), after)
