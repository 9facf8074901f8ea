"""The bridge to sbi, against the real package.

Its samplers and diagnostics work on our potential, its scripts with one line changed.
"""

import math

import pytest
import torch
from sbi.diagnostics import run_sbc, run_tarp
from sbi.inference import MCMCPosterior
from sbi.utils import BoxUniform, get_density_thresholder

import eande
from eande.bridges.sbi import EE, ExactPosterior, Potential, as_distribution, as_posterior
from eande.similarities.calibrated import Calibrated
from eande.similarities.dot import Dot
from helpers.models import Function

pytestmark = pytest.mark.filterwarnings("ignore")  # of sbi and what it uses
SIGMA = 0.2
OBSERVED = torch.tensor([0.3, -0.4])


class Counting(torch.nn.Module):
    """An encoder that counts the data it sees."""

    def __init__(self):
        super().__init__()
        self.rows = 0

    def forward(self, y):
        self.rows += len(y)
        return torch.cat([y, -0.5 * torch.ones(len(y), 1)], dim=1) / SIGMA**2 * math.sqrt(3)


@pytest.fixture
def model():
    """The exact ratio of y = φ + noise in a box."""
    prior = eande.BoxPrior([-1, -1], [1, 1], names=["a", "b"])
    emulator = Function(lambda phi: torch.cat([phi, phi.square().sum(1, keepdim=True)], dim=1))
    made = eande.EmbedAndEmulate(
        Counting(), emulator, Dot(3), prior, y_shape=(2,), embedding_dimension=3
    )
    made.encoder.rows = 0
    return made


def test_sbis_mcmc_runs_the_encoder_once(model):
    torch.manual_seed(0)
    potential = Potential(model)
    posterior = MCMCPosterior(
        potential, proposal=potential.prior, num_chains=20, warmup_steps=20, thin=2
    )
    samples = posterior.sample((1_000,), x=OBSERVED, show_progress_bars=False)
    assert model.encoder.rows == 1
    assert torch.allclose(samples.mean(0), OBSERVED, atol=0.05)
    assert torch.allclose(samples.std(0), torch.full((2,), SIGMA), atol=0.04)


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("exact", {}),
        ("rejection", {}),
        ("importance", {"method": "sir"}),
        ("mcmc", {"num_chains": 20, "warmup_steps": 20, "thin": 1}),
    ],
)
def test_every_sampler_gives_the_posterior(model, sampler, options):
    torch.manual_seed(0)
    posterior = as_posterior(model, sample_with=sampler, **options)
    samples = posterior.sample((800,), x=OBSERVED, show_progress_bars=False)
    assert samples.shape == (800, 2)
    assert model.encoder.rows == 1
    assert torch.allclose(samples.mean(0), OBSERVED, atol=0.06)
    assert torch.allclose(samples.std(0), torch.full((2,), SIGMA), atol=0.05)


@pytest.mark.slow
def test_variational_posteriors_train_on_the_potential(model):
    torch.manual_seed(0)
    posterior = as_posterior(model, sample_with="vi").set_default_x(OBSERVED)
    posterior.train(
        max_num_iters=200,
        check_for_convergence=False,
        quality_control=False,
        show_progress_bar=False,
    )
    assert torch.allclose(
        posterior.sample((500,), show_progress_bars=False).mean(0), OBSERVED, atol=0.15
    )
    assert model.encoder.rows == 1


def test_the_density_is_normalised_and_differentiable(model):
    posterior = as_posterior(model).set_default_x(OBSERVED)
    side = (torch.arange(200) + 0.5) / 100 - 1
    assert posterior.log_prob(
        torch.cartesian_prod(side, side)
    ).exp().mean().item() * 4 == pytest.approx(1, abs=0.05)
    theta = torch.zeros(3, 2, requires_grad=True)
    posterior.log_prob(theta, track_gradients=True).sum().backward()
    assert torch.allclose(theta.grad, (OBSERVED / SIGMA**2).expand(3, 2), rtol=1e-3)
    assert posterior.log_prob(torch.tensor([[2.0, 0.0]])).item() == -math.inf


def test_observations_set_together_are_pooled(model):
    together = torch.tensor([[0.3, -0.4], [0.1, -0.2], [0.2, 0.0]])
    potential = Potential(model)
    with pytest.warns(eande.EandeWarning, match="pooling 3"):
        potential.set_x(together)
    exact = model.posterior(together, pooled=True)
    theta = torch.rand(50, 2) * 2 - 1
    assert torch.allclose(potential(theta), exact.log_prob(theta), atol=1e-4)
    rows = model.encoder.rows
    potential.set_x(together)
    assert model.encoder.rows == rows


def test_batched_chains_embed_each_observation_once(model):
    observed = torch.rand(4, 2) - 0.5
    posterior = as_posterior(model, sample_with="mcmc", num_chains=5, warmup_steps=10, thin=1)
    samples = posterior.sample_batched((20,), observed, show_progress_bars=False)
    assert samples.shape == (20, 4, 2)
    # sbi looks for the chains' starts one observation at a time, then samples all of them: twice,
    # and not once per chain and step.
    assert model.encoder.rows <= 2 * len(observed)
    assert (samples.mean(0) - observed).abs().max() < 0.3


def test_separate_observations_need_as_many_rows(model):
    potential = Potential(model)
    potential.set_x(torch.zeros(3, 2), x_is_iid=False)
    with pytest.raises(eande.InputError, match="theta: expected one row per observation, 3, got 2"):
        potential(torch.zeros(2, 2))


@pytest.mark.slow
def test_sbis_own_diagnostics_pass_the_exact_posterior(model):
    torch.manual_seed(1)
    prior = BoxUniform(-torch.ones(2), torch.ones(2))
    theta = prior.sample((60,))
    x = theta + SIGMA * torch.randn(60, 2)
    posterior = as_posterior(model)
    ranks, _ = run_sbc(theta, x, posterior, num_posterior_samples=50, show_progress_bar=False)
    assert (ranks.float().mean(0) / 50 - 0.5).abs().max() < 0.12
    coverage, levels = run_tarp(
        theta, x, posterior, num_posterior_samples=50, show_progress_bar=False
    )
    assert (coverage - levels).abs().max() < 0.25


@pytest.mark.thorough
def test_a_script_of_sbi_changes_one_line():
    torch.manual_seed(0)
    prior = BoxUniform(-torch.ones(2), torch.ones(2))
    theta = prior.sample((2_000,))
    x = theta + SIGMA * torch.randn(2_000, 2)
    settings = eande.FitSettings(embedding_dimension=16, width=32, blocks=1, seed=0)
    trainer = EE(prior, settings=settings, show_progress_bars=False)  # the line
    trainer.append_simulations(theta[:1_000], x[:1_000]).append_simulations(
        theta[1_000:], x[1_000:]
    )
    model = trainer.train(
        max_num_epochs=20,
        training_batch_size=200,
        learning_rate=2e-3,
        stop_after_epochs=20,
        clip_max_norm=5.0,
    )
    assert len(model.history) > 0
    posterior = trainer.build_posterior()
    assert isinstance(posterior, ExactPosterior)
    samples = posterior.sample((500,), x=OBSERVED)
    assert (samples.mean(0) - OBSERVED).abs().max() < 0.2
    assert posterior.log_prob(samples, x=OBSERVED).shape == (500,)
    assert "acceptance-rejection" in str(posterior)
    first = posterior.sample((3,), x=OBSERVED)
    assert not torch.equal(first, posterior.sample((3,), x=OBSERVED))


@pytest.mark.thorough
def test_sbis_early_stopping_is_ours():
    torch.manual_seed(0)
    noise = torch.rand(300, 2)  # says nothing: the first validation is the best
    trainer = EE(
        BoxUniform(torch.zeros(2), torch.ones(2)),
        settings=eande.FitSettings(device="cpu", epochs=100, validate_every=1),
        show_progress_bars=False,
    )
    with pytest.warns(eande.EandeWarning, match="no better than the prior"):
        model = trainer.append_simulations(torch.rand(300, 2), noise).train(
            max_num_epochs=200, stop_after_epochs=5
        )
    assert len(model.history) < 100


def test_wrong_use_of_the_trainer_is_told():
    trainer = EE(BoxUniform(torch.zeros(2), torch.ones(2)))
    trainer.append_simulations(torch.rand(30, 2), torch.rand(30, 2))
    with pytest.raises(eande.InputError, match="stop_after_epochs: expected max_num_epochs"):
        trainer.train(stop_after_epochs=5)
    with pytest.raises(eande.InputError, match="settings: expected FitSettings"):
        EE(settings="a")
    assert EE().device == "cpu"
    assert EE(settings=eande.FitSettings(device="cuda")).device == "cuda"
    assert EE(settings=eande.FitSettings(device="cuda"), device="cpu").device == "cpu"
    trainer = EE(BoxUniform(-torch.ones(2), torch.ones(2)))
    with pytest.raises(
        eande.InputError, match=r"train: expected simulations, got none; call append_simulations"
    ):
        trainer.train()
    with pytest.raises(
        eande.InputError, match=r"build_posterior: expected a trained model, got none"
    ):
        trainer.build_posterior()
    with pytest.raises(eande.InputError, match=r"sample_with: expected one of .* got 'nuts'"):
        trainer.build_posterior(sample_with="nuts")
    with pytest.raises(eande.InputError, match="proposal: expected None"):
        trainer.append_simulations(torch.zeros(3, 2), torch.zeros(3, 2), proposal=object())
    with pytest.raises(
        eande.InputError,
        match="prior: expected a box, a product or a torch Distribution for sbi's samplers, got a "
        "EmpiricalPrior",
    ):
        as_distribution(eande.EmpiricalPrior(torch.zeros(5, 2)), torch.device("cpu"))


def test_a_product_of_mixed_kinds_is_a_distribution_for_sbi():
    prior = eande.ProductPrior(
        rate=torch.distributions.LogNormal(1.1, 0.5),
        shift=torch.distributions.Normal(0.0, 2.0),
        share=(0, 1),
    )
    law = as_distribution(prior, torch.device("cpu"))
    phi = prior.sample(100, seed=0)
    assert torch.allclose(law.log_prob(phi), prior.log_prob(phi))
    back = eande.DistributionPrior(law)
    assert back.half_lines().tolist() == [0, -torch.inf, -torch.inf]
    points = torch.tensor([[1.0, 1.0, 0.5], [1.0, 1.0, 1.5], [-1.0, 1.0, 0.5]])
    assert back.contains(points).tolist() == [True, False, False]


def test_what_sbi_scripts_say_is_understood_or_refused_by_name(model):
    trainer = EE(model.prior, show_progress_bars=False)
    theta = torch.zeros(20, 2)
    x = torch.zeros(20, 2)
    trainer.append_simulations(theta, x, proposal=None, exclude_invalid_x=False)
    for wrong, message in (
        (
            lambda: trainer.append_simulations(theta, x[:10]),
            r"x: expected one row per row of theta, 20, got shape \(10, 2\)",
        ),
        (
            lambda: trainer.append_simulations(theta, x, propsal=model.prior),
            "append_simulations: expected no option 'propsal'",
        ),
        (
            lambda: trainer.append_simulations(theta, x, from_round=1),
            "proposal: expected that of the round before, or one that cuts it off, got none",
        ),
        (lambda: trainer.train(num_clases=3), "train: expected no option 'num_clases'"),
        (lambda: trainer.train(resume_training=True), "resume_training: expected False, got True"),
        (
            lambda: trainer.build_posterior(model, BoxUniform(-torch.ones(2), torch.ones(2))),
            "prior: expected None or the prior trained under",
        ),
        (
            lambda: trainer.build_posterior(model, mcmc_metod="x"),
            "sample_with='exact': expected no option 'mcmc_metod'",
        ),
    ):
        with pytest.raises(eande.InputError, match=message):
            wrong()
    exact = trainer.build_posterior(
        model, model.prior, mcmc_method="slice_np", mcmc_parameters={"num_chains": 3}
    )
    assert exact.sample((5,), x=torch.zeros(2), max_sampling_batch_size=10).shape == (5, 2)
    assert exact.sample_batched((5,), torch.zeros(3, 2), max_sampling_batch_size=10).shape == (
        5,
        3,
        2,
    )
    chains = trainer.build_posterior(
        model, sample_with="mcmc", mcmc_method="slice_np", mcmc_parameters={"num_chains": 3}
    )
    assert chains.method == "slice_np"
    assert chains.num_chains == 3


def test_a_trainer_without_a_prior_samples_but_has_no_density():
    torch.manual_seed(0)
    theta = torch.rand(300, 2)
    trainer = EE(settings=eande.FitSettings(epochs=1, device="cpu"), show_progress_bars=False)
    trainer.append_simulations(theta, theta + 0.1 * torch.randn(300, 2)).train()
    posterior = trainer.build_posterior()
    assert posterior.sample((10,), x=theta[0]).shape == (10, 2)
    with pytest.raises(eande.InputError, match="density"):
        posterior.log_prob(theta[:3], x=theta[0])
    with pytest.raises(eande.InputError, match="use sample_with='exact'"):
        trainer.build_posterior(sample_with="mcmc")


def test_the_potential_is_minus_infinity_outside_the_support(model):
    model.prior = eande.DistributionPrior(
        torch.distributions.Independent(
            torch.distributions.Uniform(-torch.ones(2), torch.ones(2)), 1
        )
    )
    values = as_posterior(model).log_prob(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), x=OBSERVED)
    assert values[0] == -math.inf
    assert values[1].isfinite()


def test_a_calibrated_model_has_a_potential_of_its_own(model):
    potential = Potential(model, OBSERVED)
    before = potential(torch.zeros(1, 2))
    calibrated = model.with_similarity(Calibrated(model.similarity, 0.5))
    theta = torch.linspace(-0.5, 0.5, 6).view(3, 2)
    other = Potential(calibrated, OBSERVED)
    expected = calibrated.posterior(OBSERVED).log_prob(theta)
    torch.testing.assert_close(other(theta), expected)
    assert not torch.allclose(other(torch.zeros(1, 2)), before)
    potential.set_x(OBSERVED)
    assert torch.equal(potential(torch.zeros(1, 2)), before)
    # Of separate observations, too.
    observed = torch.stack([OBSERVED, OBSERVED + 0.1, OBSERVED])
    other.set_x(observed, x_is_iid=False)
    each = calibrated.posteriors(observed)
    rows = [one.log_prob(phi.unsqueeze(0)) for one, phi in zip(each, theta, strict=True)]
    torch.testing.assert_close(other(theta), torch.cat(rows))


def test_torch_distributions_accept_no_rows():
    """BoxUniform's support cannot be asked about zero rows."""
    prior = eande.DistributionPrior(BoxUniform(-torch.ones(2), torch.ones(2)))
    assert prior.contains(torch.zeros(0, 2)).shape == (0,)


def simulate_in_noise(theta):
    generator = torch.Generator().manual_seed(len(theta))
    return theta + SIGMA * torch.randn(theta.shape, generator=generator)


def test_an_sbi_script_in_truncated_rounds():
    """With sbi's own threshold of a density; the last model has all simulations inside."""
    prior = BoxUniform(-3 * torch.ones(2), 3 * torch.ones(2))
    settings = eande.FitSettings(epochs=15, start="linear", width=32, device="cpu")
    trainer = EE(prior, settings=settings, show_progress_bars=False)
    proposal = prior
    for seed in range(2):
        first = proposal is prior
        theta = prior.sample((500,)) if first else proposal.sample(500, seed=seed)
        trainer.append_simulations(theta, simulate_in_noise(theta), proposal=proposal)
        model = trainer.train()
        posterior = trainer.build_posterior().set_default_x(OBSERVED)
        inside = get_density_thresholder(posterior, num_samples_to_estimate_support=20_000)
        before, proposal = (
            proposal,
            eande.TruncatedPrior(trainer.prior if proposal is prior else proposal, inside),
        )
    assert isinstance(model.prior, eande.TruncatedPrior)
    assert model.prior is before
    assert -5 < model.prior.log_mass < -1.5
    samples = posterior.sample((5_000,), show_progress_bars=False)
    assert torch.allclose(samples.mean(0), OBSERVED, atol=0.06)
    assert torch.allclose(samples.std(0), torch.full((2,), SIGMA), atol=0.05)


def left_of(edge):
    return lambda phi: phi[:, 0] < edge


def test_proposals_of_which_it_cannot_be_right_are_refused():
    prior = eande.BoxPrior([-1, -1], [1, 1])
    wide = eande.TruncatedPrior(prior, left_of(0.5))
    theta = wide.sample(30, seed=0)
    trainer = EE(prior, show_progress_bars=False)
    trainer.append_simulations(theta, theta, proposal=wide)
    for proposal, message in (
        (prior, "one that cuts it off, got the prior"),
        (eande.TruncatedPrior(prior, left_of(0.2)), "got one that lies elsewhere"),
        (eande.TruncatedPrior(eande.BoxPrior([-2, -1], [1, 1]), left_of(0.2)), "elsewhere"),
        (BoxUniform(-torch.ones(2), torch.ones(2)), "what it leaves out must be known"),
    ):
        with pytest.raises(eande.InputError, match=message):
            trainer.append_simulations(theta[:1], theta[:1], proposal=proposal)
    narrow = eande.TruncatedPrior(wide, left_of(-0.5))
    with pytest.raises(eande.InputError, match="theta: expected draws of the proposal, got 30"):
        trainer.append_simulations(theta + 0.6, theta, proposal=narrow)
    inside = narrow.sample(5, seed=0)
    trainer.append_simulations(inside, inside, proposal=narrow)
