"""Members whose posteriors no prior draw comes near are weighed rightly all the same."""

import math

import pytest
import torch

import eande
from eande.inference import cache as caches
from eande.inference import ensemble as ensembles
from eande.inference.cache import Graphs
from eande.inference.ensemble import _DRAWS, JointEncoder
from eande.inference.nearby import weigh_members
from eande.inference.normalizer import estimate_normalizer
from eande.inference.samplers.guided import GuidedInfo
from eande.networks.mlp import ResidualMLP
from eande.similarities.calibrated import Calibrated
from helpers import exact_line
from helpers.sharp_gaussians import box, gaussian

NOISE = 0.1
DIMENSION = 10
WIDTH = DIMENSION + 2


def exact_log_c(y, noise, shift=0.0):
    """Log C of a Gaussian score on a box, by the normal distribution function."""
    centre = y.double() + shift * noise
    normal = torch.distributions.Normal(0.0, 1.0)
    mass = normal.cdf((1 - centre) / noise) - normal.cdf((-1 - centre) / noise)
    whole = noise * math.sqrt(2 * math.pi) / 2
    return (mass.log() + math.log(whole) + centre**2 / (2 * noise**2)).sum(1)


@pytest.fixture(scope="module")
def members():
    """An exact member, and one that is wider and errs by a standard deviation."""
    first, simulated = gaussian(box(DIMENSION), NOISE)
    second, _ = gaussian(box(DIMENSION), NOISE, believed=1.3 * NOISE, shift=1.0)
    return [first, second], simulated


@pytest.mark.thorough
def test_normalisers_are_right_where_prior_draws_are_off_by_nats(members):
    models, simulated = members
    y = simulated(8, 0).y
    joint = eande.ensemble(models)
    found = -joint.embed_all(y)[:, [WIDTH - 1, 2 * WIDTH - 1]].double()
    exact = torch.stack(
        [exact_log_c(y, NOISE), exact_log_c(y + NOISE, 1.3 * NOISE)],
        dim=1,
    )
    # An eighth each at most, by sixty effective draws.
    assert (found - exact).square().mean().sqrt() < 0.125
    assert (found - exact).mean().abs() < 0.1
    for column, model in enumerate(models):
        bank = model.prior_bank(model.prior, _DRAWS)
        by_draws = estimate_normalizer(model.similarity, model.embed_all(y), bank)
        assert (by_draws.log_value - exact[:, column]).abs().mean() > 1


@pytest.mark.thorough
def test_both_members_have_half_of_the_mixture_which_integrates_to_one(members):
    models, simulated = members
    y = simulated(1, 3).y
    joint = eande.ensemble(models)
    posterior = joint.posterior(y[0])
    phi = posterior.sample(200, seed=0)[0]
    exact = [
        model.similarity.score(model.embed_all(y), model.emulate_all(phi))[0].double() - log_c
        for model, log_c in zip(
            models, (exact_log_c(y, NOISE), exact_log_c(y + NOISE, 1.3 * NOISE)), strict=True
        )
    ]
    expected = torch.logaddexp(*exact) - math.log(2)
    # Two standard errors of two normalisers.
    assert (posterior.score(phi).double() - expected).abs().max() < 0.15
    assert posterior.log_normalizer == pytest.approx(0, abs=0.15)
    assert (posterior.log_ratio(phi).double() - expected).abs().max() < 0.15


@pytest.mark.thorough
def test_posteriors_go_on_from_the_guide_that_weighed_the_members(members):
    """Of the ensemble, and of a calibrated one; another prior has its own."""
    models, simulated = members
    y = simulated(1, 3).y
    joint = eande.ensemble(models)
    for model in (joint, joint.with_similarity(Calibrated(joint.similarity, 0.5))):
        posterior = model.posterior(y[0])
        assert posterior.near is not None
        phi, info = posterior.sample(4_000, seed=0)
        assert isinstance(info, GuidedInfo)
        posterior.near = None
        del posterior.guide
        alone, _ = posterior.sample(4_000, seed=1)
        spread = (alone.var(0) + phi.var(0)).sqrt() / 4_000**0.5
        assert ((phi.mean(0) - alone.mean(0)) / spread).abs().max() < 4
        torch.testing.assert_close(phi.std(0), alone.std(0), rtol=0.06, atol=0)
    narrower = eande.BoxPrior([-0.99] * DIMENSION, [0.99] * DIMENSION)
    assert joint.posterior(y[0], prior=narrower).near is None


def test_own_points_are_scored_as_all_pairs_are(members):
    models, simulated = members
    joint = eande.ensemble([models[0], models[1]])
    f = joint.embed_all(simulated(3, 5).y)
    g = joint.emulate_all(joint.prior.sample(12, seed=0)).unflatten(0, (3, 4))
    for similarity in (joint.similarity, Calibrated(joint.similarity, 1.3)):
        pairs = [similarity.score(f[i : i + 1], g[i])[0] for i in range(3)]
        torch.testing.assert_close(similarity.grouped_score(f, g), torch.stack(pairs))


def test_what_prior_draws_tell_is_left_as_it_is():
    joint = eande.ensemble([exact_line.gaussian(), exact_line.gaussian(0.25, shift=0.2)])
    y = torch.tensor([[0.3], [-0.7]])
    encoder = joint.encoder
    assert isinstance(encoder, JointEncoder)
    assert torch.equal(encoder(y), encoder.by_draws(y))


def test_priors_of_draws_alone_are_left_to_their_draws():
    known = box(5)
    prior = eande.SamplerPrior(lambda n, seed: known.sample(n, seed=seed))
    model, simulated = gaussian(prior, 0.02)
    joint = eande.ensemble([model, model])
    y = simulated(3, 0).y
    assert torch.equal(joint.encoder(y), joint.encoder.by_draws(y))
    assert joint.encoder(y).isfinite().all()


def sharp():
    """Two members of random weights and of posteriors that few of 20,000 draws come near."""
    members = []
    for seed in range(2):
        torch.manual_seed(seed)
        emulator = ResidualMLP(2, 4, width=16, blocks=1)
        torch.nn.init.normal_(emulator.last.weight)
        members.append(
            eande.EmbedAndEmulate(
                ResidualMLP(2, 4, width=16, blocks=1),
                emulator,
                eande.Cosine(1e-4),
                box(2),
                y_shape=(2,),
                embedding_dimension=4,
            )
        )
    return eande.ensemble(members)


def test_values_are_the_same_again_and_in_a_file(tmp_path):
    joint = sharp()
    y = [0.3, -0.2]
    phi = joint.prior.sample(50, seed=0)
    before = joint.posterior(y).score(phi)
    assert joint.encoder.by_draws(torch.tensor([y])).isnan().any()
    assert before.isfinite().all()
    assert torch.equal(joint.posterior(y).score(phi), before)
    joint.save(tmp_path / "joint.safetensors")
    loaded = eande.load(tmp_path / "joint.safetensors")
    assert torch.equal(loaded.posterior(y).score(phi), before)


def test_data_that_are_asked_for_again_are_weighed_once(monkeypatch):
    joint = sharp()
    asked = []

    def weigh(models, data, banks, **options):
        asked.append(len(data[0]))
        return weigh_members(models, data, banks, **options)

    monkeypatch.setattr(ensembles, "weigh_members", weigh)
    some = torch.tensor([[0.3, -0.2], [0.1, 0.4]])
    first = joint.embed(some)
    assert torch.equal(joint.embed(some), first)
    assert asked == [2]
    other = joint.embed(some[1:])
    assert asked == [2, 1]
    assert not torch.equal(other, first[:1])
    assert torch.equal(joint.embed(some), first)
    assert asked == [2, 1, 2]


def test_what_a_cuda_graph_cannot_look_for_is_asked_without_it(monkeypatch):
    """The graph itself needs a GPU: in its place the function that it would capture is called."""
    joint = sharp()
    y = torch.tensor([[0.3, -0.2]])
    phi = joint.prior.sample(50, seed=0)
    before = joint.posterior(y[0]).log_ratio(phi)
    bank = joint.prior_bank(joint.prior, 10_000)
    assert joint.locate(y, bank, captured=True)["values"][0].isnan().all()
    asked = []

    def locate(observed, bank):
        asked.append(observed)
        return joint.locate(observed, bank, captured=True)

    monkeypatch.setattr(caches, "GraphedFunction", lambda function, enabled: function)
    joint.cache.clear()
    joint.cache.watch(joint._scoring_parts())
    joint.cache.graphs = Graphs(
        score=lambda f, phi: {"scores": joint.similarity.score(f, joint.emulate(phi))},
        locate=locate,
    )
    torch.testing.assert_close(joint.posterior(y[0]).log_ratio(phi), before)
    assert len(asked) == 1
