r"""Candidates near the posteriors of many data at once, among which are the true parameters.

A model is scored by log r(φ_i, y_i) = s_i − log C(y_i). With k prior draws beside the true φ_i,

    s_i − log (1/(k + 1)) Σ_j e^{s_ij}

is the log probability of picking φ_i among them, up to log(k + 1): a proper score, cheap, but blind
to all that happens beyond log(k + 1) nats, and to over-confidence before that. So a sharp posterior
gets candidates of its own, drawn from a proposal q(φ | y_i) that is a little wider than it:

    s_i − log (1/(k + 1)) Σ_j e^{t_ij},      t_ij = s_ij + log p(φ_ij) − log q(φ_ij | y_i),

with φ_i itself among them. The proposal is found in rounds: of the candidates so far, those are
taken that the weights (e^s p/q)^β prefer, with β as large as their number allows, and a kernel
around each, a Gaussian around all and a tenth of the prior make the next ones. It decides what the
score costs, not what it is; models are compared by one set of candidates.

Given y_i alone, φ_i is any of the candidates with a probability proportional to e^t. The ranks of
:mod:`eande.diagnostics.ranks` need no more than that; their candidates are draws of guides
(:mod:`eande.inference.guide`), for which there is time to look at thousands of points a datum. Here
there is not: hundreds of data have some dozens each, again and again during training.

References:
    Gutmann and Hyvärinen, *Noise-contrastive estimation*, 2010;
    Cappé, Guillin, Marin and Robert, *Population Monte Carlo*, 2004.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed, generator
from eande.inference.samplers.resampling import largest_exponents, rows_of, systematic_resampling
from eande.priors.prior import Prior

# Prior draws from which every datum's first candidates are taken.
_POOL = 2_048
_ROUNDS = 8
# Each round leaves an effective sample size of this share of the candidates it is to find.
_EFFECTIVE_SHARE = 0.25
# What a proposal is made of, and how much wider than the candidates its Gaussian is.
_SHARE_OF_PRIOR = 0.1
_SHARE_OF_GAUSSIAN = 0.45
_GAUSSIAN_WIDTH = 1.15
# A kernel is as wide as the distances to this share of the points, the nearest of them.
_NEAREST_SHARE = 0.1
_COINCIDING = 1e-6
# Added to a covariance, relative to that of the prior: candidates that coincide still have kernels.
_LEAST_VARIANCE = 1e-8
# The log weight of candidates outside the prior's support: finite, so that files can hold it.
_OUTSIDE = -1e6

# Scores of parameters (m, k, D), or (1, k, D) where all data share them: (m, k).
Scores = Callable[[Tensor], Tensor]


class Candidates(NamedTuple):
    """The true parameters of held-out data, and others to confuse them with.

    Args:
        phi: (m, 1 + k, D), the true ones first.
        log_weight: log p − log q of each, (m, 1 + k).
        reached: the mean log ratio of the model that they were proposed for.
    """

    phi: Tensor
    log_weight: Tensor
    reached: float = 0.0

    def tilted(self, scores: Tensor) -> Tensor:
        """Return t of all, (m, 1 + k), by their scores."""
        return scores.double() + self.log_weight

    def log_ratio(self, scores: Tensor) -> Tensor:
        """Return log r of the true parameters by the scores (m, 1 + k) of all, (m,)."""
        log_total = self.tilted(scores).logsumexp(1)
        return scores[:, 0].double() - log_total + math.log(scores.shape[1])


def propose_candidates(
    scores: Scores,
    prior: Prior,
    phi: Tensor,
    count: int,
    *,
    seed: int,
    times: int = 1,
) -> Candidates:
    """Draw candidates near the posterior that a score defines, for each datum its own.

    Args:
        scores: of the model that the proposals are adapted to.
        prior: with a density.
        phi: true parameters of the data (m, D).
        count: how many a proposal is made of.
        seed: same seed, same candidates.
        times: how often as many are drawn from the last one, k in all.
    """
    stream = generator(seed, "candidates")
    pool = prior.sample(_POOL, seed=derive_seed(seed, "pool")).to(phi)
    proposal = _find_proposal(scores, prior, pool, count, stream)
    x = proposal.sample(prior, stream, times)
    true_x = prior.unconstrain(phi).double().unsqueeze(1)
    return Candidates(
        torch.cat([phi.float().unsqueeze(1), _constrained(prior, x)], dim=1),
        proposal.log_weight(prior, torch.cat([true_x, x], dim=1)),
    )


def _find_proposal(
    scores: Scores, prior: Prior, pool: Tensor, count: int, stream: torch.Generator
) -> "_Proposal":
    """Find what to propose for each datum, in rounds that begin with a pool of prior draws.

    Args:
        scores: of the model.
        prior: with a density.
        pool: draws of it (N, D).
        count: how many points a proposal is made of.
        stream: of random numbers.
    """
    x = prior.unconstrain(pool).double().unsqueeze(0)
    least = _LEAST_VARIANCE * x[0].var(0)
    log_weight = torch.zeros(1, len(pool), dtype=torch.float64, device=pool.device)
    score = scores(pool.unsqueeze(0)).double()
    least_effective = torch.full_like(score[:, 0], _EFFECTIVE_SHARE * count)
    proposal: _Proposal | None = None
    for _ in range(_ROUNDS):
        log_weight = score + log_weight
        exponent = largest_exponents(log_weight, least_effective)
        weights = (exponent.unsqueeze(1) * log_weight).softmax(1)
        rows = systematic_resampling(weights.cpu(), count, stream)
        centres = rows_of(x, rows.to(x.device))
        proposal = _Proposal.around(centres, least)
        if exponent.min() >= 1:
            break
        x = proposal.sample(prior, stream)
        log_weight = proposal.log_weight(prior, x)
        score = scores(_constrained(prior, x)).double()
    assert proposal is not None
    return proposal


def _constrained(prior: Prior, x: Tensor) -> Tensor:
    """Return points (m, k, D) of unconstrained coordinates as parameters."""
    return prior.constrain(x.flatten(0, 1)).float().unflatten(0, x.shape[:2])


class _Gaussian(NamedTuple):
    """Gaussians of one covariance around points, for every datum its own, with equal weights.

    Args:
        centres: (m, k, D).
        factor: Cholesky factor of the covariance, (m, D, D).
    """

    centres: Tensor
    factor: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Return a point around every centre by standard normal numbers (m, j, D)."""
        return self.centres + noise @ self.factor.transpose(1, 2)

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density of points (m, j, D), (m, j)."""
        to_white = torch.linalg.inv(self.factor).transpose(1, 2)
        log_volume = self.factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
        square = torch.cdist(x @ to_white, self.centres @ to_white).square()
        constant = math.log(self.centres.shape[1]) + x.shape[2] / 2 * math.log(2 * math.pi)
        return (-square / 2).logsumexp(2) - log_volume - constant


class _Proposal(NamedTuple):
    """For every datum: kernels around points, one Gaussian around all of them, and the prior.

    The kernels find several modes; with many parameters it is the Gaussian that covers a posterior.
    """

    kernels: _Gaussian
    whole: _Gaussian

    @classmethod
    def around(cls, centres: Tensor, least: Tensor) -> "_Proposal":
        """Make the proposal around points (m, k, D)."""
        count = centres.shape[1]
        dimension = centres.shape[2]
        mean = centres.mean(1, keepdim=True)
        apart = centres - mean
        covariance = apart.transpose(1, 2) @ apart / count + least.diag()
        # Few points say little of a covariance in many dimensions: it leans on that of all data.
        leaning = dimension / (dimension + _EFFECTIVE_SHARE * count)
        covariance = torch.lerp(covariance, covariance.mean(0, keepdim=True), leaning)
        factor = torch.linalg.cholesky(covariance)
        local = _local_covariance(centres, factor) + least.diag()
        local = torch.lerp(local, local.mean(0, keepdim=True), leaning)
        return cls(
            _Gaussian(centres, torch.linalg.cholesky(local)),
            _Gaussian(mean, _GAUSSIAN_WIDTH * factor),
        )

    def sample(self, prior: Prior, stream: torch.Generator, times: int = 1) -> Tensor:
        """Draw so many times as many points for every datum as there are kernels."""
        kernels = self.kernels._replace(centres=self.kernels.centres.repeat(1, times, 1))
        shape = kernels.centres.shape
        noise = torch.randn(shape, generator=stream, dtype=torch.float64).to(self.whole.factor)
        seed = int(torch.randint(2**62, (), generator=stream))
        free = prior.unconstrain(prior.sample(shape[0] * shape[1], seed=seed)).to(noise)
        kind = torch.rand(shape[:2], generator=stream).to(noise.device).unsqueeze(2)
        x = torch.where(kind < _SHARE_OF_GAUSSIAN, self.whole.sample(noise), kernels.sample(noise))
        return torch.where(kind > 1 - _SHARE_OF_PRIOR, free.view(shape), x)

    def log_weight(self, prior: Prior, x: Tensor) -> Tensor:
        """Return log p − log q of points (m, j, D), (m, j)."""
        log_prior = prior.unconstrained_log_prob(x.flatten(0, 1)).view(x.shape[:2]).to(x)
        parts = [
            self.kernels.log_density(x) + math.log(1 - _SHARE_OF_GAUSSIAN - _SHARE_OF_PRIOR),
            self.whole.log_density(x) + math.log(_SHARE_OF_GAUSSIAN),
            log_prior + math.log(_SHARE_OF_PRIOR),
        ]
        log_q = torch.stack(parts).logsumexp(0)
        return torch.where(log_prior > -torch.inf, log_prior - log_q, _OUTSIDE)


def _local_covariance(points: Tensor, factor: Tensor) -> Tensor:
    """Return the covariance of points (m, k, D) around their nearest others, (m, D, D).

    It is that of one mode where there are several.

    Args:
        points: some may coincide.
        factor: Cholesky factor of the covariance of all, which says what is near.
    """
    white = points @ torch.linalg.inv(factor).transpose(1, 2)
    distance = torch.cdist(white, white)
    distance = distance.masked_fill(distance < _COINCIDING, torch.inf)
    near = max(1, int(_NEAREST_SHARE * points.shape[1]))
    found, nearest = distance.topk(near, largest=False)
    others = rows_of(points, nearest.flatten(1)).unflatten(1, nearest.shape[1:])
    apart = (others - points.unsqueeze(2)) * torch.isfinite(found).unsqueeze(3)
    apart = apart.flatten(1, 2)
    return (
        apart.transpose(1, 2)
        @ apart
        / torch.isfinite(found).sum((1, 2)).clamp(min=1)[:, None, None]
    )
