"""The posterior of one observation (or of several independent ones, pooled).

    q(φ | y) = p(φ) e^{s(f, g(φ))} / C

f = f(y) is computed before a Posterior is made; nothing here runs the encoder. For pooled observations f is the sum of
their embeddings and C belongs to the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eande.core.checks import InputError, as_float_tensor, check_count, check_shape
from eande.core.prior import Prior
from eande.core.rejection import BudgetExceeded, SampleInfo, acceptance_rejection
from eande.core.scores import PriorBank
from eande.core.search import CLIMBERS, climb
from eande.core.summary import Summary, summarize
from eande.core.tempered import tempered

if TYPE_CHECKING:
    from eande.core.model import EmbedAndEmulate

Sampler = Callable[..., tuple[Tensor, Any]]
# Acceptance–rejection is the default up to so many candidates, where the bank's largest weights are more than a few lucky draws.
_MOST_CANDIDATES, _CARRIED = 5_000_000, 3.0
_LEAST_BUDGET, _TIMES_FORETOLD = 100_000, 4


class Posterior:
    """A normalised posterior: values, samples, its maximum and a summary.

    Attributes:
        log_normalizer: log C, the log of the prior mean of e^s, estimated over the bank's draws. The difference between two priors is the
            log ratio of their evidences.
        normalizer_error: its standard error.
        effective_draws: how many of the draws carry the estimate.
    """

    def __init__(
        self,
        model: EmbedAndEmulate,
        embedded: Tensor,
        prior: Prior,
        bank: PriorBank,
        *,
        log_normalizer: float,
        normalizer_error: float,
        effective_draws: float,
    ) -> None:
        self.model, self.similarity, self.embedded, self.prior, self.bank = model, model.similarity, embedded, prior, bank
        self.log_normalizer, self.normalizer_error, self.effective_draws = log_normalizer, normalizer_error, effective_draws

    def score(self, phi: Any) -> Tensor:
        """Return s(f, g(φ)), shape (n,): log r without its normaliser, minus infinity outside the training prior's support."""
        phi = as_float_tensor("phi", phi, device=self.model.device)
        check_shape("phi", phi, ("n", self.prior.dimension))
        if not len(phi):
            return phi.new_zeros(0)
        with torch.set_grad_enabled(torch.is_grad_enabled() and phi.requires_grad):
            return torch.cat([self._score_chunk(part) for part in phi.split(self.model.emulator_rows)])

    def _score_chunk(self, phi: Tensor) -> Tensor:
        emulated = self.model.emulate(phi) if torch.is_grad_enabled() else self.model.emulate_all(phi)
        scores = self.similarity.score(self.embedded.unsqueeze(0), emulated)[0]
        return scores.masked_fill(~self.model.prior.contains(phi), -torch.inf)

    def log_ratio(self, phi: Any) -> Tensor:
        """Return log r(φ, y), the posterior relative to the prior in nats, shape (n,)."""
        return self.score(phi) - self.log_normalizer

    def log_prob(self, phi: Any) -> Tensor:
        """Return the normalised log density, shape (n,); differentiable in ``phi``."""
        phi = as_float_tensor("phi", phi, device=self.model.device)
        return self.log_ratio(phi) + self.prior.log_prob(phi)

    def bank_scores(self) -> Tensor:
        """Return the scores of the bank's prior draws, without running the emulator again."""
        with torch.no_grad():
            scores = self.similarity.score(self.embedded.unsqueeze(0), self.bank.emulated)[0]
        return scores.masked_fill(~self.bank.inside, -torch.inf)

    def sample(self, n: int, *, seed: int = 0, sampler: Sampler | None = None, **options: Any) -> tuple[Tensor, Any]:
        """Draw ``n`` samples, shape (n, D), and return them with the sampler's ``info``.

        Args:
            n: how many.
            seed: same seed, same samples.
            sampler: ``sampler(posterior, n, seed=seed, **options) -> (phi, info)``. By default acceptance–rejection, which is exact, where the
                bank says that it needs no more than a few million candidates, and it does not need many more; else
                :func:`eande.core.tempered.tempered`.
            options: for the sampler; see :func:`eande.core.rejection.acceptance_rejection`.
        """
        check_count("n", n, 1)
        check_count("seed", seed, 0)
        if not (sampler is None or callable(sampler)):
            raise InputError(f"sampler: expected a function of (posterior, n, seed=...), got {sampler!r}")
        if sampler is not None:
            return sampler(self, n, seed=seed, **options)
        scores = self.bank_scores().double()
        rate = (scores - scores.max()).exp().mean().item()
        if not self.prior.has_density or set(options) & {"bound", "proposal"}:
            return acceptance_rejection(self, n, seed=seed, **options)
        if n / rate <= _MOST_CANDIDATES and rate * len(self.bank.phi) > _CARRIED:
            # Where the bank misses the highest scores, as under a prior far from the data, many times the candidates it foretells do not do.
            budget = {"max_evaluations": _LEAST_BUDGET + math.ceil(_TIMES_FORETOLD * n / rate)} | options
            try:
                return acceptance_rejection(self, n, seed=seed, **budget)
            except BudgetExceeded:
                if options:
                    raise
        return tempered(self, n, seed=seed, **options)

    def map(self) -> Tensor:
        """Return the parameters of the highest density (relative to the prior where that has none), shape (D,)."""
        starts = self.best_draws(CLIMBERS)
        if not self.prior.has_density:
            return starts[0]
        ends = climb(self.log_prob, starts, self.bank.phi.std(0))
        return ends[self.log_prob(ends).argmax()]

    def best_draws(self, count: int) -> Tensor:
        """Return the prior draws of the highest score, best first, shape (count, D)."""
        best = self.bank_scores().topk(min(count, len(self.bank.phi))).indices
        return self.bank.phi[best]

    def summary(self, *, samples: int = 10_000, level: float = 0.9, seed: int = 0) -> Summary:
        """Return means, standard deviations, central intervals of that level, and modes with their weights."""
        check_count("samples", samples, 2)
        if not 0 < level < 1:
            raise InputError(f"level: expected a number between 0 and 1, got {level}")
        phi, info = self.sample(samples, seed=seed)
        return summarize(self, phi, info, level)


__all__ = ["Posterior", "SampleInfo", "Sampler"]
