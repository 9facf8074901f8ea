"""Simulations written to npz and NetCDF files, and what reading them must give."""

import numpy as np
import torch
import xarray

from eande.simulation.read.views import RandomWindow, draw_view

RNG = np.random.default_rng(0)
N = 6
T = 20
K = 3
PHI = RNG.normal(size=(N, 2))
Y = RNG.normal(size=(N, T, K))
PHI32 = torch.as_tensor(PHI, dtype=torch.float32)
Y32 = torch.as_tensor(Y, dtype=torch.float32)


def as_npz(path, phi, y, save=np.savez):
    save(path, phi=phi, a=phi[0], b=phi[1:], y=y)


def as_npz_compressed(path, phi, y):
    as_npz(path, phi, y, np.savez_compressed)


def as_netcdf(path, phi, y, **options):
    variables = {
        "phi": ("parameter", phi),
        "a": phi[0],
        "y": (("time", "x")[: np.ndim(y)], y),
        "time": np.arange(len(y) if np.ndim(y) else T, dtype=float),
    }
    xarray.Dataset(variables, attrs={"b": phi[1], "vector": phi}).to_netcdf(
        path, **({"engine": "h5netcdf"} | options)
    )


def check_reading(simulations, kind):
    assert isinstance(simulations.y, kind)
    assert torch.equal(simulations.phi, PHI32)
    assert simulations.y.shape == (N, T, K)
    assert simulations.y_shape == (T, K)
    assert torch.equal(simulations.y[:], Y32)
    assert torch.equal(simulations.y[4], Y32[4])
    index = torch.tensor([5, 0, 5, 2])
    starts = torch.tensor([13, 0, 4, 7])
    expected = torch.stack([Y32[i, s : s + 7] for i, s in zip(index, starts, strict=True)])
    assert torch.equal(simulations.rows(index).windows(starts, 7), expected)
    chosen = simulations[torch.tensor([4, 1])]
    assert torch.equal(chosen.y[:], Y32[[4, 1]])
    assert torch.equal(simulations[2:][[0, 3]].y[1], Y32[5])
    view = RandomWindow(5)
    assert torch.equal(
        draw_view(view, simulations.rows(index), 3),
        draw_view(view, simulations.in_memory().rows(index), 3),
    )
