"""Fitted models: the posterior they learn, and what must not change it."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.inference.normalizer import estimate_normalizer
from eande.priors.box import BoxPrior
from eande.similarities.calibrated import Calibrated
from eande.simulation.read.simulations import Simulations
from eande.simulation.simulate import simulate
from eande.training.batches import Batches
from eande.training.validation import held_out_score
from helpers.linear_task import BOX, LINEAR_FIT, average_variation, linear
from helpers.models import exact_model, quick_fit


@pytest.fixture(scope="module")
def linear_model(linear_simulations):
    return quick_fit(linear_simulations, BOX, **LINEAR_FIT)


def test_a_posterior_is_learned(linear_model):
    assert average_variation(linear_model) < 0.12


def test_data_without_information_give_the_prior(linear_simulations):
    noise = Simulations.from_arrays(
        linear_simulations.phi, torch.randn(4_000, 3, generator=torch.Generator().manual_seed(0))
    )
    with pytest.warns(EandeWarning, match="no better than the prior"):
        model = quick_fit(noise, BOX, epochs=5, quiet=False)
    posterior = model.posterior([0.1, 0.2, 0.3])
    assert posterior.log_ratio(BOX.sample(100, seed=0)).abs().max() < 0.05
    samples, info = posterior.sample(1_000)
    assert info.acceptance_rate > 0.95
    assert samples.mean(0).abs().max() < 0.1


@pytest.mark.thorough
def test_rescaling_a_parameter_rescales_the_posterior_and_no_more(linear_simulations, linear_model):
    factor = torch.tensor([1e6, 1.0])
    scaled = Simulations.from_arrays(linear_simulations.phi * factor, linear_simulations.y)
    model = quick_fit(scaled, BoxPrior([-1e6, -1], [1e6, 1]), **LINEAR_FIT)
    phi = BOX.sample(200, seed=1)
    y = torch.tensor([0.2, -0.4])
    assert torch.allclose(
        model.posterior(y).log_ratio(phi * factor),
        linear_model.posterior(y).log_ratio(phi),
        atol=0.05,
    )


@pytest.mark.thorough
def test_permuting_parameters_permutes_the_posterior(linear_simulations):
    order = [1, 0]
    permuted = Simulations.from_arrays(
        linear_simulations.phi[:, order], linear_simulations.y[:, order]
    )
    model = quick_fit(permuted, BoxPrior([-1, -1], [1, 1], names=["b", "a"]), **LINEAR_FIT)
    assert average_variation(model, order=order) < 0.12


def test_emulation_is_the_same_alone_batched_or_shuffled(linear_simulations):
    model = quick_fit(linear_simulations[:500], BOX, epochs=3, normalization="batch")
    phi = BOX.sample(64, seed=0)
    together = model.emulate(phi)
    alone = torch.cat([model.emulate(row.unsqueeze(0)) for row in phi])
    order = torch.randperm(64)
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(model.emulate(phi[order]), together[order], atol=1e-6)


@pytest.mark.thorough
def test_replicates_give_the_same_posterior_and_never_leak():
    """Every φ simulated four times.

    Same posterior as without, and no φ on both sides of the split.
    """
    base = BOX.sample(1_000, seed=0).repeat_interleave(4, 0)
    groups = torch.arange(1_000).repeat_interleave(4)
    shuffle = torch.randperm(4_000, generator=torch.Generator().manual_seed(1))
    phi = base[shuffle]
    groups = groups[shuffle]
    replicates = Simulations.from_arrays(
        phi, linear(phi.numpy(), np.random.default_rng(0)), groups=groups
    )
    train, held_out = replicates.split(0.1, seed=0)
    assert not set(train.groups.tolist()) & set(held_out.groups.tolist())
    assert len(held_out) == 400
    batches = Batches(train, None, batch_size=300, steps_per_epoch=None, two_views=False, seed=0)
    seen = [group for batch in batches.epoch(0) for group in batch.groups.tolist()]
    assert len(seen) == len(set(seen)) == 900
    model = quick_fit(replicates, BOX, **LINEAR_FIT | {"epochs": 100, "validate_every": 10})
    assert average_variation(model) < 0.15
    with pytest.raises(
        InputError, match="expected equal phi within a group, got another phi in row"
    ):
        Simulations.from_arrays(BOX.sample(4, seed=0), torch.zeros(4, 1), groups=[0, 0, 1, 1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"similarity": "dot", "temperature": "learn"},
        {"temperature": "learn"},
        {"loss": "phi_y"},
        {"normalization": "layer"},
    ],
)
def test_other_choices_learn_too(linear_simulations, options):
    model = quick_fit(linear_simulations, BOX, **LINEAR_FIT | options)
    assert average_variation(model) < 0.15


@pytest.mark.thorough
def test_without_a_prior_the_simulations_own_parameters_serve(linear_simulations):
    model = quick_fit(linear_simulations, None, **LINEAR_FIT)
    assert average_variation(model) < 0.15
    with pytest.raises(InputError, match="known by draws only"):
        model.posterior([0.1, 0.2]).log_prob([[0.1, 0.2]])


def test_a_diverging_loss_is_said(linear_simulations):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            return self.layer(x) / (x[:, :1] * 0 if self.training else 1)

    with pytest.raises(RuntimeError, match="training diverged: the loss became nan in epoch 1"):
        quick_fit(linear_simulations[:200], BOX, encoder=Broken(), epochs=2)


def test_the_exact_model_scores_its_information(task):
    """The held-out score of the truth is the mutual information, the highest a model can reach."""
    model = exact_model(task)
    data = simulate(task, task.prior, 4_000, seed=1)
    embedded = model.embed(data.y)
    normalizer = estimate_normalizer(
        model.similarity, embedded, model.prior_bank(task.prior, 10_000)
    )
    score = held_out_score(model.similarity, embedded, model.emulate(data.phi), normalizer)
    assert abs(score.log_ratio - task.information()) < 4 * score.error
    assert score.cv_normalizer < 0.03


@pytest.mark.slow
def test_ranks_of_the_truth_are_uniform():
    """Simulation-based calibration of a well-fitted model.

    400 data, 99 samples each, χ² test on ten bins at 1e-3; a model 1.5 × too sharp fails.
    """
    prior = BoxPrior([-1, -1], [1, 1])

    def noisy(phi, rng):
        return phi + 0.3 * rng.standard_normal(phi.shape)

    simulations = simulate(noisy, prior, 50_000, seed=0, block_size=10_000)
    model = quick_fit(
        simulations,
        prior,
        epochs=20,
        embedding_dimension=16,
        similarity=eande.Cosine(0.1),
        width=128,
        blocks=2,
        validation=0.05,
        normalizer_draws=10_000,
        validate_every=5,
    )
    fresh = simulate(noisy, prior, 400, seed=1)

    def p_value(exponent):
        sharpened = model.with_similarity(Calibrated(model.similarity, exponent))
        ranks = []
        for i, posterior in enumerate(sharpened.posteriors(fresh.y)):
            samples, _ = posterior.sample(99, seed=i)
            ranks.append((samples < fresh.phi[i]).sum(0))
        counts = torch.stack(ranks)
        return min(
            stats.chisquare(np.bincount(counts[:, k].numpy() // 10, minlength=10)).pvalue
            for k in range(2)
        )

    assert p_value(1.0) > 1e-3
    assert p_value(1.5) < 1e-3
