"""Several observations of one parameter."""

import numpy as np
import pytest
import torch
from scipy import stats

from eande.foundations.checks import EandeWarning
from helpers.exact_posteriors import ALPHA, gaussian_posterior, linear_gaussian_model
from helpers.models import exact_model


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
        samples, _ = posterior.sample(20_000, seed=0, sampler="rejection", bound=bound)
        g = task.true_emulator(samples.double())
        ours = np.angle(np.exp(1j * (torch.atan2(g[:, 1], g[:, 0]).numpy() - centre)))
        assert stats.ks_2samp(ours, exact).pvalue > ALPHA
