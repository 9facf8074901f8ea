"""A posterior in a few numbers: means, intervals, and modes with their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eande.foundations.tables import html_table
from eande.inference.derived import Derived, add_derived
from eande.inference.search import climb
from eande.inference.target import Target

# How many samples to climb from.
_STARTS = 48
# How many points of the segment between two summits are evaluated.
_POINTS_BETWEEN = 8
# A summit is a mode if the log density falls by more than this on every path to a higher summit.
_DIP = 0.5


@dataclass(frozen=True)
class Mode:
    """A mode of the posterior.

    Args:
        phi: its highest point (D,).
        log_prob: the log density there.
        weight: the share of the samples that belong to it.
    """

    phi: Tensor
    log_prob: float
    weight: float


@dataclass(frozen=True)
class Summary:
    """A posterior in numbers, per parameter, and its modes.

    Args:
        names: of the parameters, and after them of the K derived quantities.
        mean: of the samples (D + K,).
        std: their standard deviation (D + K,).
        lower: lower end of the central interval (D + K,).
        upper: upper end of the central interval (D + K,).
        level: probability of that interval.
        modes: of the parameters alone, by weight, largest first; empty for a prior without a
            density, where uphill has no meaning.
        info: of the sampler.
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
        """Return a table to print."""
        width = max(map(len, self.names), default=4)
        lines = [f"{'':{width}}  {'mean':>10}  {'std':>10}  {self.level:.0%} interval"]
        for i, name in enumerate(self.names):
            interval = f"[{self.lower[i]:.4g}, {self.upper[i]:.4g}]"
            lines.append(f"{name:{width}}  {self.mean[i]:10.4g}  {self.std[i]:10.4g}  {interval}")
        for mode in self.modes:
            point = ", ".join(f"{x:.4g}" for x in mode.phi.tolist())
            lines.append(f"mode at ({point}) with weight {mode.weight:.2f}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        header = ("", "mean", "std", f"{self.level:.0%} interval")
        rows = [
            (name, f"{mean:.4g}", f"{std:.4g}", f"[{low:.4g}, {high:.4g}]")
            for name, mean, std, low, high in zip(
                self.names, self.mean, self.std, self.lower, self.upper, strict=True
            )
        ]
        notes = str(self).splitlines()[len(self.names) + 1 :]
        return html_table("Summary", rows, header=header, notes=notes)


def summarize(
    posterior: Target, phi: Tensor, info: Any, level: float, derived: Derived | None = None
) -> Summary:
    """Summarise samples (n, D) of a posterior, and quantities derived from them."""
    names, values = add_derived(posterior.prior.names, phi, derived)
    tail = (1 - level) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=torch.float64, device=phi.device)
    lower, upper = values.double().quantile(ends, dim=0)
    return Summary(
        names=names,
        mean=values.mean(0),
        std=values.std(0),
        lower=lower,
        upper=upper,
        level=level,
        modes=_modes(posterior, phi),
        info=info,
    )


def _modes(posterior: Target, phi: Tensor) -> tuple[Mode, ...]:
    """Find the modes by climbing from some of the samples.

    Summits that stand out are modes. Every other summit belongs to the mode that is reached from it
    over the highest pass, and every sample to the mode of the nearest summit.
    """
    if not posterior.prior.has_density:
        return ()
    scale = phi.std(0).clamp(min=1e-30)
    summits = climb(posterior.unnormalized, phi[:_STARTS], scale)
    heights = posterior.unnormalized(summits)
    passes = _passes(posterior, summits, heights)
    tops: list[int] = []
    for summit in heights.argsort(descending=True).tolist():
        if all(passes[summit, top] < heights[summit] - _DIP for top in tops):
            tops.append(summit)
    # Of equally high passes the one to the nearer mode counts: distances only break ties.
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
    """Return the height of the highest pass between every two summits, (k, k).

    The height of a path is its lowest point; paths are chains of straight segments between summits,
    and the highest is found as by Floyd and Warshall.
    """
    count = len(summits)
    first, second = torch.triu_indices(count, count, 1, device=summits.device)
    between = torch.linspace(0, 1, _POINTS_BETWEEN + 2, device=summits.device)[1:-1, None, None]
    path = summits[first] * (1 - between) + summits[second] * between
    lowest = posterior.unnormalized(path.flatten(0, 1)).view(_POINTS_BETWEEN, -1).amin(0)
    passes = torch.diag(heights)
    direct = torch.minimum(lowest, torch.minimum(heights[first], heights[second]))
    passes[first, second] = direct
    passes[second, first] = direct
    for via in range(count):
        passes = torch.maximum(passes, torch.minimum(passes[:, via, None], passes[None, via, :]))
    return passes
