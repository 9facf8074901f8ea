"""Markov chains for the gallery's references: where a likelihood is known, what is exact.

Many independent chains of a random walk, plain Metropolis, moved together as one array::

    φ' = φ + s L ε,   ε ~ N(0, I),   accepted with probability min(1, p(φ') / p(φ))

L Lᵀ is the covariance of all chains in the last part of the warm-up, s begins at 2.4 / √D and is
tuned to accept three of ten. Halfway through the warm-up, chains that are stuck more than 20 nats
below the best one go on from where another is: a mode so low holds no mass to speak of, unless it
is 10⁸ times as wide. Then all is left alone, so that what is kept is of a Markov chain with
the right stationary law, and the chains are independent: their split R-hat and effective sample
size, by ArviZ, mean what they say.

References:
    Roberts, Gelman and Gilks, *Weak convergence and optimal scaling of random walk Metropolis
    algorithms*, 1997; Vehtari, Gelman, Simpson, Carpenter and Bürkner, *Rank-normalization,
    folding, and localization: an improved R-hat*, 2021.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_ROUNDS = 10
_HOPELESS = 20.0
_ACCEPTED = 0.3
QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)


def sample(
    log_prob: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    *,
    warmup: int,
    draws: int,
    thin: int,
    seed: int,
) -> tuple[np.ndarray, float]:
    """Draw from an unnormalised density by independent chains.

    Args:
        log_prob: of points (chains, D), minus infinity where there is no density.
        start: of each chain, (chains, D).
        warmup: steps that are thrown away, while the proposal adapts.
        draws: states kept of each chain.
        thin: steps from one state that is kept to the next.
        seed: of all.

    Returns:
        The states kept, (chains, draws, D), and the share of accepted proposals.
    """
    rng = np.random.default_rng(seed)
    points = np.array(start, dtype=np.float64)
    dimension = points.shape[1]
    height = log_prob(points)
    factor = np.diag(points.std(0) + 1e-12)
    scale = 2.4 / dimension**0.5

    def walk(steps: int, every: int) -> tuple[np.ndarray, float]:
        """Move all chains; return every so many states, and the share of accepted proposals."""
        nonlocal points, height
        kept = []
        accepted = 0.0
        for step in range(steps):
            proposed = points + scale * rng.standard_normal(points.shape) @ factor.T
            there = log_prob(proposed)
            moved = np.log(rng.random(len(points))) < there - height
            points = np.where(moved[:, None], proposed, points)
            height = np.where(moved, there, height)
            accepted += moved.mean() / steps
            if (step + 1) % every == 0:
                kept.append(points)
        return np.stack(kept, axis=1), accepted

    for part in range(_ROUNDS):
        states, accepted = walk(warmup // _ROUNDS, 1)
        if part == _ROUNDS // 2 - 1:
            stuck = height < height.max() - _HOPELESS
            others = rng.choice(np.flatnonzero(~stuck), stuck.sum())
            points[stuck] = points[others]
            height[stuck] = height[others]
            continue
        late = states[:, states.shape[1] // 2 :].reshape(-1, dimension)
        factor = np.linalg.cholesky(np.cov(late, rowvar=False).reshape(dimension, dimension))
        scale *= np.exp(accepted - _ACCEPTED)
    return walk(draws * thin, thin)


def describe(chains: np.ndarray, names: Sequence[str], *, keep: int) -> dict[str, Any]:
    """Return means, deviations, quantiles and the checks of convergence of chains, for a file.

    Args:
        chains: of each parameter, (chains, draws, D).
        names: one per parameter.
        keep: how many of the draws go into the file, evenly taken.
    """
    from arviz_stats.base import array_stats

    pooled = chains.reshape(-1, chains.shape[-1])
    kept = pooled[np.linspace(0, len(pooled) - 1, keep).astype(int)]
    parameters = {}
    for i, name in enumerate(names):
        values = chains[..., i]
        effective = float(array_stats.ess(values, chain_axis=0, draw_axis=1))
        deviation = float(values.std())
        parameters[name] = {
            "mean": float(values.mean()),
            "sd": deviation,
            "error_of_mean": deviation / effective**0.5,
            "quantiles": dict(
                zip(map(str, QUANTILES), np.quantile(values, QUANTILES).tolist(), strict=True)
            ),
            "r_hat": float(array_stats.rhat(values, chain_axis=0, draw_axis=1)),
            "ess": effective,
            "ess_tail": float(
                array_stats.ess(values, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95))
            ),
        }
    return {
        "chains": chains.shape[0],
        "draws_per_chain": chains.shape[1],
        "parameters": parameters,
        "samples": [[float(f"{value:.6g}") for value in row] for row in kept],
    }
