"""Missing numbers: what a network makes of NaN where it was asked to."""

import torch
from torch import Tensor


def with_gaps(x: Tensor, axis: int) -> Tensor:
    """Return data with zeros for NaN, and beside them, along an axis, one wherever there was NaN.

    Example:
        >>> with_gaps(torch.tensor([[2.0, torch.nan]]), 1)
        tensor([[2., 0., 0., 1.]])
    """
    missing = x.isnan()
    return torch.cat([x.masked_fill(missing, 0.0), missing.to(x.dtype)], dim=axis)
