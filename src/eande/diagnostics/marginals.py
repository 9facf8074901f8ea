"""How far each marginal posterior is from its prior: Kullback–Leibler divergences, in bins."""

import torch
from torch import Tensor

# Bins of about equal prior mass.
_BINS = 100


def divergence_of_weights(weights: Tensor, draws: Tensor) -> Tensor:
    """Return KL(marginal posterior ‖ marginal prior) per datum and parameter, (m, D).

    Args:
        weights: of the posterior of every datum on prior draws, each row of sum 1, (m, N).
        draws: of the prior (N, D).
    """
    effective = 1 / weights.square().sum(1)
    found = []
    for values in draws.T.contiguous():
        edges, prior = _bins(values)
        mass = torch.zeros(len(weights), len(prior), dtype=weights.dtype, device=weights.device)
        mass.index_add_(1, torch.searchsorted(edges, values, right=True), weights)
        found.append(_divergence(mass, prior, effective))
    return torch.stack(found, dim=1)


def divergence_of_points(weights: Tensor, points: Tensor, draws: Tensor) -> Tensor:
    """Return KL(marginal posterior ‖ marginal prior) per datum and parameter, (m, D).

    Args:
        weights: of the posterior of every datum on points of its own, each row of sum 1, (m, k).
        points: (m, k, D).
        draws: of the prior (N, D).
    """
    effective = 1 / weights.square().sum(1)
    found = []
    for d, drawn in enumerate(draws.T.contiguous()):
        edges, prior = _bins(drawn)
        mass = torch.zeros(len(weights), len(prior), dtype=weights.dtype, device=weights.device)
        bin_of = torch.searchsorted(edges, points[..., d].contiguous(), right=True)
        found.append(_divergence(mass.scatter_add(1, bin_of, weights), prior, effective))
    return torch.stack(found, dim=1)


def divergence_of_samples(samples: Tensor, draws: Tensor) -> Tensor:
    """Return KL(marginal posterior ‖ marginal prior) per parameter, (1, D).

    Args:
        samples: of one posterior (n, D).
        draws: of the prior (N, D).
    """
    effective = torch.full((1,), len(samples), dtype=torch.float64, device=samples.device)
    found = []
    for values, drawn in zip(samples.T.contiguous(), draws.T.contiguous(), strict=True):
        edges, prior = _bins(drawn)
        mass = _shares(edges, values, len(prior))
        found.append(_divergence(mass.unsqueeze(0), prior, effective))
    return torch.stack(found, dim=1)


def _bins(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges of bins that hold about as many of the draws (N,) each, and their shares.

    Draws of one value share a bin.
    """
    bins = min(_BINS, len(draws))
    quantiles = torch.arange(1, bins, device=draws.device) * len(draws) // bins
    edges = draws.sort().values[quantiles]
    return edges, _shares(edges, draws, bins)


def _shares(edges: Tensor, values: Tensor, bins: int) -> Tensor:
    """Return the share of values (n,) in each bin."""
    bin_of = torch.searchsorted(edges, values, right=True)
    return torch.bincount(bin_of, minlength=bins).double() / len(values)


def _divergence(mass: Tensor, prior: Tensor, effective: Tensor) -> Tensor:
    """Return the divergence of each row of shares (m, bins) from the prior's, (m,).

    Shares estimated from a finite effective sample size (m,) are uneven by chance. This lowers
    their entropy by (bins in use − 1) / (2 effective), the bias of Miller and Madow, which is
    taken off; the number of bins in use is e^entropy, hence the two steps.
    """
    entropy = torch.special.entr(mass).sum(1)
    bias = torch.zeros_like(effective)
    for _ in range(2):
        bias = ((entropy + bias).exp() - 1) / (2 * effective)
    divergence = torch.xlogy(mass, mass / prior.clamp(min=1e-300)).sum(1)
    return (divergence - bias).clamp(min=0)
