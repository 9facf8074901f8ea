"""Simulations of the Lorenz 96 study: to train, to validate, to calibrate and to test."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import RandomWindow, fixed_views
from eande.simulation.simulate import simulate
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.sizes import WINDOW, WINDOWS, Size

# Simulations held in memory at once, of which only windows are kept.
_SIMULATED_AT_ONCE = 250


@dataclass(frozen=True)
class Data:
    """Simulations of one seed; to test there is one window of each."""

    train: Simulations
    validation: Simulations
    calibration: Simulations
    test_phi: Tensor
    test_y: Tensor
    fresh_phi: Tensor
    fresh_y: Tensor


def make_data(size: Size, seed: int, device: str, *, b: float = 10.0, progress: bool) -> Data:
    """Simulate; on a GPU the data stay there.

    Args:
        size: how much.
        seed: same seed, same data.
        device: ``"cpu"`` or ``"cuda"``.
        b: the ratio of amplitudes of the system.
        progress: whether to show a progress bar.
    """
    simulator = Lorenz96(observations=size.observations, device=device, b=b)
    # Convolutions of one shape, thousands of times: let cuDNN try its algorithms.
    torch.backends.cudnn.benchmark = device == "cuda"
    # Evenly: with 500 random draws nothing under F = 1.7 may have been seen, and whatever is
    # fitted then errs there without knowing it.
    everything = simulate(
        simulator,
        simulator.prior,
        size.simulations + size.validation,
        seed=seed,
        design="even",
        block_size=50,
        progress=progress,
    )
    phi = everything.phi
    y = everything.y[:].to(device)
    n = size.simulations
    # Several windows of each: selection by 50 would be selection by chance.
    held_out = torch.arange(n, len(phi)).repeat_interleave(WINDOWS)
    calibration = windows(
        simulator, size.calibration, derive_seed(seed, "calibration"), each=WINDOWS
    )
    test_phi, test_y, _ = windows(simulator, size.test, derive_seed(seed, "test"))
    fresh_phi, fresh_y, _ = windows(simulator, size.fresh, derive_seed(seed, "fresh"))
    return Data(
        train=Simulations(phi[:n], y[:n], torch.arange(n)),
        validation=Simulations(phi[held_out], y[held_out.to(device)], held_out),
        calibration=Simulations(*calibration),
        test_phi=test_phi,
        test_y=test_y,
        fresh_phi=fresh_phi,
        fresh_y=fresh_y,
    )


def windows(
    simulator: Lorenz96, n: int, seed: int, *, each: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Simulate and keep only windows.

    Args:
        simulator: of the system.
        n: how many simulations.
        seed: of the parameters and the simulations.
        each: how many random windows of each simulation.

    Returns:
        The parameters, a window and the number of the simulation, one row per window; without
        windows that are not finite.
    """
    phi = simulator.prior.sample(n, seed=seed)
    rng = np.random.default_rng(seed)
    kept = [torch.zeros(0, WINDOW, simulator.slow * (1 + simulator.fast))]
    for begin in range(0, n, _SIMULATED_AT_ONCE):
        part = phi[begin : begin + _SIMULATED_AT_ONCE]
        y = torch.as_tensor(simulator(part.numpy(), rng)).repeat_interleave(each, 0)
        kept += fixed_views(RandomWindow(WINDOW), y)
    y = torch.cat([window.to(kept[-1].device) for window in kept])
    numbers = torch.arange(n).repeat_interleave(each)
    finite = torch.isfinite(y).flatten(1).all(1)
    return phi[numbers][finite.cpu()], y[finite], numbers[finite.cpu()]
