"""Uphill search from many starting points at once."""

from collections.abc import Callable

import torch
from torch import Tensor

# How many starting points are enough for a handful of modes.
CLIMBERS = 32


def climb(
    objective: Callable[[Tensor], Tensor], starts: Tensor, scale: Tensor, *, steps: int = 60
) -> Tensor:
    """Move every starting point uphill by normalised gradient steps of adaptive size.

    A step that succeeds makes the next one longer, one that fails makes it shorter. No point ever
    ends lower than it started, and none leaves the region where the objective is finite.

    Args:
        objective: maps (k, D) to (k,), differentiable; minus infinity outside its region.
        starts: (k, D).
        scale: typical size per coordinate (D,); the first step is a tenth of it.
        steps: number of gradient evaluations.

    Example:
        >>> climb(
        ...     lambda x: -(x**2).sum(1), torch.tensor([[1.0, -2.0]]), torch.ones(2)
        ... ).abs().max() < 1e-3
        tensor(True)
    """
    points = starts.detach().clone()
    step = torch.full((len(starts), 1), 0.1, device=starts.device)
    with torch.no_grad():
        height = objective(points)
    for _ in range(steps):
        with torch.enable_grad():
            probe = points.requires_grad_(True)
            (gradient,) = torch.autograd.grad(objective(probe).sum(), probe)
        points = points.detach()
        direction = gradient.nan_to_num() * scale
        length = direction.norm(dim=1, keepdim=True).clamp(min=1e-30)
        moved = points + step * scale * direction / length
        with torch.no_grad():
            reached = objective(moved)
        better = reached > height
        points = torch.where(better.unsqueeze(1), moved, points)
        height = torch.where(better, reached, height)
        step = torch.where(better.unsqueeze(1), step * 1.5, step * 0.4)
    return points
