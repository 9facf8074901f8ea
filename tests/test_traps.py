"""Ways to be silently wrong that were found once: each must stay found."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

import eande
from conftest import Function, quick_fit
from eande.foundations.checks import EandeWarning, InputError
from eande.foundations.seeds import generator
from eande.inference.model import EmbedAndEmulate
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.similarities.similarities import Cosine, Dot
from eande.simulation.read.simulations import Simulations
from eande.simulation.run.blocks import SimulationError
from eande.simulation.simulate import simulate
from eande.training.batches import Batches
from eande.training.setup import describe_call, training_prior

BOX = BoxPrior([-1, -1], [1, 1])


def noisy(phi, rng):
    return phi + 0.3 * rng.standard_normal(phi.shape)


@pytest.fixture(scope="module")
def simulations():
    return simulate(noisy, BOX, 400, seed=0)


def peaked(prior, temperature=0.05):
    """One parameter on a half circle: sharp where φ equals y."""

    def embed(x):
        return torch.cat([torch.cos(x), torch.sin(x)], 1)

    return EmbedAndEmulate(
        Function(embed),
        Function(embed),
        Cosine(temperature),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )


# --- priors known by draws


def test_sorted_draws_do_not_bias_samples():
    """Rejection takes the first accepted candidates: the order of an ensemble must not matter."""
    prior = EmpiricalPrior(torch.linspace(0, 1, 3_000).unsqueeze(1))
    flat = EmbedAndEmulate(
        Function(lambda y: y),
        Function(lambda p: torch.ones(len(p), 2)),
        Cosine(1.0),
        prior,
        y_shape=(2,),
        embedding_dimension=2,
    )
    for n in (1_500, 10_000):
        samples, _ = flat.posterior([1.0, 0.0]).sample(n)
        assert samples.mean().item() == pytest.approx(0.5, abs=0.03)


def test_repeated_draws_do_not_count_as_more():
    few = peaked(EmpiricalPrior(torch.linspace(0, 1, 50).unsqueeze(1)))
    assert few.posterior([0.5], draws=10_000).effective_draws < 50
    assert (
        few.posterior([0.5], draws=10_000).normalizer_error
        == few.posterior([0.5], draws=50).normalizer_error
    )


def correlated(n):
    first = torch.rand(n, 1, generator=generator(0)) * 2 - 1
    return torch.cat(
        [first, torch.where(torch.rand(n, 1, generator=generator(1)) < 0.5, first, -first)], dim=1
    )


@pytest.mark.parametrize(
    ("phi", "where"),
    [
        (BOX.sample(1_000, seed=0) / 3, "in phi"),
        (BOX.sample(1_000, seed=0).abs() * torch.tensor([-1.0, 1.0]), "in phi"),
        (torch.zeros(200, 2), "in phi"),
        (correlated(5_000), "in how they go together"),
    ],
    ids=["a ninth of the box", "a quarter of it", "all the same", "only together"],
)
def test_parameters_that_are_no_draws_of_the_prior_are_noticed(phi, where):
    simulations = Simulations.from_arrays(phi, torch.zeros(len(phi), 1))
    with pytest.warns(EandeWarning, match=f"do not look like draws of the prior \\({where}"):
        training_prior(BOX, simulations, None)


def test_draws_of_the_prior_are_taken_for_such():
    """Also where they are evenly spaced, few, replicated, or partly failed."""
    side = torch.linspace(-1, 1, 41)[1::2]
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    )
    torch.manual_seed(0)
    drawn = BOX.sample(2_000, seed=1)
    good = drawn[:, 0] < 0.3
    for prior, phi, options in (
        (BOX, BOX.sample(20_000, seed=0), {}),
        (BOX, BOX.sample_evenly(512, first=0, seed=0), {}),
        (BOX, torch.cartesian_prod(side, side), {}),
        (BOX, BOX.sample(3, seed=0), {}),
        (
            BOX,
            torch.cat([torch.zeros(500, 2), BOX.sample(200, seed=2)]),
            {"groups": [0] * 500 + list(range(1, 201))},
        ),
        (BOX, drawn[good], {"failed_phi": drawn[~good]}),
        (normal, normal.sample((5_000,)), {}),
    ):
        training_prior(
            prior, Simulations.from_arrays(phi, torch.zeros(len(phi), 1), **options), None
        )


def test_replicates_do_not_make_their_parameters_likelier():
    phi = torch.cat([torch.zeros(150, 2), BOX.sample(50, seed=0)])
    groups = [0] * 150 + list(range(1, 51))
    prior = training_prior(
        None, Simulations.from_arrays(phi, torch.zeros(200, 1), groups=groups), None
    )
    assert len(prior.draws) == 51


def test_densities_leave_the_global_generator_alone():
    prior = DistributionPrior(Independent(Normal(torch.zeros(2), torch.ones(2)), 1))
    state = torch.get_rng_state()
    prior.log_prob(torch.zeros(3, 2))
    prior.contains(torch.zeros(3, 2))
    assert torch.equal(torch.get_rng_state(), state)


# --- simulating


def test_a_simulator_may_change_its_argument_and_reuse_its_output():
    buffer = np.zeros((10, 2), dtype=np.float32)

    def careless(phi, rng):
        buffer[:] = phi
        phi *= 2
        return buffer

    simulations = simulate(careless, BOX, 20, seed=0, block_size=10)
    assert simulations.phi.abs().max() <= 1
    assert torch.equal(simulations.y, simulations.phi)


def test_failures_are_said_when_they_happen():
    calls = []

    def failing(phi, rng):
        calls.append(len(phi))
        return phi * np.nan

    with pytest.raises(
        SimulationError,
        match=r"1000 of 1000 simulations failed, more than failure_limit=0.5 allows: 1000 × NaN in the data",
    ):
        simulate(failing, BOX, 5_000, block_size=1_000)
    assert calls == [1_000]


# --- checkpoints belong to one call


def fingerprint(simulations, prior=BOX, views=None, **given):
    return describe_call(simulations, prior, eande.FitSettings(), views, given)


def test_a_fingerprint_changes_with_everything_that_matters(simulations):
    own = fingerprint(simulations)
    swapped = Simulations.from_arrays(simulations.phi[:, [1, 0]], simulations.y)
    turned = Simulations.from_arrays(simulations.phi, simulations.y[:, [1, 0]])
    grouped = Simulations(simulations.phi, simulations.y, simulations.groups // 2)
    others = [
        fingerprint(swapped),
        fingerprint(turned),
        fingerprint(grouped),
        fingerprint(simulations, BoxPrior([-1, -1], [1, 2])),
        fingerprint(simulations, SamplerPrior(lambda n, seed: BOX.sample(n, seed=seed))),
        fingerprint(simulations, SamplerPrior(lambda n, seed: 0.1 * BOX.sample(n, seed=seed))),
        fingerprint(simulations, views=lambda y, _: 2 * y),
        fingerprint(simulations, views=lambda y, _: 3 * y),
        fingerprint(simulations, encoder=ResidualMLP(2, 4)),
        fingerprint(simulations, encoder=ResidualMLP(2, 4)),
    ]
    texts = [str(one) for one in (own, *others)]
    assert len(set(texts)) == len(texts)
    assert fingerprint(simulations) == own


def test_a_fingerprint_does_not_depend_on_the_number_of_threads(simulations):
    threads = torch.get_num_threads()
    large = Simulations(torch.rand(200_000, 3), torch.rand(200_000, 2), torch.arange(200_000))
    try:
        torch.set_num_threads(2)
        two = large.fingerprint()
    finally:
        torch.set_num_threads(threads)
    assert large.fingerprint() == two


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_files_of_the_user_in_a_checkpoint_folder_stay(simulations, tmp_path):
    mine = tmp_path / "start-here.safetensors"
    mine.write_text("mine")
    settings = eande.FitSettings(
        epochs=1,
        embedding_dimension=4,
        width=8,
        blocks=0,
        normalizer_draws=100,
        similarity="cosine",
        temperature=1.0,
        device="cpu",
        seed=np.int64(3),
    )
    eande.fit(simulations, BOX, settings=settings, checkpoint=tmp_path, progress=False)
    assert mine.read_text() == "mine"
    assert (tmp_path / "main.safetensors").exists()


# --- training


def test_a_score_that_rests_on_a_few_draws_cannot_pass_for_a_good_one():
    """At τ = 0.002 a hundred draws miss the peak: the score must be looked at again, and the prior returned if nothing is left of it."""
    prior = BoxPrior([-1], [1])
    sharp = simulate(
        lambda phi, rng: phi + 0.01 * rng.standard_normal(phi.shape), prior, 300, seed=0
    )
    model = quick_fit(sharp, prior, epochs=40, temperature=0.002, normalizer_draws=100)
    fresh = simulate(
        lambda phi, rng: phi + 0.01 * rng.standard_normal(phi.shape), prior, 200, seed=1
    )
    scores = [
        p.log_ratio(phi.unsqueeze(0)).item()
        for phi, p in zip(fresh.phi, model.posteriors(fresh.y, draws=50_000), strict=True)
    ]
    assert np.mean(scores) > -0.05


def test_looking_once_more_leaves_batch_statistics_alone():
    """Too few draws carry the score, so it is taken again: of the model as it infers, not as it trains."""
    prior = BoxPrior([-1], [1])
    sharp = simulate(
        lambda phi, rng: phi + 0.01 * rng.standard_normal(phi.shape), prior, 300, seed=0
    )
    model = quick_fit(
        sharp,
        prior,
        epochs=40,
        temperature=0.02,
        normalizer_draws=100,
        normalization="batch",
        ema=0.9,
    )
    best = max(model.history, key=lambda record: record["held_out_log_ratio"])
    assert best["effective_draws"] < 100
    batches = [
        buffer.item() for name, buffer in model.named_buffers() if "num_batches_tracked" in name
    ]
    assert batches
    assert set(batches) == {best["step"]}


def test_patience_shorter_than_the_validation_interval(simulations):
    model = quick_fit(simulations, BOX, epochs=40, validate_every=10, patience=5)
    assert model.history[-1]["epoch"] % 10 == 0


def test_an_encoder_that_fails_outside_training_is_said(simulations):
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            return self.layer(x) + (0 if self.training else torch.nan)

    with pytest.raises(RuntimeError, match="no validation gave a finite held-out score"):
        quick_fit(simulations, BOX, encoder=Fickle(), epochs=2)


def test_no_batch_is_a_single_pair(simulations):
    odd = Batches(
        simulations[:101], None, batch_size=2, steps_per_epoch=None, two_views=False, seed=0
    )
    assert min(len(batch.phi) for batch in odd.epoch(0)) >= 2
    quick_fit(simulations[:200], BOX, epochs=1, normalization="batch", micro_batch=179)


def test_mixed_precision_reaches_the_networks_and_spares_the_embeddings(simulations):
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            out = self.layer(x)
            if self.training:
                seen.append((x.dtype, out.dtype))
            return out

    model = quick_fit(simulations, BOX, encoder=Spy(), epochs=1, precision="bf16-mixed")
    assert set(seen) == {(torch.float32, torch.bfloat16)}
    assert model.embed(simulations.y[:2]).dtype == torch.float32


def test_validation_obeys_the_micro_batch(simulations):
    rows = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            rows.append(len(x))
            return self.layer(x)

    quick_fit(simulations, BOX, encoder=Spy(), epochs=1, micro_batch=16)
    assert max(rows) <= 16


def test_a_warm_start_keeps_the_learned_temperature(simulations):
    first = quick_fit(simulations, BOX, epochs=60, temperature="learn", learning_rate=1e-2)
    assert abs(first.similarity.temperature - 0.1) > 0.003
    settings = eande.FitSettings(
        epochs=1,
        embedding_dimension=4,
        similarity="cosine",
        temperature="learn",
        learning_rate=1e-9,
        normalizer_draws=200,
        device="cpu",
    )
    second = eande.fit(simulations, BOX, warm_start=first, settings=settings, progress=False)
    assert second.similarity.temperature == pytest.approx(first.similarity.temperature, rel=1e-4)


def test_a_prior_that_cannot_be_copied_is_shared(simulations):
    lock = threading.Lock()

    def sampler(n, seed):
        with lock:
            return BOX.sample(n, seed=seed)

    prior = SamplerPrior(sampler)
    assert quick_fit(simulations, prior, epochs=2).prior is prior
    assert quick_fit(simulations, prior, epochs=2, ema=None).prior is prior


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_numbers_too_large_for_their_spread_are_said(simulations):
    far = Simulations.from_arrays(simulations.phi, simulations.y + 1e7)
    with pytest.warns(
        EandeWarning, match="y: 2 entries vary by less than a hundred-thousandth of their size"
    ):
        quick_fit(far, BOX, epochs=1, quiet=False)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_handful_of_held_out_simulations_is_said(simulations):
    with pytest.warns(EandeWarning, match="only 2 simulations are held out"):
        quick_fit(simulations[:20], BOX, epochs=1, quiet=False)


def test_an_interrupted_fit_says_how_to_go_on(simulations, tmp_path):
    def interrupt(_record):
        raise KeyboardInterrupt

    settings = eande.FitSettings(
        epochs=2, embedding_dimension=4, width=8, blocks=0, normalizer_draws=100, device="cpu"
    )
    with pytest.raises(KeyboardInterrupt, match="the same call goes on from the latest checkpoint"):
        eande.fit(
            simulations,
            BOX,
            settings=settings,
            checkpoint=tmp_path,
            callback=interrupt,
            progress=False,
        )


def test_a_learned_temperature_finds_a_sharp_posterior():
    """Noise of 1 % of the prior's width: at a fixed τ of 0.05 the posterior stays several times too wide."""
    prior = BoxPrior([-1], [1])
    sharp = simulate(
        lambda phi, rng: phi + 0.02 * rng.standard_normal(phi.shape), prior, 4_000, seed=0
    )

    def width(temperature):
        model = quick_fit(
            sharp,
            prior,
            epochs=60,
            temperature=temperature,
            embedding_dimension=16,
            validate_every=10,
            normalizer_draws=4_000,
        )
        return model.posterior([0.1]).sample(2_000)[0].std().item()

    assert 0.015 < width("learn") < 0.035
    assert width(0.05) > 0.04


def test_the_centre_of_the_prior_has_a_direction():
    model = EmbedAndEmulate(
        ResidualMLP(2, 4), ResidualMLP(2, 4), Cosine(0.1), BOX, y_shape=(2,), embedding_dimension=4
    )
    assert model.emulate(torch.zeros(1, 2)).norm().item() == pytest.approx(1, abs=1e-5)


def test_numbers_of_numpy_are_numbers(simulations):
    settings = eande.FitSettings(
        epochs=np.int64(2),
        similarity="cosine",
        temperature=np.float32(0.5),
        learning_rate=np.float64(1e-3),
    )
    assert settings.epochs == 2
    assert peaked(BoxPrior([0], [1])).posterior([0.5]).sample(np.int64(5))[0].shape == (5, 1)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_fit_with_numbers_of_numpy_is_checkpointed_and_saved(tmp_path):
    phi = torch.rand(100, 2)
    settings = eande.FitSettings(
        epochs=np.int64(1), batch_size=np.int64(20), embedding_dimension=np.int64(4), width=np.int64(8), blocks=np.int64(1),
        learning_rate=np.float32(1e-3), device="cpu",
    )  # fmt: skip
    made = eande.Simulations.from_arrays(phi, phi)
    model = eande.fit(
        made,
        BoxPrior([0, 0], [1, 1]),
        settings=settings,
        validation=np.float32(0.2),
        checkpoint=tmp_path,
        progress=False,
    )
    model.save(tmp_path / "m.eande")
    assert eande.load(tmp_path / "m.eande").embedding_dimension == 4


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_an_observation_too_large_to_embed_is_refused():
    phi = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
    settings = eande.FitSettings(epochs=30, width=32, blocks=1, device="cpu")
    model = eande.fit(
        eande.Simulations.from_arrays(phi, phi),
        BoxPrior([0, 0], [1, 1]),
        settings=settings,
        progress=False,
    )
    for size in (1e10, 1e20, 1e38):
        with pytest.raises(
            InputError, match="y: expected data on the scale of the simulations, got scores of"
        ):
            model.posterior([size, size])


def test_densities_of_whole_and_of_double_numbers_are_right():
    assert BoxPrior([0, 0], [3, 3]).log_prob(torch.tensor([[1, 1]])).item() == pytest.approx(
        -2 * np.log(3)
    )
    assert BoxPrior([0.1], [0.9]).contains(torch.tensor([[0.1], [0.9]], dtype=torch.float64)).all()


# --- posteriors and files


def test_a_proposal_that_misses_the_posterior_is_refused_and_a_bounded_one_is_exact():
    posterior = peaked(BoxPrior([0], [1])).posterior([0.5])
    with pytest.raises(
        InputError,
        match=r"proposal: expected one that covers the posterior, got one without density on \d+% of it",
    ):
        posterior.sample(100, proposal=BoxPrior([0.5], [1]))
    exact, _ = posterior.sample(20_000, seed=1)
    bounded, info = posterior.sample(20_000, proposal=BoxPrior([-0.2], [1.1]))
    assert info.log_bound < 10
    assert bounded.mean().item() == pytest.approx(exact.mean().item(), abs=0.01)
    assert bounded.std().item() == pytest.approx(exact.std().item(), rel=0.05)
    with pytest.raises(InputError, match="bound: expected a finite number, got nan"):
        posterior.sample(10, bound=float("nan"))


def test_one_distribution_makes_one_bank():
    model = peaked(DistributionPrior(Independent(Normal(torch.zeros(1), torch.ones(1)), 1)))
    rows = []
    model.emulator.register_forward_hook(lambda _module, args, _out: rows.append(len(args[0])))
    other = Independent(Normal(torch.zeros(1), torch.full((1,), 0.5)), 1)
    for _ in range(3):
        model.posterior([0.2], prior=other)
    assert len(rows) == 1


def test_a_similarity_of_ones_own_is_not_stored_as_another(tmp_path):
    class Sharper(Dot):
        def factor(self):
            return 5 * super().factor()

    model = EmbedAndEmulate(
        ResidualMLP(2, 4), ResidualMLP(2, 4), Sharper(4), BOX, y_shape=(2,), embedding_dimension=4
    )
    with pytest.raises(
        InputError,
        match="similarity: expected Cosine, Dot or Gaussians to store in a file, got Sharper",
    ):
        model.save(tmp_path / "m.eande")


def test_another_network_with_weights_of_the_same_shapes_is_refused(simulations, tmp_path):
    def network(activation):
        return nn.Sequential(nn.Linear(2, 16), activation, nn.Linear(16, 4))

    quick_fit(simulations, BOX, encoder=network(nn.ReLU()), epochs=5).save(tmp_path / "m.eande")
    eande.load(tmp_path / "m.eande", encoder=network(nn.ReLU()))
    with pytest.raises(
        InputError,
        match="expected the encoder it was trained with, got one that computes something else",
    ):
        eande.load(tmp_path / "m.eande", encoder=network(nn.Tanh()))


def test_loading_leaves_the_given_network_alone(simulations, tmp_path):
    torch.manual_seed(0)
    mine = nn.Linear(2, 4)
    quick_fit(simulations, BOX, encoder=mine, epochs=5).save(tmp_path / "m.eande")
    before = mine.weight.clone()
    eande.load(tmp_path / "m.eande", encoder=mine)
    assert torch.equal(mine.weight, before)
    assert mine.weight.requires_grad
