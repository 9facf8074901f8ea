"""Weighted particles: their effective sample size, tempering it, and resampling by weights.

Reference:
    Douc, Cappé and Moulines, *Comparison of resampling schemes for particle filtering*, 2005.
"""

import torch
from torch import Tensor

# Exponents are found to a hundredth of themselves, down to this.
_LEAST_LOG_EXPONENT = -20.0
_BISECTIONS = 12


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


def largest_exponents(log_weights: Tensor, least: Tensor) -> Tensor:
    """Return for each datum the largest β up to 1 whose weights w^β have that effective size.

    By bisection of log β, for all data at once, after 1 itself was tried.

    Args:
        log_weights: of the points of each datum (m, N).
        least: the effective sample size to keep, (m,).
    """
    high = torch.zeros(len(log_weights), dtype=log_weights.dtype, device=log_weights.device)
    low = torch.full_like(high, _LEAST_LOG_EXPONENT)
    for step in range(_BISECTIONS):
        middle = high if step == 0 else (low + high) / 2
        weights = (middle.exp().unsqueeze(1) * log_weights).softmax(1)
        enough = 1 / weights.square().sum(1) >= least
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle)
        if bool((low == 0).all()):
            break
    return low.exp()


def rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Return rows (m, k) of points (m, j, D), or of points (1, j, D) that all data share."""
    if len(x) == 1:
        return x[0][rows]
    return x.gather(1, rows.unsqueeze(2).expand(-1, -1, x.shape[2]))
