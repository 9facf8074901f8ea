"""A prior that is known by its draws is one where it is cut off, too."""

import pytest
import torch

import eande
from eande.diagnostics.diagnose import diagnose
from eande.priors.truncated import TruncatedPrior
from eande.sequential.judging import log_ratios
from helpers.sharp_gaussians import box, gaussian


def test_true_parameters_among_the_draws_count_once():
    """All of the draws lie in the region, so that nothing may change."""
    draws = box(2).sample(400, seed=0)
    whole = eande.EmpiricalPrior(draws)
    cut = TruncatedPrior(whole, lambda phi: phi[:, 0] < 2)
    found = []
    for prior in (whole, cut):
        model, simulated = gaussian(prior, 0.05)
        held_out = simulated(200, 0, phi=draws[:200])
        own = diagnose(model, held_out, progress=False).log_ratio
        # The ratio itself: the prior is its draws.
        f = model.embed_all(held_out.y)
        scores = model.similarity.score(f, model.emulate_all(draws)).double()
        exact = scores.diagonal() - scores.logsumexp(1) + torch.tensor(400.0).log()
        assert own == pytest.approx(exact.mean().item(), abs=0.01)
        judged = log_ratios(model, prior, held_out, None)
        torch.testing.assert_close(judged, exact, atol=1e-4, rtol=0)
        found.append(own)
    assert found[0] == pytest.approx(found[1], abs=1e-6)
