"""The Lorenz 96 kernel on CUDA devices."""

import numpy as np
import pytest
import torch

from eande.foundations.checks import InputError
from eande.simulators.lorenz96 import Lorenz96

SYSTEMS = [Lorenz96(observations=5), Lorenz96(observations=5, b=1.0)]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def start(n, seed=0, system=SYSTEMS[0]):
    return np.random.default_rng(seed).standard_normal((n, system.slow * (1 + system.fast)))


ON_CUDA = {
    "b10": Lorenz96(observations=5),
    "b1": Lorenz96(observations=5, b=1.0),
    "small": Lorenz96(observations=5, slow=5, fast=3),
    # One observation: with so few fast variables rounding errors grow faster.
    "one fast": Lorenz96(observations=1, slow=7, fast=1),
    "two fast": Lorenz96(observations=1, slow=4, fast=2),
    "more than 1024 variables": Lorenz96(observations=5, slow=40, fast=32),
    "many slow": Lorenz96(observations=2, slow=768, fast=4),
    "spin-up": Lorenz96(observations=2, spin_up=0.3),
    "spin-up within the first interval": Lorenz96(observations=4, spin_up=0.05),
}


@needs_cuda
@pytest.mark.parametrize("system", ON_CUDA.values(), ids=ON_CUDA.keys())
@pytest.mark.parametrize("n", [1, 300])
def test_the_cuda_kernel_equals_the_reference(system, n):
    """Over half a time unit: rounding errors do not yet reach the last place of float32."""
    from eande.simulators.lorenz96_cuda import trajectories as on_cuda

    state = start(n, system=system)
    forcing = np.linspace(4, 21, n)
    ours = on_cuda(state, forcing, system)
    reference = system.reference(
        torch.as_tensor(state, device="cuda"), torch.as_tensor(forcing, device="cuda")
    )
    assert ours.is_cuda
    assert ours.dtype == torch.float32
    assert ours.shape == reference.shape
    assert (ours - reference).abs().max() < 1e-6 * reference.abs().max()


@needs_cuda
@pytest.mark.parametrize("b", [10.0, 1.0])
def test_the_cuda_and_the_cpu_kernel_agree(b):
    """From the same generator, so that starts and forcings are the same as well."""
    pytest.importorskip("numba")
    phi = Lorenz96().prior.sample(64, seed=0).numpy()
    cpu, cuda = (
        Lorenz96(observations=5, b=b, device=device)(phi, np.random.default_rng(0))
        for device in ("cpu", "cuda")
    )
    assert np.abs(cuda.cpu().numpy() - cpu).max() < 1e-6 * np.abs(cpu).max()


@needs_cuda
def test_every_cuda_run_is_the_same():
    """A race between threads would show here."""
    from eande.simulators.lorenz96_cuda import trajectories as on_cuda

    system = Lorenz96(observations=100)
    first, second = (on_cuda(start(300), np.linspace(4, 21, 300), system) for _ in range(2))
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)


@needs_cuda
def test_too_many_slow_variables_for_one_block():
    with pytest.raises(InputError, match="slow: expected at most 768 with device 'cuda', got 769"):
        Lorenz96(observations=1, slow=769, fast=1, device="cuda")(
            np.array([[3.0, 4.0]]), np.random.default_rng(0)
        )
