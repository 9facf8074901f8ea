"""Priors known by their draws only."""

import pytest
import torch
from scipy import stats

from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.similarities.cosine import Cosine
from helpers.exact_posteriors import peaked
from helpers.models import Function


def test_an_empirical_prior_uses_every_draw_equally():
    draws = torch.arange(10.0).unsqueeze(1)
    values, counts = EmpiricalPrior(draws).sample(35, seed=0).unique(return_counts=True)
    assert len(values) == 10
    assert set(counts.tolist()) == {3, 4}


def test_samplers_get_seeds_that_scipy_takes():
    prior = SamplerPrior(lambda n, seed: stats.norm.rvs(size=(n, 2), random_state=seed))
    assert prior.sample(3, seed=2**62 + 5).shape == (3, 2)
    with pytest.raises(
        InputError, match="prior sampler: expected finite float32 numbers, got 2 NaN"
    ):
        SamplerPrior(
            lambda n, seed: torch.full((n, 1), float("nan")) if n > 2 or seed else torch.zeros(n, 1)
        ).sample(2, seed=1)
    with pytest.raises(InputError, match=r"contains: expected shape \(4,\), got \(4, 1\)"):
        SamplerPrior(lambda n, seed: torch.rand(n, 1), contains=lambda phi: phi > 0).contains(
            torch.zeros(4, 1)
        )


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
