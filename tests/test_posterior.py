"""The posterior: values, samples, other priors, pooled observations, and what it costs."""

import math
import re
import time

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Independent, MultivariateNormal, Normal

from conftest import Function, exact_model, quick_fit
from eande.diagnostics.distances import l1_distance
from eande.foundations.checks import EandeWarning, InputError
from eande.inference.model import EmbedAndEmulate
from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo, acceptance_rejection
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import SamplerPrior
from eande.similarities.similarities import Cosine, Dot
from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.studies.synthetic.measures import angle_test

ALPHA = 1e-3  # false-alarm rate of every two-sample test here; seeds are fixed


def observation(task, seed=3):
    return simulate(task, task.prior, 1, seed=seed).y[0]


@pytest.mark.parametrize("redundant", [False, True])
@pytest.mark.parametrize("kappa", [2, 8])
@pytest.mark.parametrize("bound", ["estimated", "exact"])
def test_samples_follow_the_exact_posterior(kappa, redundant, bound):
    task = VonMisesFisher(kappa, redundant=redundant, seed=1)
    y = observation(task)
    samples, info = exact_model(task).posterior(y).sample(20_000, seed=0, bound=bound)
    exact = task.sample_posterior(y, 20_000, seed=1)
    assert angle_test(task, y, samples, exact) > ALPHA
    if redundant:
        assert stats.kstest(samples[:, 0].numpy(), "uniform").pvalue > ALPHA
    # The paper's acceptance: 1 / max r = (mean of e^{κ cos}) / e^κ, known for the exact bound.
    assert info.acceptance_rate == pytest.approx({2: 0.308, 8: 0.143}[kappa], abs=0.01)


@pytest.mark.parametrize("kappa", [2, 8])
def test_the_same_test_flags_a_temperature_off_by_thirty_percent(kappa):
    task = VonMisesFisher(kappa, seed=1)
    y = observation(task)
    exact = task.sample_posterior(y, 20_000, seed=1)
    for factor in (0.7, 1.3):
        samples, _ = (
            exact_model(task, temperature=factor / kappa).posterior(y).sample(20_000, seed=0)
        )
        assert angle_test(task, y, samples, exact) < ALPHA


def test_a_bound_that_is_far_too_low_corrects_itself():
    task = VonMisesFisher(8, seed=1)
    y = observation(task)
    posterior = exact_model(task).posterior(y)
    samples, info = posterior.sample(20_000, seed=0, bound=-1.0)
    assert info.exceedances > 0
    assert info.log_bound == pytest.approx(8 - posterior.log_normalizer, abs=0.01)
    assert angle_test(task, y, samples, task.sample_posterior(y, 20_000, seed=1)) > ALPHA


def test_samples_are_those_the_final_bound_would_have_given(monkeypatch):
    """In batches of 5 the bound rises again and again: earlier acceptances must be tested again, or samples of the low bound stay in."""
    monkeypatch.setattr("eande.inference.samplers.rejection._SMALLEST_BATCH", 5)
    monkeypatch.setattr("eande.inference.samplers.rejection._LARGEST_BATCH", 5)
    posterior = exact_model(task := VonMisesFisher(8, seed=1)).posterior(observation(task))
    for seed in range(30):
        raised, info = posterior.sample(60, seed=seed, bound=-1.0)
        final, _ = posterior.sample(60, seed=seed, bound=info.log_bound)
        assert torch.equal(raised, final)


def test_a_fitted_model_matches_the_exact_posterior(task, fitted):
    test = simulate(task, task.prior, 50, seed=21)
    phi = task.prior.sample(10_000, seed=22)
    ours = torch.stack([posterior.score(phi) for posterior in fitted.posteriors(test.y)])
    assert l1_distance(ours, task.log_ratio(phi, test.y)).median() < 0.05


def box_model(names=("a", "b"), similarity=None):
    """A model on a box with a smooth, bimodal, known score: peaks at ±(1, 1) in a box of half-width 3."""

    def emulator(phi):
        bump = torch.exp(-((phi.abs() - 1) ** 2).sum(1) / 0.5) * torch.where(
            phi.prod(1) > 0, 1.0, 0.0
        )
        return torch.stack([bump, (1 - bump**2).clamp(min=0).sqrt()], 1)

    prior = BoxPrior([-3, -3], [3, 3], names=names)
    first = Function(lambda y: torch.stack([y[:, 0], 0 * y[:, 0]], 1))
    return EmbedAndEmulate(
        first,
        Function(emulator),
        similarity or Cosine(0.2),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )


def test_log_prob_integrates_to_one_on_a_box():
    posterior = box_model().posterior([1.0])
    assert re.fullmatch(
        r"Posterior\(of a, b; log C = \S+ ± \S+, carried by \d+ draws\)", repr(posterior)
    )
    edge = torch.linspace(-3, 3, 601)
    middle = (edge[1:] + edge[:-1]) / 2
    grid = torch.cartesian_prod(middle, middle)
    integral = (posterior.log_prob(grid).double().exp().sum() * 0.01**2).item()
    assert posterior.normalizer_error > 0
    assert abs(integral - 1) < 3 * posterior.normalizer_error
    # A normaliser wrong by ten errors must not pass.
    posterior.log_normalizer += 10 * posterior.normalizer_error
    assert (
        abs((posterior.log_prob(grid).double().exp().sum() * 0.01**2).item() - 1)
        > 3 * posterior.normalizer_error
    )


def test_the_reported_error_of_the_normaliser_is_its_spread():
    model = box_model()
    values, errors = [], []
    for repetition in range(200):
        prior = SamplerPrior(
            lambda n, seed, shift=repetition: model.prior.sample(n, seed=seed + shift)
        )
        posterior = model.posterior([1.0], prior=prior, draws=2_000)
        values.append(posterior.log_normalizer)
        errors.append(posterior.normalizer_error)
    assert np.std(values) == pytest.approx(np.mean(errors), rel=0.2)


def test_parameters_beyond_the_emulators_numbers_have_no_density():
    prior = DistributionPrior(Independent(Normal(torch.zeros(2), torch.ones(2)), 1))
    network = ResidualMLP(2, 4, width=8, blocks=1, normalization="layer")
    posterior = EmbedAndEmulate(
        Function(lambda y: y.repeat(1, 4)),
        network,
        Cosine(0.2),
        prior,
        y_shape=(1,),
        embedding_dimension=4,
    ).posterior([1.0])
    far = torch.tensor([[1e18, 0.0], [1e19, 1e19], [3e38, 0.0]])
    assert (posterior.log_prob(far) < -1e30).all()
    assert not posterior.log_ratio(far).isnan().any()


def test_log_prob_is_minus_infinity_outside_and_differentiable_inside():
    posterior = box_model().posterior([1.0])
    assert posterior.log_prob([[0.0, 5.0]]).item() == -math.inf
    phi = torch.tensor([[0.9, 1.2]], requires_grad=True)
    posterior.log_prob(phi).sum().backward()
    assert phi.grad is not None
    assert torch.isfinite(phi.grad).all()
    assert phi.grad.abs().sum() > 0


def test_the_maximum_and_the_modes_are_found():
    posterior = box_model().posterior([1.0])
    assert torch.allclose(posterior.map().abs(), torch.ones(2), atol=0.02)
    summary = posterior.summary(samples=4_000)
    assert len(summary.modes) == 2
    assert {tuple(mode.phi.sign().tolist()) for mode in summary.modes} == {(1.0, 1.0), (-1.0, -1.0)}
    assert summary.modes[0].weight == pytest.approx(0.5, abs=0.05)
    assert (summary.lower < summary.mean).all()
    assert (summary.mean < summary.upper).all()
    assert "mode at" in str(summary)
    assert "a " in str(summary)


def test_a_single_bump_is_one_mode():
    model = linear_gaussian_model()
    summary = model.posterior([0.3]).summary(samples=2_000)
    assert len(summary.modes) == 1
    assert summary.modes[0].weight == 1


def linear_gaussian_model(noise=0.5):
    """y = φ + noise, φ ~ N(0, 1): the score −(y − φ)²/2σ² as a free dot product, exactly."""
    f = Function(lambda y: torch.stack([y[:, 0] / noise**2, torch.ones_like(y[:, 0])], 1) * 2**0.5)
    g = Function(lambda phi: torch.stack([phi[:, 0], -(phi[:, 0] ** 2) / (2 * noise**2)], 1))
    prior = DistributionPrior(Independent(Normal(torch.zeros(1), torch.ones(1)), 1))
    return EmbedAndEmulate(f, g, Dot(2), prior, y_shape=(1,), embedding_dimension=2)


def gaussian_posterior(ys, noise=0.5, prior_mean=0.0, prior_std=1.0):
    precision = len(ys) / noise**2 + 1 / prior_std**2
    return (sum(ys) / noise**2 + prior_mean / prior_std**2) / precision, precision**-0.5


def test_pooled_observations_agree_with_the_exact_posterior():
    ys = [0.3, 0.5, 0.9, -0.2, 0.6]
    with pytest.warns(EandeWarning, match="5 observations"):
        posterior = linear_gaussian_model().posterior([[y] for y in ys], pooled=True)
    samples, _ = posterior.sample(20_000, seed=0)
    mean, std = gaussian_posterior(ys)
    assert stats.kstest(samples[:, 0].numpy(), stats.norm(mean, std).cdf).pvalue > ALPHA
    # One observation's normaliser times five is not the pooled one.
    single = linear_gaussian_model().posterior([ys[0]])
    assert abs(5 * single.log_normalizer - posterior.log_normalizer) > 0.1
    phi = torch.linspace(-2, 3, 200).unsqueeze(1)
    exact = torch.as_tensor(stats.norm(mean, std).logpdf(phi[:, 0].numpy()))
    assert torch.allclose(posterior.log_prob(phi).double(), exact, atol=0.1)


def test_five_pooled_observations_of_the_sphere_task(task):
    phi = task.prior.sample(1, seed=5)
    y = torch.as_tensor(task(phi.repeat(5, 1).numpy(), np.random.default_rng(0)))
    with pytest.warns(EandeWarning):
        posterior = exact_model(task).posterior(y, pooled=True)
    # The exact posterior of five: von Mises with κ‖Σf‖ around Σf.
    pooled = task.true_encoder(y.double()).sum(0)
    rng = np.random.default_rng(1)
    centre = torch.atan2(pooled[1], pooled[0]).item()
    exact = rng.vonmises(0, task.kappa * pooled.norm().item(), 20_000)
    for bound in ("estimated", "exact"):
        samples, _ = posterior.sample(20_000, seed=0, bound=bound)
        g = task.true_emulator(samples.double())
        ours = np.angle(np.exp(1j * (torch.atan2(g[:, 1], g[:, 0]).numpy() - centre)))
        assert stats.ks_2samp(ours, exact).pvalue > ALPHA


def test_another_prior_agrees_with_its_exact_posterior():
    other = Independent(Normal(torch.tensor([0.8]), torch.tensor([0.4])), 1)
    samples, _ = linear_gaussian_model().posterior([0.3], prior=other).sample(20_000, seed=0)
    mean, std = gaussian_posterior([0.3], prior_mean=0.8, prior_std=0.4)
    assert stats.kstest(samples[:, 0].numpy(), stats.norm(mean, std).cdf).pvalue > ALPHA


@pytest.mark.parametrize(
    "other",
    [
        BoxPrior([-3], [0]),
        DistributionPrior(Independent(Normal(torch.tensor([-0.3]), torch.tensor([0.1])), 1)),
    ],
    ids=["box", "normal"],
)
def test_another_prior_that_disagrees_with_the_data_is_sampled_all_the_same(other):
    """The score's peak lies where that prior has nothing, or next to nothing."""
    prior = BoxPrior([-3], [3])
    encoder = Function(
        lambda y: torch.cat([y, -0.5 * torch.ones_like(y)], dim=1) / 0.3**2 * math.sqrt(2)
    )
    model = EmbedAndEmulate(
        encoder,
        Function(lambda phi: torch.cat([phi, phi.square()], dim=1)),
        Dot(2),
        prior,
        y_shape=(1,),
        embedding_dimension=2,
    )
    samples, info = model.posterior([1.0], prior=other, draws=100_000).sample(5_000, seed=0)
    assert isinstance(info, SampleInfo)
    if isinstance(other, BoxPrior):
        exact = stats.truncnorm(-4 / 0.3, -1 / 0.3, loc=1.0, scale=0.3)
    else:
        precision = 1 / 0.1**2 + 1 / 0.3**2
        exact = stats.norm((-0.3 / 0.1**2 + 1 / 0.3**2) / precision, precision**-0.5)
    assert stats.kstest(samples[:, 0].numpy(), exact.cdf).pvalue > ALPHA


def test_where_rejection_needs_more_than_was_foretold_tempering_takes_over(monkeypatch):
    monkeypatch.setattr("eande.inference.posterior._TIMES_FORETOLD", 0.01)
    monkeypatch.setattr("eande.inference.posterior._LEAST_BUDGET", 1_000)
    samples, info = linear_gaussian_model(noise=0.1).posterior([0.3]).sample(5_000, seed=0)
    assert not isinstance(info, SampleInfo)
    mean, std = gaussian_posterior([0.3], noise=0.1)
    assert abs(samples.mean().item() - mean) < 0.2 * std
    with pytest.raises(BudgetExceeded):
        linear_gaussian_model(noise=0.1).posterior([0.3]).sample(
            5_000, seed=0, max_evaluations=2_000
        )


def test_a_prior_outside_the_training_support_is_refused_and_a_little_is_reported():
    model = box_model()
    with pytest.raises(
        InputError, match=r"expected at most 1% of its mass outside .* got 5\d\.\d%"
    ):
        model.posterior([1.0], prior=BoxPrior([0, -3], [6.6, 3]))
    with pytest.warns(EandeWarning, match="outside the training prior's support") as warned:
        posterior = model.posterior([1.0], prior=BoxPrior([-3, -3], [3.03, 3]))
    assert warned[0].filename == __file__  # where the user can do something about it
    assert posterior.log_prob([[3.02, 0.0]]).item() == -math.inf
    with pytest.raises(InputError, match="expected one of dimension 2, got dimension 3"):
        model.posterior([1.0], prior=BoxPrior([0, 0, 0], [1, 1, 1]))


def test_a_proposal_of_ones_own():
    """Algorithm 3 with any proposal: candidates near the posterior, weights corrected for it."""
    model = linear_gaussian_model(noise=0.1)
    posterior = model.posterior([0.3])
    proposal = MultivariateNormal(torch.tensor([0.3]), torch.eye(1) * 0.15**2)
    samples, info = posterior.sample(20_000, seed=0, proposal=proposal)
    _, plain = posterior.sample(1_000, seed=0)
    mean, std = gaussian_posterior([0.3], noise=0.1)
    assert stats.kstest(samples[:, 0].numpy(), stats.norm(mean, std).cdf).pvalue > ALPHA
    assert info.acceptance_rate > 3 * plain.acceptance_rate
    with pytest.raises(InputError, match="rigorous bound is for the prior"):
        posterior.sample(10, proposal=proposal, bound="exact")
    with pytest.raises(InputError, match="expected 'estimated' for the Dot similarity"):
        posterior.sample(10, bound="exact")
    with pytest.raises(InputError, match="expected 'estimated', 'exact' or a number, got 'loose'"):
        posterior.sample(10, bound="loose")


def test_the_budget_ends_sampling_with_what_was_found():
    posterior = linear_gaussian_model(noise=0.01).posterior([2.5])
    with pytest.raises(
        BudgetExceeded,
        match=r"expected 10000 samples within 20000 evaluations, got \d+ .*acceptance rate",
    ) as caught:
        posterior.sample(10_000, max_evaluations=20_000, sampler=acceptance_rejection)
    assert isinstance(caught.value.info, SampleInfo)
    assert caught.value.phi.shape[1] == 1
    assert caught.value.info.evaluations <= 20_000


def test_any_other_sampler_can_be_injected():
    posterior = box_model().posterior([1.0])
    phi, info = posterior.sample(
        7,
        seed=3,
        sampler=lambda p, n, *, seed, steps: (p.bank.phi[:n], {"seed": seed, "steps": steps}),
        steps=4,
    )
    assert phi.shape == (7, 2)
    assert info == {"seed": 3, "steps": 4}


def test_the_encoder_runs_once_per_observation_and_values_are_fast(task, fitted):
    rows = []
    hook = fitted.encoder.register_forward_hook(
        lambda _module, args, _out: rows.append(len(args[0]))
    )
    try:
        posterior = fitted.posterior(observation(task))
        phi = task.prior.sample(100_000, seed=0)
        began = time.perf_counter()
        posterior.log_ratio(phi)
        seconds = time.perf_counter() - began
        posterior.sample(1_000)
        posterior.summary(samples=1_000)
        posterior.map()
        assert rows == [1]
        fitted.posteriors(simulate(task, task.prior, 30, seed=0).y)
        assert rows == [1, 30]
    finally:
        hook.remove()
    assert seconds < 2


def test_evaluation_stays_within_its_chunks(fitted, task):
    posterior = fitted.posterior(observation(task))
    rows = []
    hook = fitted.emulator.register_forward_hook(
        lambda _module, args, _out: rows.append(len(args[0]))
    )
    try:
        posterior.log_ratio(task.prior.sample(50_000, seed=0))
    finally:
        hook.remove()
    assert max(rows) <= fitted.emulator_rows


def test_a_sample_only_prior_says_so_in_one_line(task):
    posterior = exact_model(task).posterior(observation(task))
    with pytest.raises(InputError, match="known by draws only; log_ratio gives"):
        posterior.log_prob(task.prior.sample(3, seed=0))
    assert posterior.summary(samples=500).modes == ()
    assert posterior.map().shape == (2,)


def test_the_bank_follows_the_weights(task, simulations):
    model = quick_fit(simulations[:500], task.prior, epochs=30)
    y = observation(task)
    before = model.posterior(y).log_normalizer
    with torch.no_grad():
        model.emulator.last.weight.add_(1.0)
    assert model.posterior(y).log_normalizer != before


def test_many_posteriors_equal_single_ones(task, fitted):
    ys = simulate(task, task.prior, 5, seed=0).y
    phi = task.prior.sample(100, seed=1)
    for y, together in zip(ys, fitted.posteriors(ys), strict=True):
        assert torch.allclose(
            together.log_ratio(phi), fitted.posterior(y).log_ratio(phi), atol=1e-5
        )
