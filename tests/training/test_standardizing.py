"""Standardising data: heavy tails, fields, numbers too large for their spread."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Gamma, Independent, LogNormal, Normal, Pareto

from eande.foundations.checks import EandeWarning
from eande.inference.loading import load
from eande.priors.box import BoxPrior
from eande.priors.convert import as_prior
from eande.priors.draws import EmpiricalPrior
from eande.simulation.read.simulations import Simulations
from eande.simulation.simulate import simulate
from eande.training.fit import fit
from eande.training.settings import FitSettings
from eande.training.standardize import Standardized, standardize_phi, standardize_y
from helpers.linear_task import BOX
from helpers.models import quick_fit


def of_data(y, together=None, *, natural=True):
    phi = BOX.sample(len(y), seed=0)
    simulations = Simulations(phi, y, torch.arange(len(y)))
    if together is None:
        together = Standardized.ENTRIES if y.ndim == 2 else Standardized.CHANNELS
    return standardize_y(simulations, None, together, natural=natural)


def of_parameters(phi, prior=None, *, natural=True):
    prior = EmpiricalPrior(phi) if prior is None else as_prior(prior)
    simulations = Simulations.from_arrays(phi, torch.zeros(len(phi), 1))
    return standardize_phi(simulations, prior, natural=natural)


@pytest.mark.slow
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
    for together in (Standardized.CHANNELS, Standardized.ONE_CHANNEL, Standardized.WHOLE):
        standardizer = of_data(y, together)
        assert standardizer.limit is None
        assert standardizer.scale.max().item() == pytest.approx(y.std().item(), rel=0.2)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_numbers_too_large_for_their_spread_are_said(few_simulations):
    far = Simulations.from_arrays(few_simulations.phi, few_simulations.y + 1e7)
    with pytest.warns(
        EandeWarning, match="y: 2 entries vary by less than a hundred-thousandth of their size"
    ):
        quick_fit(far, BOX, epochs=1, quiet=False)


def test_data_that_span_decades_go_through_their_logarithm_and_others_do_not():
    stream = torch.Generator().manual_seed(0)
    normal = torch.randn(2_000, 8, generator=stream)
    counts = torch.poisson((2 * normal[:, 0]).exp(), generator=stream)
    y = torch.stack(
        [
            (2 * normal[:, 1]).exp(),
            -(2 * normal[:, 2]).exp(),
            counts,
            normal[:, 3],
            normal[:, 4] + 100,
            normal[:, 5].sigmoid(),
            (normal[:, 6] > 2).float(),
            normal[:, 7].square() + 1_000,
        ],
        dim=1,
    )
    made = of_data(y)
    assert made.limit.isfinite().tolist() == [True] * 3 + [False] * 5
    assert (counts == 0).sum() > 100
    z = made(y)
    torch.testing.assert_close(z.mean(0), torch.zeros(8), atol=1e-3, rtol=0)
    torch.testing.assert_close(z.std(0), torch.ones(8), atol=1e-3, rtol=0)
    # All but the smallest hundredth are logarithms, exactly.
    logs = y[:, 0].log()
    kept = logs > logs.quantile(0.011)
    slope = z[kept, 0].diff() / logs[kept].diff()
    torch.testing.assert_close(slope, slope[:1].expand_as(slope), rtol=0.05, atol=0)
    # Data that were far apart stay apart.
    assert len(z[:, 2].unique()) == len(counts.unique())


def test_ordinary_data_are_shifted_and_scaled_and_nothing_else():
    y = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)).exp().log1p()
    on, off = of_data(y), of_data(y, natural=False)
    assert on.limit is None
    assert torch.equal(on.mean, off.mean)
    assert torch.equal(on.scale, off.scale)


def test_without_natural_coordinates_decades_and_tails_stay():
    y = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)) * 3
    y[:, 0] = y[:, 0].exp()
    y[:, 1] = y[:, 1].sinh()
    assert of_data(y).limit.isfinite().all()
    assert of_data(y, natural=False).limit is None


def test_a_channel_of_one_sign_has_one_logarithm():
    """Populations in one channel, temperatures in another; a user's encoder gets them as ever."""
    stream = torch.Generator().manual_seed(0)
    y = 2 * torch.randn(300, 2, 40, generator=stream)
    y[:, 0] = y[:, 0].exp()
    made = of_data(y)
    assert made.limit.flatten().tolist() == [1.0, math.inf]
    assert made.limit.shape == made.mean.shape == (2, 1)
    torch.testing.assert_close(made(y).std((0, 2)), torch.ones(2), atol=1e-2, rtol=0)
    assert of_data(y, Standardized.WHOLE).limit is None


HALF_LINE = Independent(LogNormal(torch.tensor([13.8, -13.8]), torch.ones(2)), 1)
PRIORS = {
    "log-normal": (HALF_LINE, [True, True]),
    "gamma": (Independent(Gamma(torch.tensor([0.1, 3.0]), torch.ones(2)), 1), [True, True]),
    "from one on": (Independent(Pareto(torch.ones(2), torch.full((2,), 2.0)), 1), [True, True]),
    "normal": (Independent(Normal(torch.zeros(2), torch.ones(2)), 1), None),
    "box": (BoxPrior([0, 0], [1, 1e6]), None),
}


@pytest.mark.parametrize("name", PRIORS)
def test_parameters_on_a_half_line_go_through_their_logarithm(name):
    law, bent = PRIORS[name]
    prior = as_prior(law)
    phi = prior.sample(2_000, seed=0)
    made = of_parameters(phi, law)
    assert (made.limit is None) if bent is None else (made.limit.isfinite().tolist() == bent)
    z = made(phi)
    assert z.isfinite().all()
    torch.testing.assert_close(z.std(0), torch.ones(2), atol=0.05, rtol=0)
    assert of_parameters(phi, law, natural=False).limit is None
    if name == "log-normal":
        logs = (phi.double().log() - phi.double().log().mean(0)) / phi.double().log().std(0)
        # All but the smallest thousandth.
        kept = (logs > logs.quantile(0.0011, dim=0)).all(1)
        torch.testing.assert_close(z.double()[kept], logs[kept], atol=0.01, rtol=0)


def test_draws_alone_tell_what_is_safe():
    """Log-normal draws, uniform and signed ones, positive ones far from zero, symmetric ones."""
    stream = torch.Generator().manual_seed(0)
    normal = torch.randn(2_000, 3, generator=stream)
    uniform = torch.rand(2_000, 1, generator=stream)
    phi = torch.cat([normal[:, :1].exp(), uniform, normal[:, 1:2], normal[:, 2:] + 20], dim=1)
    assert of_parameters(phi).limit.isfinite().tolist() == [True, False, False, False]


def test_columns_of_a_set_have_one_scale_for_all_elements():
    stream = torch.Generator().manual_seed(0)
    sizes = (2 * torch.randn(400, 1, 1, generator=stream)).exp()
    y = torch.randn(400, 30, 3, generator=stream) * torch.tensor([1.0, 50.0, 1.0]) + 7
    y[:, :, 2:] = sizes * torch.randn(400, 30, 1, generator=stream)
    made = of_data(y, Standardized.COLUMNS)
    assert made.mean.shape == (3,)
    assert made.limit.tolist() == [math.inf, math.inf, 1.0], "sizes that span decades"
    torch.testing.assert_close(made(y).std((0, 1)), torch.ones(3), atol=0.05, rtol=0)
    single = of_data(y[..., 1], Standardized.COLUMNS)
    torch.testing.assert_close(single.mean, made.mean[1:2])


def test_what_is_missing_is_not_counted():
    stream = torch.Generator().manual_seed(0)
    whole = torch.randn(4_000, 3, generator=stream) * torch.tensor([1.0, 5.0, 3.0]) + 10
    whole[:, 2] = whole[:, 2].exp()
    y = torch.where(torch.rand(4_000, 3, generator=stream) < 0.3, torch.nan, whole)
    made = of_data(y)
    expected = of_data(whole)
    torch.testing.assert_close(made.mean, expected.mean, atol=0.2, rtol=0.05)
    torch.testing.assert_close(made.scale, expected.scale, rtol=0.2, atol=0)
    z = made(y)
    assert torch.equal(z.isnan(), y.isnan())
    torch.testing.assert_close(z.nanmean(0), torch.zeros(3), atol=1e-3, rtol=0)
    never = of_data(torch.full((50, 2), torch.nan))
    assert never.mean.isfinite().all()
    assert never.largest == 0
