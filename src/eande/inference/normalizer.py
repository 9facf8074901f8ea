"""The normaliser C(y) of a posterior: the prior mean of e^{s(f(y), g(φ))}, over draws of the prior.

    log C(y) ≈ log (1/N') Σ_i e^{s(f(y), g(φ_i))},      φ_i ~ p(φ)

The paper's equation (33) prints the sum; the mean makes log r the log likelihood-to-evidence ratio
in nats, which averages to r = 1 over the prior. Everything is in log space and float64 where sums
of exponentials are taken, because e^{1/τ} overflows float32 already at τ = 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from eande.similarities.similarity import PairScore

# Scores of data against prior draws taken at once: 64 MB in float64.
_SCORES_AT_ONCE = 8_000_000
# The effective sample size from which a normaliser is trusted: a smaller one flatters sharp models.
ENOUGH_DRAWS = 100


@dataclass(frozen=True)
class PriorBank:
    """Prior draws with their emulated points: made once, they serve every observation.

    Memory: ``len(phi) × (D + n)`` float32 numbers.

    Args:
        phi: draws (N', D).
        emulated: g(φ) of each (N', n).
        inside: whether each draw lies in the training prior's support (N',); the ratio of the
            others is zero.
        outside: the share of draws that does not.
        beyond: the share that lies inside, but where practically nothing was simulated.
        edge: tells of parameters whether they lie where the training prior was cut off; None where
            it was not.
        proposable: whether the prior's density integrates to one, so that guides may mix draws of
            it with others.
    """

    phi: Tensor
    emulated: Tensor
    inside: Tensor
    outside: float = 0.0
    beyond: float = 0.0
    edge: Callable[[Tensor], Tensor] | None = None
    proposable: bool = True

    def first(self, count: int) -> PriorBank:
        """Return so many of the draws at most."""
        return replace(
            self,
            phi=self.phi[:count],
            emulated=self.emulated[:count],
            inside=self.inside[:count],
        )

    @cached_property
    def at_edge(self) -> Tensor | None:
        """Whether each draw lies where the training prior was cut off (N',); None where it was not.

        Found when it is first asked for: training makes many banks, and does not ask.
        """
        return None if self.edge is None else self.edge(self.phi)


@dataclass(frozen=True)
class Normalizer:
    """Monte-Carlo estimates of log C, one per datum.

    Args:
        log_value: log C, (m,), float64.
        error: its standard error, (m,).
        effective_draws: the effective sample size (Σ w)² / Σ w² of the weights w = e^s, (m,).
    """

    log_value: Tensor
    error: Tensor
    effective_draws: Tensor


def estimate_normalizer(similarity: PairScore, f: Tensor, bank: PriorBank) -> Normalizer:
    """Estimate log C for embeddings (m, n) as a log-mean-exp over the bank's draws."""
    rows = max(1, _SCORES_AT_ONCE // len(bank.phi))
    return join_normalizers(
        [
            normalizer_of_scores(similarity.score(part, bank.emulated), bank.inside)
            for part in f.split(rows)
        ]
    )


def summed_scores(similarity: PairScore, f: Tensor, g: Tensor) -> Tensor:
    """Return the scores of independent observations (m, n) at parameters (k, n), added up, (k,)."""
    if len(f) == 1:
        return similarity.score(f, g)[0]
    rows = max(1, _SCORES_AT_ONCE // max(1, len(g)))
    parts = [similarity.score(part, g).double().sum(0) for part in f.split(rows)]
    return torch.stack(parts).sum(0).to(f.dtype)


def normalizer_of_scores(scores: Tensor, inside: Tensor) -> Normalizer:
    """Estimate log C from the scores (m, N') of prior draws, of which those inside count."""
    draws = len(inside)
    scores = scores.double().masked_fill(~inside, -torch.inf)
    top = scores.amax(1, keepdim=True)
    weights = (scores - top).exp_()
    total = weights.sum(1)
    effective = total**2 / weights.square().sum(1)
    # Delta method: Var(log mean w) = (E w² / (E w)² − 1) / N', and the effective sample size is
    # N' (E w)² / E w².
    error = (1 / effective - 1 / draws).clamp(min=0).sqrt()
    return Normalizer(top[:, 0] + total.log() - math.log(draws), error, effective)


def normalizer_of_weights(log_weights: Tensor) -> Normalizer:
    """Estimate log C as the log of the mean weight of draws of each datum, (m, N)."""
    everywhere = torch.ones(log_weights.shape[1], dtype=torch.bool, device=log_weights.device)
    return normalizer_of_scores(log_weights, everywhere)


def join_normalizers(parts: Sequence[Normalizer]) -> Normalizer:
    """Return the normalisers of all data, given in parts."""
    return Normalizer(
        *(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Normalizer))
    )


def refine_normalizer(
    normalizer: Normalizer, similarity: PairScore, f: Tensor, bank: PriorBank
) -> Normalizer:
    """Estimate anew, over a larger bank, where the effective sample size is too small."""
    short = normalizer.effective_draws < ENOUGH_DRAWS
    better = estimate_normalizer(similarity, f[short], bank)
    return Normalizer(
        *(
            getattr(normalizer, field.name).masked_scatter(short, getattr(better, field.name))
            for field in fields(Normalizer)
        )
    )


def coefficient_of_variation(log_values: Tensor) -> float:
    """Return standard deviation over mean of e^{log_values}, shifted so that nothing overflows.

    Example:
        >>> log_c = torch.tensor([1000.0, 1000.0 + math.log(3)])  # values 1 and 3, up to a factor
        >>> coefficient_of_variation(log_c)
        0.7071...
    """
    values = (log_values.double() - log_values.max()).exp()
    return (values.std() / values.mean()).item() if len(values) > 1 else 0.0
