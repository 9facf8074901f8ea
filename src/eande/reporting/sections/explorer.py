"""Held-out data to choose from: the marginal posterior of each, with the true parameters.

All data share one bank of prior draws, weighted for each; those few draws come near are sampled,
and not many of them, for that takes up to a second each. What the page gets are histograms::

    names       of the parameters
    edges       of the bins of each parameter, (D, bins + 1)
    prior       mass of the prior in each bin, (D, bins)
    data        a list, for each datum:
        number  its row among the held-out simulations
        truth   the true parameters (D,)
        mass    of the posterior in each bin, (D, bins)
        mean, low, high      the mean and 90 % interval of each parameter (D,)
        y       the datum itself as up to three lines, where it is a short series; else None
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.inference.normalizer import ENOUGH_DRAWS
from eande.reporting.given import Given
from eande.simulation.read.views import fixed_views

_DATA = 50
_SAMPLED = 10
_SAMPLES = 400
_DRAWS = 20_000
_BINS = 40
_TAIL = 0.001
_LINES = 3
_PLACES = 150
_QUANTILES = (0.05, 0.95)


def explorer(given: Given) -> dict[str, Any]:
    """Return what the interactive part of the page shows."""
    model = given.model
    assert given.looked_at is not None
    count = len(given.looked_at)
    rows = torch.linspace(0, count - 1, min(count, _DATA)).round().long()
    chosen = given.looked_at[rows]
    y = torch.cat(list(fixed_views(given.views, chosen.y)))
    posteriors = model.posteriors(y, draws=_DRAWS)
    bank = posteriors[0].bank.phi.cpu().double()
    edges = _edges(bank, chosen.phi)
    uniform = torch.ones(len(bank), dtype=torch.float64)
    data = []
    sampled = 0
    for number, posterior in enumerate(posteriors):
        weights = posterior.bank_scores().double().softmax(0).cpu()
        phi = bank
        if 1 / weights.square().sum() < ENOUGH_DRAWS:
            if sampled == _SAMPLED:
                continue
            sampled += 1
            phi = posterior.sample(_SAMPLES, seed=given.seed_of("explorer"))[0].cpu().double()
            weights = torch.ones(len(phi), dtype=torch.float64) / len(phi)
        data.append(
            {
                "number": int(rows[number]),
                "truth": _rounded(chosen.phi[number]),
                "mass": _mass(phi, weights, edges),
                "mean": _rounded((weights.unsqueeze(1) * phi).sum(0)),
                **_ends(phi, weights),
                "y": _lines(y[number]),
            }
        )
    return {
        "names": list(given.names),
        "edges": [[float(f"{x:.6g}") for x in one] for one in edges],
        "prior": _mass(bank, uniform / len(bank), edges),
        "data": data,
    }


def _edges(bank: Tensor, truth: Tensor) -> list[list[float]]:
    """Return bins from nearly all of the prior, and all true parameters."""
    ends = bank.quantile(torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64), dim=0)
    low = torch.minimum(ends[0], truth.double().amin(0))
    high = torch.maximum(ends[1], truth.double().amax(0))
    wide = torch.where(high > low, high, low + low.abs().clamp(min=1.0))
    return [
        np.linspace(a, b, _BINS + 1).tolist()
        for a, b in zip(low.tolist(), wide.tolist(), strict=True)
    ]


def _mass(phi: Tensor, weights: Tensor, edges: list[list[float]]) -> list[list[float]]:
    """Return the weight in each bin, (D, bins)."""
    found = []
    for column, places in zip(phi.T.numpy(), edges, strict=True):
        mass, _ = np.histogram(column, bins=np.array(places), weights=weights.numpy())
        found.append([round(float(x), 5) for x in mass])
    return found


def _ends(phi: Tensor, weights: Tensor) -> dict[str, list[float]]:
    """Return the ends of the central 90 % interval of each parameter."""
    ends: dict[str, list[float]] = {"low": [], "high": []}
    for column in phi.T:
        order = column.argsort()
        below = weights[order].cumsum(0)
        for name, share in zip(ends, _QUANTILES, strict=True):
            place = min(int(torch.searchsorted(below, share)), len(order) - 1)
            ends[name].append(float(f"{column[order[place]].item():.6g}"))
    return ends


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{x:.6g}") for x in values.tolist()]


def _lines(y: Tensor) -> list[list[float | None]] | None:
    """Return a datum as a few lines of not too many points; None where it is none."""
    lines = y.unsqueeze(0) if y.ndim == 1 else y
    if lines.ndim != 2 or lines.shape[1] < 2:
        return None
    if len(lines) > _LINES:
        # Time first, as simulators write it.
        lines = lines.T
    if len(lines) > _LINES:
        return None
    places = torch.linspace(0, lines.shape[1] - 1, min(lines.shape[1], _PLACES)).round().long()
    return [
        [float(f"{x:.4g}") if np.isfinite(x) else None for x in line]
        for line in lines[:, places].tolist()
    ]
