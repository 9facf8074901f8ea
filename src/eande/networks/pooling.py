"""What many numbers have in common, whatever their order: the means by which networks pool."""

import torch
from torch import Tensor

# Added to a variance before its logarithm, for numbers that do not vary.
_LEAST_VARIANCE = 1e-6


def moments(x: Tensor) -> Tensor:
    """Return mean and log standard deviation along the last axis, (…, c, k) → (…, 2c).

    The logarithm makes both of one kind: a scale that is a parameter's exponential becomes linear
    in it.
    """
    mean = x.mean(-1)
    variance = (x - mean.unsqueeze(-1)).square().mean(-1)
    return torch.cat([mean, (variance + _LEAST_VARIANCE).log() / 2], dim=-1)
