"""Independent parameters of mixed kinds, by name."""

import math
import re
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import (
    Bernoulli,
    Beta,
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    Independent,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Pareto,
    Poisson,
    Uniform,
    Weibull,
    constraints,
)

import eande
from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.priors.box import BoxPrior
from eande.priors.convert import same_law
from eande.priors.distribution import DistributionPrior
from eande.priors.product import ProductPrior
from helpers.exact_posteriors import posterior_of

# By name: the law of torch (or a pair), and the same of scipy.
LAWS = {
    "log_normal": (LogNormal(1.1, 0.5), stats.lognorm(0.5, scale=math.exp(1.1))),
    "gamma": (Gamma(2.0, 0.5), stats.gamma(2, scale=2)),
    "exponential": (Exponential(0.1), stats.expon(scale=10)),
    "half_normal": (HalfNormal(3.0), stats.halfnorm(scale=3)),
    "pareto": (Pareto(1.5, 3.0), stats.pareto(3, scale=1.5)),
    "weibull": (Weibull(2.0, 1.5), stats.weibull_min(1.5, scale=2)),
    "normal": (Normal(-1.0, 2.0), stats.norm(-1, 2)),
    "cauchy": (Cauchy(0.0, 0.5), stats.cauchy(0, 0.5)),
    "beta": (Beta(2.0, 3.0), stats.beta(2, 3)),
    "pair": ((-2, 5), stats.uniform(-2, 7)),
    "uniform": (Uniform(10.0, 11.0), stats.uniform(10, 1)),
}
POSITIVE = ["log_normal", "gamma", "exponential", "half_normal", "pareto", "weibull"]
ALL = ProductPrior(**{name: law for name, (law, _) in LAWS.items()})


def test_the_density_is_the_product_of_the_marginals():
    phi = ALL.sample(500, seed=0)
    expected = sum(
        law.logpdf(phi[:, d].double().numpy()) for d, (_, law) in enumerate(LAWS.values())
    )
    assert np.abs(ALL.log_prob(phi).numpy() - expected).max() < 1e-3
    precise = ALL.log_prob(phi.double())
    assert precise.dtype == torch.float64
    assert np.abs(precise.numpy() - expected).max() < 1e-5


def test_a_product_of_one_kind_is_torchs_independent():
    loc, scale = torch.tensor([0.0, 3.0]), torch.tensor([1.0, 0.5])
    both = DistributionPrior(Independent(LogNormal(loc, scale), 1))
    product = ProductPrior(a=LogNormal(0.0, 1.0), b=LogNormal(3.0, 0.5))
    assert same_law(both, product)
    assert same_law(BoxPrior([0, -1], [1, 1]), ProductPrior(a=(0, 1), b=Uniform(-1.0, 1.0)))
    assert not same_law(both, ProductPrior(a=LogNormal(0.0, 1.0), b=LogNormal(3.0, 0.51)))


@pytest.mark.parametrize("d", range(len(LAWS)), ids=LAWS)
def test_draws_have_the_given_marginals(d):
    """Kolmogorov–Smirnov at a false-alarm rate of 1e-4; a scale 10 % too large is noticed."""
    law = list(LAWS.values())[d][1]
    drawn = ALL.sample(20_000, seed=1)[:, d].double().numpy()
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-4
    assert stats.kstest(law.median() + 1.1 * (drawn - law.median()), law.cdf).pvalue < 1e-4


def test_parameters_are_independent():
    """Rank correlations of 20,000 draws, tolerance five standard errors."""
    ranks = stats.spearmanr(ALL.sample(20_000, seed=2).numpy()).statistic
    assert np.abs(ranks - np.eye(len(LAWS))).max() < 5 / 20_000**0.5


def test_every_parameter_has_a_support_of_its_own():
    inside = ALL.sample(1, seed=0)
    assert ALL.contains(inside).tolist() == [True]
    for d, name in enumerate(ALL.names):
        outside = inside.clone()
        outside[0, d] = {"pareto": 1.4, "beta": 1.1, "pair": 5.1, "uniform": 9.9}.get(name, -0.1)
        expected = name in ("normal", "cauchy")
        assert ALL.contains(outside).item() == expected, name
        assert (ALL.log_prob(outside).item() > -math.inf) == expected, name


def test_half_lines_are_those_of_the_positive_parameters():
    ends = dict(zip(ALL.names, ALL.half_lines().tolist(), strict=True))
    assert {name for name, end in ends.items() if end > -math.inf} == set(POSITIVE)
    assert ends["pareto"] == 1.5
    assert ends["gamma"] == 0


def test_coordinates_go_there_and_back():
    phi = ALL.sample(2_000, seed=3)
    x = ALL.unconstrain(phi)
    assert torch.isfinite(x).all()
    back = ALL.constrain(x)
    assert ALL.contains(back).all()
    close = (back - phi).abs() <= 1e-6 * phi.abs() + 1e-5
    assert close.all(), [
        name for name, good in zip(ALL.names, close.all(0), strict=True) if not good
    ]
    for d, name in enumerate(ALL.names):
        if name in POSITIVE:
            begin = ALL.half_lines()[d]
            assert torch.allclose(x[:, d], (phi[:, d] - begin).log(), atol=1e-3), name
        elif name in ("pair", "uniform"):
            assert stats.kstest(x[:, d].numpy(), stats.norm.cdf).pvalue > 1e-4, name
        else:
            assert torch.equal(x[:, d], phi[:, d]), name


@pytest.mark.parametrize("name", [name for name in LAWS if name != "cauchy"])
def test_the_density_of_the_coordinates_integrates_to_one(name):
    """By the trapezium rule; without the Jacobian of a logarithm it would not."""
    prior = ProductPrior(**{name: LAWS[name][0]})
    x = torch.linspace(-60, 60, 240_001, dtype=torch.float64)
    density = prior.unconstrained_log_prob(x.unsqueeze(1)).exp()
    assert density.shape == x.shape
    assert torch.trapezoid(density, x).item() == pytest.approx(1, abs=2e-4)
    if name in POSITIVE:
        plain = prior.log_prob(prior.constrain(x.unsqueeze(1))).exp()
        assert abs(torch.trapezoid(plain, x).item() - 1) > 0.05, "the case is not hard enough"


def test_the_joint_density_of_the_coordinates_follows_the_change_of_variables():
    """Of the whole product: log p(x) = log p(φ(x)) + log |det ∂φ/∂x|."""
    x = ALL.unconstrain(ALL.sample(50, seed=4).double())
    jacobians = torch.stack(
        [torch.autograd.functional.jacobian(lambda v: ALL.constrain(v[None])[0], v) for v in x]
    )
    expected = ALL.log_prob(ALL.constrain(x)) + jacobians.logdet()
    # That of the box is the standard normal one to the rounding of its edges.
    assert (ALL.unconstrained_log_prob(x) - expected).abs().max() < 1e-4


def test_no_coordinate_is_too_far():
    far = torch.tensor([-1e4, -200.0, 200.0, 1e4]).unsqueeze(1)
    for dtype in (torch.float32, torch.float64):
        for name, (law, _) in LAWS.items():
            found = ProductPrior(**{name: law}).unconstrained_log_prob(far.to(dtype))
            assert not found.isnan().any(), name
            # Of a law with heavy tails, 200 is not far.
            assert (found < (-5 if name in ("pareto", "cauchy") else -100)).all(), name


EVEN = [name for name in LAWS if name not in ("gamma", "beta")]


def test_even_designs_are_quantiles_of_evenly_spread_levels():
    prior = ProductPrior(**{name: LAWS[name][0] for name in EVEN})
    phi = prior.sample_evenly(1_024, first=0, seed=5)
    assert prior.contains(phi).all()
    assert torch.isfinite(phi).all()
    for d, name in enumerate(EVEN):
        levels = LAWS[name][1].cdf(phi[:, d].double().numpy())
        # Every cell of 1/512 has two points; of a thousand random ones some would have none.
        counts = np.histogram(levels, 256, (0, 1))[0]
        assert counts.min() >= 3, name
        assert counts.max() <= 5, name
    parts = [prior.sample_evenly(512, first=first, seed=5) for first in (0, 512)]
    assert torch.equal(torch.cat(parts), phi)


def test_an_even_design_of_a_law_without_quantiles_is_refused():
    prior = ProductPrior(a=(0, 1), rate=Gamma(2.0, 1.0))
    with pytest.raises(
        InputError,
        match=r"^design: expected 'random', got 'even': torch knows no quantiles \(icdf\) of rate, "
        "a Gamma$",
    ):
        eande.simulate(lambda phi, rng: phi, prior, 10, design="even", progress=False)


def test_moments_are_known_where_all_are_finite():
    names = [name for name in LAWS if name != "cauchy"]
    mean, scale = ProductPrior(**{name: LAWS[name][0] for name in names}).location_and_scale()
    assert mean.numpy() == pytest.approx([LAWS[name][1].mean() for name in names], rel=1e-4)
    assert scale.numpy() == pytest.approx([LAWS[name][1].std() for name in names], rel=1e-4)
    assert ALL.location_and_scale() is None


REFUSED = {
    "a discrete one": (
        {"n": Poisson(3.0)},
        "n: expected a continuous Distribution, got the discrete Poisson",
    ),
    "a coin": (
        {"a": (0, 1), "coin": Bernoulli(0.5)},
        "coin: expected a continuous Distribution, got the discrete Bernoulli",
    ),
    "several numbers": (
        {"a": MultivariateNormal(torch.zeros(2), torch.eye(2))},
        r"a: expected a Distribution of one number, got batch shape () and event shape (2,)",
    ),
    "a batch": (
        {"a": Normal(torch.zeros(2), 1.0)},
        r"a: expected a Distribution of one number, got batch shape (2,) and event shape ()",
    ),
    "ends in the wrong order": (
        {"u": (1, 0)},
        "u: expected a torch Distribution of one number, or (low, high) with low below high, "
        "got (1, 0)",
    ),
    "an end that is not finite": ({"u": (0, math.inf)}, "u: expected a torch Distribution"),
    "three ends": ({"u": (0, 1, 2)}, "u: expected a torch Distribution"),
    "a number": ({"u": 3}, "u: expected a torch Distribution"),
    "many numbers": ({"u": np.zeros((300, 7))}, "u: expected a torch Distribution"),
    "nothing": ({}, "ProductPrior: expected at least one parameter"),
    "a name of two lines": ({"a\nb": (0, 1)}, "names: expected texts of one line"),
}


@pytest.mark.parametrize(("parameters", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_law_of_one_number_is_refused_in_a_line(parameters, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}") as caught:
        ProductPrior(**parameters)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_parameter_may_have_any_name():
    prior = ProductPrior(**{"self": (0, 1), "R 0": Normal(0.0, 1.0), "seed": (2, 3)})
    assert prior.names == ("self", "R 0", "seed")
    assert repr(prior) == "ProductPrior(self=(0, 1), R 0=Normal(loc=0, scale=1), seed=(2, 3))"


def test_laws_of_two_humps_are_taken():
    humps = MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(2)),
        Normal(torch.tensor([-3.0, 3.0]), torch.ones(2)),
    )
    prior = ProductPrior(a=humps, b=(0, 1))
    phi = prior.sample(200, seed=0)
    assert torch.allclose(prior.log_prob(phi), humps.log_prob(phi[:, 0]))
    assert repr(prior) == "ProductPrior(a=MixtureSameFamily(), b=(0, 1))"


def test_a_damaged_description_is_refused():
    good = ProductPrior(a=(0, 1), b=Normal(0.0, 1.0)).describe()
    cases = [
        good | {"names": ["a"]},
        good | {"names": ["a", "a"]},
        good | {"marginals": [[0.0, 1.0], [2.0]]},
        good | {"marginals": [[0.0, 1.0], {"name": "Poisson", "arguments": {"rate": 1.0}}]},
        good | {"marginals": [[0.0, 1.0], {"name": "Transform", "arguments": {}}]},
        good | {"marginals": [[1.0, 0.0], [0.0, 1.0]]},
        good | {"marginals": "all"},
    ]
    for description in cases:
        with pytest.raises(InputError) as caught:
            ProductPrior.from_description(description, {})
        assert "\n" not in str(caught.value)


def test_a_model_keeps_it(tmp_path):
    prior = ProductPrior(R0=LogNormal(1.1, 0.5), shift=Normal(0.0, 2.0), share=(0, 1))
    model = EmbedAndEmulate(
        eande.networks.mlp.ResidualMLP(4, 3, width=8),
        eande.networks.mlp.ResidualMLP(3, 3, width=8),
        eande.Cosine(0.5),
        prior,
        y_shape=(4,),
        embedding_dimension=3,
    )
    model.save(tmp_path / "model.eande")
    loaded = eande.load(tmp_path / "model.eande")
    assert loaded.prior.describe() == prior.describe()
    assert repr(loaded.prior) == repr(prior)
    y = torch.ones(4)
    ours, theirs = (one.posterior(y).log_prob(prior.sample(9, seed=0)) for one in (model, loaded))
    assert torch.equal(ours, theirs)


def test_a_store_tells_two_products_apart(tmp_path):
    def simulate(prior, n=4):
        return eande.simulate(
            lambda phi, rng: phi, prior, n, store=tmp_path / "store", progress=False
        )

    simulate(ProductPrior(a=(0, 1), b=Gamma(2.0, 1.0)))
    assert len(simulate(ProductPrior(a=(0, 1), b=Gamma(2.0, 1.0)), 6)) == 6
    with pytest.raises(InputError, match=r"expected a store with prior\.marginals"):
        simulate(ProductPrior(a=(0, 1), b=Gamma(3.0, 1.0)), 6)


class Claiming(Distribution):
    """Uniform on a square, but it declares all numbers as its support, as products of others do."""

    arg_constraints: ClassVar = {}
    support = constraints.independent(constraints.real, 1)

    def __init__(self):
        super().__init__(event_shape=torch.Size([2]))

    def sample(self, shape=()):
        return torch.rand(*shape, 2)

    def log_prob(self, value):
        return torch.where(((value > 0) & (value < 1)).all(-1), 0.0, -torch.inf)


def test_a_foreign_distribution_is_believed_only_where_it_has_a_density():
    points = torch.tensor([[0.5, 0.5], [0.5, 1.5], [-3.0, 0.2]])
    prior = DistributionPrior(Claiming())
    assert prior.contains(points).tolist() == [True, False, False]
    assert prior.log_prob(points).tolist() == [0.0, -math.inf, -math.inf]
    assert prior.contains(points.view(3, 1, 2)).shape == (3, 1)


@pytest.mark.parametrize("sampler", ["rejection", "guided", "tempered"])
def test_samplers_move_in_its_coordinates(sampler):
    """A log-normal, a Gamma and a uniform parameter under a known score, by quadrature.

    Each is independent of the others under the posterior, too; false-alarm rate of each test 1e-3.
    Without the Jacobian of a logarithm the law would be that of the prior times 1/φ, which fails.
    """
    prior = ProductPrior(a=LogNormal(0.0, 1.0), b=Gamma(2.0, 1.0), c=(0, 1))
    target = torch.tensor([0.3, 0.2, 0.1])
    width = torch.tensor([0.3, 0.2, 0.2])

    def score(phi):
        return -(((phi - target) / width) ** 2).sum(1) / 2

    samples, _ = posterior_of(score, prior).sample(2_000, seed=1, sampler=sampler)
    laws = [stats.lognorm(1), stats.gamma(2), stats.uniform(0, 1)]
    for d, law in enumerate(laws):
        grid = np.linspace(1e-6, 4, 40_001)
        weights = np.exp(-(((grid - target[d].item()) / width[d].item()) ** 2) / 2)
        for power, right in ((0, True), (-1, False)):
            cumulative = np.cumsum(law.pdf(grid) * weights * grid**power)
            cumulative /= cumulative[-1]
            drawn = samples[:, d].double().numpy()
            p_value = stats.kstest(drawn, partial(np.interp, xp=grid, fp=cumulative)).pvalue
            assert (p_value > 1e-3) == right, (prior.names[d], power, p_value)
