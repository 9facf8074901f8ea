"""Standardising data: heavy tails, fields, numbers too large for their spread."""

import math

import numpy as np
import pytest
import torch

from conftest import quick_fit
from eande.foundations.checks import EandeWarning
from eande.inference.loading import load
from eande.priors.box import BoxPrior
from eande.simulation.read.simulations import Simulations
from eande.simulation.simulate import simulate
from eande.training.fit import fit
from eande.training.settings import FitSettings
from eande.training.standardize import standardize_y
from helpers.linear_task import BOX


@pytest.mark.thorough
def test_heavy_tails_do_not_drown_the_data(tmp_path):
    """Two Cauchy numbers around φ, where a standard deviation is that of the largest of all.

    Their information is known by a grid.
    """
    box = BoxPrior([-1], [1])
    grid = torch.linspace(-0.999, 0.999, 1_000, dtype=torch.float64)

    def cauchy(phi, rng):
        return np.concatenate(
            [phi + 0.1 * rng.standard_cauchy((len(phi), 2)), rng.standard_normal((len(phi), 1))],
            axis=1,
        )

    settings = FitSettings(
        epochs=60, batch_size=200, embedding_dimension=8, width=64, validate_every=20, device="cpu"
    )
    model = fit(
        simulate(cauchy, box, 4_000, seed=0, progress=False), box, settings=settings, progress=False
    )
    limit = model.y_standardizer.limit
    assert limit.isfinite().tolist() == [True, True, False]
    assert model.y_standardizer.scale.max() < 2
    test = simulate(cauchy, box, 1_000, seed=1, progress=False)

    def log_likelihood(phi):
        return -(1 + ((test.y[:, :2].double() - phi.unsqueeze(-1)) / 0.1) ** 2).log().sum(-1)

    evidence = torch.stack([log_likelihood(point.expand(1_000)) for point in grid]).logsumexp(
        0
    ) - math.log(1_000)
    exact = (log_likelihood(test.phi[:, 0].double()) - evidence).mean().item()
    posteriors = model.posteriors(test.y)
    reached = np.mean(
        [
            one.log_ratio(phi.unsqueeze(0)).item()
            for one, phi in zip(posteriors, test.phi, strict=True)
        ]
    )
    assert reached > 0.85 * exact
    model.save(tmp_path / "m.eande")
    assert torch.equal(load(tmp_path / "m.eande").y_standardizer.limit, limit)


def test_fields_are_not_taken_for_heavy_tails():
    """A few large numbers among many small ones may be another quantity, as in Lorenz 96, or what
    the field is about.
    """
    y = 0.01 * torch.randn(200, 2, 20, generator=torch.Generator().manual_seed(0))
    y[:, :, 3] *= 1_000
    for per_channel in (True, False):
        standardizer = standardize_y(
            Simulations.from_arrays(BOX.sample(200, seed=0), y), None, per_channel=per_channel
        )
        assert standardizer.limit is None
        assert standardizer.scale.max().item() == pytest.approx(y.std().item(), rel=0.2)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_numbers_too_large_for_their_spread_are_said(few_simulations):
    far = Simulations.from_arrays(few_simulations.phi, few_simulations.y + 1e7)
    with pytest.warns(
        EandeWarning, match="y: 2 entries vary by less than a hundred-thousandth of their size"
    ):
        quick_fit(far, BOX, epochs=1, quiet=False)
