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
:mod:`eande.diagnostics.ranks` need no more than that.

References:
    Gutmann and Hyvärinen, *Noise-contrastive estimation*, 2010;
    Cappé, Guillin, Marin and Robert, *Population Monte Carlo*, 2004.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed, generator
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    Normalizer,
    PriorBank,
    join_normalizers,
    normalizer_of_scores,
)
from eande.inference.samplers.resampling import systematic_resampling
from eande.priors.prior import Prior
from eande.similarities.similarity import Similarity

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
# For a normaliser a proposal is made of so many points. Where that does not do, so many times as
# many are drawn in every round; the first rounds at the posterior itself tell little of its shape,
# so there are more then.
_CENTRES = 128
_TIMES_IN_ROUNDS = 8
_MOST_ROUNDS = 24
_MORE_ROUNDS = 2
# So many times as many are drawn from the last proposal, at most so often, until the normaliser is
# known as well as by so many draws of the posterior; else another proposal is tried, this often in
# all.
_TIMES_AT_LAST = 8
_MOST_PARTS = 5
_WELL_KNOWN = 600
_ATTEMPTS = 3
# So many data are looked at together, which bounds memory.
DATA_AT_ONCE = 8
# The log weight of candidates outside the prior's support: finite, so that files can hold it.
_OUTSIDE = -1e6

# Scores of parameters (m, k, D), or (1, k, D) where all data share them: (m, k).
Scores = Callable[[Tensor], Tensor]


class Emulating(Protocol):
    """What is needed here of a model."""

    similarity: Similarity
    prior: Prior
    emulator_rows: int

    def emulate_all(self, phi: Tensor) -> Tensor:
        """Emulate parameters, (m, D) → (m, n)."""


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


def scores_of(model: Emulating, f: Tensor) -> Scores:
    """Return the scores of embedded data (m, n) as a function of candidates."""

    def scores(phi: Tensor) -> Tensor:
        if len(phi) == 1:
            return model.similarity.score(f, model.emulate_all(phi[0]))
        # As many data at a time as the emulator takes rows.
        data = max(1, model.emulator_rows // phi.shape[1])
        parts = []
        for own, near in zip(f.split(data), phi.split(data), strict=True):
            g = model.emulate_all(near.flatten(0, 1)).unflatten(0, near.shape[:2])
            parts.append(model.similarity.grouped_score(own, g))
        return torch.cat(parts)

    return scores


def propose_candidates(
    scores: Scores,
    prior: Prior,
    phi: Tensor,
    count: int,
    *,
    seed: int,
    times: int = 1,
    rounds: int = _ROUNDS,
    times_in_rounds: int = 1,
) -> Candidates:
    """Draw candidates near the posterior that a score defines, for each datum its own.

    Args:
        scores: of the model that the proposals are adapted to.
        prior: with a density.
        phi: true parameters of the data (m, D).
        count: how many a proposal is made of.
        seed: same seed, same candidates.
        times: how often as many are drawn from the last one, k in all.
        rounds: in which they are found, at most.
        times_in_rounds: how often as many are drawn in each of these.
    """
    stream = generator(seed, "candidates")
    pool = prior.sample(_POOL, seed=derive_seed(seed, "pool")).to(phi)
    proposal = _find_proposal(
        scores, prior, pool, count, stream, rounds=rounds, times=times_in_rounds
    )
    x = proposal.sample(prior, stream, times)
    true_x = prior.unconstrain(phi).double().unsqueeze(1)
    return Candidates(
        torch.cat([phi.float().unsqueeze(1), _constrained(prior, x)], dim=1),
        proposal.log_weight(prior, torch.cat([true_x, x], dim=1)),
    )


@torch.no_grad()
def closer_normalizer(
    model: Emulating,
    f: Tensor,
    bank: PriorBank,
    by_draws: Normalizer,
    *,
    fewest: float = ENOUGH_DRAWS,
    seed: int = 0,
) -> Normalizer:
    """Estimate log C by proposals from near the posterior, where few prior draws come near it.

    It is known as before where the prior has no density, and where proposals fail. Data that are
    asked for together share random numbers, so that values depend on their company, within the
    standard error.

    Args:
        model: whose score it is.
        f: embedded data (m, n).
        bank: draws of the model's prior.
        by_draws: what they tell of log C.
        fewest: effective draws that are enough.
        seed: same seed and data, same values.
    """
    short = by_draws.effective_draws < fewest
    found = by_draws
    for attempt in range(_ATTEMPTS):
        rows = (short & (found.effective_draws < _WELL_KNOWN)).nonzero()[:, 0]
        if not len(rows) or not model.prior.has_density:
            break
        parts = [
            _normalizer_near(
                scores_of(model, f[some]),
                model.prior,
                bank.phi,
                derive_seed(seed, "normaliser", attempt),
                thorough=attempt > 0,
            )
            for some in rows.split(DATA_AT_ONCE)
        ]
        found = _better(found, rows, join_normalizers(parts))
    return found


def _better(known: Normalizer, rows: Tensor, near: Normalizer) -> Normalizer:
    """Return the normalisers of all data, those of some rows as known anew where that is better."""
    better = near.effective_draws > known.effective_draws[rows]

    def merged(name: str) -> Tensor:
        values: Tensor = getattr(known, name).clone()
        values[rows[better]] = getattr(near, name)[better]
        return values

    return Normalizer(merged("log_value"), merged("error"), merged("effective_draws"))


def _normalizer_near(
    scores: Scores, prior: Prior, pool: Tensor, seed: int, *, thorough: bool
) -> Normalizer:
    """Estimate log C of data by draws from near the posteriors that a score defines."""
    _, log_weight = draws_near(scores, prior, pool, _WELL_KNOWN, seed=seed, thorough=thorough)
    return _normalizer_of_weights(log_weight)


def _normalizer_of_weights(log_weight: Tensor) -> Normalizer:
    everywhere = torch.ones(log_weight.shape[1], dtype=torch.bool, device=log_weight.device)
    return normalizer_of_scores(log_weight, everywhere)


def draws_near(
    scores: Scores, prior: Prior, pool: Tensor, wanted: float, *, seed: int, thorough: bool
) -> tuple[Tensor, Tensor]:
    """Draw from near the posteriors of a few data that a score defines.

    Returns parameters (m, k, D), and the log of p e^s / q of each (m, k), whose mean is C.

    Args:
        scores: of the model.
        prior: with a density.
        pool: draws of it where proposals begin (N, D).
        wanted: an effective sample size, for which no more than 5,120 are drawn.
        seed: same seed and data, same draws.
        thorough: whether to look longer, as many parameters need it.
    """

    def finite(phi: Tensor) -> Tensor:
        # Parameters so large that the emulator overflows: nothing lies there.
        found = scores(phi)
        return found.masked_fill(found.isnan(), -torch.inf)

    stream = generator(seed, "proposals")
    proposal = _find_proposal(
        finite,
        prior,
        pool[:_POOL],
        _CENTRES,
        stream,
        rounds=_MOST_ROUNDS,
        times=_TIMES_IN_ROUNDS if thorough else 1,
        more=_MORE_ROUNDS if thorough else 0,
    )
    points: list[Tensor] = []
    weights: list[Tensor] = []
    while True:
        x = proposal.sample(prior, stream, _TIMES_AT_LAST)
        points.append(_constrained(prior, x))
        weights.append(finite(points[-1]).double() + proposal.log_weight(prior, x))
        log_weight = torch.cat(weights, dim=1)
        effective = _normalizer_of_weights(log_weight).effective_draws
        if len(points) == _MOST_PARTS or effective.min() >= wanted:
            return torch.cat(points, dim=1), log_weight


def _find_proposal(
    scores: Scores,
    prior: Prior,
    pool: Tensor,
    count: int,
    stream: torch.Generator,
    *,
    rounds: int,
    times: int,
    more: int = 0,
) -> "_Proposal":
    """Find what to propose for each datum, in rounds that begin with a pool of prior draws.

    Args:
        scores: of the model.
        prior: with a density.
        pool: draws of it (N, D).
        count: how many points a proposal is made of.
        stream: of random numbers.
        rounds: at most.
        times: how often as many points are drawn in every round.
        more: further rounds at the posteriors themselves.
    """
    x = prior.unconstrain(pool).double().unsqueeze(0)
    least = _LEAST_VARIANCE * x[0].var(0)
    log_weight = torch.zeros(1, len(pool), dtype=torch.float64, device=pool.device)
    score = scores(pool.unsqueeze(0)).double()
    proposal: _Proposal | None = None
    for _ in range(rounds):
        log_weight = score + log_weight
        exponent = _largest_exponents(log_weight, _EFFECTIVE_SHARE * count)
        weights = (exponent.unsqueeze(1) * log_weight).softmax(1)
        rows = systematic_resampling(weights.cpu(), count, stream)
        centres = _rows_of(x, rows.to(x.device))
        proposal = _Proposal.around(centres, least)
        if exponent.min() >= 1:
            if not more:
                break
            more -= 1
        x = proposal.sample(prior, stream, times)
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
    others = _rows_of(points, nearest.flatten(1)).unflatten(1, nearest.shape[1:])
    apart = (others - points.unsqueeze(2)) * torch.isfinite(found).unsqueeze(3)
    apart = apart.flatten(1, 2)
    return (
        apart.transpose(1, 2)
        @ apart
        / torch.isfinite(found).sum((1, 2)).clamp(min=1)[:, None, None]
    )


def _rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Return rows (m, k) of points (m, j, D), or of points (1, j, D) that all data share."""
    if len(x) == 1:
        return x[0][rows]
    return x.gather(1, rows.unsqueeze(2).expand(-1, -1, x.shape[2]))


def _largest_exponents(log_weight: Tensor, least: float) -> Tensor:
    """Return for each datum the largest β up to 1 whose weights w^β have that effective size.

    By bisection, for all data at once, (m, j) → (m,).
    """
    low = torch.zeros(len(log_weight), dtype=log_weight.dtype, device=log_weight.device)
    high = torch.ones_like(low)
    for step in range(30):
        # 1 itself is tried first.
        middle = high if step == 0 else (low + high) / 2
        weights = (middle.unsqueeze(1) * log_weight).softmax(1)
        enough = 1 / weights.square().sum(1) >= least
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle)
    return low
