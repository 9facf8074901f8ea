"""Lorenz 96: the equations, the scheme and the compiled kernel."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from eande.foundations.checks import InputError
from eande.simulators.lorenz96 import Lorenz96

SYSTEMS = [Lorenz96(observations=5), Lorenz96(observations=5, b=1.0)]


def trajectories(state, forcing, system):
    from eande.simulators.lorenz96_cpu import (
        trajectories,  # here, so that the tests of the CUDA kernel run without numba
    )

    return trajectories(state, forcing, system)


def start(n, seed=0, system=SYSTEMS[0]):
    return np.random.default_rng(seed).standard_normal((n, system.slow * (1 + system.fast)))


def settled(n, b, forcing=8.0):
    """States on the attractor.

    The fast variables of a standard normal start are far too large, and need tiny steps to settle.
    """
    return trajectories(
        start(n), np.full(n, forcing), Lorenz96(observations=1, spin_up=10.0, step=0.0025, b=b)
    )[:, -1].astype(np.float64)


def by_loops(system, state, forcing):
    """The printed equations, index by index."""
    slow = system.slow
    fast = system.fast
    ring = system.slow * system.fast
    u = state[:slow]
    v = state[slow:]
    du = np.empty(slow)
    dv = np.empty(ring)
    for k in range(slow):
        du[k] = (
            -u[k - 1] * (u[k - 2] - u[(k + 1) % slow])
            - u[k]
            + forcing
            - system.h * system.c * v[fast * k : fast * (k + 1)].mean()
        )
    for i in range(ring):
        advection = -system.b * v[(i + 1) % ring] * (v[(i + 2) % ring] - v[i - 1])
        dv[i] = system.c * (advection - v[i] + system.h / fast * u[i // fast])
    return np.concatenate([du, dv])


@pytest.mark.parametrize("system", SYSTEMS, ids=["b10", "b1"])
def test_the_tendency_is_the_printed_one(system):
    state = start(1)
    ours = system.tendency(torch.as_tensor(state), torch.tensor([8.0], dtype=torch.float64))[0]
    assert np.allclose(ours.numpy(), by_loops(system, state[0], 8.0), atol=1e-12)


@pytest.mark.parametrize("system", SYSTEMS, ids=["b10", "b1"])
@pytest.mark.parametrize("n", [1, 8, 11])
def test_the_kernel_equals_the_reference(system, n):
    state = start(n)
    forcing = np.linspace(0, 20, n)
    ours = trajectories(state, forcing, system)
    reference = system.reference(torch.as_tensor(state), torch.as_tensor(forcing))
    assert ours.dtype == np.float32
    assert np.allclose(ours, reference.numpy(), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("b", [10.0, 1.0])
def test_the_scheme_agrees_with_a_tight_integrator(b):
    """Over one time unit, against an eighth-order scheme at tolerance 1e-12."""
    system = Lorenz96(observations=10, step=0.00025, b=b)
    state = settled(1, b)[0]
    exact = solve_ivp(
        lambda _t, x: by_loops(system, x, 8.0),
        (0, 1),
        state,
        method="DOP853",
        rtol=1e-12,
        atol=1e-12,
    ).y[:, -1]
    ours = system.reference(torch.as_tensor(state[None]), torch.tensor([8.0], dtype=torch.float64))[
        0, -1
    ]
    assert (
        np.abs(ours.numpy() - exact).max() < 1e-3
    )  # a rounding error grows by orders of magnitude in one time unit


@pytest.mark.thorough
@pytest.mark.parametrize("b", [10.0, 1.0])
def test_convergence_is_of_fourth_order(b):
    state = torch.as_tensor(settled(4, b))
    forcing = torch.full((4,), 8.0, dtype=torch.float64)

    def end(step):
        return Lorenz96(observations=1, interval=0.2, step=step, b=b).reference(state, forcing)[
            :, -1
        ]

    exact = end(0.000125)
    errors = [(end(step) - exact).norm().item() for step in (0.004, 0.002, 0.001)]
    orders = [np.log2(errors[i] / errors[i + 1]) for i in range(2)]
    assert min(orders) > 3.7
    assert max(orders) < 4.5


def test_advection_conserves_energy():
    """Without forcing, damping and coupling both advections conserve energy: Σu² and Σv²."""
    system = SYSTEMS[0]
    state = torch.as_tensor(start(3))
    slope = system.tendency(state, torch.zeros(3, dtype=torch.float64))
    u = state[:, :36]
    v = state[:, 36:]
    mean = v.unflatten(1, (36, 10)).mean(2)
    slow = slope[:, :36] + u + 10 * mean
    fast = slope[:, 36:] / 10 + v - 0.1 * u.repeat_interleave(10, 1)
    assert (u * slow).sum(1).abs().max() < 1e-9
    assert (v * fast).sum(1).abs().max() < 1e-8


def test_shifting_the_ring_shifts_the_solution():
    system = SYSTEMS[0]
    state = start(1)
    shifted = np.concatenate([np.roll(state[:, :36], 5, 1), np.roll(state[:, 36:], 50, 1)], 1)
    plain, moved = (trajectories(x, np.array([8.0]), system) for x in (state, shifted))
    assert np.allclose(np.roll(plain[..., :36], 5, -1), moved[..., :36], atol=1e-5)
    assert np.allclose(np.roll(plain[..., 36:], 50, -1), moved[..., 36:], atol=1e-5)


def largest_exponent(forcing, b):
    """The mean growth rate of a small difference, renormalised at every observation."""
    system = Lorenz96(observations=1, interval=0.1, b=b)
    state = trajectories(
        start(8), np.full(8, forcing), Lorenz96(observations=1, spin_up=20.0, b=b)
    )[:, -1].astype(np.float64)
    size = 1e-6
    growth = []
    other = state + size * start(8, seed=1)
    for time in range(200):
        state, other = np.split(
            one_interval(np.concatenate([state, other]), np.full(16, forcing), system), 2
        )
        difference = other - state
        length = np.linalg.norm(difference, axis=1, keepdims=True)
        if (
            time >= 50
        ):  # by then the difference points along the fastest growth and has the size it was given
            growth.append(np.log(length / size) / system.interval)
        other = state + difference / length * size
    return np.mean(growth)


def one_interval(state, forcing, system):
    """One observation interval in float64."""
    out = torch.as_tensor(state)
    for _ in range(system.substeps):
        out = system.advance(out, torch.as_tensor(forcing), system.step)
    return out.numpy()


@pytest.mark.thorough
@pytest.mark.parametrize("forcing", [8.0, pytest.param(15.0, marks=pytest.mark.slow)])
def test_the_default_system_is_chaotic_and_the_printed_one_hardly(forcing):
    assert largest_exponent(forcing, 10.0) > 3  # about 7 and 15
    assert largest_exponent(forcing, 1.0) < 0.5  # none; at F = 15 a slow transient leaves 0.2


@pytest.mark.slow
def test_halving_the_step_leaves_the_statistics():
    """Mean and variance of u over time and 64 trajectories, within four standard errors, at the
    corners of the prior.
    """
    for forcing in (4.0, 12.0, 21.0):
        moments = []
        for step in (0.005, 0.0025):
            data = trajectories(
                start(64, seed=int(1e4 * step)),
                np.full(64, forcing),
                Lorenz96(observations=100, step=step, spin_up=10.0),
            )
            u = data[..., :36].mean(axis=(1, 2)), data[..., :36].var(axis=(1, 2))
            moments.append([(x.mean(), x.std() / 8) for x in u])
        for (a, a_error), (b, b_error) in zip(*moments, strict=True):
            assert abs(a - b) < 4 * np.hypot(a_error, b_error)


def test_every_standard_normal_start_settles():
    """A plain step of 0.005 loses one start in a hundred."""
    system = Lorenz96(observations=3)
    data = system(system.prior.sample(1_000, seed=0).numpy(), np.random.default_rng(0))
    assert np.isfinite(data).all()
    assert np.abs(data).max() < 40


def test_only_the_radius_of_the_parameters_matters():
    system = SYSTEMS[0]
    angle = 0.7
    phi = np.array([[8.0, 0.0]])
    turned = np.array([[8 * np.cos(angle), 8 * np.sin(angle)]])
    first, second = (system(x, np.random.default_rng(0)) for x in (phi, turned))
    assert np.allclose(first, second, atol=1e-4)


def test_wrong_settings():
    with pytest.raises(InputError, match=r"step: expected a divisor of the interval 0.1, got 0.03"):
        Lorenz96(step=0.03)
    with pytest.raises(
        InputError, match="observations: expected a whole number of at least 1, got 0"
    ):
        Lorenz96(observations=0)
    with pytest.raises(InputError, match="device: expected one of 'cpu', 'cuda', got 'tpu'"):
        Lorenz96(device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_missing_cuda_device_is_named():
    system = Lorenz96(observations=1, device="cuda")
    with pytest.raises(
        InputError, match="device: expected 'cpu' where torch finds no CUDA device, got 'cuda'"
    ):
        system(np.array([[3.0, 4.0]]), np.random.default_rng(0))


def test_the_device_identifies_the_simulator():
    """Rounding differs between devices and chaos magnifies it, so a store must not mix them."""
    assert Lorenz96().settings["device"] == "cpu"
    assert Lorenz96().settings != Lorenz96(device="cuda").settings


def test_windows_and_subsamples_are_views():
    data = Lorenz96(observations=12)(np.array([[3.0, 4.0], [0.0, 9.0]]), np.random.default_rng(0))
    for part in (data[:, 3:7], data[:, ::4], data[:, :, :36], data[:, 2:10:2, 36:]):
        assert np.shares_memory(part, data)
        assert torch.from_numpy(part).data_ptr() == part.ctypes.data
    assert data[
        1, 3:7
    ].flags.c_contiguous  # time first: a window of one trajectory is one piece of memory


@pytest.mark.thorough
def test_the_kernel_leaves_the_threads_of_torch_alone():
    script = """
        import torch
        torch.set_num_threads(1)
        from eande.studies.lorenz96.data import make_data
        from eande.studies.lorenz96.sizes import SIZES
        from eande.studies.lorenz96.terms import Terms
        make_data(SIZES["toy"], Terms(), 0, "cpu", progress=False)
        print(torch.get_num_threads())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "1"
