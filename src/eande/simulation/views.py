"""Views of simulated data: what of a simulation the encoder sees in one step (a window, a shifted ring, a noisy copy).

A view is any callable ``view(y, generator) -> y``: ``y`` a batch of stored data (m, …), ``generator`` a torch generator
to draw from, the result a batch (m, …) whose rows still carry the same parameters. Training draws a new view of each
datum in every step; validation uses one fixed view per datum.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from eande.core.checks import InputError
from eande.core.seeds import generator

View = Callable[[Tensor, torch.Generator], Tensor]


def draw_view(views: View | None, y: Tensor, seed: int, *path: int | str) -> Tensor:
    """Return a view of each row of ``y``, drawn with this seed and path; without views, ``y`` itself."""
    if views is None:
        return y
    seen = views(y, generator(seed, "view", *path))
    if not isinstance(seen, Tensor) or seen.ndim < 2 or len(seen) != len(y):
        got = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
        raise InputError(f"views: expected a tensor with first axis {len(y)} and at least one axis per datum, got {got}")
    return seen.float()


def fixed_view(views: View | None, y: Tensor) -> Tensor:
    """Return the one view of each row that validation uses: the same in every epoch of every fit."""
    return draw_view(views, y, 0, "fixed")
