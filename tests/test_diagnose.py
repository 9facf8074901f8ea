"""Diagnostics: silent about what is right, loud about what is wrong, and exact for any number of draws."""

import importlib.util
import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import rich
import torch
from rich.console import Console
from scipy import stats

import eande
from conftest import Function, exact_model
from eande import plots
from eande.diagnostics.diagnose import diagnose
from eande.diagnostics.identifiability import identifiability
from eande.diagnostics.ranks import weigh
from eande.diagnostics.uniformity import uniformity
from eande.inference.samplers.importance import pareto_k
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet
from eande.similarities.similarities import Cosine, Dot
from eande.simulation.read.views import fixed_views
from eande.simulators.von_mises_fisher import VonMisesFisher

# The toys and their faults are those of the benchmark.
_spec = importlib.util.spec_from_file_location(
    "diagnostics_benchmark", Path(__file__).parents[1] / "benchmarks" / "diagnostics.py"
)
benchmark = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(benchmark)
weighed, alarms = benchmark.weighed, benchmark.alarms


@pytest.mark.parametrize("draws", [2, 5, 300])
def test_ranks_of_the_exact_ratio_are_uniform_for_any_number_of_draws(draws):
    # Draws of their own for every datum.
    found = [weighed("exact", 1, draws, seed=seed) for seed in range(1_500)]
    for ranks in zip(
        *(torch.cat([*one.ranks[0:1].T, one.level, one.tarp]).tolist() for one in found),
        strict=True,
    ):
        assert stats.kstest(ranks, "uniform").pvalue > 1e-3


# Which check must see which fault; 300 data, 1,000 draws.
MUST_SEE = {
    "too wide": ["ranks", "coverage"],
    "too narrow": ["ranks", "coverage", "TARP"],
    "shifted": ["ranks"],
    "one mode lost": ["ranks", "coverage", "TARP", "log ratio"],
    "the prior": ["log ratio"],
}


@pytest.mark.parametrize("fault", MUST_SEE)
def test_every_fault_raises_the_alarms_it_must(fault):
    repeats = 8
    found = [alarms(weighed(fault, 300, 1_000, seed=seed)) for seed in range(repeats)]
    for check in MUST_SEE[fault]:
        assert sum(one[check] for one in found) > repeats / 2


def test_the_exact_posterior_raises_no_more_alarms_than_promised():
    found = [alarms(weighed("exact", 200, 300, seed=seed), level=0.05) for seed in range(60)]
    for check in ("ranks", "coverage", "TARP"):
        # 60 chances of 5 %: more than 9 would happen once in a thousand times.
        assert sum(one[check] for one in found) <= 9
    assert not any(one["log ratio"] for one in found)


def test_uniformity_keeps_its_level_and_its_band():
    rng = np.random.default_rng(0)
    found = [uniformity(rng.uniform(size=80)) for _ in range(600)]
    assert 0.02 < np.mean([one.p_value < 0.05 for one in found]) < 0.08
    inside = [
        ((one.below >= one.band[:, 0]) & (one.below <= one.band[:, 1])).all() for one in found
    ]
    assert 0.92 < np.mean(inside) < 0.98
    assert uniformity(rng.beta(1.4, 1.4, size=500)).p_value < 0.01


def test_ranks_far_from_uniform_have_a_p_value_far_under_that_of_any_simulated_set():
    assert uniformity(np.zeros(500)).p_value < 1e-50


def test_draws_as_few_as_the_data_raise_no_false_alarms():
    """Ranks among the same draws, of parameters that the data say nothing about."""
    rng = np.random.default_rng(0)
    ranks = [
        np.searchsorted(np.sort(rng.uniform(size=300)), rng.uniform(size=300)) / 300
        for _ in range(300)
    ]
    assert np.mean([uniformity(one).p_value < 0.05 for one in ranks]) > 0.12
    assert np.mean([uniformity(one, draws=300).p_value < 0.05 for one in ranks]) < 0.08
    assert uniformity(rng.beta(3, 3, size=300), draws=300).p_value < 0.01


def weigh_alone(scores, own, drawn, phi, **options):
    generator = torch.Generator().manual_seed(1)
    references, chance = (
        drawn[torch.randint(len(drawn), (len(phi),), generator=generator)],
        torch.rand(len(phi), generator=generator).double(),
    )
    return weigh(scores, own, drawn, phi, references, chance, **options)


def test_a_posterior_no_draw_comes_near_has_moments():
    drawn = torch.linspace(-1, 1, 1_000).unsqueeze(1)
    found = weigh_alone(torch.full((1, 1_000), -800.0), torch.zeros(1), drawn, torch.zeros(1, 1))
    assert found.mean.item() == pytest.approx(0, abs=1e-6)
    assert found.effective_draws.item() == pytest.approx(1_000)
    assert found.divergence.isfinite().all()


def test_distances_of_large_and_of_constant_parameters_keep_their_digits():
    generator = torch.Generator().manual_seed(0)
    drawn, phi = (
        torch.cat([1e4 + torch.rand(n, 1, generator=generator), torch.ones(n, 1)], dim=1)
        for n in (5_000, 300)
    )
    found = weigh_alone(torch.zeros(300, 5_000), torch.zeros(300), drawn, phi)
    assert uniformity(found.tarp).p_value > 0.01


def test_regions_are_of_the_highest_density_under_any_prior():
    """The prior itself, a Gaussian: the level of φ is the mass within |φ|."""
    generator = torch.Generator().manual_seed(0)
    drawn, phi = torch.randn(100_000, 1, generator=generator), torch.tensor([[0.0], [1.0], [-2.0]])
    log_density = [torch.distributions.Normal(0.0, 1.0).log_prob(x)[:, 0] for x in (drawn, phi)]
    found = weigh_alone(
        torch.zeros(3, 100_000), torch.zeros(3), drawn, phi, densities=tuple(log_density)
    )
    assert torch.allclose(
        found.level, torch.tensor([0.0, 0.683, 0.954], dtype=torch.float64), atol=0.005
    )


def test_marginal_divergence_and_moments_are_the_exact_ones():
    """A Gaussian posterior of standard deviation 0.1 in a box of width 2."""
    drawn = torch.rand(200_000, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    scores = -(drawn.T / 0.1).square() / 2
    found = weigh(
        scores,
        torch.zeros(1),
        drawn,
        torch.zeros(1, 1),
        torch.zeros(1, 1),
        torch.ones(1, dtype=torch.float64) / 2,
    )
    exact = math.log(2 / (0.1 * math.sqrt(2 * math.pi * math.e)))
    assert found.divergence.item() == pytest.approx(exact, abs=0.03)
    assert found.deviation.item() == pytest.approx(0.1, rel=0.02)
    assert found.mean.item() == pytest.approx(0, abs=0.003)
    assert found.log_ratio.item() == pytest.approx(
        math.log(2 / (0.1 * math.sqrt(2 * math.pi))), abs=0.02
    )


# --- diagnose


@pytest.fixture(scope="module")
def held_out():
    task = VonMisesFisher(8, seed=0)
    return eande.simulate(task, task.prior, 400, seed=5, progress=False)


def test_the_exact_model_passes(held_out):
    found = diagnose(exact_model(VonMisesFisher(8, seed=0)), held_out, draws=20_000)
    assert found.passed
    assert "ALARM" not in str(found)
    assert found.data == 400
    assert found.draws == 20_000
    assert diagnose(exact_model(VonMisesFisher(8, seed=0)), held_out, draws=100).draws == 8_000
    assert found.cv_normalizer == pytest.approx(0, abs=0.03)
    assert found.log_ratio > 1
    assert found.pareto_k.max() < 0.7


@pytest.mark.parametrize(
    ("factor", "word"), [(1.8, "too wide: under-confident"), (0.5, "too narrow: over-confident")]
)
def test_a_wrong_temperature_is_seen_and_named(held_out, factor, word):
    found = diagnose(
        exact_model(VonMisesFisher(8, seed=0), temperature=factor / 8), held_out, draws=5_000
    )
    assert not found.passed
    assert word in str(found)


def test_a_model_that_learned_nothing_is_told(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    model.similarity.set_exponent(0.0)
    found = diagnose(model, held_out, draws=2_000)
    assert "no better than the prior" in str(found)
    assert [verdict.name for verdict in found.verdicts if verdict.passed is False] == ["log ratio"]


def test_too_few_draws_are_told_as_a_ceiling():
    task = VonMisesFisher(100_000, seed=0)
    found = diagnose(
        exact_model(task), eande.simulate(task, task.prior, 20, seed=1, progress=False), draws=400
    )
    assert found.ceiling == pytest.approx(math.log(401))
    assert "all that 400 draws can show" in str(found)


def test_one_datum_of_each_group_is_used(held_out):
    twice = eande.Simulations.from_arrays(
        held_out.phi.repeat(2, 1), held_out.y.repeat(2, 1), groups=torch.arange(400).repeat(2)
    )
    assert diagnose(exact_model(VonMisesFisher(8, seed=0)), twice, draws=500).data == 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 10}, "draws: expected a whole number of at least 100, got 10"),
        ({"alarm": 0}, "alarm: expected a number between 0 and 1, got 0"),
        ({"seed": "a"}, "seed: expected a whole number of at least 0, got 'a'"),
        ({"held_out": "x"}, "held_out: expected Simulations"),
        ({"few": True}, "held_out: expected at least 20 different parameters, got 5"),
    ],
)
def test_wrong_arguments_are_told(held_out, options, message):
    data = options.pop("held_out", held_out[:5] if options.pop("few", False) else held_out)
    with pytest.raises(eande.InputError, match=message):
        diagnose(exact_model(VonMisesFisher(8, seed=0)), data, **options)


def test_pareto_k_tells_heavy_tails():
    """Weights of a Pareto law with exponent a have k = 1/a; those of a bounded ratio, near its flat top, a negative one."""
    random = np.random.default_rng(0)
    heavy = [np.log(1 + random.pareto(a, size=50_000)) for a in (0.8, 2.0, 10.0)]
    bounded = -(random.uniform(-1, 1, size=(50_000, 2)) ** 2).sum(1) / 0.02
    k = pareto_k(torch.tensor(np.stack([*heavy, bounded])))
    np.testing.assert_allclose(k[:3], [1 / 0.8, 0.5, 0.1], atol=0.2)
    assert k[3] < 0
    plateau = torch.where(torch.arange(1_000) < 3, 0.0, -50.0)
    k = pareto_k(torch.stack([plateau, torch.zeros(1_000)]))
    assert (k[0], k[1]) == (math.inf, -math.inf)
    assert np.isnan(pareto_k(torch.zeros(1, 10))).all()


# --- identifiability


def test_fisher_information_of_a_linear_gaussian_model_is_the_exact_one():
    """log p(y|φ) = y·Aφ/σ² − ‖Aφ‖²/2σ² + …: an inner product, so E&E can be exact."""
    matrix, sigma, n = torch.tensor([[1.0, 0.5], [0.2, 0.8], [0.3, -0.4]]), 0.5, 4
    prior = eande.BoxPrior([-1, -1], [1, 1])

    def emulator(phi):
        mean = phi @ matrix.T
        return torch.cat([mean, mean.square().sum(1, keepdim=True)], dim=1)

    encoder = Function(
        lambda y: torch.cat([y, -0.5 * torch.ones(len(y), 1)], dim=1) / sigma**2 * math.sqrt(n)
    )
    model = eande.EmbedAndEmulate(
        encoder, Function(emulator), Dot(n), prior, y_shape=(3,), embedding_dimension=n
    )
    bank = eande.simulate(
        lambda phi, rng: phi @ matrix.numpy().T + sigma * rng.standard_normal((len(phi), 3)),
        prior,
        6_000,
        seed=0,
        progress=False,
    )
    found = identifiability(model, bank, phi=prior.sample(20, seed=1) / 2)
    exact = (matrix.T @ matrix / sigma**2).double() * found.scale.unsqueeze(1) * found.scale
    assert ((found.fisher - exact).flatten(1).norm(dim=1) / exact.norm()).max() < 0.1
    # The divergence of two Gaussians: ‖A(φ − φ')‖²/2σ².
    apart = (found.phi.unsqueeze(1) - found.phi) @ matrix.T
    assert torch.allclose(
        found.divergence, apart.double().square().sum(-1) / (2 * sigma**2), atol=0.1, rtol=0.1
    )


def test_a_redundant_parameter_is_known_as_such():
    task = VonMisesFisher(2, seed=0, redundant=True)
    found = identifiability(
        exact_model(task),
        eande.simulate(task, task.prior, 2_000, seed=0, progress=False),
        points=100,
    )
    redundant = found.names.index("phi_R")
    assert found.parameter_information[redundant] < 1e-6
    assert found.fisher[:, redundant].abs().max() < 1e-6
    others = [i for i in range(3) if i != redundant]
    assert found.parameter_information[others].min() > 0.1
    assert "+1.00·phi_R" in str(found)
    with pytest.raises(eande.InputError, match="phi: expected finite float32 numbers, got 1 NaN"):
        identifiability(
            exact_model(task),
            eande.simulate(task, task.prior, 100, seed=0, progress=False),
            phi=[[0.0, 0.0, math.nan]],
        )


def test_on_a_ring_the_sloppy_direction_is_the_tangent_and_far_parameters_are_equivalent():
    """Data that know only the radius: y = ‖φ‖ + noise, as on Lorenz 96."""
    sigma, prior = 0.1, eande.BoxPrior([-1, -1], [1, 1])
    encoder = Function(
        lambda y: torch.cat([y, -0.5 * torch.ones_like(y)], dim=1) / sigma**2 * math.sqrt(2)
    )
    emulator = Function(lambda phi: torch.stack([phi.norm(dim=1), phi.square().sum(1)], dim=1))
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(2), prior, y_shape=(1,), embedding_dimension=2
    )
    bank = eande.simulate(
        lambda phi, rng: (
            np.linalg.norm(phi, axis=1, keepdims=True) + sigma * rng.standard_normal((len(phi), 1))
        ),
        prior,
        3_000,
        seed=0,
        progress=False,
    )
    phi = prior.sample(300, seed=1)
    phi = phi[(phi.norm(dim=1) > 0.3) & (phi.norm(dim=1) < 0.9)]
    found = identifiability(model, bank, phi=phi)
    radial = torch.nn.functional.normalize(phi, dim=1).double()
    assert ((found.directions[:, :, 0] * radial).sum(1).abs() > 0.99).all()
    assert (found.eigenvalues[:, 1] < 1e-3 * found.eigenvalues[:, 0]).all()
    pairs = found.equivalent()
    assert len(pairs) > 100
    radii = phi.norm(dim=1)
    assert max(abs(radii[i] - radii[j]).item() for i, j in pairs) < 0.25
    assert (phi[pairs[0][0]] - phi[pairs[0][1]]).norm() > 1


def test_identifiability_tells_wrong_arguments(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    with pytest.raises(eande.InputError, match="simulations: expected Simulations"):
        identifiability(model, held_out.y)
    with pytest.raises(eande.InputError, match=r"phi: expected shape \(k, 2\), got \(3, 5\)"):
        identifiability(model, held_out, phi=torch.zeros(3, 5))


# --- does an observation belong?


class Smooth:
    """A simulator of fields: waves of random phase, their wavelength the parameter."""

    def __call__(self, phi, rng):
        place, phase = np.linspace(0, 1, 60), rng.uniform(0, 2 * np.pi, (len(phi), 1))
        return np.sin(2 * np.pi * place * (2 + phi) + phase)[:, None].astype(np.float32)


@pytest.fixture(scope="module")
def belongs():
    """An encoder that was never trained knows its data well enough for this."""
    prior = eande.BoxPrior([0], [2])
    torch.manual_seed(0)
    encoder = ResNet(1, 8, dimensions=1, width=8, stem="narrow")
    emulator = ResidualMLP(1, 8, width=16, blocks=1)
    model = eande.EmbedAndEmulate(
        encoder, emulator, Cosine(0.1), prior, y_shape=(1, 60), embedding_dimension=8
    )
    return eande.Belongs(model, eande.simulate(Smooth(), prior, 500, seed=0, progress=False)), prior


def test_genuine_observations_are_rarely_flagged(belongs):
    check, prior = belongs
    found = check(eande.simulate(Smooth(), prior, 500, seed=1, progress=False).y)
    # One in a hundred expected at most; 13 of 500 would come once in a thousand times.
    assert (found.p_value < 0.01).sum() < 13
    assert (found.p_value < 0.2).double().mean() < 0.25
    assert found.resolution == pytest.approx(3 / 501)


def test_observations_of_another_simulator_are_flagged(belongs):
    check, prior = belongs
    genuine = eande.simulate(Smooth(), prior, 40, seed=2, progress=False).y[:]
    noisy = genuine + genuine.std() * torch.randn(
        genuine.shape, generator=torch.Generator().manual_seed(0)
    )
    assert (check(noisy).p_value < 0.01).double().mean() > 0.95
    assert (check(torch.zeros(1, 60)).p_value < 0.01).all()
    assert (check(3 * genuine).p_value < 0.01).all()
    assert "UNLIKE the simulations" in str(check(noisy[0]))


class Fixed(torch.nn.Module):
    """Embeds every datum where one value of the parameter is emulated, whatever it shows."""

    def __init__(self, phi):
        super().__init__()
        self.network, self.phi = (
            ResNet(1, 2, dimensions=1, width=8, stem="narrow"),
            phi,
        )

    def forward(self, y):
        return 0 * self.network(y) + torch.tensor([math.cos(self.phi), math.sin(self.phi)])


@pytest.mark.parametrize("believed", [0.3, 1.7])
def test_an_observation_is_held_against_its_own_posterior(believed):
    """Data of φ = 0.3 look like simulations; under a posterior at 1.7 they do not look like its own."""
    prior = eande.BoxPrior([0], [2])
    emulator = Function(lambda phi: torch.cat([phi.cos(), phi.sin()], dim=1))
    similarity = Cosine(0.001)
    model = eande.EmbedAndEmulate(
        Fixed(believed), emulator, similarity, prior, y_shape=(1, 60), embedding_dimension=2
    )
    y = torch.as_tensor(Smooth()(np.full((5, 1), 0.3), np.random.default_rng(0)))
    assert (
        eande.Belongs(model, eande.simulate(Smooth(), prior, 500, seed=0, progress=False))(
            y
        ).p_value.min()
        > 0.01
    )
    p_values = torch.cat(
        [eande.predictive_check(model, one, Smooth(), progress=False).p_value for one in y]
    )
    assert (p_values > 0.01).all() if believed == 0.3 else (p_values < 0.01).all()


def test_a_check_of_windows_sees_windows():
    prior = eande.BoxPrior([0], [2])
    model = eande.EmbedAndEmulate(torch.nn.Flatten(), Function(lambda phi: phi.expand(-1, 20)), Dot(20), prior,
                                  y_shape=(20,), embedding_dimension=20)  # fmt: skip

    def simulator(phi, rng):
        return phi + rng.standard_normal((len(phi), 50))

    seen = []

    def watched(phi, rng):
        seen.append(phi)
        return simulator(phi, rng)

    y = torch.full((20,), 0.3)
    found = eande.predictive_check(
        model, y, watched, n=200, views=eande.RandomWindow(20), progress=False
    )
    assert found.p_value.item() < 0.05  # no noise at all
    assert len(np.unique(np.concatenate(seen), axis=0)) == 200

    def failing(phi, rng):
        return np.where(rng.random((len(phi), 1)) < 0.42, np.nan, simulator(phi, rng))

    with (
        pytest.warns(eande.EandeWarning, match="failed"),
        pytest.raises(eande.InputError, match="of 150 simulations to succeed, got"),
    ):
        eande.predictive_check(model, y, failing, n=150, progress=False)
    with pytest.raises(eande.InputError, match="n: expected a whole number of at least 100"):
        eande.predictive_check(model, torch.randn(20), simulator, n=50)


def of_windows():
    """Return the exact model of windows of 20 numbers φ + noise, and simulations of 50 numbers."""
    prior, width = eande.BoxPrior([-1], [1]), 2
    encoder = Function(
        lambda y: 20 * math.sqrt(width) * torch.stack([y.mean(1), torch.full((len(y),), -0.5)], 1)
    )
    emulator = Function(lambda phi: torch.cat([phi, phi.square()], 1))
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(width), prior, y_shape=(20,), embedding_dimension=width
    )

    def simulator(phi, rng):
        return phi + rng.standard_normal((len(phi), 50))

    return model, eande.simulate(simulator, prior, 300, seed=0, progress=False)


def test_long_simulations_are_diagnosed_by_one_fixed_window_each():
    model, long = of_windows()
    window = eande.RandomWindow(20)
    cut = eande.Simulations(long.phi, torch.cat(list(fixed_views(window, long.y))), long.groups)
    seen = diagnose(model, long, draws=2_000, views=window, progress=False)
    assert seen.passed
    expected = diagnose(model, cut, draws=2_000, progress=False)
    assert torch.equal(seen.weighed.ranks, expected.weighed.ranks)
    few = slice(30)
    sampled = diagnose(model, long[few], samples=100, views=window, progress=False)
    assert torch.equal(
        sampled.weighed.ranks,
        diagnose(model, cut[few], samples=100, progress=False).weighed.ranks,
    )
    found = identifiability(model, long, points=5, views=window, progress=False)
    expected = identifiability(model, cut, points=5, progress=False)
    assert torch.equal(found.fisher, expected.fisher)
    y = torch.stack([cut.y[7], cut.y[7] + 50])
    judged = eande.Belongs(model, long, views=window, progress=False)(y)
    assert torch.equal(judged.p_value, eande.Belongs(model, cut, progress=False)(y).p_value)
    assert judged.p_value[1] <= judged.resolution < judged.p_value[0]


def test_of_a_group_one_window_is_seen():
    model, long = of_windows()
    twice = eande.Simulations.from_arrays(
        long.phi.repeat(2, 1), torch.cat([long.y, long.y + 100]), groups=torch.arange(300).repeat(2)
    )
    found = diagnose(model, twice, draws=2_000, views=eande.RandomWindow(20), progress=False)
    assert found.data == 300
    assert found.passed


def test_windows_of_another_length_than_the_models_are_refused():
    model, long = of_windows()
    for function in (diagnose, identifiability, eande.Belongs):
        for views, got in ((None, 50), (eande.RandomWindow(30), 30)):
            with pytest.raises(
                eande.InputError, match=rf"y: expected shape \(n, 20\), got \(300, {got}\)"
            ):
                function(model, long, views=views)


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown_where_it_is_asked_for(capsys, monkeypatch, progress):
    monkeypatch.setattr(rich, "_console", Console(force_terminal=True))
    model, long = of_windows()
    options = {"views": eande.RandomWindow(20), "progress": progress}
    for function, word in (
        (diagnose, "weighting prior draws"),
        (partial(diagnose, samples=100), "sampling"),
        (identifiability, "differentiating"),
        (eande.Belongs, "embedding"),
    ):
        function(model, long[:100], **options)
        assert (word in capsys.readouterr().out) == progress


def test_too_few_simulations_are_told_where_none_is_as_strange(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    judged = eande.Belongs(
        model, eande.Simulations(held_out.phi[:150], held_out.y[:150], held_out.groups[:150])
    )
    assert "STRANGER than all the simulations, too few to say more, p = 0.02" in str(
        judged(1e3 * torch.ones(model.y_shape))
    )


def test_an_encoder_of_sets_leaves_a_trace():
    prior, layer = eande.BoxPrior([-1.0], [1.0]), torch.nn.Linear(1, 4)

    def encode(y):
        return layer(y.reshape(-1, 1)).view(len(y), 5, 4).mean(1)

    encoder = Function(encode)
    encoder.layer = layer
    model = eande.EmbedAndEmulate(
        encoder, torch.nn.Linear(1, 4), Cosine(0.5), prior, y_shape=(5,), embedding_dimension=4
    )
    simulations = eande.simulate(
        lambda phi, rng: phi + rng.standard_normal((len(phi), 5)),
        prior,
        300,
        seed=0,
        progress=False,
    )
    found = eande.Belongs(model, simulations)(
        torch.stack([simulations.y[7], simulations.y[7] + 50])
    )
    assert found.p_value[1] <= found.resolution < found.p_value[0]


def test_what_was_made_before_a_calibration_stays_right_or_says_so(held_out):
    model = exact_model(VonMisesFisher(8, seed=0), temperature=0.5 / 8)
    before, judged = model.posterior(held_out.y[0]), eande.Belongs(model, held_out)
    values = before.log_ratio(held_out.phi[:50])
    assert model.calibrate(held_out).exponent < 0.8
    assert torch.equal(before.log_ratio(held_out.phi[:50]), values)
    assert not torch.allclose(model.posterior(held_out.y[0]).log_ratio(held_out.phi[:50]), values)
    with pytest.raises(eande.InputError, match="calibrated since"):
        judged(held_out.y[0])


def test_belonging_tells_wrong_arguments(belongs, held_out):
    check, prior = belongs
    with pytest.raises(eande.InputError, match=r"y: expected shape \(m, 1, 60\), got \(1, 2, 61\)"):
        check(torch.zeros(2, 61))
    with pytest.raises(eande.InputError, match="expected finite float32 numbers, got 1 NaN"):
        check(torch.full((1, 60), 0.0).index_fill_(1, torch.tensor([3]), torch.nan))
    with pytest.raises(
        eande.InputError, match="held_out: expected at least 100 different parameters, got 50"
    ):
        eande.Belongs(check.model, eande.simulate(Smooth(), prior, 50, seed=0, progress=False))
    with pytest.raises(eande.InputError, match="held_out: expected Simulations"):
        eande.Belongs(check.model, torch.zeros(3))


def test_figures_show_what_was_found(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    figure = plots.diagnosis(diagnose(model, held_out, draws=500))
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[0].startswith("ranks of phi1, p = ")
    assert titles[2].startswith("coverage, p = ")
    assert len(plots.ellipses(identifiability(model, held_out, points=5)).axes[0].lines) == 5


# --- where draws or data are too few, nothing is claimed; where scores tie, nothing is miscounted


def gaussian(prior, noise, *, believed=None, shift=0.0, told=None):
    """Return the exact model of y = the first parameters + noise (or one that believes in other noise, or errs to one side), and its simulator."""
    told, believed = told or prior.dimension, believed or noise
    width = told + 1
    encoder = Function(
        lambda y: (
            torch.cat([y + shift * noise, torch.full((len(y), 1), -0.5)], 1)
            / believed**2
            * math.sqrt(width)
        )
    )
    emulator = Function(
        lambda phi: torch.cat([phi[:, :told], phi[:, :told].square().sum(1, keepdim=True)], 1)
    )
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(width), prior, y_shape=(told,), embedding_dimension=width
    )

    def simulated(count, seed, phi=None):
        stream = torch.Generator().manual_seed(seed)
        phi = prior.sample(count, seed=1_000 + seed) if phi is None else phi
        return eande.Simulations.from_arrays(
            phi, phi[:, :told] + noise * torch.randn(len(phi), told, generator=stream)
        )

    return model, simulated


def box(dimension):
    return eande.BoxPrior([-1.0] * dimension, [1.0] * dimension)


@pytest.mark.parametrize("believed", [0.1, 0.05])
def test_ten_sharp_parameters_are_not_called_calibrated_by_draws_that_miss_them(believed):
    model, simulated = gaussian(box(10), 0.1, believed=believed)
    found = diagnose(model, simulated(100, 0), draws=20_000)
    assert not found.tested
    assert not found.passed
    assert "NOT TESTED" in str(found)
    assert "cover" not in str(found)
    assert all(math.isnan(value) for value in (*found.divergence, *found.shrinkage, *found.z_rms))
    assert "NOT TESTED" in plots.diagnosis(found).get_suptitle()


def in_samples(dimension, believed, data):
    model, simulated = gaussian(box(dimension), 0.1, believed=believed)
    return diagnose(model, simulated(data, 0), draws=20_000, samples=100, progress=False)


def test_ranks_among_samples_agree_with_those_among_draws():
    found, (model, simulated) = in_samples(2, 0.1, 100), gaussian(box(2), 0.1)
    draws = diagnose(model, simulated(100, 0), draws=20_000)
    assert found.passed
    assert found.samples == 100
    torch.testing.assert_close(found.weighed.ranks, draws.weighed.ranks, atol=0.2, rtol=0)
    torch.testing.assert_close(found.weighed.level, draws.weighed.level, atol=0.2, rtol=0)
    torch.testing.assert_close(found.weighed.tarp, draws.weighed.tarp, atol=0.2, rtol=0)
    torch.testing.assert_close(found.weighed.deviation, draws.weighed.deviation, rtol=0.4, atol=0)
    assert found.divergence == pytest.approx(draws.divergence, abs=0.1)
    with pytest.raises(
        eande.InputError, match="samples: expected a whole number of at least 100, got 5"
    ):
        diagnose(model, simulated(100, 0), samples=5)


@pytest.mark.parametrize(("believed", "fault"), [(0.05, "too narrow"), (0.2, "too wide")])
def test_ranks_among_samples_see_faults(believed, fault):
    found = in_samples(2, believed, 60)
    assert not found.passed
    assert fault in next(verdict.text for verdict in found.verdicts if verdict.name == "coverage")


@pytest.mark.slow
@pytest.mark.parametrize(("believed", "passes"), [(0.1, True), (0.05, False), (0.2, False)])
def test_samples_tell_of_ten_sharp_parameters_what_draws_cannot(believed, passes):
    assert in_samples(10, believed, 30).passed == passes


def test_what_few_draws_show_by_chance_is_no_information():
    model, simulated = gaussian(box(2), 0.005, told=1)
    found = diagnose(model, simulated(100, 0), draws=25_000)
    assert 100 < found.weighed.effective_draws.median() < 400
    assert found.divergence[1] < 0.03
    assert found.divergence[0] > 3


def test_a_constant_parameter_is_neither_learned_nor_nan():
    prior = eande.EmpiricalPrior(
        torch.cat([box(1).sample(3_000, seed=0), torch.full((3_000, 1), 3.3)], 1)
    )
    model, simulated = gaussian(prior, 0.3, told=1)
    found = diagnose(model, simulated(100, 0))
    assert found.divergence[1] < 1e-6
    assert found.shrinkage[1] == 0


def plateau():
    """Return the exact model of y = max(φ, 0) + noise, whose scores are level over half the prior but for rounding, and its simulator."""
    prior, noise, width = box(1), 0.2, 6
    turn = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(0)))[0]

    def padded(x):
        return torch.cat([x, torch.zeros(len(x), width - 2)], 1) @ turn

    encoder = Function(
        lambda y: padded(torch.cat([y, torch.full_like(y, -0.5)], 1)) / noise**2 * math.sqrt(width)
    )
    emulator = Function(
        lambda phi: padded(torch.cat([phi.relu() + 0.3, (phi.relu() + 0.3) ** 2], 1))
    )
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(width), prior, y_shape=(1,), embedding_dimension=width
    )

    def simulated(count, seed):
        phi = prior.sample(count, seed=1_000 + seed)
        return eande.Simulations.from_arrays(
            phi,
            phi.relu()
            + 0.3
            + noise * torch.randn(phi.shape, generator=torch.Generator().manual_seed(seed)),
        )

    return model, simulated


def test_level_scores_are_ties_in_coverage_and_in_calibration():
    model, simulated = plateau()
    found = [
        diagnose(model, simulated(300, seed), draws=6_000).coverage.p_value for seed in range(8)
    ]
    assert min(found) > 0.01
    assert model.calibrate(simulated(300, 100), kind="constant").exponent == pytest.approx(
        1, abs=0.2
    )


def test_parameters_that_are_draws_of_the_prior_count_once():
    alarmed = 0
    for seed in range(20):
        phi = box(2).sample(1_000, seed=seed)
        model, simulated = gaussian(eande.EmpiricalPrior(phi), 0.05)
        alarmed += diagnose(model, simulated(500, seed, phi=phi[-500:])).coverage.p_value < 0.01
    assert alarmed <= 2


def test_an_alarm_is_raised_at_levels_that_shared_draws_cannot_resolve():
    prior = eande.EmpiricalPrior(box(3).sample(1_000, seed=0))
    model, simulated = gaussian(prior, 0.2, shift=2.0)
    found = diagnose(model, simulated(500, 0), alarm=0.0001)
    assert [verdict.passed for verdict in found.verdicts if verdict.name.startswith("ranks")] == [
        False
    ] * 3


def test_identifiability_says_when_it_cannot_tell():
    model, simulated = gaussian(box(10), 0.1)
    found = identifiability(model, simulated(1_000, 0))
    assert str(found).startswith("cannot tell: at 200 of 200 points")
    assert not found.equivalent()
    model, simulated = gaussian(box(2), 0.02)
    some = identifiability(model, simulated(10_000, 0), points=60)
    assert 0 < some.known.sum() < 60
    # (prior standard deviation / noise)² is 833.
    assert some.parameter_information.tolist() == pytest.approx([833] * 2, rel=0.25)
    with pytest.raises(
        eande.InputError,
        match="phi: expected points inside the prior's support, got 1 of 2 outside",
    ):
        identifiability(model, simulated(100, 0), phi=[[0, 0], [100, 0]])


def test_a_wide_encoder_does_not_make_genuine_data_strange():
    torch.manual_seed(0)
    encoder, emulator = (
        ResNet(1, 8, dimensions=1, width=64, stem="narrow"),
        torch.nn.Linear(1, 8),
    )
    model = eande.EmbedAndEmulate(
        encoder, emulator, Cosine(0.1), box(1), y_shape=(1, 60), embedding_dimension=8
    )
    stream, strange = torch.Generator().manual_seed(0), []
    for _ in range(4):
        phi, new = (torch.rand(n, 1, generator=stream) for n in (100, 100))
        y, observed = (
            x.unsqueeze(1) + torch.randn(100, 1, 60, generator=stream) for x in (phi, new)
        )
        strange.append(
            eande.Belongs(model, eande.Simulations.from_arrays(phi, y))(observed).p_value < 0.03
        )
    assert torch.cat(strange).double().mean() < 0.06


def test_what_is_no_model_or_no_pair_is_refused():
    model, simulated = gaussian(box(1), 0.1)
    held_out = simulated(200, 0)
    for function in (diagnose, identifiability, eande.Belongs):
        with pytest.raises(
            eande.InputError,
            match=r"model: expected a fitted model \(from a file: eande.load\(path\)\), got str",
        ):
            function("m.eande", held_out)
    with pytest.raises(
        eande.InputError, match=r"pair: expected the numbers of two of 1 parameters, got \(0, 1\)"
    ):
        plots.ellipses(identifiability(model, held_out))
    with pytest.raises(
        eande.InputError, match="names: expected one per parameter, 2 and 2 of them, got 1"
    ):
        plots.posterior_pairs(np.zeros((5, 2)), np.zeros((5, 2)), ["a"])
    with pytest.raises(eande.InputError, match="n: expected a whole number of at least 1, got -1"):
        eande.resample(model.posterior(held_out.y[0]), -1)
