"""Full precision where mixed precision is not enough."""

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without mixed precision, for the last layers.

    The score divides their error by the temperature τ, which is small for a sharp posterior.
    """
    if device.type == "meta":
        # Nothing is computed there, and torch knows no precision of it.
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
