"""Running a simulator over draws of the prior.

A simulator is any callable ``simulator(phi, rng) -> y``: ``phi`` an array (n, D), ``rng`` a ``numpy.random.Generator``,
``y`` an array or tensor whose first axis is n. Work is cut into blocks with a random stream each, so that the result
depends on the seed and the block size alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from eande.core.checks import InputError, as_float_tensor, check_count, check_finite
from eande.core.prior import Prior, as_prior
from eande.core.seeds import derive_seed
from eande.simulation.simulations import Simulations

Simulator = Callable[[np.ndarray, np.random.Generator], Any]


def simulate(simulator: Simulator, prior: Any, n: int, *, seed: int = 0, block_size: int = 1_000, progress: bool = False) -> Simulations:
    """Draw ``n`` parameters from the prior and simulate each.

    Args:
        simulator: ``simulator(phi, rng) -> y`` for a batch of parameters; :func:`each` makes one from a function of a single vector.
        prior: an eande prior or a torch Distribution.
        n: number of simulations.
        seed: same seed and block size, same simulations.
        block_size: simulations per call of the simulator.
        progress: whether to show a progress bar.
    """
    if not callable(simulator):
        raise InputError(f"simulator: expected a function of (phi, rng), got {simulator!r}")
    check_count("n", n, 1)
    check_count("block_size", block_size, 1)
    known = as_prior(prior)
    sizes = [min(block_size, n - start) for start in range(0, n, block_size)]
    blocks = track(list(enumerate(sizes)), description="simulating", disable=not progress)
    parts = [_simulate_block(simulator, known, size, block, seed) for block, size in blocks]
    shapes = {tuple(y.shape[1:]) for _, y in parts}
    if len(shapes) > 1:
        raise InputError(f"simulator output: expected data of one shape, got {sorted(shapes)}")
    return Simulations.from_arrays(torch.cat([phi for phi, _ in parts]), torch.cat([y for _, y in parts]))


def _simulate_block(simulator: Simulator, prior: Prior, size: int, block: int, seed: int) -> tuple[Tensor, Tensor]:
    phi = prior.sample(size, seed=derive_seed(seed, "phi", block))
    rng = np.random.default_rng(derive_seed(seed, "simulator", block))
    # Copies both ways: a simulator may change its argument in place, or hand out one buffer again and again.
    y = as_float_tensor("simulator output", simulator(phi.numpy().copy(), rng)).cpu().clone()
    if y.ndim < 2 or len(y) != size:
        raise InputError(f"simulator output: expected first axis {size} and at least one axis per datum, got shape {tuple(y.shape)}")
    check_finite(f"simulator output in block {block}", y)
    return phi, y


def each(function: Callable[[np.ndarray, np.random.Generator], Any]) -> Simulator:
    """Turn a function of one parameter vector, ``function(phi, rng) -> y``, into a simulator of batches.

    Example:
        >>> simulator = each(lambda phi, rng: phi**2)
        >>> simulator(np.array([[1.0, 2.0], [3.0, 4.0]]), np.random.default_rng(0))
        array([[ 1.,  4.],
               [ 9., 16.]])
    """

    def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.stack([np.atleast_1d(np.asarray(function(row, rng))) for row in phi])

    return simulator
