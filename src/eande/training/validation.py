"""Validation: how well a model does on pairs (φ_i, y_i) that it was not trained on.

The paper selects by the sum of posterior densities q̂(φ_i | y_i) over the held-out pairs (Appendix
C; on its synthetic task by their median). The mean log ratio is a proper score, so it is the
default. All are written here relative to what the prior itself would get, in nats: 0 says nothing
was learned.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    Normalizer,
    coefficient_of_variation,
    estimate_normalizer,
    refine_normalizer,
)
from eande.similarities.similarity import PairScore
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take
from eande.simulation.read.views import View, fixed_views

SELECTIONS = ("log_ratio", "density", "median_density", "last")
_MOST_DRAWS = 1_000_000
# Views of held-out data of no more bytes than this are drawn once and kept in memory.
_SMALL = 100_000_000


@dataclass(frozen=True)
class HeldOutScore:
    """How well a model does on held-out pairs (φ_i, y_i).

    Args:
        log_ratio: mean of log r(φ_i, y_i) in nats: 0 is the prior's own score, higher is better; a
            proper score.
        error: its standard error over the pairs.
        density: log of Σ_i q̂(φ_i | y_i) over Σ_i p(φ_i): the paper's validation score, relative to
            the prior's.
        median_density: median of log q̂(φ_i | y_i) less that of log p(φ_i).
        cv_normalizer: coefficient of variation of C(y_i); 0 for a constant normaliser.
        effective_draws: the smallest effective sample size of the normalisers; under 100 the log
            ratio flatters a sharp model.
    """

    log_ratio: float
    error: float
    density: float
    median_density: float
    cv_normalizer: float
    effective_draws: float

    def by(self, selection: str) -> float:
        """Return the score that a setting ``select_by`` asks for; starts compare by log ratio."""
        return self.log_ratio if selection == "last" else float(getattr(self, selection))


def held_out_score(
    similarity: PairScore,
    f: Tensor,
    g: Tensor,
    normalizer: Normalizer,
    log_prior: Tensor | None = None,
) -> HeldOutScore:
    """Score held-out pairs.

    Args:
        similarity: of the model.
        f: embedded data (m, n).
        g: emulated parameters (m, n).
        normalizer: of the data.
        log_prior: log p(φ_i), (m,); None where the prior has no density, and densities are relative
            to it.
    """
    log_ratio = similarity.paired_score(f, g).double() - normalizer.log_value
    pairs = len(log_ratio)
    prior = torch.zeros_like(log_ratio) if log_prior is None else log_prior.to(log_ratio)
    log_density = log_ratio + prior
    return HeldOutScore(
        log_ratio=log_ratio.mean().item(),
        error=(log_ratio.std() / pairs**0.5).item() if pairs > 1 else math.inf,
        density=(log_density.logsumexp(0) - prior.logsumexp(0)).item(),
        median_density=(log_density.quantile(0.5) - prior.quantile(0.5)).item(),
        cv_normalizer=coefficient_of_variation(normalizer.log_value),
        effective_draws=normalizer.effective_draws.min().item(),
    )


class HeldOut:
    """Held-out pairs, one fixed view each, against which models are scored.

    Args:
        simulations: the pairs.
        views: what the encoder sees of a datum.
        draws: prior draws for the normaliser.
    """

    def __init__(self, simulations: Simulations, views: View | None, draws: int) -> None:
        self.simulations = simulations
        self.views = views
        self.draws = draws
        shape = next(fixed_views(views, take(simulations.y, slice(1)))).shape[1:]
        few = 4 * math.prod((len(simulations), *shape)) <= _SMALL
        # The same in every epoch: drawn once where they are few.
        self._kept = [torch.cat(list(fixed_views(views, simulations.y)))] if few else None

    def seen(self) -> Iterable[Tensor]:
        """Return the views, in parts."""
        return fixed_views(self.views, self.simulations.y) if self._kept is None else self._kept

    @torch.no_grad()
    def score(self, model: EmbedAndEmulate, *, widest: int = 10) -> HeldOutScore:
        """Score a model, with up to ``widest`` times the draws where these are too few."""
        embedded = []
        for y in self.seen():
            with model.calling("encoder", y, stage="validation"):
                embedded.append(model.embed_all(y))
        f = torch.cat(embedded)
        phi = self.simulations.phi.to(model.device)
        bank = model.prior_bank(model.prior, self.draws)
        normalizer = estimate_normalizer(model.similarity, f, bank)
        for factor in (10, 100):
            if factor <= widest and normalizer.effective_draws.min() < ENOUGH_DRAWS:
                most = max(_MOST_DRAWS, self.draws)
                bank = model.prior_bank(model.prior, min(factor * self.draws, most))
                normalizer = refine_normalizer(normalizer, model.similarity, f, bank)
        log_prior = model.prior.log_prob(phi) if model.prior.has_density else None
        return held_out_score(model.similarity, f, model.emulate_all(phi), normalizer, log_prior)
