"""Weighted particles: their effective sample size, tempering it, and resampling by weights.

Reference:
    Douc, Cappé and Moulines, *Comparison of resampling schemes for particle filtering*, 2005.
"""

import torch
from torch import Tensor


def effective_sample_size(log_weights: Tensor) -> float:
    """Return (Σ w)² / Σ w² of log weights (N,)."""
    return (1 / (log_weights.softmax(0) ** 2).sum()).item()


def systematic_resampling(weights: Tensor, n: int, stream: torch.Generator) -> Tensor:
    """Draw ``n`` rows, each n times its weight, rounded up or down.

    Args:
        weights: of the rows (…, N), with sum 1, in float64.
        n: how many rows to draw.
        stream: the common random offset.
    """
    shape = (*weights.shape[:-1], 1)
    offset = torch.rand(shape, generator=stream, dtype=torch.float64, device=weights.device)
    places = torch.arange(n, dtype=torch.float64, device=weights.device) + offset
    return torch.searchsorted(weights.cumsum(-1), places / n).clamp_max(weights.shape[-1] - 1)


def next_exponent(score: Tensor, exponent: float, least: float) -> float:
    """Return the largest β up to 1 whose weights e^{Δβ s} have that effective sample size.

    By bisection, after 1 itself was tried.

    Args:
        score: s of the particles (N,).
        exponent: the present β.
        least: the effective sample size to keep.
    """
    if effective_sample_size((1.0 - exponent) * score) >= least:
        return 1.0
    low = exponent
    high = 1.0
    for _ in range(49):
        middle = (low + high) / 2
        if effective_sample_size((middle - exponent) * score) >= least:
            low = middle
        else:
            high = middle
    return low if low > exponent else high
