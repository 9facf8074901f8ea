"""A posterior in a few numbers: means, intervals, and modes with their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eande.core.search import climb

if TYPE_CHECKING:
    from eande.core.posterior import Posterior

_STARTS = 48
_STEPS_BETWEEN = 8
# Two maxima are one mode if the log density between them falls by less than this.
_DIP = 0.5


@dataclass(frozen=True)
class Mode:
    """One mode: its highest point, the log density there, and the share of samples nearest to it."""

    phi: Tensor
    log_prob: float
    weight: float


@dataclass(frozen=True)
class Summary:
    """Numbers per parameter, all of shape (D,), and the modes.

    ``modes`` is empty for a prior without density: uphill means nothing on an unknown surface.
    """

    names: tuple[str, ...]
    mean: Tensor
    std: Tensor
    lower: Tensor
    upper: Tensor
    level: float
    modes: tuple[Mode, ...]
    info: Any

    def __str__(self) -> str:
        """Return a table for people."""
        width = max(map(len, self.names), default=4)
        lines = [f"{'':{width}}  {'mean':>10}  {'std':>10}  {self.level:.0%} interval"]
        for i, name in enumerate(self.names):
            lines.append(f"{name:{width}}  {self.mean[i]:10.4g}  {self.std[i]:10.4g}  [{self.lower[i]:.4g}, {self.upper[i]:.4g}]")
        for mode in self.modes:
            lines.append(f"mode at ({', '.join(f'{x:.4g}' for x in mode.phi.tolist())}) with weight {mode.weight:.2f}")
        return "\n".join(lines)


def summarize(posterior: Posterior, phi: Tensor, info: Any, level: float) -> Summary:
    """Summarise samples (n, D) of a posterior."""
    tail = (1 - level) / 2
    lower, upper = phi.double().quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64, device=phi.device), dim=0)
    return Summary(posterior.prior.names, phi.mean(0), phi.std(0), lower, upper, level, _modes(posterior, phi), info)


def _modes(posterior: Posterior, phi: Tensor) -> tuple[Mode, ...]:
    """Climb from some samples, join summits without a dip between them, and weigh each by the samples nearest to it."""
    if not posterior.prior.has_density:
        return ()
    scale = phi.std(0).clamp(min=1e-30)
    summits = climb(posterior.log_prob, phi[:_STARTS], scale)
    heights = posterior.log_prob(summits)
    labels = _join(posterior, summits, heights)
    nearest = torch.cdist(phi / scale, summits / scale).argmin(1)
    shares = torch.bincount(labels[nearest], minlength=len(summits)).double() / len(phi)
    modes = []
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0]
        top = members[heights[members].argmax()]
        modes.append(Mode(summits[top], heights[top].item(), shares[label].item()))
    return tuple(sorted(modes, key=lambda mode: -mode.weight))


def _join(posterior: Posterior, summits: Tensor, heights: Tensor) -> Tensor:
    """Label summits so that two have the same label if a chain of straight, dip-free segments connects them."""
    count = len(summits)
    first, second = torch.triu_indices(count, count, 1, device=summits.device)
    between = torch.linspace(0, 1, _STEPS_BETWEEN + 2, device=summits.device)[1:-1, None, None]
    path = summits[first] * (1 - between) + summits[second] * between
    lowest = posterior.log_prob(path.flatten(0, 1)).view(_STEPS_BETWEEN, -1).amin(0)
    linked = lowest > torch.minimum(heights[first], heights[second]) - _DIP
    labels = torch.arange(count, device=summits.device)
    for a, b in zip(first[linked].tolist(), second[linked].tolist(), strict=True):
        labels[labels == labels[b]] = labels[a].clone()
    return labels
