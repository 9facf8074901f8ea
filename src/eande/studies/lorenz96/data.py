"""Simulations of the Lorenz 96 study: to train, to validate, to calibrate and to test."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import RandomWindow, fixed_views
from eande.simulation.simulate import simulate
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.sizes import WINDOW, WINDOWS, Size
from eande.studies.lorenz96.terms import Terms

# Simulations held in memory at once, of which only windows are kept.
_SIMULATED_AT_ONCE = 250


@dataclass(frozen=True)
class Data:
    """Simulations of one seed; to test there is one window of each.

    Args:
        train: whole simulations.
        held_out: whole simulations that weights are selected by.
        calibration: windows of further simulations; None where the terms have none.
        test_phi: parameters of the test data.
        test_y: the test data.
        fresh_phi: parameters of further test data.
        fresh_y: to measure coverage by.
    """

    train: Simulations
    held_out: Simulations
    calibration: Simulations | None
    test_phi: Tensor
    test_y: Tensor
    fresh_phi: Tensor
    fresh_y: Tensor

    @cached_property
    def validation(self) -> Simulations:
        """Several windows of each simulation held out: by 50 alone chance would select."""
        return self.held_out[torch.arange(len(self.held_out)).repeat_interleave(WINDOWS)]

    def split(self, held_out: Tensor) -> Self:
        """Return the same with other training simulations held out, by their rows.

        Args:
            held_out: whether each of the training simulations is, (n,).
        """
        rows = held_out.nonzero()[:, 0]
        others = (~held_out).nonzero()[:, 0]
        return replace(self, train=self.train[others], held_out=self.train[rows])

    def judged_by_held_out(self) -> Self:
        """Return the same with a window of each simulation held out in the place of test data."""
        y = torch.cat(list(fixed_views(RandomWindow(WINDOW), self.held_out.y)))
        nothing = (self.fresh_phi[:0], self.fresh_y[:0])
        return replace(
            self,
            test_phi=self.held_out.phi,
            test_y=y,
            fresh_phi=nothing[0],
            fresh_y=nothing[1],
        )


def make_data(size: Size, terms: Terms, seed: int, device: str, *, progress: bool) -> Data:
    """Simulate; on a GPU the data stay there.

    Args:
        size: how much to test on.
        terms: what methods get.
        seed: same seed, same data.
        device: ``"cpu"`` or ``"cuda"``.
        progress: whether to show a progress bar.
    """
    terms = terms.at(size)
    simulator = Lorenz96(observations=size.observations, device=device, b=terms.b)
    # Convolutions of one shape, thousands of times: let cuDNN try its algorithms.
    torch.backends.cudnn.benchmark = device == "cuda"
    everything = simulate(
        simulator,
        simulator.prior,
        terms.simulations + terms.validation,
        seed=seed,
        design=terms.design,
        block_size=50,
        progress=progress,
    )
    phi = everything.phi
    y = everything.y[:].to(device)
    n = terms.simulations
    calibration = None
    if terms.calibration == "fresh":
        further = derive_seed(seed, "calibration")
        calibration = Simulations(*windows(simulator, n, further, each=WINDOWS))
    test_phi, test_y, _ = windows(simulator, size.test, derive_seed(seed, "test"))
    fresh_phi, fresh_y, _ = windows(simulator, size.fresh, derive_seed(seed, "fresh"))
    return Data(
        train=Simulations(phi[:n], y[:n], torch.arange(n)),
        held_out=Simulations(phi[n:], y[n:], torch.arange(n, len(phi))),
        calibration=calibration,
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
