r"""Guided sampling: acceptance–rejection, or short chains, by proposals from near the posterior.

Where data say much, few prior draws are accepted. So a proposal q is found first, in rounds, from
the bank's prior draws on:

1. Points have the weights (p e^s / q)^β, with β as large as leaves an effective sample size of a
   quarter of them. By these they are resampled.
2. A Gaussian mixture is fitted to them, for several modes, and one Gaussian, for many parameters.
   The next q is made of both, of the same with wider components and of a tenth of the prior, and
   gives the next points.
3. From β = 1 on, rounds end when the weights become no more even.

Proposals from the last q are then accepted as those from a prior are
(:mod:`eande.inference.samplers.rejection`): whatever q is, the samples are exact, and a poor one
costs proposals. It costs many where a single weight stands out of even ones, far out in a tail or
in the corner of a box. So where ten proposals a sample do not suffice, every sample is the end of a
Metropolis chain of its own instead, which begins at a proposal chosen by its weight and takes ten
steps to other proposals: there nothing but the weights' own unevenness is left of its beginning.

The mean of the weights is C, with an error that their spread tells. A mode that no round has come
near is as hard to find as one that no prior draw is near.

References:
    Cappé, Guillin, Marin and Robert, *Population Monte Carlo*, 2004;
    Hesterberg, *Weighted average importance sampling and defensive mixture distributions*, 1995;
    Andrieu, Lee and Vihola, *Uniform ergodicity of the iterated conditional SMC and geometric
    ergodicity of particle Gibbs samplers*, 2018 (chains of independent proposals).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_count
from eande.foundations.seeds import derive_seed
from eande.inference.normalizer import ENOUGH_DRAWS
from eande.inference.samplers.gaussian_mixture import GaussianMixture, fit_gaussian_mixture
from eande.inference.samplers.known import sampler
from eande.inference.samplers.rejection import (
    Accepted,
    BudgetExceeded,
    SampleInfo,
    accept_until,
)
from eande.inference.samplers.resampling import (
    effective_sample_size,
    next_exponent,
    systematic_resampling,
)
from eande.inference.target import Target
from eande.priors.prior import Prior

# Points of a round, and the effective sample size that their weights must leave.
_POINTS = 4_000
_EFFECTIVE = 1_000
_ROUNDS = 20
_COMPONENTS = 16
# What a proposal is made of, beside the fitted mixture.
_SHARE_OF_PRIOR = 0.1
_SHARE_OF_WHOLE = 0.4
_SHARE_OF_WIDE = 0.2
_TIMES_AS_WIDE = 2.0
# Proposals are accepted or rejected where this share of them promises to be accepted, at most so
# many for each sample; chains take over then. Their steps, the beginnings for each, among which all
# choose, and for how many chains at least.
_LEAST_ACCEPTED = 0.2
_MOST_PER_SAMPLE = 10
_STEPS = 10
_BEGINNINGS = 2
_FEWEST_CHAINS = 500
# Points that are weighed at once: a few numbers of each for every component.
_AT_ONCE = 50_000
# A round at the posterior itself that makes weights by less than this factor more even is the last.
_WORTHWHILE = 1.1


@dataclass(frozen=True)
class GuidedInfo(SampleInfo):
    """News about guided sampling.

    Args:
        rounds: in which the proposal was found, once for all samples of a posterior.
        effective_share: effective sample size of its draws, over their number.
        log_normalizer: log C by their weights.
        normalizer_error: its standard error.
        chain_steps: of the chains whose ends the samples are; 0 where they were accepted or
            rejected.
        unmoved: the share of chains that no step has moved.
    """

    rounds: int
    effective_share: float
    log_normalizer: float
    normalizer_error: float
    chain_steps: int = 0
    unmoved: float = 0.0


class Guide(NamedTuple):
    """A proposal in unconstrained coordinates.

    Args:
        mixture: fitted to the last points.
        prior: the posterior's.
    """

    mixture: GaussianMixture
    prior: Prior

    def draw(self, n: int, seed: int) -> Tensor:
        """Draw points, (n, D)."""
        device = self.mixture.location.device
        stream = torch.Generator(device).manual_seed(derive_seed(seed, "guide"))
        x, _ = self.mixture.sample(n, stream)
        free = torch.rand(n, generator=stream, device=device) < _SHARE_OF_PRIOR
        phi = self.prior.sample(max(1, int(free.sum())), seed=derive_seed(seed, "free"))
        x[free] = self.prior.unconstrain(phi.to(device)).to(x)[: int(free.sum())]
        return x

    def weigh(self, posterior: Target, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return points (n, D) as parameters, and log p + s − log q of each, (n,)."""
        parts = [self._weigh(posterior, part) for part in x.split(_AT_ONCE)]
        phi, log_weight = zip(*parts, strict=True)
        return torch.cat(phi), torch.cat(log_weight)

    def _weigh(self, posterior: Target, x: Tensor) -> tuple[Tensor, Tensor]:
        log_prior = self.prior.unconstrained_log_prob(x)
        parts = (
            self.mixture.log_prob(x) + math.log(1 - _SHARE_OF_PRIOR),
            log_prior + math.log(_SHARE_OF_PRIOR),
        )
        phi = self.prior.constrain(x).float()
        log_weight = posterior.score(phi).double() + log_prior - torch.logaddexp(*parts)
        return phi, log_weight.masked_fill(log_prior == -torch.inf, -torch.inf)


class Found(NamedTuple):
    """A guide, and what it was judged by.

    Args:
        guide: the proposal.
        log_weight: of points that it drew, (n,).
        rounds: in which it was found.
        evaluations: scores computed.
        exponent: β of the points that it was fitted to.
    """

    guide: Guide
    log_weight: Tensor
    rounds: int
    evaluations: int
    exponent: float

    @property
    def reliable(self) -> bool:
        """Whether enough of its points lie where the posterior is."""
        enough = effective_sample_size(self.log_weight) >= ENOUGH_DRAWS
        return self.exponent == 1 and enough

    def improves(self, other: Found) -> bool:
        """Return whether its weights are so much more even that it was worth the while."""
        return self.effective_share >= _WORTHWHILE * other.effective_share

    @property
    def acceptance_rate(self) -> float:
        """The share of proposals that the largest weight so far lets through."""
        return (self.log_weight - self.log_weight.max()).exp().mean().item()

    @property
    def effective_share(self) -> float:
        """Effective sample size of the points, over their number."""
        return effective_sample_size(self.log_weight) / len(self.log_weight)

    def normalizer(self) -> tuple[float, float]:
        """Return log C and its standard error."""
        number = len(self.log_weight)
        log_mean = self.log_weight.logsumexp(0).item() - math.log(number)
        error = max(0.0, 1 / (self.effective_share * number) - 1 / number) ** 0.5
        return log_mean, error

    def judged(self, posterior: Target, points: int, seed: int) -> Found:
        """Return the guide with new points to judge it by."""
        _, log_weight = self.guide.weigh(posterior, self.guide.draw(points, seed))
        return self._replace(log_weight=log_weight, evaluations=self.evaluations + points)


class Guided(Target, Protocol):
    """A posterior that keeps its guide."""

    @property
    def guide(self) -> Found:
        """The proposal, found once; only where the prior has a density."""


def find_guide(posterior: Target, seed: int = 0) -> Found:
    """Find a proposal for a posterior whose prior has a density.

    Args:
        posterior: what to propose for.
        seed: same seed, same proposal.
    """
    if not posterior.prior.has_density:
        raise InputError(
            "sampler: expected acceptance_rejection for a prior without a density, got guided"
        )
    device = posterior.device
    stream = torch.Generator(device).manual_seed(derive_seed(seed, "guided"))
    x = posterior.prior.unconstrain(posterior.bank.phi).to(device)
    log_weight = posterior.bank_scores().double()
    finite = int(torch.isfinite(log_weight).sum())
    if finite == 0:
        raise InputError("prior: expected draws inside the training prior's support, got none")
    least = min(_EFFECTIVE, finite / 2)
    best: Found | None = None
    evaluations = 0
    for number in range(1, _ROUNDS + 1):
        exponent = next_exponent(log_weight, 0.0, least)
        rows = systematic_resampling((exponent * log_weight).softmax(0), _POINTS, stream)
        guide = Guide(_around(x[rows], stream), posterior.prior)
        x = guide.draw(_POINTS, derive_seed(seed, "round", number))
        _, log_weight = guide.weigh(posterior, x)
        evaluations += _POINTS
        found = Found(guide, log_weight, number, evaluations, exponent)
        if best is not None and best.exponent == 1 and not found.improves(best):
            break
        best = found
        least = _EFFECTIVE
    assert best is not None
    return best._replace(rounds=number, evaluations=evaluations)


def _around(x: Tensor, stream: torch.Generator) -> GaussianMixture:
    """Return a mixture around points: several Gaussians, one for all, and wider ones."""
    mixture = fit_gaussian_mixture(x, _COMPONENTS, stream)
    mixture = mixture.joined(fit_gaussian_mixture(x, 1, stream), _SHARE_OF_WHOLE)
    return mixture.joined(mixture.widened(_TIMES_AS_WIDE), _SHARE_OF_WIDE)


@sampler("guided")
def guided(
    posterior: Guided, n: int, *, seed: int = 0, max_evaluations: int = 20_000_000
) -> tuple[Tensor, GuidedInfo]:
    """Draw ``n`` samples of a posterior, shape (n, D); the prior needs a density.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        max_evaluations: proposals at most, beside the rounds in which their distribution is found;
            beyond it :class:`BudgetExceeded` is raised, with what was found.
    """
    check_count("max_evaluations", max_evaluations, 1)
    found = posterior.guide
    of_chains = _BEGINNINGS * max(n, _FEWEST_CHAINS) + _STEPS * n
    of_rejection = _MOST_PER_SAMPLE * n
    only = max_evaluations < of_chains
    spent = 0
    if only or found.acceptance_rate > _LEAST_ACCEPTED:
        # What chains would need is left for them.
        both = of_chains + of_rejection
        budget = max_evaluations if max_evaluations < both else of_rejection
        try:
            return _accept(posterior, found, n, seed, budget)
        except BudgetExceeded:
            if budget == max_evaluations:
                raise
        spent = of_rejection
    phi, rate, unmoved, highest = _ends_of_chains(posterior, found.guide, n, seed)
    log_normalizer, _ = found.normalizer()
    info = SampleInfo(rate, highest - log_normalizer, 0, spent + of_chains)
    return phi, _info(info, found, chain_steps=_STEPS, unmoved=unmoved)


def _info(info: SampleInfo, found: Found, **of_chains: Any) -> GuidedInfo:
    """Add what there is to say of the guide."""
    log_normalizer, error = found.normalizer()
    news = asdict(info) | {"evaluations": info.evaluations + found.evaluations}
    return GuidedInfo(
        **news,
        rounds=found.rounds,
        effective_share=found.effective_share,
        log_normalizer=log_normalizer,
        normalizer_error=error,
        **of_chains,
    )


def _accept(
    posterior: Target, found: Found, n: int, seed: int, budget: int
) -> tuple[Tensor, GuidedInfo]:
    """Accept or reject proposals of a guide, within a budget."""

    def propose(size: int, seed: int) -> tuple[Tensor, Tensor]:
        return found.guide.weigh(posterior, found.guide.draw(size, seed))

    log_normalizer, _ = found.normalizer()
    accepted = Accepted.none(posterior, found.log_weight.max().item(), log_normalizer)
    phi, info = accept_until(accepted, n, propose, seed, budget)
    return phi, _info(info, found)


def _ends_of_chains(
    posterior: Target, guide: Guide, n: int, seed: int
) -> tuple[Tensor, float, float, float]:
    """Run ``n`` Metropolis chains whose proposals are a guide's.

    Returns their ends (n, D), the share of steps that were taken, the share of chains that took
    none, and the largest log weight.
    """
    stream = torch.Generator(posterior.device).manual_seed(derive_seed(seed, "chains"))
    begun = guide.draw(_BEGINNINGS * max(n, _FEWEST_CHAINS), derive_seed(seed, "beginnings"))
    phi, log_weight = guide.weigh(posterior, begun)
    highest = log_weight.max()
    rows = systematic_resampling(log_weight.softmax(0), n, stream)
    # Copies of one beginning would stand side by side.
    rows = rows[torch.randperm(n, generator=stream, device=rows.device)]
    phi, log_weight = phi[rows], log_weight[rows]
    moves = torch.zeros(n, device=phi.device)
    for step in range(_STEPS):
        other, weight = guide.weigh(posterior, guide.draw(n, derive_seed(seed, "step", step)))
        uniform = torch.rand(n, generator=stream, dtype=torch.float64, device=phi.device)
        moved = uniform.log() < weight - log_weight
        phi = torch.where(moved.unsqueeze(1), other, phi)
        log_weight = torch.where(moved, weight, log_weight)
        highest = torch.maximum(highest, weight.max())
        moves += moved
    unmoved = (moves == 0).double().mean().item()
    return phi, moves.mean().item() / _STEPS, unmoved, highest.item()
