"""The CUDA kernel of Lorenz 96: the whole integration in one launch.

Each trajectory has a thread block, each slow variable a thread. A thread keeps u_k and its J fast
variables in registers, so the mean over them costs no communication. Its neighbours need u_k, the
first two fast variables and the last one: only these go through shared memory, in two buffers used
alternately, so that one barrier per Runge–Kutta stage suffices. All arithmetic is in float64, with
the scheme of the CPU kernel.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import InputError
from eande.simulators.lorenz96_system import FIRST_PIECES, Lorenz96System

# Two buffers of four float64 per slow variable fill the 48 KiB of shared memory that every block
# may have.
_MOST_SLOW = 48 * 1024 // (2 * 4 * 8)

_SOURCE = """
// Of the current stage state, what other threads read: u, and the first, second and last fast
// variable of every slow one.
struct Edges { double u[SLOW], first[SLOW], second[SLOW], last[SLOW]; };

__device__ __forceinline__ void publish(Edges& edges, int k, double u, const double* v) {
    edges.u[k] = u;
    edges.first[k] = v[0];
    edges.second[k] = v[FAST > 1 ? 1 : 0];
    edges.last[k] = v[FAST - 1];
}

__device__ __forceinline__ double fast_slope(
    double own, double ahead, double two_ahead, double behind,
    double drive, double c, double advection)
{
    return drive - c * own - advection * (ahead * (two_ahead - behind));
}

// coupling is h c / J and advection c b.
extern "C" __global__ void __launch_bounds__(SLOW) lorenz96(
    const double* __restrict__ start, const double* __restrict__ forcing, float* __restrict__ out,
    int observations, int substeps, int skipped,
    double whole_step, double coupling, double c, double advection)
{
    __shared__ Edges edges[2];
    const int k = threadIdx.x;
    const int before = (k + SLOW - 1) % SLOW;
    const int two_before = (k + SLOW - 2) % SLOW;
    const int after = (k + 1) % SLOW;
    const int two_after = (k + 2) % SLOW;
    const double force = forcing[blockIdx.x];
    start += (size_t)blockIdx.x * SIZE;
    out += (size_t)blockIdx.x * observations * SIZE;

    // The state, the state of the current stage, and the weighted sum of slopes.
    double u = start[k], stage_u = u, total_u = 0;
    double v[FAST], stage_v[FAST], total_v[FAST], slope[FAST];
    #pragma unroll
    for (int j = 0; j < FAST; ++j) {
        v[j] = stage_v[j] = start[SLOW + k * FAST + j];
        total_v[j] = 0;
    }
    publish(edges[0], k, stage_u, stage_v);

    // Divided once: a division in float64 costs as much as half a stage.
    const double first_step = whole_step / FIRST_PIECES;
    const double first_sixth = first_step / 6;
    const double whole_sixth = whole_step / 6;
    int left = skipped + substeps;
    for (int done = 0; done < skipped + observations * substeps; ++done) {
        const bool first = done < substeps;
        const int pieces = first ? FIRST_PIECES : 1;
        const double step = first ? first_step : whole_step;
        const double sixth = first ? first_sixth : whole_sixth;
        for (int piece = 0; piece < pieces; ++piece) {
            #pragma unroll
            for (int stage = 0; stage < 4; ++stage) {
                const Edges& now = edges[stage % 2];
                const double drive = coupling * stage_u;
                // What needs no other thread comes before the barrier and hides its latency; the
                // sum is split in two for the same reason.
                double even = 0, odd = 0;
                #pragma unroll
                for (int j = 0; j < FAST; ++j) {
                    (j % 2 ? odd : even) += stage_v[j];
                    if (j >= 1 && j + 2 < FAST)
                        slope[j] = fast_slope(
                            stage_v[j], stage_v[j + 1], stage_v[j + 2], stage_v[j - 1],
                            drive, c, advection);
                }
                const double inner = force - stage_u - coupling * (even + odd);
                __syncthreads();
                const double slope_u = inner - now.u[before] * (now.u[two_before] - now.u[after]);
                const double ahead = now.first[after];
                const double two_ahead = FAST > 1 ? now.second[after] : now.first[two_after];
                const double behind = now.last[before];
                #pragma unroll
                for (int j = 0; j < FAST; ++j) {
                    if (j >= 1 && j + 2 < FAST) continue;
                    const double next = j + 1 < FAST ? stage_v[j + 1 < FAST ? j + 1 : 0] : ahead;
                    const double second = j + 2 < FAST
                        ? stage_v[j + 2 < FAST ? j + 2 : 0]
                        : (j + 2 == FAST ? ahead : two_ahead);
                    const double previous = j >= 1 ? stage_v[j >= 1 ? j - 1 : 0] : behind;
                    slope[j] = fast_slope(
                        stage_v[j], next, second, previous, drive, c, advection);
                }
                // Weights 1, 2, 2, 1; the next stage lies half a step, half a step and a step
                // ahead, and the last one is the new state.
                if (stage < 3) {
                    const double weight = stage == 0 ? 1 : 2;
                    const double reach = stage == 2 ? step : 0.5 * step;
                    total_u = (stage == 0 ? 0 : total_u) + weight * slope_u;
                    stage_u = u + reach * slope_u;
                    #pragma unroll
                    for (int j = 0; j < FAST; ++j) {
                        total_v[j] = (stage == 0 ? 0 : total_v[j]) + weight * slope[j];
                        stage_v[j] = v[j] + reach * slope[j];
                    }
                } else {
                    stage_u = u = u + sixth * (total_u + slope_u);
                    #pragma unroll
                    for (int j = 0; j < FAST; ++j)
                        stage_v[j] = v[j] = v[j] + sixth * (total_v[j] + slope[j]);
                }
                publish(edges[(stage + 1) % 2], k, stage_u, stage_v);
            }
        }
        if (--left == 0) {
            out[k] = (float)u;
            #pragma unroll
            for (int j = 0; j < FAST; ++j) out[SLOW + k * FAST + j] = (float)v[j];
            out += SIZE;
            left = substeps;
        }
    }
}
"""


def trajectories(
    state: np.ndarray | Tensor, forcing: np.ndarray | Tensor, system: Lorenz96System
) -> Tensor:
    """Integrate states (n, K + K·J) under forcings (n,) to (n, observations, K + K·J), float32.

    On the current CUDA device, where the result stays.
    """
    if not torch.cuda.is_available():
        raise InputError("device: expected 'cpu' where torch finds no CUDA device, got 'cuda'")
    if system.slow > _MOST_SLOW:
        raise InputError(
            f"slow: expected at most {_MOST_SLOW} with device 'cuda', got {system.slow}"
        )
    begin = torch.as_tensor(state, dtype=torch.float64, device="cuda").contiguous()
    force = torch.as_tensor(forcing, dtype=torch.float64, device="cuda").contiguous()
    out = torch.empty(len(begin), system.observations, system.size, device="cuda")
    counts = [system.observations, system.substeps, system.skipped_steps]
    coupling = system.h * system.c / system.fast
    advection = system.c * system.b
    constants = [float(system.step), float(coupling), float(system.c), float(advection)]
    kernel = _compiled(system.slow, system.fast, torch.cuda.current_device())
    kernel(
        grid=(len(begin), 1, 1),
        block=(system.slow, 1, 1),
        args=[begin, force, out, *counts, *constants],
    )
    return out


def source(slow: int, fast: int) -> str:
    """Return the CUDA C source for K and J.

    They are constants of the source, so that loops are unrolled and arrays stay in registers.
    """
    constants = {
        "SLOW": slow,
        "FAST": fast,
        "SIZE": slow * (1 + fast),
        "FIRST_PIECES": FIRST_PIECES,
    }
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + _SOURCE


@lru_cache
def _compiled(slow: int, fast: int, device: int) -> Any:
    """Compile the kernel for this device, to which the result belongs.

    By NVRTC through torch, which ships both it and this way to launch a kernel: there is no
    compiler and no further package to install.
    """
    from torch.utils import cpp_extension

    # torch asks for the headers of a CUDA toolkit and fails where there is none; the kernel
    # includes no header, so any folder will do.
    home = cpp_extension.CUDA_HOME
    try:
        cpp_extension.CUDA_HOME = home or torch.__path__[0]
        return torch.cuda._compile_kernel(source(slow, fast), "lorenz96")
    finally:
        cpp_extension.CUDA_HOME = home
