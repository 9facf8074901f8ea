"""F by physics alone, the baseline that knows the equations: budgets of energy and momentum."""

from typing import Any

import torch
from torch import Tensor

from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.data import Data


def budget_estimates(y: Tensor, simulator: Lorenz96) -> dict[str, Tensor]:
    """Estimate F by the budgets of energy and of momentum of u, averaged over a window.

    The advection conserves Σ u²; what is left of the energy's budget is

        F⟨u⟩ = ⟨u²⟩ + h c ⟨u v̄⟩ + Δ(u²/2)/T.

    Args:
        y: windows (m, time, K + K·J).
        simulator: whose constants are used.
    """
    u = y[..., : simulator.slow].double()
    fast = y[..., simulator.slow :].double()
    v = fast.unflatten(-1, (simulator.slow, simulator.fast)).mean(-1)
    duration = (y.shape[1] - 1) * simulator.interval
    coupling = simulator.h * simulator.c

    def average(x: Tensor) -> Tensor:
        return torch.trapezoid(x.mean(-1), dx=simulator.interval, dim=1) / duration

    def change(x: Tensor) -> Tensor:
        return (x[:, -1] - x[:, 0]).mean(-1) / duration

    advection = -u.roll(1, -1) * (u.roll(2, -1) - u.roll(-1, -1))
    return {
        "energy": (average(u * u) + coupling * average(u * v) + change(u * u / 2)) / average(u),
        "momentum": change(u) + average(u) + coupling * average(v) - average(advection),
    }


def measure_physics(data: Data) -> dict[str, Any]:
    """Return the median error of each estimate of F over the test data."""
    forcing = data.test_phi.norm(dim=1)
    return {
        f"median_radial_error_of_{name}": (found.cpu() - forcing).abs().median().item()
        for name, found in budget_estimates(data.test_y, Lorenz96()).items()
    }
