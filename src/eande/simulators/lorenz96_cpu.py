"""The compiled CPU kernel of Lorenz 96: eight trajectories at a time in the vector registers.

Groups of eight run in parallel. All arithmetic is in float64; results do not depend on the number
of threads, for every trajectory is integrated by one.
"""

# ruff: noqa: ANN001, ANN202 (numba finds out the types of what it compiles)

import numpy as np
import torch

try:
    import numba
except ImportError:
    raise ImportError(
        "simulating Lorenz 96 needs numba: pip install 'embed-and-emulate[simulators]'"
    ) from None

from eande.simulators.lorenz96_system import FIRST_PIECES, Lorenz96System

# Trajectories in a group: float64 numbers of an AVX-512 register.
_LANES = 8


def trajectories(state: np.ndarray, forcing: np.ndarray, system: Lorenz96System) -> np.ndarray:
    """Integrate states (n, K + K·J) under forcings (n,) to (n, observations, K + K·J), float32."""
    n, size = state.shape
    groups = -(-n // _LANES)
    # Lanes beyond the last trajectory repeat it and are thrown away.
    rows = np.minimum(np.arange(groups * _LANES), n - 1).reshape(groups, _LANES)
    packed = np.ascontiguousarray(state[rows].transpose(0, 2, 1))
    out = np.empty((n, system.observations, size), dtype=np.float32)
    constants = np.array([system.h, system.c, system.b])
    counts = np.array(
        [system.slow, system.fast, system.substeps, system.skipped_steps, FIRST_PIECES]
    )
    threads = torch.get_num_threads()
    _integrate(packed, forcing[rows], out, system.step, constants, counts)
    # numba and torch share OpenMP: the kernel leaves torch with as many threads as there are cores,
    # also where it was told to use fewer.
    torch.set_num_threads(threads)
    return out


@numba.njit(parallel=True, cache=True, fastmath={"contract"})
def _integrate(packed, forcing, out, step, constants, counts):  # type: ignore[no-untyped-def]
    slow, fast, substeps, skipped, first_pieces = counts
    for group in numba.prange(packed.shape[0]):
        x = packed[group]
        work = np.empty((3, x.shape[0], _LANES))
        for done in range(skipped + out.shape[1] * substeps):
            pieces = first_pieces if done < substeps else 1
            for _ in range(pieces):
                _advance(x, work, forcing[group], step / pieces, constants, slow, fast)
            observed = done + 1 - skipped
            if observed > 0 and observed % substeps == 0:
                _store(x, out, group, observed // substeps - 1)


@numba.njit(cache=True)
def _store(x, out, group, time):  # type: ignore[no-untyped-def]
    for lane in range(min(_LANES, out.shape[0] - group * _LANES)):
        for i in range(x.shape[0]):
            out[group * _LANES + lane, time, i] = x[i, lane]


@numba.njit(cache=True, fastmath={"contract"})
def _advance(x, work, forcing, step, constants, slow, fast):  # type: ignore[no-untyped-def]
    """Take one Runge–Kutta step in place; work holds stage state, tendency and weighted sum."""
    stage = work[0]
    slope = work[1]
    total = work[2]
    _tendency(x, slope, forcing, constants, slow, fast)
    for i in range(x.shape[0]):
        for lane in range(_LANES):
            total[i, lane] = slope[i, lane]
            stage[i, lane] = x[i, lane] + 0.5 * step * slope[i, lane]
    for part in range(2):
        _tendency(stage, slope, forcing, constants, slow, fast)
        ahead = step if part == 1 else 0.5 * step
        for i in range(x.shape[0]):
            for lane in range(_LANES):
                total[i, lane] += 2.0 * slope[i, lane]
                stage[i, lane] = x[i, lane] + ahead * slope[i, lane]
    _tendency(stage, slope, forcing, constants, slow, fast)
    for i in range(x.shape[0]):
        for lane in range(_LANES):
            x[i, lane] += step / 6.0 * (total[i, lane] + slope[i, lane])


@numba.njit(cache=True, fastmath={"contract"})
def _tendency(x, slope, forcing, constants, slow, fast):  # type: ignore[no-untyped-def]
    h, c, b = constants
    ring = slow * fast
    for k in range(slow):
        before = (k - 1) % slow
        two_before = (k - 2) % slow
        after = (k + 1) % slow
        mean = np.zeros(_LANES)
        for j in range(fast):
            for lane in range(_LANES):
                mean[lane] += x[slow + k * fast + j, lane]
        for lane in range(_LANES):
            advection = -x[before, lane] * (x[two_before, lane] - x[after, lane])
            slope[k, lane] = advection - x[k, lane] + forcing[lane] - h * c / fast * mean[lane]
        for j in range(fast):
            i = k * fast + j
            ahead = slow + (i + 1) % ring
            two_ahead = slow + (i + 2) % ring
            behind = slow + (i - 1) % ring
            for lane in range(_LANES):
                advection = -b * x[ahead, lane] * (x[two_ahead, lane] - x[behind, lane])
                slope[slow + i, lane] = c * (advection - x[slow + i, lane] + h / fast * x[k, lane])
