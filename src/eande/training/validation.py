"""Validation: how well a model does on pairs (φ_i, y_i) that it was not trained on.

The paper selects by the sum of posterior densities q̂(φ_i | y_i) over the held-out pairs (Appendix
C; on its synthetic task by their median). The mean log ratio is a proper score, so it is the
default. All are written here relative to what the prior itself would get, in nats: 0 says nothing
was learned.

The best moment of a fit passes quickly, so that validation must be frequent, and cheap:
:class:`QuickScore` lets some hundred pairs pick their parameters among few candidates
(:mod:`eande.inference.candidates`). :func:`held_out_log_ratios` has the last word, on a few models.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.candidates import Candidates, propose_candidates
from eande.inference.guide import DataScores
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    Normalizer,
    coefficient_of_variation,
    estimate_normalizer,
    refine_normalizer,
)
from eande.similarities.similarity import PairScore
from eande.simulation.read.simulations import Simulations, first_of_groups
from eande.simulation.read.sources import take
from eande.simulation.read.views import View, fixed_views
from eande.training.state import TrainingState

SELECTIONS = ("log_ratio", "density", "median_density", "last")
_MOST_DRAWS = 1_000_000
# Views of held-out data of no more bytes than this are drawn once and kept in memory.
_SMALL = 100_000_000
# Pairs and prior draws of a quick score. Where half of the posteriors are met by fewer effective
# draws than this, it would not see over-confidence: there each datum gets candidates of its own,
# and others when the posteriors have become sharper by so many nats.
_QUICK_PAIRS = 200
_QUICK_DRAWS = 2_000
_QUICK_EFFECTIVE = 20
_QUICK_CANDIDATES = 32
_SHARPER_NATS = 1.5
# The last word is spoken by prior draws where so many of them are effective, else by candidates:
# proposals are made of so many, and several times as many are drawn from the last.
_SURE_EFFECTIVE = 10
_SURE_CANDIDATES = 64
_TIMES_SURE = 4


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

    def some(self, pairs: int) -> "HeldOut":
        """Return so many pairs at most, from everywhere, and one of each group of replicates."""
        rows = first_of_groups(self.simulations.groups)
        if len(rows) > pairs:
            rows = rows[torch.linspace(0, len(rows) - 1, pairs).long()]
        if len(rows) == len(self.simulations):
            return self
        return HeldOut(self.simulations[rows], self.views, self.draws)

    def embedded(self, model: EmbedAndEmulate) -> Tensor:
        """Return f(y) of all data, (m, n)."""
        parts = []
        for y in self.seen():
            with model.calling("encoder", y, stage="validation"):
                parts.append(model.embed_all(y))
        return torch.cat(parts)

    @torch.no_grad()
    def score(self, model: EmbedAndEmulate) -> HeldOutScore:
        """Score a model, with ten times the draws where these are too few."""
        f = self.embedded(model)
        phi = self.simulations.phi.to(model.device)
        bank = model.prior_bank(model.prior, self.draws)
        normalizer = estimate_normalizer(model.similarity, f, bank)
        if normalizer.effective_draws.min() < ENOUGH_DRAWS:
            most = max(_MOST_DRAWS, self.draws)
            bank = model.prior_bank(model.prior, min(10 * self.draws, most))
            normalizer = refine_normalizer(normalizer, model.similarity, f, bank)
        log_prior = model.prior.log_prob(phi) if model.prior.has_density else None
        return held_out_score(model.similarity, f, model.emulate_all(phi), normalizer, log_prior)


class QuickScore:
    """The score of a model by a few hundred pairs and few candidates, at the cost of a few steps.

    While posteriors are wide, the candidates are draws of the prior, the same for all data; beyond,
    every datum has its own, near the posteriors of the model that came there first. They
    belong to the run, whose best weights so far are scored anew whenever they change.

    Args:
        held_out: the pairs.
        seed: of the candidates.
    """

    def __init__(self, held_out: HeldOut, seed: int) -> None:
        self.held_out = held_out.some(_QUICK_PAIRS)
        self.seed = seed
        self._draws: Tensor | None = None

    @torch.no_grad()
    def log_ratios(self, model: EmbedAndEmulate, candidates: Candidates) -> Tensor:
        """Return log r of the pairs (m,), by their candidates."""
        f = self.held_out.embedded(model)
        return candidates.log_ratio(DataScores(model, f)(candidates.phi))

    def _by_prior_draws(self, model: EmbedAndEmulate) -> tuple[Tensor, float]:
        """Return log r of the pairs (m,), and the median of their effective draws."""
        f = self.held_out.embedded(model)
        phi = self.held_out.simulations.phi.to(model.device)
        if self._draws is None:
            draws = model.prior.sample(_QUICK_DRAWS, seed=derive_seed(self.seed, "quick"))
            self._draws = draws.to(model.device)
        among = model.similarity.score(f, model.emulate_all(self._draws))
        effective = (2 * among.logsumexp(1) - (2 * among).logsumexp(1)).exp()
        true = model.similarity.paired_score(f, model.emulate_all(phi)).unsqueeze(1)
        shared = torch.cat([true, among], dim=1)
        log_ratios = Candidates(phi, torch.zeros_like(shared)).log_ratio(shared)
        return log_ratios, effective.median().item()

    @torch.no_grad()
    def score(self, state: TrainingState[EmbedAndEmulate]) -> Tensor:
        """Return log r of the pairs (m,) for the candidate of a run."""
        model = state.candidate
        if state.candidates is None:
            found, effective = self._by_prior_draws(model)
            enough = effective >= _QUICK_EFFECTIVE
        else:
            found = self.log_ratios(model, state.candidates)
            enough = found.mean().item() <= state.candidates.reached + _SHARPER_NATS
        if enough or not model.prior.has_density:
            return found
        phi = self.held_out.simulations.phi.to(model.device)
        f = self.held_out.embedded(model)
        state.candidates = propose_candidates(
            DataScores(model, f), model.prior, phi, _QUICK_CANDIDATES, seed=self.seed
        )
        found = self.log_ratios(model, state.candidates)
        state.candidates = state.candidates._replace(reached=found.mean().item())
        if state.best_weights:
            best = copy.deepcopy(model)
            best.load_state_dict(state.best_weights)
            state.rescore(self.log_ratios(best, state.candidates).mean().item())
        return found


@torch.no_grad()
def held_out_log_ratios(model: EmbedAndEmulate, held_out: HeldOut, seed: int) -> Tensor:
    """Return log r of held-out pairs (m,), each by as many draws as it takes.

    By prior draws where enough of them come near a posterior, by candidates of its own elsewhere.
    Where the prior has no density, there are none: the true parameters count as one draw more, for
    without, the score would be the higher the fewer draws come near.
    """
    f = held_out.embedded(model)
    phi = held_out.simulations.phi.to(model.device)
    bank = model.prior_bank(model.prior, held_out.draws)
    normalizer = estimate_normalizer(model.similarity, f, bank)
    own = model.similarity.paired_score(f, model.emulate_all(phi)).double()
    found = own - normalizer.log_value
    short = normalizer.effective_draws < _SURE_EFFECTIVE
    if short.any() and not model.prior.has_density:
        draws = len(bank.phi)
        total = torch.logaddexp(normalizer.log_value[short] + math.log(draws), own[short])
        found[short] = own[short] - total + math.log(draws + 1)
    elif short.any():
        scores = DataScores(model, f[short])
        candidates = propose_candidates(
            scores,
            model.prior,
            phi[short],
            _SURE_CANDIDATES,
            seed=derive_seed(seed, "sure"),
            times=_TIMES_SURE,
        )
        found[short] = candidates.log_ratio(scores(candidates.phi))
    return found
