r"""Tempered sampling, for posteriors of many parameters.

No prior draw comes near such a posterior, and a single Markov chain stays in one mode. Here
particles pass through p(φ) e^{β s(φ)} from β = 0, where the bank's prior draws are already, to
β = 1, the posterior. At every temperature:

1. The next exponent β is the largest for which the weights e^{Δβ s} leave an effective sample size
   of half the particles.
2. The particles are resampled by these weights (systematic resampling).
3. A Gaussian mixture is fitted to them, and rounds of Metropolis moves follow
   (:mod:`eande.inference.samplers.metropolis`), until no parameter (nor the score) is correlated
   with its value before the moves.

Particles move in unconstrained coordinates: those of a box are such that the prior is the standard
normal distribution, without edges.

References:
    Del Moral, Doucet and Jasra, *Sequential Monte Carlo samplers*, 2006;
    Lee and Whiteley, *Variance estimation in the particle filter*, 2018 (errors from the particles'
    ancestry).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning, InputError, check_count, check_fits
from eande.foundations.seeds import derive_seed
from eande.inference.samplers.gaussian_mixture import fit_gaussian_mixture
from eande.inference.samplers.known import sampler
from eande.inference.samplers.metropolis import MOVES, Particles, move
from eande.inference.samplers.rejection import BudgetExceeded
from eande.inference.samplers.resampling import next_exponent, systematic_resampling
from eande.inference.target import Target

# The effective sample size that every temperature leaves, as a share of the particles.
_EFFECTIVE_SHARE = 0.5
_COMPONENTS = 8
# Jumps of a round, and where less than this share of them is accepted: the mixture does not fit.
_JUMPS = 5
_JUMPS_WHERE_RARE = 1
_RARELY_ACCEPTED = 0.05
# Rounds end below this correlation with the start, at the latest after so many.
_CORRELATION = 0.2
_ROUNDS = 10
# A correlation above which the last rounds have not forgotten their start.
_WORRYING_CORRELATION = 0.5


@dataclass(frozen=True)
class TemperedInfo:
    """News about tempered sampling; tuples have one entry per temperature.

    Args:
        evaluations: scores computed; the bank's are not counted.
        exponents: β, increasing; the last is 1 unless the budget ended first.
        walk_acceptance: acceptance rate of the random walks.
        jump_acceptance: acceptance rate of the mixture's proposals; where it is 0, modes do not
            exchange particles.
        correlation: of the particles with their values before the moves, when the rounds ended.
        effective_samples: effective sample size of all particles, per parameter, from their
            ancestry: siblings that still resemble each other count less.
        log_normalizer: log C as this sampler estimates it.
        normalizer_error: its standard error.
    """

    evaluations: int
    exponents: tuple[float, ...]
    walk_acceptance: tuple[float, ...]
    jump_acceptance: tuple[float, ...]
    correlation: tuple[float, ...]
    effective_samples: tuple[float, ...]
    log_normalizer: float
    normalizer_error: float


class TemperedState(NamedTuple):
    """Where the sampler stands.

    Args:
        particles: draws of p(φ) e^{β s(φ)}.
        exponent: β.
        log_normalizer: log of the prior mean of e^{β s}.
        step: step size of the random walks.
        evaluations: scores computed so far.
    """

    particles: Particles
    exponent: float
    log_normalizer: float
    step: float
    evaluations: int


class Temperature(NamedTuple):
    """How the moves at one temperature went.

    Args:
        exponent: β.
        correlation: of the particles with their values before the moves.
        jump_acceptance: acceptance rate of every jump.
        walk_acceptance: acceptance rate of every step of the random walks.
        complete: whether the budget was enough for the moves.
    """

    exponent: float
    correlation: float
    jump_acceptance: list[float]
    walk_acceptance: list[float]
    complete: bool


@sampler("tempered")
def tempered(
    posterior: Target,
    n: int,
    *,
    seed: int = 0,
    particles: int = 20_000,
    max_evaluations: int = 20_000_000,
) -> tuple[Tensor, TemperedInfo]:
    """Draw ``n`` samples of a posterior, shape (n, D); the prior needs a density.

    What it cannot see: a mode so narrow beside the others that no particle comes near it at small
    exponents, such as one of a third of their width in every one of ten parameters. It is then
    missing, and nothing in ``info`` tells.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        particles: how many to move, at least ``n``. More give smaller errors, of mode weights too.
        max_evaluations: the budget; beyond it :class:`BudgetExceeded` is raised, with particles of
            the exponent reached.
    """
    if not posterior.prior.has_density:
        raise InputError(
            "sampler: expected 'rejection' for a prior without a density, got 'tempered'"
        )
    check_count("particles", particles, 100)
    # Coordinates, scores, ancestors, and as many again while they move.
    check_fits("particles", particles, 16 * (posterior.prior.dimension + 4))
    check_count("max_evaluations", max_evaluations, 1)
    size = max(n, particles)
    stream = torch.Generator(posterior.device).manual_seed(derive_seed(seed, "tempered"))
    state = initial_state(posterior)
    path: list[Temperature] = []
    while state.exponent < 1:
        state = reweight_and_resample(state, size, stream)
        state, temperature = decorrelate(posterior, state, stream, max_evaluations)
        path.append(temperature)
        if not temperature.complete:
            raise BudgetExceeded(
                f"sampling: expected the exponent 1 within {max_evaluations} evaluations, got to "
                f"{state.exponent:.2g}; raise max_evaluations",
                posterior.prior.constrain(state.particles.x).float(),
                _info(posterior, state, path),
            )
    if path[-1].correlation > _WORRYING_CORRELATION:
        warnings.warn(
            "sampling: particles are still correlated with where they began "
            f"({path[-1].correlation:.2f}); more of them, or another sampler, may be needed",
            EandeWarning,
            stacklevel=3,
        )
    rows = torch.randperm(size, generator=stream, device=posterior.device)[:n]
    phi = posterior.prior.constrain(state.particles.x[rows]).float()
    return phi, _info(posterior, state, path)


def initial_state(posterior: Target) -> TemperedState:
    """Return the state at β = 0: the bank's prior draws."""
    score = posterior.bank_scores().double()
    if not torch.isfinite(score).any():
        raise InputError("prior: expected draws inside the training prior's support, got none")
    x = posterior.prior.unconstrain(posterior.bank.phi)
    particles = Particles(
        x=x,
        score=score,
        log_prior=posterior.prior.unconstrained_log_prob(x),
        ancestor=torch.arange(len(score), device=posterior.device),
    )
    # The best step size of a random walk on a Gaussian, in standard deviations.
    step = 2.38 / math.sqrt(x.shape[1])
    return TemperedState(particles, exponent=0.0, log_normalizer=0.0, step=step, evaluations=0)


def reweight_and_resample(
    state: TemperedState, size: int, stream: torch.Generator
) -> TemperedState:
    """Go on to the next exponent with ``size`` particles, resampled by their weights."""
    score = state.particles.score
    if state.exponent > 0:
        least = _EFFECTIVE_SHARE * size
    else:
        # The bank's draws may be more than the particles, and some outside the support.
        least = min(size, _EFFECTIVE_SHARE * int(torch.isfinite(score).sum()))
    exponent = next_exponent(score, state.exponent, least)
    log_weights = (exponent - state.exponent) * score
    log_mean_weight = (log_weights.logsumexp(0) - math.log(len(score))).item()
    rows = systematic_resampling(log_weights.softmax(0), size, stream)
    return state._replace(
        particles=state.particles.take(rows),
        exponent=exponent,
        log_normalizer=state.log_normalizer + log_mean_weight,
    )


def decorrelate(
    posterior: Target, state: TemperedState, stream: torch.Generator, max_evaluations: int
) -> tuple[TemperedState, Temperature]:
    """Move the particles in rounds until they have forgotten where they were.

    Ends early, and says so, where the next round would exceed the budget.
    """
    mixture = fit_gaussian_mixture(state.particles.x.unsqueeze(0), _COMPONENTS, stream)
    start = _statistics(state.particles)
    evaluations = MOVES * len(state.particles.x)
    temperature = Temperature(state.exponent, 1.0, [], [], complete=True)
    jumps = _JUMPS
    for _ in range(_ROUNDS):
        if state.evaluations + evaluations > max_evaluations:
            return state, temperature._replace(complete=False)
        particles, step, jumped, walked = move(
            posterior,
            state.particles,
            mixture,
            exponent=state.exponent,
            step=state.step,
            jumps=jumps,
            stream=stream,
        )
        state = state._replace(
            particles=particles, step=step, evaluations=state.evaluations + evaluations
        )
        temperature = temperature._replace(
            correlation=_largest_correlation(start, _statistics(particles)),
            jump_acceptance=temperature.jump_acceptance + jumped,
            walk_acceptance=temperature.walk_acceptance + walked,
        )
        if temperature.correlation < _CORRELATION:
            break
        jumps = _JUMPS if jumped[-1] > _RARELY_ACCEPTED else _JUMPS_WHERE_RARE
    return state, temperature


def _statistics(particles: Particles) -> Tensor:
    """Return what has to be forgotten: coordinates and score, (N, D + 1)."""
    return torch.cat([particles.x.double(), particles.score.unsqueeze(1)], dim=1)


def _largest_correlation(a: Tensor, b: Tensor) -> float:
    """Return the largest correlation of a column of ``a`` with the same column of ``b``."""
    a = a - a.mean(0)
    b = b - b.mean(0)
    covariance = (a * b).mean(0)
    variances = (a**2).mean(0) * (b**2).mean(0)
    return (covariance / variances.sqrt().clamp_min(1e-300)).abs().max().item()


def _info(posterior: Target, state: TemperedState, path: list[Temperature]) -> TemperedInfo:
    complete = [temperature for temperature in path if temperature.complete]
    effective_samples, normalizer_error = _errors(state.particles, len(posterior.bank.phi))
    return TemperedInfo(
        evaluations=state.evaluations,
        exponents=tuple(temperature.exponent for temperature in path),
        walk_acceptance=tuple(_mean(temperature.walk_acceptance) for temperature in complete),
        jump_acceptance=tuple(_mean(temperature.jump_acceptance) for temperature in complete),
        correlation=tuple(temperature.correlation for temperature in path),
        effective_samples=effective_samples,
        log_normalizer=state.log_normalizer,
        normalizer_error=normalizer_error,
    )


def _errors(particles: Particles, draws: int) -> tuple[tuple[float, ...], float]:
    """Return the effective sample size per parameter and the standard error of log C.

    Both from sums over families, the particles of one ancestor, as in Lee and Whiteley: families,
    not particles, are independent.
    """
    x = particles.x.double()
    columns = torch.cat([x - x.mean(0), torch.ones_like(x[:, :1])], dim=1)
    families = columns.new_zeros(draws, columns.shape[1])
    families = families.index_add_(0, particles.ancestor, columns) / len(x)
    variance = families.square().sum(0)
    effective_samples = x.var(0) / variance[:-1]
    return tuple(effective_samples.tolist()), variance[-1].sqrt().item()


def _mean(rates: list[float]) -> float:
    return sum(rates) / len(rates)
