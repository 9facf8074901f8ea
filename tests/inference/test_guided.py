"""The guided sampler: right whatever its proposal is, and quick where few prior draws are near."""

import math
import time
import warnings

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal

import eande
from eande.inference import guide
from eande.inference.samplers import guided as module
from eande.inference.samplers.guided import GuidedInfo
from helpers.exact_posteriors import box_model, cube, posterior_of, two_modes


class Linear:
    """A standard normal prior in D coordinates, each seen with noise; so many nats on average."""

    def __init__(self, dimension, nats, seed=0):
        self.variance = 1 / (math.exp(2 * nats / dimension) - 1)
        stream = torch.Generator().manual_seed(seed)
        self.y = torch.randn(dimension, generator=stream) * (1 + self.variance) ** 0.5
        self.mean = self.y / (1 + self.variance)
        self.deviation = (self.variance / (1 + self.variance)) ** 0.5
        square = self.y.double().square().sum().item() / (2 * (1 + self.variance))
        self.log_normalizer = dimension * math.log(self.deviation) - square
        prior = MultivariateNormal(torch.zeros(dimension), torch.eye(dimension))
        self.posterior = posterior_of(
            lambda phi: (phi - self.y).square().sum(1) / (-2 * self.variance), prior, draws=10_000
        )


def banana(phi):
    """A narrow parabola in two of the parameters."""
    bent = (phi[:, 1] - 2 * phi[:, 0] ** 2 + 0.2) / 0.03
    return -((phi[:, 0] / 0.3).square() + bent.square() + (phi[:, 2:] / 0.1).square().sum(1)) / 2


@pytest.fixture(params=[False, True], ids=["exact", "priorities"])
def priorities(request, monkeypatch):
    """Both ways to use proposals."""
    monkeypatch.setattr(module, "_MOST_FOR_EXACT", 0.0 if request.param else 1_000.0)
    return request.param


@pytest.mark.parametrize(("dimension", "nats"), [(2, 12), (5, 3), (10, 15), (20, 25)])
def test_samples_and_normaliser_of_a_gaussian_are_exact(dimension, nats, priorities):
    exact = Linear(dimension, nats)
    phi, info = exact.posterior.sample(10_000, seed=0, sampler="guided")
    assert isinstance(info, GuidedInfo)
    assert info.copies <= 0.01 * priorities
    apart = (phi.mean(0) - exact.mean) / exact.deviation * 100
    assert apart.abs().max() < 4
    assert torch.allclose(phi.std(0), torch.full((dimension,), exact.deviation), rtol=0.04)
    assert info.log_normalizer == pytest.approx(
        exact.log_normalizer, abs=4 * info.normalizer_error + 1e-3
    )
    assert info.normalizer_error < 0.1


@pytest.mark.parametrize("dimension", [2, 5, 10])
def test_two_modes_have_their_weights(dimension, priorities):
    phi, _ = posterior_of(two_modes, cube(dimension)).sample(10_000, seed=0, sampler="guided")
    first = phi.mean(1) > 0
    assert first.double().mean().item() == pytest.approx(0.7, abs=0.02)
    assert torch.allclose(phi[first].std(0), torch.full((dimension,), 0.1), rtol=0.1)


def test_a_bound_below_the_largest_weights_where_exactness_needs_too_many(monkeypatch):
    monkeypatch.setattr(module, "_MOST_FOR_EXACT", 0.0)
    posterior = posterior_of(two_modes, cube(5))
    phi, info = posterior.sample(1_000, sampler="guided")
    assert info.evaluations >= posterior.guide.evaluations + 3_000
    assert len(phi.unique(dim=0)) == round(1_000 * (1 - info.copies))
    # Few samples are chosen among many proposals, too.
    means = [posterior.sample(2, seed=seed, sampler="guided")[0].mean(1) for seed in range(200)]
    assert (torch.cat(means) > 0).double().mean().item() == pytest.approx(0.7, abs=0.08)
    with pytest.raises(eande.BudgetExceeded, match="within 2000 evaluations"):
        posterior.sample(1_000, sampler="guided", max_evaluations=2_000)


def test_priorities_are_unbiased_and_copies_neither_many_nor_side_by_side(monkeypatch):
    """A proposal half as wide: the weights of its tails are large."""
    monkeypatch.setattr(module, "_MOST_FOR_EXACT", 0.0)
    monkeypatch.setattr(module, "_FEW_COPIES", 1.0)
    fitted = guide.fit_gaussian_mixture
    monkeypatch.setattr(
        guide, "fit_gaussian_mixture", lambda *given, **more: _half_as_wide(fitted(*given, **more))
    )
    exact = Linear(5, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eande.EandeWarning)
        drawn = [exact.posterior.sample(2_000, seed=seed, sampler="guided") for seed in range(10)]
    copies = torch.tensor([info.copies for _, info in drawn])
    assert 0.01 < copies.mean() < 0.5
    std = torch.stack([phi.std(0) for phi, _ in drawn]).mean(0) / exact.deviation
    assert (std - 1).abs().max() < 0.03
    phi = drawn[0][0]
    assert (phi[1:] == phi[:-1]).all(1).double().mean() < copies[0] / 10


def test_a_bent_posterior_is_exact(priorities):
    phi, _ = posterior_of(banana, cube(5)).sample(10_000, seed=0, sampler="guided")
    bent = (phi[:, 1] - 2 * phi[:, 0] ** 2 + 0.2) / 0.03
    assert bent.mean().abs() < 0.05
    assert bent.std().item() == pytest.approx(1, abs=0.05)
    assert phi[:, 0].std().item() == pytest.approx(0.3, abs=0.02)


def in_a_corner(dimension, width=0.1):
    """The posterior of a Gaussian score at the corner of a prior that is cut off there."""
    normal = Independent(Normal(torch.zeros(dimension), torch.ones(dimension)), 1)
    box = torch.tensor([[0.0] * dimension, [8.0] * dimension])
    prior = eande.TruncatedPrior(normal, lambda phi: (phi >= 0).all(1), box=box)
    posterior = posterior_of(lambda phi: (phi / width).square().sum(1) / -2, prior, draws=10_000)
    return posterior, (1 + width**-2) ** -0.5


@pytest.mark.parametrize("dimension", [2, 7])
def test_a_corner_of_a_truncated_prior_is_exact(dimension):
    """Half normals: most of a Gaussian's points in seven parameters miss the corner."""
    posterior, deviation = in_a_corner(dimension)
    phi, info = posterior.sample(5_000, seed=0)
    assert isinstance(info, GuidedInfo)
    assert posterior.prior.contains(phi).all()
    of_half_normal = (2 / math.pi) ** 0.5
    assert (phi / deviation).mean(0).sub(of_half_normal).abs().max() < 4 * 0.6 / 5_000**0.5
    assert posterior.log_normalizer == pytest.approx(
        dimension * math.log(deviation), abs=4 * posterior.normalizer_error
    )


def test_proposals_beside_the_prior_s_support_are_no_samples(monkeypatch):
    """Nine of ten lie outside, so that three proposals a sample are too few."""
    fitted = guide.fit_gaussian_mixture
    monkeypatch.setattr(
        guide,
        "fit_gaussian_mixture",
        lambda *given, **more: (mixture := fitted(*given, **more))._replace(
            location=mixture.location - 1_000 * mixture.scale
        ),
    )
    posterior, deviation = in_a_corner(2, width=1.0)
    phi, info = posterior.sample(5_000, seed=0, sampler="guided")
    assert posterior.prior.contains(phi).all()
    assert info.effective_share < 0.1
    assert (phi / deviation).mean().item() == pytest.approx((2 / math.pi) ** 0.5, abs=0.03)


def _half_as_wide(mixture):
    return mixture._replace(
        components=mixture.components._replace(
            factors=mixture.components.factors / 2, inverses=mixture.components.inverses * 2
        )
    )


def _shifted(mixture):
    return mixture._replace(location=mixture.location + mixture.scale)


def _one_mode(mixture):
    kept = (mixture.components.means > 0).all(2).float() + 1e-12
    weights = mixture.components.weights * kept
    weights = weights / weights.sum(1, keepdim=True)
    return mixture._replace(components=mixture.components._replace(weights=weights))


@pytest.mark.parametrize("spoil", [_half_as_wide, _shifted, _one_mode])
def test_a_spoilt_proposal_changes_the_cost_alone(spoil, monkeypatch):
    _, before = posterior_of(two_modes, cube(2)).sample(4_000, seed=0, sampler="guided")
    fitted = guide.fit_gaussian_mixture
    monkeypatch.setattr(
        guide, "fit_gaussian_mixture", lambda *given, **more: spoil(fitted(*given, **more))
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", eande.EandeWarning)
        phi, info = posterior_of(two_modes, cube(2)).sample(4_000, seed=0, sampler="guided")
    assert bool(told) == (info.copies > 0.05)
    assert info.evaluations > before.evaluations
    assert info.effective_share < before.effective_share
    first = phi.mean(1) > 0
    assert first.double().mean().item() == pytest.approx(0.7, abs=0.03)
    for mode, centre in ((first, 0.5), (~first, -0.5)):
        assert torch.allclose(phi[mode].mean(0), torch.full((2,), centre), atol=0.015)
        assert torch.allclose(phi[mode].std(0), torch.full((2,), 0.1), atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "nats"), [(2, 8), (5, 10), (10, 15), (20, 25)])
def test_the_error_of_the_normaliser_is_honest(dimension, nats):
    """Over a hundred data with four estimates each: z is within 0.035 of 1 in two of three runs."""
    apart = []
    for seed in range(100):
        exact = Linear(dimension, nats, seed)
        for again in range(4):
            guided = exact.posterior.guide.judged(exact.posterior, 20_000, 4 * seed + again)
            value, error = guided.normalizer()
            apart.append(((value - exact.log_normalizer) / error, value - exact.log_normalizer))
    z, difference = torch.tensor(apart).T
    assert 0.9 < z.std() < 1.1
    assert difference.abs().mean() < 0.05


def test_same_seed_same_samples():
    posterior = box_model().posterior([1.0])
    first, info = posterior.sample(500, seed=3, sampler="guided")
    again, same = posterior.sample(500, seed=3, sampler="guided")
    assert torch.equal(first, again)
    assert info == same
    assert not torch.equal(first, posterior.sample(500, seed=4, sampler="guided")[0])


def test_a_prior_without_a_density_is_refused():
    prior = eande.EmpiricalPrior(torch.randn(500, 2))
    posterior = posterior_of(lambda phi: -50 * phi.square().sum(1), prior, draws=500)
    with pytest.raises(
        eande.InputError, match="prior without a density that integrates to one, got 'guided'"
    ):
        posterior.sample(10, sampler="guided")


def test_the_budget_ends_a_run_with_what_there_is():
    with pytest.raises(eande.BudgetExceeded, match="expected 5000 samples within 1500") as caught:
        posterior_of(two_modes, cube(5)).sample(5_000, sampler="guided", max_evaluations=1_500)
    assert 0 < len(caught.value.phi) < 5_000


@pytest.mark.thorough
def test_ten_parameters_take_less_than_seconds():
    posterior = Linear(10, 15).posterior
    began = time.perf_counter()
    posterior.sample(10_000, seed=0)
    # Half a second on an idle machine.
    assert time.perf_counter() - began < 5
