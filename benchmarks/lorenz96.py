r"""Time the Lorenz 96 simulator against what one would use instead.

    python benchmarks/lorenz96.py --device cpu|cuda --size toy|full \
        --output results/lorenz96-speed-cpu.json

On the CPU: scipy's ``solve_ivp`` called once per simulation, at the loosest tolerance that is as
accurate as the simulator's fixed step, and the same scheme in batched torch. On a GPU: torchdiffeq
and diffrax with the same fixed step, and the limits that arithmetic and latency set. Every time is
the median of the repeats, and the methods take turns, so that a busy machine slows all of them.
"""

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.foundations.provenance import provenance
from eande.simulators.lorenz96 import Lorenz96
from eande.simulators.lorenz96_system import FIRST_PIECES
from eande.studies.records import ResultFile

SEED = 0
LIBRARIES = ("numba", "torchdiffeq", "diffrax", "jax")
# Of one H200, in float64 without and float32 without tensor cores, as its data sheet has them.
PEAK = {"float64": 34e12, "float32": 67e12}
# Per variable and step, a fused multiply-add counted as two: four tendencies of 7, and
# 2 + 4 + 4 + 3 for stages and weighted sums.
FLOP_PER_VARIABLE = 41
# Time over which accuracy is compared: over longer ones chaos amplifies all errors at large
# forcing, until they saturate after one time unit.
HORIZON = 0.2


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: side by side.
        observations: of each, in the simulator's own run.
        other_observations: of each, in the runs of the other batched methods, which are slower.
        single: trajectories integrated one by one with solve_ivp.
        single_time: time units of each of these.
        compared: trajectories over which accuracy is compared.
        repeats: of every timing.
    """

    simulations: int
    observations: int
    other_observations: int
    single: int = 8
    single_time: float = 4.0
    compared: int = 16
    repeats: int = 3


SIZES = {
    ("cpu", "toy"): Size(16, 20, 1, single=1, single_time=0.5, compared=2),
    ("cpu", "full"): Size(128, 100, 5),  # 128 is about where batched torch is fastest
    ("cuda", "toy"): Size(16, 20, 2),
    ("cuda", "full"): Size(500, 2_000, 20),
}


def time_all(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each call; the calls take turns."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            synchronize()
            began = time.perf_counter()
            call()
            synchronize()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def steps_of(system: Lorenz96) -> int:
    """Return the Runge–Kutta steps of one trajectory; those of the first interval are smaller."""
    return system.skipped_steps + (system.observations + FIRST_PIECES - 1) * system.substeps


def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw standard normal starts and the forcings of parameters from the prior."""
    system = Lorenz96()
    phi = system.prior.sample(n, seed=SEED).double().numpy()
    variables = system.slow * (1 + system.fast)
    start = np.random.default_rng(SEED).standard_normal((n, variables))
    return start, np.hypot(phi[:, 0], phi[:, 1])


def solve(
    system: Lorenz96,
    start: np.ndarray,
    forcing: float,
    times: np.ndarray,
    method: str,
    tolerance: float,
) -> Any:
    """Integrate one trajectory as a user of scipy would.

    That is a right-hand side in vectorised NumPy and one call of ``solve_ivp``.
    """
    from scipy.integrate import solve_ivp

    slow = system.slow
    fast = system.fast

    def tendency(_time: float, state: np.ndarray) -> np.ndarray:
        u = state[:slow]
        v = state[slow:]
        mean = v.reshape(slow, fast).mean(axis=1)
        du = (
            -np.roll(u, 1) * (np.roll(u, 2) - np.roll(u, -1))
            - u
            + forcing
            - system.h * system.c * mean
        )
        dv = system.c * (
            -system.b * np.roll(v, -1) * (np.roll(v, -2) - np.roll(v, 1))
            - v
            + system.h / fast * np.repeat(u, fast)
        )
        return np.concatenate([du, dv])

    return solve_ivp(
        tendency, (0, times[-1]), start, method=method, t_eval=times, rtol=tolerance, atol=tolerance
    )


def same_accuracy(start: np.ndarray, forcing: np.ndarray) -> list[dict[str, float]]:
    """Return the median over trajectories of solve_ivp's error over that of the fixed step.

    There is an entry per tolerance, from tight to loose.
    """
    system = Lorenz96()
    times = np.array([HORIZON])
    exact = np.stack(
        [
            solve(system, x, f, times, "DOP853", 1e-12).y[:, -1]
            for x, f in zip(start, forcing, strict=True)
        ]
    )
    state = torch.as_tensor(start)
    for _ in range(round(HORIZON / system.step)):
        state = system.advance(state, torch.as_tensor(forcing), system.step)
    fixed = np.linalg.norm(state.numpy() - exact, axis=1)
    found = []
    for tolerance in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        answers = [
            solve(system, x, f, times, "RK45", tolerance)
            for x, f in zip(start, forcing, strict=True)
        ]
        error = np.linalg.norm(np.stack([answer.y[:, -1] for answer in answers]) - exact, axis=1)
        evaluations = statistics.mean(answer.nfev for answer in answers) / HORIZON
        found.append(
            {
                "tolerance": tolerance,
                "error_ratio": float(np.median(error / fixed)),
                "evaluations_per_time_unit": evaluations,
            }
        )
    return found


def loosest(found: list[dict[str, float]]) -> float:
    """Return the loosest tolerance up to which all are at least as accurate as the fixed step.

    Beyond it errors are erratic.
    """
    accurate = list(takewhile(lambda one: one["error_ratio"] <= 1, found))
    return (accurate or found[:1])[-1]["tolerance"]


def on_cpu(size: Size, record: ResultFile) -> None:
    """Compare the compiled kernel with solve_ivp and with batched torch."""
    import numba

    from eande.simulators.lorenz96_cpu import trajectories

    cores = numba.get_num_threads()
    torch.set_num_threads(cores)
    begin, forcing = draw(size.simulations)
    spun_up = trajectories(begin, forcing, Lorenz96(observations=1, spin_up=10.0))
    start = spun_up[:, -1].astype(np.float64)
    found = same_accuracy(start[: size.compared], forcing[: size.compared])
    record.add("accuracy", found)
    tolerance = loosest(found)
    record.add("tolerance", tolerance)
    ours = Lorenz96(observations=size.observations)
    short = Lorenz96(observations=size.other_observations)
    times = np.arange(1, round(size.single_time / ours.interval) + 1) * ours.interval

    def one_by_one(tolerance: float) -> None:
        for x, f in zip(start[: size.single], forcing[: size.single], strict=True):
            solve(ours, x, f, times, "RK45", tolerance)

    def one_thread() -> None:
        numba.set_num_threads(1)
        trajectories(start, forcing, ours)
        numba.set_num_threads(cores)

    calls: Mapping[str, Callable[[], object]] = {
        "ours": partial(trajectories, start, forcing, ours),
        "ours_one_thread": one_thread,
        "solve_ivp": partial(one_by_one, tolerance),
        "solve_ivp_ten_times_looser": partial(one_by_one, 10 * tolerance),
        "torch": partial(short.reference, torch.as_tensor(start), torch.as_tensor(forcing)),
    }
    # The smaller steps of the first interval count as cost of ours, and as time units of torch's
    # run, of whose few observations they are a larger part.
    time_units = size.simulations * ours.observations * ours.interval
    units = {
        "ours": time_units,
        "ours_one_thread": time_units,
        "solve_ivp": size.single * size.single_time,
        "solve_ivp_ten_times_looser": size.single * size.single_time,
        "torch": size.simulations * steps_of(short) * short.step,
    }
    cost = {name: seconds / units[name] for name, seconds in time_all(calls, size.repeats).items()}
    record.add("seconds_per_simulation_and_time_unit", cost)
    ratios = {name: cost[name] / cost["ours"] for name in cost if name != "ours"}
    ratios["solve_ivp_over_ours_one_thread"] = cost["solve_ivp"] / cost["ours_one_thread"]
    record.add("ratios", ratios)
    record.add("targets", {"solve_ivp": 20, "torch": 3})


def by_torchdiffeq(system: Lorenz96, start: Tensor, forcing: Tensor) -> Callable[[], Tensor]:
    """Return a call of torchdiffeq's fixed-step "rk4"; the start comes first in its result.

    This is the 3/8 rule, with four tendencies a step as in the classical scheme.
    """
    from torchdiffeq import odeint

    index = torch.arange(system.observations + 1, dtype=torch.float64, device=start.device)
    times = index * system.interval
    return partial(
        odeint,
        lambda _time, state: system.tendency(state, forcing),
        start,
        times,
        method="rk4",
        options={"step_size": system.step},
    )


def by_diffrax(system: Lorenz96, start: Tensor, forcing: Tensor) -> Callable[[], Any]:
    """Return a compiled call of diffrax with a constant step; the start comes first in its result.

    diffrax has no classical RK4, so that is given to it as a tableau.
    """
    # Without it jax allocates three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import diffrax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    if start.is_cuda and jax.default_backend() != "gpu":
        raise ImportError("jax finds no GPU")
    slow = system.slow
    fast = system.fast
    stages = tuple(np.array(row) for row in ([0.5], [0.0, 0.5], [0.0, 0.0, 1.0]))
    weights = np.array([1.0, 2.0, 2.0, 1.0]) / 6

    class ClassicalRK4(diffrax.AbstractERK):
        tableau = diffrax.ButcherTableau(
            c=np.array([0.5, 0.5, 1.0]),
            b_sol=weights,
            b_error=weights - [1, 0, 0, 0],
            a_lower=stages,
        )
        interpolation_cls = diffrax.ThirdOrderHermitePolynomialInterpolation.from_k

        def order(self, _terms: object) -> int:
            return 4

    def tendency(_time: Any, state: Any, force: Any) -> Any:
        u = state[:, :slow]
        v = state[:, slow:]
        mean = v.reshape(-1, slow, fast).mean(2)
        du = (
            -jnp.roll(u, 1, 1) * (jnp.roll(u, 2, 1) - jnp.roll(u, -1, 1))
            - u
            + force[:, None]
            - system.h * system.c * mean
        )
        advection = -system.b * jnp.roll(v, -1, 1) * (jnp.roll(v, -2, 1) - jnp.roll(v, 1, 1))
        dv = system.c * (advection - v + system.h / fast * jnp.repeat(u, fast, 1))
        return jnp.concatenate([du, dv], 1)

    @jax.jit
    def integrate(state: Any, force: Any) -> Any:
        times = jnp.arange(system.observations + 1) * system.interval
        return diffrax.diffeqsolve(
            diffrax.ODETerm(tendency),
            ClassicalRK4(),
            0.0,
            system.observations * system.interval,
            system.step,
            state,
            force,
            saveat=diffrax.SaveAt(ts=times),
            max_steps=2 * system.observations * system.substeps,
            throw=False,
        ).ys

    state = jnp.asarray(start.cpu().numpy())
    force = jnp.asarray(forcing.cpu().numpy())
    return lambda: integrate(state, force).block_until_ready()


def on_cuda(size: Size, record: ResultFile) -> None:
    """Compare the CUDA kernel with torchdiffeq and diffrax on the same GPU.

    Also compare it with the limits that arithmetic and latency set.
    """
    from eande.simulators.lorenz96_cuda import trajectories

    long = Lorenz96(observations=size.observations)
    short = Lorenz96(observations=size.other_observations)
    begin, force = (torch.as_tensor(x, device="cuda") for x in draw(size.simulations))
    began = time.perf_counter()
    start = trajectories(begin, force, Lorenz96(observations=1, spin_up=10.0))[:, -1].double()
    torch.cuda.synchronize()
    record.add("first_call_seconds", time.perf_counter() - began)
    # A warm-up: memory is allocated and the clock is up.
    trajectories(start, force, long)
    calls = {
        "all": partial(trajectories, start, force, long),
        "one": partial(trajectories, start[:1], force[:1], long),
    }
    seconds = time_all(calls, size.repeats)
    record.add("seconds_of_kernel", seconds)
    operations = FLOP_PER_VARIABLE * start.numel() * steps_of(long)
    limits = {f"arithmetic_{name}": operations / rate for name, rate in PEAK.items()}
    limits["latency"] = seconds["one"]
    record.add("limits_in_seconds", limits)
    record.add(
        "fraction_of_limit_reached",
        {name: limit / seconds["all"] for name, limit in limits.items()},
    )
    cost = {"ours": seconds["all"] / steps_of(long)}
    half = Lorenz96(observations=5)
    ours = trajectories(start, force, half).double()
    record.add(
        "largest_difference_from_reference_over_half_a_time_unit",
        (ours - half.reference(start, force)).abs().max().item(),
    )
    for name, build in {"torchdiffeq": by_torchdiffeq, "diffrax": by_diffrax}.items():
        try:
            call = build(short, start, force)
            # The first call compiles.
            answer = call()
        except Exception as error:
            # Of a library that is absent or of another version: the other results are kept.
            record.add(f"{name}_failed", repr(error))
            continue
        other = np.asarray(answer.cpu() if isinstance(answer, Tensor) else answer)
        # After one interval they differ by the error of the scheme alone.
        record.add(
            f"{name}_rms_difference_after_one_interval",
            float(np.sqrt(((other[1] - ours[:, 0].cpu().numpy()) ** 2).mean())),
        )
        cost[name] = time_all({name: call}, size.repeats)[name] / (
            short.observations * short.substeps
        )
    record.add("seconds_per_step_of_all", cost)
    record.add(
        "ratios", {name: value / cost["ours"] for name, value in cost.items() if name != "ours"}
    )
    record.add("targets", {"seconds_of_kernel": 2, "torchdiffeq": 10, "diffrax": 10})


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=("toy", "full"), default="full")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: expected 'cpu' where torch finds no CUDA device, got 'cuda'")
    warnings.simplefilter("ignore")
    size = SIZES[asked.device, asked.size]
    settings = {
        "simulator": Lorenz96(observations=size.observations, device=asked.device).settings,
        "size": asdict(size),
        "horizon": HORIZON,
    }
    torch.set_grad_enabled(False)
    output = asked.output or Path(f"results/lorenz96-speed-{asked.device}.json")
    record = ResultFile(
        output,
        study="lorenz96-speed",
        device=asked.device,
        size=asked.size,
        settings=settings,
        seed=SEED,
        provenance=provenance(*LIBRARIES),
    )
    (on_cpu if asked.device == "cpu" else on_cuda)(size, record)


if __name__ == "__main__":
    main()
