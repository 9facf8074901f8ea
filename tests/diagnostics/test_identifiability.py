"""Which directions of the parameters the data determine."""

import math

import numpy as np
import pytest
import torch

import eande
from eande.diagnostics.identifiability import identifiability
from eande.similarities.dot import Dot
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import Function, exact_model
from helpers.sharp_gaussians import box, gaussian


@pytest.mark.thorough
def test_fisher_information_of_a_linear_gaussian_model_is_the_exact_one():
    """log p(y|φ) = y·Aφ/σ² − ‖Aφ‖²/2σ² + …: an inner product, so E&E can be exact."""
    matrix = torch.tensor([[1.0, 0.5], [0.2, 0.8], [0.3, -0.4]])
    sigma = 0.5
    n = 4
    prior = eande.BoxPrior([-1, -1], [1, 1])

    def emulator(phi):
        mean = phi @ matrix.T
        return torch.cat([mean, mean.square().sum(1, keepdim=True)], dim=1)

    encoder = Function(
        lambda y: torch.cat([y, -0.5 * torch.ones(len(y), 1)], dim=1) / sigma**2 * math.sqrt(n)
    )
    model = eande.EmbedAndEmulate(
        encoder, Function(emulator), Dot(n), prior, y_shape=(3,), embedding_dimension=n
    )
    bank = eande.simulate(
        lambda phi, rng: phi @ matrix.numpy().T + sigma * rng.standard_normal((len(phi), 3)),
        prior,
        6_000,
        seed=0,
        progress=False,
    )
    found = identifiability(model, bank, phi=prior.sample(20, seed=1) / 2)
    exact = (matrix.T @ matrix / sigma**2).double() * found.scale.unsqueeze(1) * found.scale
    assert ((found.fisher - exact).flatten(1).norm(dim=1) / exact.norm()).max() < 0.1
    # The divergence of two Gaussians: ‖A(φ − φ')‖²/2σ².
    apart = (found.phi.unsqueeze(1) - found.phi) @ matrix.T
    assert torch.allclose(
        found.divergence, apart.double().square().sum(-1) / (2 * sigma**2), atol=0.1, rtol=0.1
    )


def test_a_redundant_parameter_is_known_as_such():
    task = VonMisesFisher(2, seed=0, redundant=True)
    found = identifiability(
        exact_model(task),
        eande.simulate(task, task.prior, 2_000, seed=0, progress=False),
        points=100,
    )
    redundant = found.names.index("phi_R")
    assert found.parameter_information[redundant] < 1e-6
    assert found.fisher[:, redundant].abs().max() < 1e-6
    others = [i for i in range(3) if i != redundant]
    assert found.parameter_information[others].min() > 0.1
    assert "+1.00·phi_R" in str(found)
    with pytest.raises(eande.InputError, match="phi: expected finite float32 numbers, got 1 NaN"):
        identifiability(
            exact_model(task),
            eande.simulate(task, task.prior, 100, seed=0, progress=False),
            phi=[[0.0, 0.0, math.nan]],
        )


def test_on_a_ring_the_sloppy_direction_is_the_tangent_and_far_parameters_are_equivalent():
    """Data that know only the radius: y = ‖φ‖ + noise, as on Lorenz 96."""
    sigma = 0.1
    prior = eande.BoxPrior([-1, -1], [1, 1])
    encoder = Function(
        lambda y: torch.cat([y, -0.5 * torch.ones_like(y)], dim=1) / sigma**2 * math.sqrt(2)
    )
    emulator = Function(lambda phi: torch.stack([phi.norm(dim=1), phi.square().sum(1)], dim=1))
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(2), prior, y_shape=(1,), embedding_dimension=2
    )
    bank = eande.simulate(
        lambda phi, rng: (
            np.linalg.norm(phi, axis=1, keepdims=True) + sigma * rng.standard_normal((len(phi), 1))
        ),
        prior,
        3_000,
        seed=0,
        progress=False,
    )
    phi = prior.sample(300, seed=1)
    phi = phi[(phi.norm(dim=1) > 0.3) & (phi.norm(dim=1) < 0.9)]
    found = identifiability(model, bank, phi=phi)
    radial = torch.nn.functional.normalize(phi, dim=1).double()
    assert ((found.directions[:, :, 0] * radial).sum(1).abs() > 0.99).all()
    assert (found.eigenvalues[:, 1] < 1e-3 * found.eigenvalues[:, 0]).all()
    pairs = found.equivalent()
    assert len(pairs) > 100
    radii = phi.norm(dim=1)
    assert max(abs(radii[i] - radii[j]).item() for i, j in pairs) < 0.25
    assert (phi[pairs[0][0]] - phi[pairs[0][1]]).norm() > 1


def test_identifiability_tells_wrong_arguments(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    with pytest.raises(eande.InputError, match="simulations: expected Simulations"):
        identifiability(model, held_out.y)
    with pytest.raises(eande.InputError, match=r"phi: expected shape \(k, 2\), got \(3, 5\)"):
        identifiability(model, held_out, phi=torch.zeros(3, 5))


@pytest.mark.thorough
def test_identifiability_says_when_it_cannot_tell():
    model, simulated = gaussian(box(10), 0.1)
    found = identifiability(model, simulated(1_000, 0))
    assert str(found).startswith("cannot tell: at 200 of 200 points")
    assert not found.equivalent()
    model, simulated = gaussian(box(2), 0.02)
    some = identifiability(model, simulated(10_000, 0), points=60)
    assert 0 < some.known.sum() < 60
    # (prior standard deviation / noise)² is 833.
    assert some.parameter_information.tolist() == pytest.approx([833] * 2, rel=0.25)
    with pytest.raises(
        eande.InputError,
        match="phi: expected points inside the prior's support, got 1 of 2 outside",
    ):
        identifiability(model, simulated(100, 0), phi=[[0, 0], [100, 0]])
