"""Coordinates without edges, in which samplers move."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Independent, LogNormal, Normal

from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior

BOX = BoxPrior([-15, 0.1, 1e-3], [15, 0.2, 2e3])
NORMAL = DistributionPrior(
    Independent(Normal(torch.arange(3.0), torch.tensor([0.5, 1.0, 20.0])), 1)
)
LOG_NORMAL = DistributionPrior(Independent(LogNormal(torch.zeros(3), torch.ones(3)), 1))
PRIORS = [BOX, NORMAL, LOG_NORMAL]


@pytest.mark.parametrize("prior", [*PRIORS, EmpiricalPrior(torch.rand(20, 3))])
def test_the_way_there_and_back(prior):
    phi = prior.sample(5_000, seed=1)
    back = prior.constrain(prior.unconstrain(phi))
    scale = phi.amax(0) - phi.amin(0)
    assert ((back - phi).abs() <= 1e-6 * scale + 1e-6 * phi.abs()).all()
    assert prior.contains(back).all()


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=4),
    st.floats(1e-2, 1e4),
    st.integers(0, 2**31),
)
def test_unconstrain_undoes_constrain_in_any_box(low, width, seed):
    low = torch.tensor(low)
    high = low + width
    if not (low < high).all():
        return
    prior = BoxPrior(low, high)
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(50, len(low), generator=stream, dtype=torch.float64).clamp(-3, 3)
    phi = prior.constrain(x)
    assert prior.contains(phi).all()
    # What cancels in φ - low: a rounding error of the larger of the two.
    error = 1e-12 * (low.abs().max() + width) / (high - low).min()
    assert (prior.unconstrain(phi) - x).abs().max() < 1e-8 + 100 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_coordinate_leaves_the_box_and_no_corner_is_infinitely_far(dtype):
    corners = torch.cartesian_prod(*torch.stack([BOX.low, BOX.high]).T).to(dtype)
    x = BOX.unconstrain(corners)
    assert torch.isfinite(x).all()
    assert BOX.contains(BOX.constrain(x)).all()
    assert (BOX.constrain(x) - corners).abs().max() < 1e-6 * (BOX.high - BOX.low).max()
    far = torch.tensor([-torch.inf, -50.0, -8.0, 8.0, 50.0, torch.inf], dtype=dtype)
    assert BOX.contains(BOX.constrain(far.unsqueeze(1).repeat(1, 3))).all()


@pytest.mark.parametrize("prior", PRIORS)
def test_the_density_follows_the_change_of_variables(prior):
    """log p(x) = log p(φ(x)) + log |det ∂φ/∂x|, up to one constant."""
    x = prior.unconstrain(prior.sample(200, seed=2).double()).clamp(-4, 4)
    x = x[prior.contains(prior.constrain(x))]
    assert len(x) > 50
    jacobians = torch.stack(
        [torch.autograd.functional.jacobian(lambda v: prior.constrain(v[None])[0], v) for v in x]
    )
    expected = prior.log_prob(prior.constrain(x)).double() + jacobians.logdet()
    found = prior.unconstrained_log_prob(x)
    assert found.dtype == torch.float64
    assert found.shape == (len(x),)
    constants = expected - found
    assert (constants - constants.mean()).abs().max() < 1e-6
    if prior is BOX:
        assert found.std() > 0.5, "the case is not hard enough"


def test_a_box_is_the_standard_normal_law_in_its_coordinates():
    """Means and second moments of 100,000 draws, tolerance five standard errors."""
    x = BOX.unconstrain(BOX.sample(100_000, seed=3)).double()
    assert x.mean(0).abs().max() < 5 / 100_000**0.5
    assert (x.T.cov() - torch.eye(3)).abs().max() < 5 * (2 / 100_000) ** 0.5
    assert (x.pow(4).mean(0) - 3).abs().max() < 5 * (96 / 100_000) ** 0.5
