"""The mixture of Gaussians as a similarity.

Its score and bound, what it can learn, and that everything else works with it.
"""

import math
import warnings

import numpy as np
import pytest
import torch

import eande
from eande.inference.samplers.rejection import acceptance_rejection
from eande.networks.mlp import ResidualMLP
from eande.similarities.calibrated import Calibrated, Slope
from eande.similarities.cosine import Cosine
from eande.similarities.mixture import Mixture
from eande.training.losses import LOSSES, inter_domain_info_nce
from helpers.models import quick_fit

PRIOR = eande.BoxPrior([-5, -5], [5, 5])


def peaked(phi, rng):
    """A wide Gaussian and one of a tenth of its width, each half of the time, around the
    parameters.
    """
    return phi + np.where(rng.random((len(phi), 1)) < 0.5, 1.0, 0.1) * rng.standard_normal(
        phi.shape
    )


@pytest.fixture(scope="module")
def fitted_peak():
    simulations = eande.simulate(peaked, PRIOR, 6_000, seed=0, progress=False)
    settings = {
        "similarity": "mixture",
        "embedding_dimension": 8,
        "batch_size": 250,
        "width": 64,
        "learning_rate": 3e-3,
        "validate_every": 10,
    }
    return quick_fit(simulations, PRIOR, epochs=20, **settings)


def test_the_score_is_the_printed_sum():
    torch.manual_seed(0)
    similarity = Mixture(4, dimension=3).double()
    torch.nn.init.normal_(similarity.spread.weight)
    f = torch.randn(5, 3).double()
    g = torch.randn(6, 3).double()
    heads = similarity.spread(f).view(5, 4, 5)
    expected = torch.empty(5, 6).double()
    for i in range(5):
        for j in range(6):
            terms = [
                heads[i, :, 3].softmax(0)[k]
                * torch.exp(
                    -heads[i, k, 4].exp() * (f[i] + heads[i, k, :3] - g[j]).square().sum() / 2
                )
                for k in range(4)
            ]
            expected[i, j] = torch.stack(terms).sum().log()
    torch.testing.assert_close(similarity.score(f, g), expected)
    torch.testing.assert_close(similarity.paired_score(f, g[:5]), expected[:, :5].diagonal())
    torch.testing.assert_close(similarity.features(f), f)


def test_training_sees_the_same_scores_and_gradients():
    torch.manual_seed(0)
    similarity = Mixture(4, dimension=3)
    torch.nn.init.normal_(similarity.spread.weight)
    f = (5 * torch.randn(20, 3)).requires_grad_()
    # Near and so far that most summands vanish.
    g = (torch.logspace(-2, 2, 30).unsqueeze(1) * torch.randn(30, 3)).requires_grad_()
    weight = torch.randn(20, 30)
    found = {}
    for mode in (True, False):
        scores = similarity.train(mode).score(f, g)
        found[mode] = (scores, *torch.autograd.grad((weight * scores).sum(), (f, g)))
    for trained, plain in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(trained, plain, rtol=1e-5, atol=1e-5)


def one_head(n, temperature):
    """Return a mixture of one Gaussian around f itself."""
    similarity = Mixture(1, temperature=temperature, dimension=n)
    with torch.no_grad():
        similarity.spread.weight.zero_()
        similarity.spread.bias.zero_()
    return similarity


@pytest.mark.parametrize("temperature", [0.02, 0.5])
def test_one_head_on_the_sphere_is_the_cosine(temperature):
    """−‖f − g‖²/2τ = (f·g − 1)/τ: the constant cancels in losses and ratios."""
    torch.manual_seed(0)
    cosine = Cosine(temperature).double()
    temperature = cosine.temperature  # as it was rounded
    mixture = one_head(5, temperature).double()
    f = cosine.place(torch.randn(20, 5).double())
    g = cosine.place(torch.randn(30, 5).double())
    torch.testing.assert_close(mixture.score(f, g), cosine.score(f, g) - 1 / temperature)
    torch.testing.assert_close(
        mixture.paired_score(f, g[:20]), cosine.paired_score(f, g[:20]) - 1 / temperature
    )
    for loss in LOSSES.values():
        ours, theirs = (
            loss(inter_domain_info_nce(f, g[:20], similarity.score))
            for similarity in (mixture, cosine)
        )
        torch.testing.assert_close(ours, theirs)


def test_a_fixed_temperature_is_kept():
    torch.manual_seed(0)
    similarity = Mixture(3, temperature=0.1, dimension=4)
    f = torch.randn(6, 4)
    heads = similarity.spread(f).unflatten(-1, (3, -1))
    g = (f.unsqueeze(1) + heads[..., :4])[:, 1]  # the second head's centre
    terms = heads[..., 4].log_softmax(1) - (
        (f.unsqueeze(1) + heads[..., :4] - g.unsqueeze(1)).square().sum(-1) / (2 * 0.1)
    )
    torch.testing.assert_close(
        similarity.paired_score(f, g), terms.logsumexp(1), rtol=1e-4, atol=1e-4
    )
    assert similarity.scale == pytest.approx(10)


@pytest.mark.parametrize("n", [4, 128])
def test_no_score_exceeds_the_bound(n):
    torch.manual_seed(0)
    similarity = Mixture(3, dimension=n)
    similarity.spread.bias.data.view(3, n + 2)[:, -1] = 12.0  # as narrow as allowed: rounding shows
    raw = 10 * torch.randn(200, n)
    embedded = similarity.place(raw)
    centres = raw + similarity.spread(raw).view(200, 3, n + 2)[:, 0, :n]
    emulated = similarity.place(centres)
    bound = similarity.bound(embedded)
    assert (similarity.paired_score(embedded, emulated) <= bound).all()
    assert (similarity.score(embedded, emulated) <= bound.unsqueeze(1)).all()
    assert similarity.score(embedded, emulated[:0]).shape == (200, 0)


def test_the_number_of_heads_comes_back_from_a_file(tmp_path):
    encoder, emulator = (ResidualMLP(2, 3, width=8, blocks=1) for _ in range(2))
    model = eande.EmbedAndEmulate(
        encoder, emulator, Mixture(5, dimension=3), PRIOR, y_shape=(2,), embedding_dimension=3
    )
    model.save(tmp_path / "model.eande")
    phi = PRIOR.sample(20, seed=0)
    loaded = eande.load(tmp_path / "model.eande")
    assert loaded.similarity.heads == 5
    torch.testing.assert_close(
        loaded.posterior([0.0, 1.0]).score(phi),
        model.posterior([0.0, 1.0]).score(phi),
    )


def test_heads_stay_in_full_precision():
    similarity = Mixture(dimension=3)
    f = torch.linspace(-1, 1, 12).view(4, 3)

    def values():
        return torch.stack([similarity.paired_score(f, f + 0.1), similarity.bound(f)])

    with torch.autocast("cpu", torch.bfloat16):
        mixed = values()
    torch.testing.assert_close(mixed, values(), rtol=0, atol=0)


def test_a_narrow_peak_on_a_wide_foot_is_learned(fitted_peak):
    """One blob of the best width would reach log(100 / (2πe · 0.505)) = 2.45 nats inside the box.

    The truth is 3.5.
    """
    fresh = eande.simulate(peaked, eande.BoxPrior([-3, -3], [3, 3]), 1_000, seed=1, progress=False)
    posteriors = fitted_peak.posteriors(fresh.y, draws=50_000)
    reached = np.mean(
        [p.log_ratio(phi.unsqueeze(0)).item() for p, phi in zip(posteriors, fresh.phi, strict=True)]
    )
    squares = (fresh.y[:] - fresh.phi).square().sum(1)
    exact = torch.logaddexp(-squares / 2, -squares / 0.02 + math.log(100)) + math.log(
        100 / (4 * math.pi)
    )
    assert reached > exact.mean().item() - 0.35
    assert exact.mean().item() - 0.35 > 2.9


def test_samples_with_the_exact_bound_follow_the_density(fitted_peak):
    posterior = fitted_peak.posterior([0.5, -1.0])
    samples, info = posterior.sample(4_000, seed=0, sampler=acceptance_rejection, bound="exact")
    assert info.exceedances == 0
    weights = posterior.bank_scores().double().softmax(0)
    near = ((posterior.bank.phi - torch.tensor([0.5, -1.0])).norm(dim=1) < 0.3).double()
    share = (weights * near).sum().item()
    error = math.sqrt(
        (weights.square() * (near - share) ** 2).sum().item() + share * (1 - share) / 4_000
    )
    assert (
        (samples - torch.tensor([0.5, -1.0])).norm(dim=1) < 0.3
    ).double().mean().item() == pytest.approx(share, abs=4 * error)


def values(model, phi):
    posterior = model.posterior([1.0, 1.0])
    return posterior.unnormalized(phi) - posterior.log_normalizer


def test_files_calibration_and_diagnoses_work_with_it(fitted_peak, tmp_path):
    held_out = eande.simulate(peaked, PRIOR, 300, seed=2, progress=False)
    fitted_peak.save(tmp_path / "model.eande")
    model = eande.load(tmp_path / "model.eande")
    phi = PRIOR.sample(50, seed=0)
    torch.testing.assert_close(values(model, phi), values(fitted_peak, phi))
    eande.calibrate(model, held_out, kind="datum", draws=5_000, progress=False)
    torch.testing.assert_close(values(model, phi), values(fitted_peak, phi))
    slope = torch.linspace(-0.3, 0.3, 8)
    calibrated = model.with_similarity(
        Calibrated(model.similarity, 1.3, Slope(slope, torch.zeros(8)))
    )
    raw = fitted_peak.similarity.features(fitted_peak.embed(torch.ones(1, 2)))
    expected = 1.3 * (raw @ slope).exp() * fitted_peak.posterior([1.0, 1.0]).score(phi)
    torch.testing.assert_close(calibrated.posterior([1.0, 1.0]).score(phi), expected)
    calibrated.save(tmp_path / "calibrated.eande")
    again = eande.load(tmp_path / "calibrated.eande")
    torch.testing.assert_close(values(again, phi), values(calibrated, phi))
    assert eande.diagnose(fitted_peak, held_out, draws=6_000).log_ratio > 2
    assert eande.identifiability(fitted_peak, held_out, points=3).fisher.shape == (3, 2, 2)
    gradient = torch.tensor([[1.0, 1.2]], requires_grad=True)
    values(fitted_peak, gradient).sum().backward()
    assert torch.isfinite(gradient.grad).all()


def test_a_fit_goes_on_from_its_heads(fitted_peak):
    simulations = eande.simulate(peaked, PRIOR, 2_000, seed=3, progress=False)
    settings = eande.FitSettings(
        similarity="mixture", embedding_dimension=8, epochs=1, learning_rate=1e-5, device="cpu"
    )
    model = eande.fit(simulations, PRIOR, warm_start=fitted_peak, settings=settings, progress=False)
    assert model.history[0]["held_out_log_ratio"] > 2.5


@pytest.mark.parametrize(
    ("before", "after"), [("cosine", "mixture"), ("cosine", "dot"), ("dot", "mixture")]
)
def test_going_on_with_another_similarity_takes_it(before, after):
    simulations = eande.simulate(peaked, PRIOR, 500, seed=3, progress=False)
    first = quick_fit(simulations, PRIOR, epochs=1, similarity=before)
    settings = eande.FitSettings(similarity=after, embedding_dimension=4, epochs=1, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eande.EandeWarning)
        found = [
            eande.fit(simulations, PRIOR, warm_start=first, settings=settings, progress=False)
            for _ in range(2)
        ]
    assert found[0].similarity.trained.name == after
    torch.testing.assert_close(
        *(dict(model.similarity.trained.named_parameters()) for model in found), rtol=0, atol=0
    )


@pytest.mark.filterwarnings("ignore:pooling 2 observations")
def test_observations_pool(fitted_peak):
    """The scores of both add up, and so do the bounds."""
    ys = torch.tensor([[1.0, 1.0], [1.2, 0.9]])
    phi = PRIOR.sample(1_000, seed=1)
    pooled = fitted_peak.posterior(ys, pooled=True)
    each = fitted_peak.posteriors(ys)
    torch.testing.assert_close(
        pooled.score(phi),
        each[0].score(phi) + each[1].score(phi),
        rtol=0,
        atol=1e-4,  # terms of hundreds of nats cancel
    )
    assert pooled.bound() == pytest.approx(each[0].bound() + each[1].bound())
    assert pooled.bound() < 1e-2
    samples = pooled.sample(1_000, seed=0)[0]
    assert (samples.mean(0) - ys.mean(0)).abs().max() < 0.3
    weights = (
        torch.cat([posterior.bank_scores().unsqueeze(0) for posterior in each])
        .sum(0)
        .double()
        .softmax(0)
    )
    mean = weights @ pooled.bank.phi.double()
    assert (samples.mean(0) - mean).abs().max() < 0.1, "samples and bank are of one posterior"


def test_ensembles_are_means_of_ratios(fitted_peak, tmp_path):
    """Members may differ in similarity and width.

    Files, exponents and samples are as of one model.
    """
    simulations = eande.simulate(peaked, PRIOR, 600, seed=5, progress=False)
    other = quick_fit(
        simulations, PRIOR, epochs=2, similarity="cosine", embedding_dimension=4, width=16
    )
    joint = eande.ensemble([fitted_peak, other])
    y = torch.tensor([1.0, -1.0])
    phi = PRIOR.sample(500, seed=2)
    each = torch.stack(
        [model.posterior(y, draws=20_000).log_ratio(phi) for model in (fitted_peak, other)]
    )
    torch.testing.assert_close(
        joint.posterior(y, draws=20_000).log_ratio(phi),
        each.logsumexp(0) - math.log(2),
        rtol=0,
        atol=1e-3,
    )
    before = joint.posterior(y).score(phi)
    slope = Slope(0.1 * torch.ones(8 + 4), torch.zeros(8 + 4))
    joint = joint.with_similarity(Calibrated(joint.similarity, 0.8, slope))
    features = torch.cat(
        [
            model.similarity.features(model.embed_all(y.unsqueeze(0)))
            for model in (fitted_peak, other)
        ],
        dim=1,
    )
    torch.testing.assert_close(
        joint.posterior(y).score(phi),
        0.8 * (0.1 * features.sum()).exp() * before,
        rtol=1e-3,
        atol=1e-3,
    )
    joint.save(tmp_path / "joint.eande")
    torch.testing.assert_close(
        eande.load(tmp_path / "joint.eande").posterior(y).log_ratio(phi),
        joint.posterior(y).log_ratio(phi),
    )
    posterior = joint.posterior(y)
    samples = posterior.sample(200, seed=0, sampler="rejection", bound="exact")[0]
    assert posterior.score(samples).max() <= posterior.bound()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_several_are_fitted_with_nothing_said():
    """The defaults make an ensemble whose ratio is the mean of its members'."""
    simulations = eande.simulate(peaked, PRIOR, 600, seed=5, progress=False)
    joint = eande.fit(
        simulations,
        PRIOR,
        members=2,
        settings=eande.FitSettings(epochs=20, device="cpu"),
        progress=False,
    )
    assert all(isinstance(member.similarity, Mixture) for member in joint.members)
    y = torch.tensor([1.0, -1.0])
    phi = PRIOR.sample(500, seed=2)
    each = torch.stack(
        [member.posterior(y, draws=20_000).log_ratio(phi) for member in joint.members]
    )
    torch.testing.assert_close(
        joint.posterior(y, draws=20_000).log_ratio(phi),
        each.logsumexp(0) - math.log(2),
        rtol=0,
        atol=1e-3,
    )
    assert (each[0] - each[1]).abs().max() > 0.1


def two_views(y, rng):
    """Two copies with a little noise: what the encoder sees."""
    return y + 0.01 * torch.randn(y.shape, generator=rng)


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"memory_bank": 60}, ()),
        ({"view_weight": 0.1, "views": two_views}, ("loss_views",)),
        ({"similarity": Mixture(3, temperature=0.2)}, ()),
    ],
    ids=["memory bank", "views", "fixed temperature"],
)
def test_everything_a_fit_offers_goes_with_it(options, recorded, tmp_path):
    simulations = eande.simulate(peaked, PRIOR, 1_000, seed=3, progress=False)
    settings = {"similarity": Mixture(3), "learning_rate": 3e-3, "batch_size": 100} | options
    model = quick_fit(simulations, PRIOR, epochs=12, **settings)
    assert type(model.similarity) is Mixture, "better than the prior"
    assert model.similarity.heads == 3
    assert model.history[-1]["held_out_log_ratio"] > 1
    for name in recorded:
        assert math.isfinite(model.history[-1][name])
    model.save(tmp_path / "model.eande")
    phi = PRIOR.sample(50, seed=0)
    loaded = eande.load(tmp_path / "model.eande")
    torch.testing.assert_close(values(loaded, phi), values(model, phi))
    assert loaded.similarity.temperature == model.similarity.temperature


def test_wrong_arguments_are_said():
    with pytest.raises(eande.InputError, match="heads: expected a whole number of at least 1"):
        Mixture(0, dimension=3)
    with pytest.raises(eande.InputError, match="temperature: expected a finite number above 0"):
        Mixture(3, temperature=0.0)
