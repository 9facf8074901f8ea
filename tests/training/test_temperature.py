"""A learned temperature."""

import pytest

from eande.priors.box import BoxPrior
from eande.simulation.simulate import simulate
from helpers.models import quick_fit

pytestmark = pytest.mark.thorough


def test_a_learned_temperature_finds_a_sharp_posterior():
    """Noise of 1 % of the prior's width.

    At a fixed τ of 0.05 the posterior stays several times too wide.
    """
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
