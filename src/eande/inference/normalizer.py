"""What a model is worth on pairs it has not seen, and how its normaliser behaves.

Training selects by these numbers and diagnostics report them; everything is in log space and float64 where sums of
exponentials are taken, because e^{1/τ} overflows float32 already at τ = 0.01.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eande.foundations.seeds import generator
from eande.similarities.similarity import Similarity

# Scores of data against prior draws are taken this many at a time: 64 MB in float64.
_SCORES_AT_ONCE = 8_000_000
# A log ratio counts where at least so many prior draws carry its normaliser: fewer flatter a sharp model.
ENOUGH_DRAWS = 100


@dataclass(frozen=True)
class PriorBank:
    """Prior draws with their emulated points: made once, they serve every observation.

    Memory: ``len(phi) × (D + n)`` float32 numbers.

    Args:
        phi: draws (N', D).
        emulated: g(φ) of each (N', n).
        inside: whether each draw lies in the training prior's support (N',); the ratio is zero for the others.
        outside: the share of draws that does not.
    """

    phi: Tensor
    emulated: Tensor
    inside: Tensor
    outside: float = 0.0


@dataclass(frozen=True)
class Normalizer:
    """Monte-Carlo estimates of log C(y), the log of the prior mean of e^{s(f(y), g(φ))}, one per datum.

    Args:
        log_value: log C, (m,), float64.
        error: its standard error, (m,).
        effective_draws: (Σ w)² / Σ w² with w = e^s over the draws, (m,): how many draws carry the estimate.
    """

    log_value: Tensor
    error: Tensor
    effective_draws: Tensor


def estimate_normalizer(similarity: Similarity, embedded: Tensor, bank: PriorBank) -> Normalizer:
    """Estimate log C for embeddings (m, n) as a log-mean-exp over the bank."""
    rows = max(1, _SCORES_AT_ONCE // len(bank.phi))
    return join_normalizers(
        [
            normalizer_of_scores(similarity.score(part, bank.emulated), bank.inside)
            for part in embedded.split(rows)
        ]
    )


def normalizer_of_scores(scores: Tensor, inside: Tensor) -> Normalizer:
    """Estimate log C from the scores (m, N') of a bank's draws, of which those inside count."""
    scores, draws = scores.double().masked_fill(~inside, -torch.inf), len(inside)
    top = scores.amax(1, keepdim=True)
    weights = (scores - top).exp_()
    total = weights.sum(1)
    effective = total**2 / weights.square().sum(1)
    # Delta method: Var(log mean w) = (E w² / (E w)² − 1) / N', and N' (E w)² / E w² is the effective number of draws.
    error = ((1 / effective - 1 / draws).clamp(min=0)).sqrt()
    return Normalizer(top[:, 0] + total.log() - math.log(draws), error, effective)


def join_normalizers(parts: Sequence[Normalizer]) -> Normalizer:
    """Return the normalisers of all data, given in parts."""
    return Normalizer(
        *(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Normalizer))
    )


def refine_normalizer(
    normalizer: Normalizer, similarity: Similarity, embedded: Tensor, bank: PriorBank
) -> Normalizer:
    """Estimate anew, over a larger bank, what too few draws carry."""
    short = normalizer.effective_draws < ENOUGH_DRAWS
    better = estimate_normalizer(similarity, embedded[short], bank)
    fields = (
        (normalizer.log_value, better.log_value),
        (normalizer.error, better.error),
        (normalizer.effective_draws, better.effective_draws),
    )
    return Normalizer(*(old.masked_scatter(short, new) for old, new in fields))


def coefficient_of_variation(log_values: Tensor) -> float:
    """Return standard deviation over mean of e^{log_values}, shifted by the maximum so that nothing overflows.

    Example:
        >>> coefficient_of_variation(
        ...     torch.tensor([1000.0, 1000.0 + math.log(3)])
        ... )  # values 1 and 3, up to a factor
        0.7071...
    """
    values = (log_values.double() - log_values.max()).exp()
    return (values.std() / values.mean()).item() if len(values) > 1 else 0.0


@dataclass(frozen=True)
class HeldOutScore:
    """How well a model does on held-out pairs (φ_i, y_i).

    Args:
        log_ratio: mean of log r(φ_i, y_i) in nats: 0 is the prior's own score, higher is better; a proper score.
        error: its standard error over the pairs.
        density_sum: Σ r(φ_i, y_i), the paper's validation score relative to the prior density.
        density_median: the median of r(φ_i, y_i), the paper's on its synthetic task.
        cv_normalizer: coefficient of variation of C(y_i); 0 for a constant normaliser.
        effective_draws: the smallest effective number of draws over the pairs; under 100 the log ratio flatters a sharp model.
    """

    log_ratio: float
    error: float
    density_sum: float
    density_median: float
    cv_normalizer: float
    effective_draws: float


def held_out_score(
    similarity: Similarity, embedded: Tensor, emulated: Tensor, normalizer: Normalizer
) -> HeldOutScore:
    """Score held-out pairs, given as embedded data and emulated parameters (m, n), with the normalisers of the data."""
    log_ratio = similarity.paired_score(embedded, emulated).double() - normalizer.log_value
    return HeldOutScore(
        log_ratio=log_ratio.mean().item(),
        error=(log_ratio.std() / len(log_ratio) ** 0.5).item() if len(log_ratio) > 1 else math.inf,
        density_sum=log_ratio.exp().sum().item(),
        density_median=log_ratio.quantile(0.5).exp().item(),
        cv_normalizer=coefficient_of_variation(normalizer.log_value),
        effective_draws=normalizer.effective_draws.min().item(),
    )


def log_picked(
    similarity: Similarity, embedded: Tensor, emulated: Tensor, bank: Tensor, exponent: Tensor
) -> Tensor:
    """Return the log of N + 1 times the probability of picking each datum's own φ out of it and the N draws of a bank (N, n), shape (m,).

    A proper score for any N; with enough draws it is the log ratio.
    """
    own = exponent * similarity.paired_score(embedded, emulated)
    others = exponent * similarity.score(embedded, bank)
    return own - torch.cat([own.unsqueeze(1), others], dim=1).logsumexp(1) + math.log(len(bank) + 1)


def gain(difference: Tensor, ids: Tensor) -> tuple[float, float]:
    """Return the mean of a difference of scores and its standard error; data of one group are one draw, of any size."""
    inverse, mean = ids.unique(return_inverse=True)[1], difference.mean()
    groups = int(inverse.max()) + 1
    sums = torch.zeros(groups, dtype=torch.float64).index_add_(0, inverse, difference - mean)
    return mean.item(), (sums.square().sum() * groups / (groups - 1)).sqrt().item() / len(
        difference
    )


def within(difference: Tensor, ids: Tensor, errors: float) -> bool:
    """Return whether the mean of a difference is at most so many of its standard errors."""
    mean, error = gain(difference, ids)
    return mean <= errors * error


def folds(ids: Tensor, number: int = 5) -> Tensor:
    """Return the fold of every row, shape (m,); groups stay together."""
    inverse = ids.unique(return_inverse=True)[1]
    # In random order: parameters may come from a grid, whose period a fold must not share.
    return torch.randperm(int(inverse.max()) + 1, generator=generator(0, "folds"))[inverse] % number
