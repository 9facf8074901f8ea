"""Going on from a fitted model."""

import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import InputError
from eande.inference.loading import load
from eande.simulation.read.simulations import Simulations
from eande.training.build import build_model
from eande.training.fit import fit
from eande.training.settings import FitSettings
from helpers.linear_task import BOX, LINEAR_FIT, equal, weights
from helpers.models import quick_fit


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_warm_start_goes_on_from_a_model(linear_simulations):
    first = quick_fit(linear_simulations[:1_000], BOX, **LINEAR_FIT)
    settings = FitSettings(
        epochs=3,
        embedding_dimension=8,
        similarity=eande.Cosine(0.1),
        learning_rate=1e-4,
        normalizer_draws=1_000,
        device="cpu",
    )
    second = fit(linear_simulations, BOX, warm_start=first, settings=settings, progress=False)
    assert second.history[0]["held_out_log_ratio"] > 0.8 * first.history[-1]["held_out_log_ratio"]
    assert torch.equal(second.y_standardizer.mean, first.y_standardizer.mean)
    assert not equal(weights(second), weights(first))
    with pytest.raises(InputError, match="warm_start: expected data of shape"):
        fit(
            Simulations.from_arrays(linear_simulations.phi, linear_simulations.y[:, :1]),
            BOX,
            warm_start=first,
            settings=settings,
            progress=False,
        )
    with pytest.raises(InputError, match="warm_start: expected a model"):
        fit(linear_simulations, BOX, warm_start="model.eande", settings=settings, progress=False)
    with pytest.raises(InputError, match="warm_start: expected no encoder="):
        fit(
            linear_simulations,
            BOX,
            warm_start=first,
            encoder=nn.Linear(2, 8),
            settings=settings,
            progress=False,
        )


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_what_was_frozen_stays_so_in_a_warm_start(linear_simulations, tmp_path):
    encoder = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 8))
    encoder[0].requires_grad_(False)
    first = quick_fit(
        linear_simulations[:200], BOX, encoder=encoder, embedding_dimension=8, epochs=2
    )
    first.save(tmp_path / "m.eande")
    settings = FitSettings(
        epochs=2,
        embedding_dimension=8,
        similarity="cosine",
        learning_rate=0.1,
        normalizer_draws=200,
        device="cpu",
    )
    for start in (first, load(tmp_path / "m.eande", encoder=encoder)):
        second = fit(
            linear_simulations[:200], BOX, warm_start=start, settings=settings, progress=False
        )
        assert torch.equal(second.encoder[0].weight, encoder[0].weight)
        assert not torch.equal(second.encoder[2].weight, first.encoder[2].weight)


def test_a_warm_start_keeps_the_learned_temperature(few_simulations):
    first = quick_fit(few_simulations, BOX, epochs=60, temperature="learn", learning_rate=1e-2)
    assert abs(first.similarity.temperature - 0.05) > 0.003
    settings = eande.FitSettings(
        epochs=1,
        embedding_dimension=4,
        similarity="cosine",
        learning_rate=1e-9,
        normalizer_draws=200,
        device="cpu",
    )
    second = eande.fit(few_simulations, BOX, warm_start=first, settings=settings, progress=False)
    assert second.similarity.temperature == pytest.approx(first.similarity.temperature, rel=1e-4)


def test_without_settings_a_warm_start_goes_on_with_its_own_similarity(
    few_simulations, monkeypatch
):
    first = quick_fit(
        few_simulations, BOX, epochs=1, similarity=eande.Mixture(heads=3), embedding_dimension=4
    )
    made = []

    class EnoughSeenError(Exception):
        pass

    def watched(*arguments, **options):
        made.append(build_model(*arguments, **options))
        raise EnoughSeenError

    monkeypatch.setattr("eande.training.run.build_model", watched)
    with pytest.raises(EnoughSeenError):
        fit(few_simulations, BOX, warm_start=first, progress=False)
    assert made[0].similarity.heads == 3
    trained = dict(first.similarity.trained.named_parameters())
    assert equal(dict(made[0].similarity.named_parameters()), trained)
