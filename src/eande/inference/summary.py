"""A posterior in a few numbers: means, intervals, and modes with their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eande.inference.search import climb
from eande.inference.target import Target

_STARTS = 48
_STEPS_BETWEEN = 8
# A summit counts as a mode if the log density falls by more than this on every way to a higher one.
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
            lines.append(
                f"{name:{width}}  {self.mean[i]:10.4g}  {self.std[i]:10.4g}  [{self.lower[i]:.4g}, {self.upper[i]:.4g}]"
            )
        for mode in self.modes:
            lines.append(
                f"mode at ({', '.join(f'{x:.4g}' for x in mode.phi.tolist())}) with weight {mode.weight:.2f}"
            )
        return "\n".join(lines)


def summarize(posterior: Target, phi: Tensor, info: Any, level: float) -> Summary:
    """Summarise samples (n, D) of a posterior."""
    tail = (1 - level) / 2
    lower, upper = phi.double().quantile(
        torch.tensor([tail, 1 - tail], dtype=torch.float64, device=phi.device), dim=0
    )
    return Summary(
        posterior.prior.names,
        phi.mean(0),
        phi.std(0),
        lower,
        upper,
        level,
        _modes(posterior, phi),
        info,
    )


def _modes(posterior: Target, phi: Tensor) -> tuple[Mode, ...]:
    """Climb from some samples, keep the summits that stand out, and weigh each by the samples nearest to its slopes."""
    if not posterior.prior.has_density:
        return ()
    scale = phi.std(0).clamp(min=1e-30)
    summits = climb(posterior.unnormalized, phi[:_STARTS], scale)
    heights = posterior.unnormalized(summits)
    passes = _passes(posterior, summits, heights)
    tops: list[int] = []
    for summit in heights.argsort(descending=True).tolist():
        # A summit is a mode of its own if every way to a higher one first falls by more than the
        # dip.
        if all(passes[summit, top] < heights[summit] - _DIP for top in tops):
            tops.append(summit)
    # Of equally high passes the nearer mode wins: distances break ties and are too small to do
    # more.
    distance = torch.cdist(summits / scale, summits[tops] / scale)
    home = (passes[:, tops] - 1e-3 * distance).argmax(1)
    nearest = torch.cdist(phi / scale, summits / scale).argmin(1)
    shares = torch.bincount(home[nearest], minlength=len(tops)) / len(phi)
    modes = [
        Mode(summits[top], heights[top].item() - posterior.log_normalizer, share)
        for top, share in zip(tops, shares.tolist(), strict=True)
    ]
    return tuple(sorted(modes, key=lambda mode: -mode.weight))


def _passes(posterior: Target, summits: Tensor, heights: Tensor) -> Tensor:
    """Return the height of the highest pass between every two summits, over chains of straight segments, (k, k)."""
    count = len(summits)
    first, second = torch.triu_indices(count, count, 1, device=summits.device)
    between = torch.linspace(0, 1, _STEPS_BETWEEN + 2, device=summits.device)[1:-1, None, None]
    path = summits[first] * (1 - between) + summits[second] * between
    lowest = posterior.unnormalized(path.flatten(0, 1)).view(_STEPS_BETWEEN, -1).amin(0)
    passes = torch.diag(heights)
    passes[first, second] = passes[second, first] = torch.minimum(
        lowest, torch.minimum(heights[first], heights[second])
    )
    for via in range(count):
        passes = torch.maximum(passes, torch.minimum(passes[:, via, None], passes[None, via, :]))
    return passes
