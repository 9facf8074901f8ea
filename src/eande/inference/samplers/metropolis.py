"""Metropolis moves of particles that leave p(φ) e^{β s(φ)} invariant, for the tempered sampler.

A round has two kinds of moves: jumps, independent proposals from a Gaussian mixture, which carry
particles between modes and so set the modes' weights right; and random walks with the covariance of
a component of the mixture drawn at random, which work where the mixture does not fit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from eande.inference.samplers.gaussian_mixture import GaussianMixture
from eande.inference.target import Target

# Moves of a round.
MOVES = 8
# The acceptance rate that the step size of the random walks is adapted to.
_WALK_ACCEPTANCE = 0.3


class Particles(NamedTuple):
    """Particles and what is known about each of them.

    Args:
        x: unconstrained coordinates (N, D).
        score: log r up to a constant, (N,), in float64.
        log_prior: log density of ``x`` under the prior up to a constant, (N,), in float64.
        ancestor: number of the prior draw each particle descends from, (N,).
    """

    x: Tensor
    score: Tensor
    log_prior: Tensor
    ancestor: Tensor

    def take(self, rows: Tensor) -> Particles:
        """Return the particles of these rows."""
        return Particles(*(column[rows] for column in self))


class Round(NamedTuple):
    """What a round of moves brings.

    Args:
        particles: after the moves.
        step: the adapted step size of the random walks.
        jump_acceptance: acceptance rate of every jump.
        walk_acceptance: acceptance rate of every step of the random walks.
    """

    particles: Particles
    step: float
    jump_acceptance: list[float]
    walk_acceptance: list[float]


def move(
    target: Target,
    particles: Particles,
    mixture: GaussianMixture,
    *,
    exponent: float,
    step: float,
    jumps: int,
    stream: torch.Generator,
) -> Round:
    """Make a round of moves: first jumps, then random walks.

    Args:
        target: the posterior, which is raised to the exponent.
        particles: what to move.
        mixture: of one datum, proposes the jumps and the steps of the random walks.
        exponent: β.
        step: size of the random walks' steps.
        jumps: how many of the moves are jumps.
        stream: random numbers.
    """
    size = len(particles.x)
    jump_acceptance = []
    walk_acceptance = []
    log_q = mixture.log_prob(particles.x.unsqueeze(0))[0]
    for _ in range(jumps):
        x = mixture.sample(size, stream)[0][0]
        proposed_log_q = mixture.log_prob(x.unsqueeze(0))[0]
        hastings = log_q - proposed_log_q
        particles, accepted = _accept(target, particles, x, hastings, exponent, stream)
        log_q = torch.where(accepted, proposed_log_q, log_q)
        jump_acceptance.append(_rate(accepted))
    symmetric = torch.zeros_like(log_q)
    for _ in range(MOVES - jumps):
        offset = mixture.sample(size, stream)[1][0]
        x = particles.x + step * offset
        particles, accepted = _accept(target, particles, x, symmetric, exponent, stream)
        walk_acceptance.append(_rate(accepted))
        step *= math.exp(walk_acceptance[-1] - _WALK_ACCEPTANCE)
    return Round(particles, step, jump_acceptance, walk_acceptance)


def _accept(
    target: Target,
    particles: Particles,
    x: Tensor,
    hastings: Tensor,
    exponent: float,
    stream: torch.Generator,
) -> tuple[Particles, Tensor]:
    """Accept proposals by the rule of Metropolis and Hastings.

    Args:
        target: the posterior.
        particles: where the particles are.
        x: where they are proposed to go, (N, D).
        hastings: log density of proposing the way back minus that of the way there, (N,).
        exponent: β.
        stream: random numbers.

    Returns:
        The particles, and which of them have moved.
    """
    log_prior = target.prior.unconstrained_log_prob(x)
    with torch.no_grad():
        score = target.score(target.prior.constrain(x)).double()
    score = score.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    score = score.masked_fill(log_prior == -torch.inf, -torch.inf)
    log_ratio = log_prior - particles.log_prior + exponent * (score - particles.score) + hastings
    uniform = torch.rand(len(x), generator=stream, device=x.device, dtype=torch.float64)
    accepted = uniform.log() < log_ratio
    moved = Particles(
        x=torch.where(accepted.unsqueeze(1), x, particles.x),
        score=torch.where(accepted, score, particles.score),
        log_prior=torch.where(accepted, log_prior, particles.log_prior),
        ancestor=particles.ancestor,
    )
    return moved, accepted


def _rate(accepted: Tensor) -> float:
    return accepted.double().mean().item()
