"""Priors, networks, similarities, seeds: one contract for every member of a list."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.distributions import Independent, LogNormal, MultivariateNormal, Normal, Uniform

from eande.diagnostics.distances import best_rotation, l1_distance, linear_r2
from eande.foundations.checks import InputError
from eande.foundations.seeds import derive_seed, generator, global_seed
from eande.inference.normalizer import PriorBank, coefficient_of_variation, estimate_normalizer
from eande.inference.search import climb
from eande.networks.choose import default_encoder, describe_network, make_network
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet
from eande.networks.standardizer import Standardizer
from eande.priors.box import BoxPrior
from eande.priors.convert import as_prior
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.similarities.similarities import Cosine, Dot
from eande.simulation.read.simulations import Simulations
from eande.simulation.run.blocks import each
from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import (
    VonMisesFisher,
    log_mean_exp_on_sphere,
    sample_von_mises_fisher,
)
from eande.training.losses import inter_domain_info_nce

PRIORS = [
    BoxPrior([-1, 0], [1, 5]),
    DistributionPrior(Independent(Normal(torch.zeros(2), torch.tensor([1.0, 3.0])), 1)),
    DistributionPrior(Independent(Uniform(torch.zeros(2), torch.ones(2)), 1)),
    DistributionPrior(Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1)),
    DistributionPrior(MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))),
    SamplerPrior(lambda n, seed: np.random.default_rng(seed).normal(size=(n, 2))),
    EmpiricalPrior(torch.randn(37, 2)),
    VonMisesFisher(2).prior,
]


@pytest.mark.parametrize("prior", PRIORS, ids=lambda p: type(p).__name__)
def test_every_prior_keeps_the_contract(prior):
    state = torch.get_rng_state()
    phi = prior.sample(100, seed=3)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    assert phi.shape == (100, 2)
    assert phi.dtype == torch.float32
    assert torch.equal(phi, prior.sample(100, seed=3))
    assert not torch.equal(phi, prior.sample(100, seed=4))
    assert prior.contains(phi).all()
    assert len(prior.names) == prior.dimension == 2
    if prior.has_density:
        assert torch.isfinite(prior.log_prob(phi)).all()
        outside = torch.tensor([[1e9, -1e9]])
        assert prior.log_prob(outside).item() < -30
    assert as_prior(prior) is prior


@pytest.mark.parametrize(
    "prior", [p for p in PRIORS if p.has_density], ids=lambda p: type(p).__name__
)
def test_densities_integrate_to_one(prior):
    """By importance sampling from a wide proposal: 400,000 draws, tolerance five standard errors."""
    proposal = Independent(Normal(torch.ones(2), torch.full((2,), 4.0)), 1)
    torch.manual_seed(0)
    phi = proposal.sample((400_000,))
    weights = (prior.log_prob(phi) - proposal.log_prob(phi)).exp()
    assert abs(weights.mean() - 1) < max(5 * weights.std() / 400_000**0.5, 0.02)


def test_an_empirical_prior_uses_every_draw_equally():
    draws = torch.arange(10.0).unsqueeze(1)
    values, counts = EmpiricalPrior(draws).sample(35, seed=0).unique(return_counts=True)
    assert len(values) == 10
    assert set(counts.tolist()) == {3, 4}


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4),
    st.floats(1e-3, 1e6),
    st.integers(0, 2**31),
)
def test_a_box_contains_its_draws(low, width, seed):
    low = torch.tensor(low)
    high = low + width
    if (low < high).all():
        prior = BoxPrior(low, high)
        assert prior.contains(prior.sample(50, seed=seed)).all()


NETWORKS = [
    (ResidualMLP(3, 4), (3,)),
    (ResidualMLP(6, 4, normalization="batch", activation="silu"), (2, 3)),
    (ResidualMLP(3, 4, blocks=0, normalization="layer"), (3,)),
    (ResNet(2, 4, dimensions=1, width=4), (2, 70)),
    (ResNet(2, 4, dimensions=2, width=4, stem="narrow", periodic=(0,)), (2, 9, 12)),
    (ResNet(2, 4, dimensions=2, width=8, depth=34, normalization="group"), (2, 33, 40)),
]


@pytest.mark.parametrize(
    ("network", "shape"),
    NETWORKS,
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "x".join(map(str, x)),
)
def test_every_network_keeps_the_contract(network, shape):
    x = torch.randn(5, *shape)
    network.eval()
    assert network(x).shape == (5, 4)
    again = make_network(describe_network(network)).eval()
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(x), network(x))
    assert torch.allclose(network(x[:1]), network(x)[:1], atol=1e-5)
    network.train()
    network(x).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_a_periodic_axis_makes_shifts_invisible():
    torch.manual_seed(0)
    ring = ResNet(2, 4, dimensions=2, width=4, stem="narrow", periodic=(0,)).eval()
    open_ended = ResNet(2, 4, dimensions=2, width=4, stem="narrow").eval()
    open_ended.load_state_dict(ring.state_dict())
    x = torch.randn(3, 2, 16, 12)
    shifted = x.roll(8, dims=2)  # the total stride of a narrow stem
    with torch.no_grad():
        assert torch.allclose(ring(shifted), ring(x), atol=1e-4)
        assert not torch.allclose(open_ended(shifted), open_ended(x), atol=1e-2)


def test_the_default_encoder_follows_the_shape():
    assert isinstance(default_encoder((7,), 4), ResidualMLP)
    assert default_encoder((2, 100), 4).settings["dimensions"] == 1
    assert default_encoder((2, 100), 4, width=128).settings["width"] == 16, "128 in the last stage"
    two = default_encoder((2, 30, 30), 4)
    assert (two.settings["dimensions"], two.settings["depth"], two.settings["stem"]) == (
        2,
        18,
        "narrow",
    )
    assert describe_network(nn.Linear(1, 1)) is None


def test_a_constant_feature_is_left_alone():
    out = Standardizer(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0]))(
        torch.tensor([[1.0, 4.0]])
    )
    assert out.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    "similarity", [Cosine(0.3), Cosine(0.3, learn=True), Dot(5)], ids=["cosine", "learned", "dot"]
)
def test_every_similarity_keeps_the_contract(similarity):
    f, g = (
        similarity.place(torch.randn(6, 5, generator=torch.Generator().manual_seed(s)))
        for s in (0, 1)
    )
    scores = similarity.score(f, g)
    assert torch.allclose(scores.diagonal(), similarity.paired_score(f, g), atol=1e-5)
    pooled = similarity.score(similarity.pool(f).unsqueeze(0), g)[0]
    assert torch.allclose(pooled, scores.sum(0), atol=1e-4), "pooling adds scores"
    bound = similarity.bound(f)
    if bound is not None:
        assert (scores <= bound.unsqueeze(1) + 1e-6).all()
        best = similarity.score(f, nn.functional.normalize(f, dim=1)).diagonal()
        assert torch.allclose(best, bound, atol=1e-4), "the bound is attained"
    similarity.exponent.fill_(0.5)
    assert torch.allclose(similarity.score(f, g), scores / 2, atol=1e-6)
    similarity.exponent.fill_(1.0)


def test_normalisers_survive_tiny_temperatures():
    """e^{1/τ} overflows float32 and float64 at τ = 1e-4; the log-mean-exp must not."""
    similarity = Cosine(1e-4)
    emulated = nn.functional.normalize(
        torch.randn(1_000, 3, generator=torch.Generator().manual_seed(0)), dim=1
    )
    bank = PriorBank(torch.zeros(1_000, 1), emulated, torch.ones(1_000, dtype=torch.bool))
    estimate = estimate_normalizer(similarity, emulated[:7], bank)
    assert torch.allclose(
        estimate.log_value, torch.full((7,), 1e4 - math.log(1_000), dtype=torch.float64), atol=1.0
    )
    assert (estimate.effective_draws < 10).all()
    assert math.isfinite(coefficient_of_variation(estimate.log_value))


def test_climbing_respects_the_edge():
    ends = climb(
        lambda x: torch.where((x <= 1).all(1), x.sum(1), -torch.inf),
        torch.zeros(3, 2),
        torch.ones(2),
    )
    assert (ends > 0.95).all()
    assert (ends <= 1).all()


def test_seeds_depend_on_every_step_of_the_path():
    seeds = {derive_seed(s, a, b) for s in range(3) for a in ("x", "y") for b in range(3)}
    assert len(seeds) == 18
    assert all(0 <= seed < 2**63 for seed in seeds)


# --- the synthetic task


@pytest.mark.parametrize(("kappa", "dimension"), [(0.5, 2), (2, 2), (30, 2), (5, 3), (5, 7)])
def test_von_mises_fisher_draws_match_scipy(kappa, dimension):
    centre = np.zeros((20_000, dimension))
    centre[:, 0] = 1
    ours = sample_von_mises_fisher(centre, kappa, np.random.default_rng(0))
    theirs = stats.vonmises_fisher(centre[0], kappa).rvs(20_000, random_state=1)
    assert np.allclose(np.linalg.norm(ours, axis=1), 1)
    for axis in (0, 1):
        assert stats.ks_2samp(ours[:, axis], theirs[:, axis]).pvalue > 1e-3
    wrong = stats.vonmises_fisher(centre[0], 1.3 * kappa).rvs(20_000, random_state=1)
    assert stats.ks_2samp(ours[:, 0], wrong[:, 0]).pvalue < 1e-3


@pytest.mark.parametrize("dimension", [2, 3, 5])
@pytest.mark.parametrize("redundant", [False, True])
def test_the_task_is_invertible_and_its_ratio_is_normalised(dimension, redundant):
    task = VonMisesFisher(4, dimension=dimension, redundant=redundant, seed=2)
    z = sample_von_mises_fisher(
        np.eye(dimension)[np.zeros(200, dtype=int)], 0.1, np.random.default_rng(0)
    )
    assert torch.allclose(
        task.true_encoder(torch.as_tensor(task.decode(z))), torch.as_tensor(z), atol=1e-9
    )
    phi = task.prior.sample(200_000, seed=0)
    y = simulate(task, task.prior, 5, seed=1).y
    assert task.log_ratio(phi, y).exp().mean(1).numpy() == pytest.approx(np.ones(5), abs=0.05)
    assert not task.prior.contains(2 * phi[:10]).any()
    exact = task.sample_posterior(y[0], 50_000, seed=0)
    weights = task.log_ratio(phi, y[:1])[0].softmax(0)
    assert torch.allclose(exact.double().mean(0), weights @ phi.double(), atol=0.05)


def test_information_agrees_with_a_monte_carlo_estimate():
    task = VonMisesFisher(3, dimension=4)
    data = simulate(task, task.prior, 20_000, seed=0, block_size=20_000)
    ratio = task.kappa * (task.true_encoder(data.y) * task.true_emulator(data.phi)).sum(
        1
    ) - log_mean_exp_on_sphere(3, 4)
    assert abs(ratio.mean() - task.information()) < 4 * ratio.std() / 20_000**0.5


# --- simulating


def test_a_limit_brings_in_what_is_far():
    standardizer = Standardizer(
        torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]), torch.tensor([3.0, math.inf])
    )
    z = standardizer(torch.tensor([[5.0, 1e6], [-7e6, -2.0], [7.0, 0.0]]))
    assert z[:, 1].tolist() == [1e6, -2.0, 0.0]
    assert z[0, 0] == 2
    assert z[1, 0].item() == pytest.approx(-3 - math.log(3.5e6 - 2), rel=1e-4)
    assert z[2, 0] == 3


def test_draws_of_a_precise_distribution_stay_inside_when_rounded():
    low = torch.tensor([2000.1, 0.1], dtype=torch.float64)
    prior = DistributionPrior(Independent(Uniform(low, low + 1), 1))
    phi = prior.sample(200_000, seed=0)
    with global_seed(0, "prior"):
        exact = prior.distribution.sample(torch.Size([200_000]))
    assert not prior.contains(exact.float()).all(), "the case is not hard enough"
    assert prior.contains(phi).all()
    assert (phi.double() - exact).abs().max() < 2e-4


def test_samplers_get_seeds_that_scipy_takes():
    prior = SamplerPrior(lambda n, seed: stats.norm.rvs(size=(n, 2), random_state=seed))
    assert prior.sample(3, seed=2**62 + 5).shape == (3, 2)
    with pytest.raises(
        InputError, match="prior sampler: expected finite float32 numbers, got 2 NaN"
    ):
        SamplerPrior(
            lambda n, seed: torch.full((n, 1), float("nan")) if n > 2 or seed else torch.zeros(n, 1)
        ).sample(2, seed=1)
    with pytest.raises(InputError, match=r"contains: expected shape \(4,\), got \(4, 1\)"):
        SamplerPrior(lambda n, seed: torch.rand(n, 1), contains=lambda phi: phi > 0).contains(
            torch.zeros(4, 1)
        )


def test_a_distribution_that_declares_no_support_is_judged_by_its_density():
    class Disc(torch.distributions.Distribution):
        """Uniform on the unit disc; torch's own ``support`` raises NotImplementedError for it."""

        def __init__(self):
            super().__init__(event_shape=torch.Size([2]), validate_args=False)

        def sample(self, sample_shape=()):
            angle, radius = 2 * torch.pi * torch.rand(sample_shape), torch.rand(sample_shape).sqrt()
            return radius.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)

        def log_prob(self, value):
            return torch.where(value.norm(dim=-1) <= 1, -np.log(np.pi), -torch.inf)

    prior = DistributionPrior(Disc())
    points = torch.tensor([[0.5, 0.5], [1.0, 1.0]])
    assert prior.contains(points).tolist() == [True, False]
    assert prior.log_prob(points).tolist() == pytest.approx([-np.log(np.pi), -np.inf])


def test_arrays_of_any_make_are_taken():
    phi = np.arange(6.0).reshape(3, 2)
    frame = pytest.importorskip("pandas").DataFrame(phi)
    for array in (frame, phi.astype(">f8"), phi.tolist(), torch.tensor(phi).requires_grad_()):
        taken = Simulations.from_arrays(array, array)
        assert torch.equal(taken.phi, torch.tensor(phi).float())
        assert not taken.y.requires_grad
    assert torch.equal(
        Simulations.from_arrays(phi[::-1], phi[::-1]).phi, torch.tensor(phi).float().flip(0)
    )


def test_without_its_push_the_emulator_is_only_drawn_to_the_data():
    """Same value of L_ΦY, same gradient for the encoder; the emulator's is that of minus the matching scores."""
    gradients = {}
    for push in (True, False):
        f, g, failed = (
            torch.randn(m, 3, dtype=torch.float64, generator=generator(i)).requires_grad_()
            for i, m in enumerate((5, 5, 2))
        )
        phi_y, y_phi = inter_domain_info_nce(
            f, g, lambda a, b: a @ b.T, failed=failed, push_emulator=push
        )
        gradients[push] = (
            phi_y.detach(),
            y_phi.detach(),
            *torch.autograd.grad(phi_y, [f, g, failed], allow_unused=True),
        )
    value, other, to_f, to_g, to_failed = gradients[False]
    torch.testing.assert_close((value, other, to_f), gradients[True][:3])
    torch.testing.assert_close(to_g, -f.detach() / 5)
    assert to_failed is None
    assert not torch.allclose(gradients[True][3], to_g)


def test_simulate_depends_on_seed_and_block_size_alone():
    prior = BoxPrior([0], [1])
    noisy = each(lambda phi, rng: phi + rng.normal(size=3))
    first, again, other = (
        simulate(noisy, prior, 25, seed=seed, block_size=10) for seed in (0, 0, 1)
    )
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y, other.y)
    longer = simulate(noisy, prior, 40, seed=0, block_size=10)
    assert torch.equal(longer.y[:20], first.y[:20]), (
        "whole blocks stay as they are when there are more"
    )


def test_a_split_is_a_partition():
    simulations = Simulations.from_arrays(torch.arange(50.0).unsqueeze(1), torch.zeros(50, 1))
    large, small = simulations.split(0.2, seed=0)
    assert len(small) == 10
    assert sorted([*large.phi[:, 0].tolist(), *small.phi[:, 0].tolist()]) == list(range(50))


# --- distances


def test_distances_know_the_truth():
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # determinant −1
    assert torch.allclose(best_rotation(x, x @ rotation.T), rotation, atol=1e-9)
    assert linear_r2(x, 3 * x @ rotation + 1) == pytest.approx(1)
    assert linear_r2(x, torch.randn(500, 2, generator=torch.Generator().manual_seed(1))) < 0.1
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(2))
    assert l1_distance(logits, logits + 5).max() < 1e-6
