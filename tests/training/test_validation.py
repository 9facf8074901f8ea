"""Validation: the best epoch is returned, and its score can be trusted."""

import numpy as np
import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.priors.box import BoxPrior
from eande.simulation.read.simulations import Simulations
from eande.simulation.simulate import simulate
from eande.training.fit import fit
from eande.training.prepare import split
from eande.training.settings import FitSettings
from helpers.linear_task import BOX, LINEAR_FIT, linear
from helpers.models import quick_fit


@pytest.mark.thorough
def test_weights_moved_by_a_fused_optimiser_are_validated_anew(linear_simulations):
    """Without an average the trained weights themselves are scored.

    A bank kept from an earlier epoch would flatter them.
    """
    model = quick_fit(
        linear_simulations, BOX, **LINEAR_FIT | {"ema": None, "validate_every": 1, "epochs": 10}
    )
    held_out = simulate(linear, BOX, 1_000, seed=9)
    fresh = np.mean(
        [
            p.log_ratio(phi.unsqueeze(0)).item()
            for phi, p in zip(held_out.phi, model.posteriors(held_out.y), strict=True)
        ]
    )
    assert model.history[-1]["held_out_log_ratio"] == pytest.approx(fresh, abs=0.15)


@pytest.mark.thorough
def test_the_best_epoch_is_returned_not_the_last():
    """Few data and many epochs over-fit.

    The returned model must score as the best record, not as the last.
    """
    simulations = simulate(linear, BOX, 150, seed=3)
    held_out = simulate(linear, BOX, 200, seed=4)
    options = {
        "epochs": 40,
        "temperature": 0.05,
        "ema": None,
        "learning_rate": 3e-3,
        "normalizer_draws": 10_000,
        "validate_every": 1,
    }
    model = quick_fit(simulations, BOX, validation=held_out, **options)
    scores = [record["held_out_log_ratio"] for record in model.history]
    assert max(scores) > scores[-1] + 0.05
    phi_score = np.mean(
        [
            model.posterior(y).log_ratio(phi.unsqueeze(0)).item()
            for phi, y in zip(held_out.phi, held_out.y, strict=True)
        ]
    )
    assert phi_score == pytest.approx(max(scores), abs=0.05)


def test_patience_stops_early():
    simulations = simulate(linear, BOX, 150, seed=3)
    model = quick_fit(
        simulations, BOX, epochs=400, temperature=0.05, ema=None, learning_rate=3e-3, patience=20
    )
    assert model.history[-1]["epoch"] < 400


def test_the_advice_to_an_over_fitted_model_is_no_longer_training():
    torch.manual_seed(0)
    simulations = Simulations.from_arrays(BOX.sample(200, seed=0), torch.randn(200, 400))
    settings = FitSettings(
        epochs=60, learning_rate=3e-3, validate_every=10, normalizer_draws=200, device="cpu"
    )
    with pytest.warns(
        EandeWarning, match=r"it over-fits, for that score fell to .* shape \(1, n\)"
    ):
        fit(simulations, BOX, encoder="vector", settings=settings, progress=False)


def test_parameters_to_validate_by_lie_in_the_prior_too(linear_simulations):
    wrong = Simulations.from_arrays(5 * linear_simulations.phi[:50], linear_simulations.y[:50])
    with pytest.raises(
        InputError, match="validation: expected every row inside the prior's support, got"
    ):
        fit(linear_simulations[:100], BOX, validation=wrong, progress=False)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_callback_sees_every_record(linear_simulations):
    records = []
    settings = FitSettings(
        epochs=4,
        validate_every=2,
        embedding_dimension=4,
        width=8,
        blocks=0,
        normalizer_draws=200,
        similarity=eande.Cosine(1.0),
        device="cpu",
    )
    model = fit(
        linear_simulations[:200], BOX, settings=settings, callback=records.append, progress=False
    )
    assert records == model.history
    assert [record["epoch"] for record in records] == [2, 4]
    assert {
        "loss",
        "held_out_log_ratio",
        "held_out_density",
        "held_out_median_density",
        "score",
        "cv_normalizer",
        "learning_rate",
    } <= records[0].keys()


def test_of_many_simulations_2000_are_held_out_by_default():
    phi = BOX.sample(30_000, seed=0)
    many = Simulations.from_arrays(phi, phi)
    assert [len(part) for part in split(many, None, 0)] == [28_000, 2_000]
    assert [len(part) for part in split(many[:1_000], None, 0)] == [900, 100]
    assert [len(part) for part in split(many, 0.1, 0)] == [27_000, 3_000]


def test_a_score_that_rests_on_a_few_draws_cannot_pass_for_a_good_one():
    """At τ = 0.002 a hundred draws miss the peak.

    The score must be looked at again, and the prior returned if nothing is left of it.
    """
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
    """The score has too few effective draws, so it is taken again.

    It is taken of the model as it infers, not as it trains.
    """
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


def test_patience_shorter_than_the_validation_interval(few_simulations):
    model = quick_fit(few_simulations, BOX, epochs=40, validate_every=10, patience=5)
    assert model.history[-1]["epoch"] % 10 == 0


def test_an_encoder_that_fails_outside_training_is_said(few_simulations):
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            return self.layer(x) + (0 if self.training else torch.nan)

    with pytest.raises(RuntimeError, match="no validation gave a finite held-out score"):
        quick_fit(few_simulations, BOX, encoder=Fickle(), epochs=2)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_handful_of_held_out_simulations_is_said(few_simulations):
    with pytest.warns(EandeWarning, match="only 2 simulations are held out"):
        quick_fit(few_simulations[:20], BOX, epochs=1, quiet=False)
    with pytest.warns(EandeWarning, match="only 1 simulation is held out"):
        quick_fit(few_simulations[:10], BOX, epochs=1, quiet=False)
