"""Where a study has an exact reference: the likelihood is the simulator's, the chains are right."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import kstest, nbinom, norm, poisson

from eande.workflow.study import read_study
from gallery import compare, mcmc, references

GALLERY = Path(__file__).parents[2] / "gallery"
NAMES = sorted(path.parent.name for path in GALLERY.glob("*/reference.json"))
COMPARED = sorted(
    (path.parent.name, kind) for kind in compare.FILES for path in GALLERY.glob(f"*/{kind}.json")
)
# Of a false alarm, in tests with a fixed seed.
ALARM = 1e-4


def modules(name):
    return (
        importlib.import_module(f"gallery.{name}.study"),
        importlib.import_module(f"gallery.{name}.reference"),
    )


def plausible(name, n):
    """Return samples of the exact posterior, (n, D)."""
    _, samples = references.read(GALLERY / name / "reference.json")
    return samples[:: len(samples) // n][:n]


@pytest.mark.parametrize("name", NAMES)
def test_the_likelihood_is_that_of_the_simulator(name):
    """Of y ~ p(y | φ), the ratio p(y | φ') / p(y | φ) is one on average, whatever φ'."""
    study, reference = modules(name)
    for phi in plausible(name, 3):
        other = phi * np.exp(0.02 * np.random.default_rng(0).standard_normal(phi.shape))
        y = study.simulator(np.tile(phi, (2_000, 1)), np.random.default_rng(1))
        assert mean_ratio_error(reference, phi, other, y) < norm.isf(ALARM / 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_simulator_is_found_out(name):
    study, reference = modules(name)
    (phi,) = plausible(name, 1)
    other = phi * np.exp(0.02 * np.random.default_rng(0).standard_normal(phi.shape))
    y = study.simulator(np.tile(phi, (2_000, 1)), np.random.default_rng(1))
    # Counts must stay counts.
    wrong = np.log1p(np.round(1.1 * np.expm1(y))) if name == "influenza" else 1.1 * y
    assert mean_ratio_error(reference, phi, other, wrong) > norm.isf(ALARM / 2)


def mean_ratio_error(reference, phi, other, y):
    """Return how many standard errors the mean ratio is from one."""
    rows = np.ones((len(y), 1))
    logs = reference.log_likelihood(rows * other, y) - reference.log_likelihood(rows * phi, y)
    ratio = np.exp(logs)
    return abs(ratio.mean() - 1) / (ratio.std() / len(ratio) ** 0.5)


def test_the_prior_of_influenza_is_as_wide_as_its_study_says():
    study, _ = modules("influenza")
    phi = study.prior.sample(200_000, seed=0).numpy()
    low, high = np.quantile(phi, [0.025, 0.975], axis=0)
    assert low == pytest.approx([1.13, 0.75, 1.41], rel=0.02)
    assert high == pytest.approx([8.0, 5.33, 71.0], rel=0.02)
    assert 1 / high[2] ** 0.5 == pytest.approx(0.12, abs=0.005)
    assert 1 / low[2] ** 0.5 == pytest.approx(0.84, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_chains_walk_through_logarithms(name):
    """The density of a logarithm is that of the parameter times the parameter."""
    study, reference = modules(name)
    phi = plausible(name, 5)
    x = np.log(phi)
    found = reference.log_posterior(x) - reference.log_likelihood(phi, study.observed)
    expected = sum(
        norm.logpdf(x[:, i], law.loc.item(), law.scale.item())
        for i, law in enumerate(study.prior.marginals.values())
    )
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_chains_of_a_reference_agree(name):
    content, samples = references.read(GALLERY / name / "reference.json")
    study, _ = modules(name)
    assert list(content["parameters"]) == list(study.prior.names)
    assert samples.shape == (2_000, len(study.prior.names))
    for i, found in enumerate(content["parameters"].values()):
        assert found["r_hat"] < 1.01
        assert found["ess"] > 4_000
        assert found["ess_tail"] > 4_000
        assert samples[:, i].mean() == pytest.approx(found["mean"], abs=0.15 * found["sd"])
    assert content["provenance"]["versions"]["numpy"]


def test_counts_in_bed_are_negative_binomial():
    study, _ = modules("influenza")
    phi = np.tile([3.2, 1.9, 10.0], (3_000, 1))
    y = np.round(np.expm1(study.simulator(phi, np.random.default_rng(0))))
    mean = study.in_bed(*phi[:1, :2].T)[0]
    law = nbinom(10, 10 / (10 + mean))
    assert kstest(places(law, y), "uniform").pvalue > ALARM
    assert kstest(places(poisson(mean), y), "uniform").pvalue < ALARM
    assert y.mean(0) == pytest.approx(mean, rel=0.05)
    assert y.var(0) == pytest.approx(mean + mean**2 / 10, rel=0.2)


def places(law, y):
    """Return where counts lie in their law: uniform numbers, if it is theirs."""
    uniform = np.random.default_rng(1).random(y.shape)
    return (law.cdf(y - 1) + uniform * law.pmf(y)).ravel()


@pytest.mark.parametrize("phi", [(3.2, 1.9), (1.1, 5.0), (12.0, 0.8)])
def test_the_epidemic_is_that_of_an_adaptive_solver(phi):
    study, _ = modules("influenza")
    r0, period = phi

    def slope(_, state):
        infections = r0 / period * state[0] * state[1] / study.BOYS
        return [-infections, infections - state[1] / period]

    days = np.arange(1, 15)
    exact = solve_ivp(slope, (0, 14), [762, 1], t_eval=days, rtol=1e-10, atol=1e-10).y[1]
    found = study.in_bed(np.array([r0]), np.array([period]))[0]
    assert found == pytest.approx(exact, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("phi", [(0.55, 0.028, 0.8, 0.024, 33, 6), (1.5, 0.1, 0.5, 0.1, 5, 20)])
def test_the_animals_are_those_of_an_adaptive_solver(phi):
    study, _ = modules("hare_lynx")
    alpha, beta, gamma, delta, u0, v0 = phi

    def slope(_, state):
        hares, lynxes = state
        return [(alpha - beta * lynxes) * hares, (delta * hares - gamma) * lynxes]

    years = np.arange(21)
    options = {"method": "DOP853", "rtol": 1e-10, "atol": 1e-12}
    exact = solve_ivp(slope, (0, 20), [u0, v0], t_eval=years, **options).y
    found = study.log_animals(np.array([[*phi, 1.0, 1.0]]))[0]
    assert found == pytest.approx(np.log(exact), abs=1e-3)


def test_the_chains_of_influenza_agree_with_quadrature():
    """Three parameters: the exact posterior is a sum over a grid, without any chain."""
    _, reference = modules("influenza")
    content, _ = references.read(GALLERY / "influenza" / "reference.json")
    axes = [
        np.linspace(np.log(low), np.log(high), 41)
        for low, high in ((2.0, 5.5), (1.1, 3.0), (0.8, 80.0))
    ]
    x = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    height = reference.log_posterior(x)
    weight = np.exp(height - height.max())
    weight /= weight.sum()
    for i, found in enumerate(content["parameters"].values()):
        values = np.exp(x[:, i])
        mean = (weight * values).sum()
        deviation = (weight * (values - mean) ** 2).sum() ** 0.5
        assert found["mean"] == pytest.approx(mean, abs=0.03 * deviation)
        assert found["sd"] == pytest.approx(deviation, rel=0.03)


def test_chains_draw_from_a_known_law():
    """A sharp, correlated Gaussian; five standard errors at the effective sample size."""
    covariance = np.array([[1.0, 0.95], [0.95, 1.0]]) * [[1, 0.01], [0.01, 1e-4]]
    precision = np.linalg.inv(covariance)
    start = np.random.default_rng(0).standard_normal((32, 2))
    chains, accepted = mcmc.sample(
        lambda x: -0.5 * np.einsum("ni,ij,nj->n", x, precision, x),
        start,
        warmup=1_000,
        draws=500,
        thin=4,
        seed=0,
    )
    assert 0.15 < accepted < 0.5
    found = mcmc.describe(chains, ["a", "b"], keep=100)
    assert len(found["samples"]) == 100
    for i, values in enumerate(found["parameters"].values()):
        assert values["r_hat"] < 1.01
        assert abs(values["mean"]) < 5 * values["error_of_mean"]
        assert values["sd"] == pytest.approx(covariance[i, i] ** 0.5, rel=0.05)


def test_chains_in_two_places_are_told_apart():
    start = np.concatenate([np.full((8, 1), -30.0), np.full((8, 1), 30.0)])
    start = start + np.random.default_rng(0).standard_normal(start.shape)
    chains, _ = mcmc.sample(
        lambda x: -0.5 * (np.abs(x[:, 0]) - 30) ** 2 * 100,
        start,
        warmup=500,
        draws=100,
        thin=1,
        seed=0,
    )
    assert mcmc.describe(chains, ["a"], keep=10)["parameters"]["a"]["r_hat"] > 1.1


@pytest.mark.parametrize(("name", "kind"), COMPARED)
def test_the_page_quotes_the_comparison(name, kind):
    found = json.loads((GALLERY / name / f"{kind}.json").read_text())
    page = (GALLERY / name / "README.md").read_text()
    assert compare.block(found, kind) in page
    assert (GALLERY / name / compare.FILES[kind]).stat().st_size > 10_000


@pytest.mark.slow
def test_the_fitted_posterior_of_influenza_is_the_exact_one(tmp_path):
    """R₀ and the period within a third of a deviation, k within two thirds; widths likewise."""
    study = read_study(GALLERY / "influenza" / "study.py")
    content, reference = references.read(GALLERY / "influenza" / "reference.json")
    posterior, _ = compare.amortised(study, study.n, tmp_path)
    samples, _ = posterior.sample(2_000, seed=0)
    found = compare.compare(samples.double().numpy(), reference, content)
    for name, row in found["parameters"].items():
        assert abs(row["shift_in_sds"]) < (0.67 if name == "k" else 0.33)
        assert 0.75 < row["ratio_of_sds"] < (1.4 if name == "k" else 1.25)
    assert found["c2st"] < 0.64
