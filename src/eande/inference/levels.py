r"""Highest-density levels and ranks: how much posterior mass lies above the true parameters.

Let a posterior be given by weighted parameters, w_j on φ_j, and let v be any function of the
parameters. The mass where v is higher than at the true parameters φ_0,

    u = (Σ_{j: v_j > v_0} w_j + U (Σ_{j: v_j = v_0} w_j + w_0)) / (w_0 + Σ_j w_j),

is the level of the smallest highest-density region that holds φ_0 if v is the posterior's
density, and φ_0's rank in any other order if v is minus that order's statistic. w_0 is the weight
of φ_0 itself, where it is mixed among the others. U is the share of ties that counts as higher:
uniform numbers on (0, 1) make u exactly uniform for the true posterior, ½ keeps its mean at ½.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Equal scores differ by rounding, more so where they come from matrix products of other shapes.
_ROUNDING = 1e-5


def tied(values: Tensor, own: Tensor) -> Tensor:
    """Return which values equal that of the true parameters up to the rounding of float32.

    All of them do where data say nothing about the parameters.

    Example:
        >>> tied(torch.tensor([1.0, 1.000001, 1.1]), torch.tensor(1.0))
        tensor([ True,  True, False])
    """
    return (values - own).abs() <= _ROUNDING * own.abs().clamp(min=1)


def mass_above(
    values: Tensor,
    own: Tensor,
    weights: Tensor | None = None,
    *,
    own_weight: Tensor | float = 0.0,
    ties: Tensor | float = 0.5,
    equal: Callable[[Tensor, Tensor], Tensor] = tied,
) -> Tensor:
    """Return the share of the mass where the value is higher than at the true parameters.

    All leading axes broadcast, so that data (m,) may share their draws, and exponents (T,) their
    values. Sums are taken in float64.

    Args:
        values: v_j, for instance log densities of draws, (…, N).
        own: v_0, the value at the true parameters, (…).
        weights: w_j, of any sum, (…, N) in float64; None for equal ones, of 1 each.
        own_weight: w_0, in the same units, (…); 0 where the true parameters are not among those
            that carry the posterior.
        ties: U, the share of ties that counts as higher: a number, or one per result (…).
        equal: which values are ties: equal up to rounding, or exactly with ``torch.eq``.

    Example:
        >>> mass_above(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor(2.0))
        tensor(0.5000, dtype=torch.float64)
    """
    own = own.unsqueeze(-1)
    share = torch.as_tensor(ties, dtype=torch.float64, device=values.device)
    mine = torch.as_tensor(own_weight, dtype=torch.float64, device=values.device)
    higher = torch.where(equal(values, own), share.unsqueeze(-1), (values > own).double())
    if weights is None:
        weights = torch.ones_like(higher)
    # One set of values for all rows of weights is a matrix–vector product, several times faster.
    mass = weights @ higher if higher.ndim == 1 else (weights * higher).sum(-1)
    return (mass + share * mine) / (weights.sum(-1) + mine)
