"""The posterior of one observation (or of several independent ones, pooled): equation (4).

    q(φ | y) = p(φ) e^{s(f(y), g(φ))} / C(y)

f(y) is computed before a Posterior is made; nothing here runs the encoder. For pooled observations
the score is the sum of theirs, and C belongs to all of them together.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, Self

import torch
from torch import Tensor

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    as_float_tensor,
    check_count,
    check_fits,
    check_seed,
    check_shape,
    check_share,
)
from eande.inference.normalizer import ENOUGH_DRAWS, PriorBank
from eande.inference.samplers.choose import draw
from eande.inference.samplers.tempered import tempered
from eande.inference.search import CLIMBERS, climb
from eande.inference.summary import Summary, summarize
from eande.inference.target import Sampler, Scorer
from eande.priors.prior import Prior


class Posterior:
    """A normalised posterior: values, samples, its maximum and a summary.

    Args:
        scorer: the ratio as a function of φ, up to a constant.
        prior: the one the posterior is for.
        bank: draws of it.
        log_normalizer: see below.
        normalizer_error: see below.
        effective_draws: see below.
        sampler: the default sampler, where the model has one of its own.

    Attributes:
        log_normalizer: log C, the log of the prior mean of e^s, estimated over the bank's draws.
            The difference between two priors is the log ratio of their evidences.
        normalizer_error: its standard error.
        effective_draws: the effective sample size of the estimate; under 100 it may be off by more
            than its standard error, and :meth:`refine` is for that.
    """

    def __init__(
        self,
        scorer: Scorer,
        prior: Prior,
        bank: PriorBank,
        *,
        log_normalizer: float,
        normalizer_error: float,
        effective_draws: float,
        sampler: Sampler | None = None,
    ) -> None:
        self.scorer = scorer
        self.prior = prior
        self.bank = bank
        self.log_normalizer = log_normalizer
        self.normalizer_error = normalizer_error
        self.effective_draws = effective_draws
        self.default_sampler = sampler

    def __repr__(self) -> str:
        """Return of what, and how well its normaliser is known, in a line."""
        known = (
            f"log C = {self.log_normalizer:.3f} ± {self.normalizer_error:.2g}, "
            f"effective sample size {self.effective_draws:.0f} of {len(self.bank.phi):,}"
        )
        return f"Posterior(of {', '.join(self.prior.names)}; {known})"

    @property
    def device(self) -> torch.device:
        """Where values are computed."""
        return self.scorer.device

    def score(self, phi: Any) -> Tensor:
        """Return s(f, g(φ)), shape (n,): log r without its normaliser.

        It is minus infinity outside the support of the prior trained under.
        """
        phi = as_float_tensor("phi", phi, device=self.device)
        check_shape("phi", phi, ("n", self.prior.dimension))
        if not len(phi):
            return phi.new_zeros(0)
        with torch.set_grad_enabled(torch.is_grad_enabled() and phi.requires_grad):
            return torch.cat([self._score(part) for part in phi.split(self.scorer.rows)])

    def _score(self, phi: Tensor) -> Tensor:
        scores = self.scorer.score(phi)
        # NaN where parameters are so large that the emulator overflows: nothing lies there.
        outside = scores.isnan() | ~self.scorer.support.contains(phi)
        return scores.masked_fill(outside, -torch.inf)

    def unnormalized(self, phi: Any) -> Tensor:
        """Return log p(φ) + s(f, g(φ)), shape (n,): the log density up to log C."""
        phi = as_float_tensor("phi", phi, device=self.device)
        return self.score(phi) + self.prior.log_prob(phi)

    def log_ratio(self, phi: Any) -> Tensor:
        """Return log r(φ, y), the posterior relative to the prior in nats, shape (n,).

        Warns where the effective sample size of log C is too small.
        """
        self.warn_of_few_draws()
        return self.score(phi) - self.log_normalizer

    def log_prob(self, phi: Any) -> Tensor:
        """Return the normalised log density, shape (n,); differentiable in ``phi``.

        Warns where the effective sample size of log C is too small.
        """
        self.warn_of_few_draws()
        return self.unnormalized(phi) - self.log_normalizer

    def warn_of_few_draws(self) -> None:
        """Warn the caller's caller where the effective sample size of log C is too small."""
        if self.effective_draws >= ENOUGH_DRAWS:
            return
        drawn = len(self.bank.phi)
        if drawn == self.prior.distinct_draws:
            remedy = "the prior has no more draws"
        elif self.prior.has_density:
            remedy = "take posterior.refine(), or more draws in model.posterior(..., draws=...)"
        else:
            remedy = "more draws in model.posterior(..., draws=...)"
        warnings.warn(
            f"log C has an effective sample size of {self.effective_draws:.2g} of {drawn:,} prior "
            "draws, so that values may be off by a constant, more than its standard error of "
            f"{self.normalizer_error:.2g} (samples are not): {remedy}",
            EandeWarning,
            stacklevel=3,
        )

    def refine(self, *, particles: int = 20_000, seed: int = 0) -> Self:
        """Return this posterior with log C found by tempering, right where no prior draw is near.

        It takes a second or two; see :mod:`eande.inference.samplers.tempered`.

        Args:
            particles: how many to move; four times as many halve the error.
            seed: same seed, same value.
        """
        if not self.prior.has_density:
            raise InputError(
                "prior: expected one with a density, got draws only; take more of them: "
                "model.posterior(..., draws=...)"
            )
        check_seed("seed", seed)
        _, info = tempered(self, 1, seed=seed, particles=particles)
        refined = copy.copy(self)
        refined.log_normalizer = info.log_normalizer
        refined.normalizer_error = info.normalizer_error
        # As many independent draws would have that error.
        refined.effective_draws = info.normalizer_error**-2
        return refined

    def bank_scores(self) -> Tensor:
        """Return the scores of the bank's prior draws, without running the emulator again."""
        with torch.no_grad():
            scores = self.scorer.bank_scores(self.bank)
        return scores.masked_fill(~self.bank.inside, -torch.inf)

    def bound(self) -> float | None:
        """Return a rigorous upper bound of the score over all φ, None where there is none."""
        return self.scorer.bound()

    def sample(
        self, n: int, *, seed: int = 0, sampler: str | Sampler | None = None, **options: Any
    ) -> tuple[Tensor, Any]:
        """Draw ``n`` samples, shape (n, D), and return them with the sampler's ``info``.

        Args:
            n: how many.
            seed: same seed, same samples.
            sampler: ``"rejection"`` (exact), ``"tempered"``, ``"importance"`` (prior draws by their
                weights), ``"bank"`` (rejection among prior draws), or a function
                ``sampler(posterior, n, seed=seed, **options) -> (phi, info)``. By default the rule
                of :mod:`eande.inference.samplers.choose`: acceptance–rejection where the prior
                draws promise that it is quick, else tempering.
            options: of that sampler, such as ``bound`` or ``particles``; without a name only
                ``max_evaluations``, the budget of both that the rule chooses from.
        """
        chosen = self.default_sampler if sampler is None else sampler
        return draw(self, n, seed=seed, sampler=chosen, options=options)

    def map(self) -> Tensor:
        """Return the parameters of the highest density, shape (D,).

        Relative to the prior where that has no density.
        """
        starts = self.best_draws(CLIMBERS)
        if not self.prior.has_density:
            return starts[0]
        ends = climb(self.unnormalized, starts, self.bank.phi.std(0))
        return ends[self.unnormalized(ends).argmax()]

    def best_draws(self, count: int) -> Tensor:
        """Return the prior draws of the highest score, best first, shape (count, D)."""
        check_count("count", count, 1)
        best = self.bank_scores().topk(min(count, len(self.bank.phi))).indices
        return self.bank.phi[best]

    def summary(self, *, samples: int = 10_000, level: float = 0.9, seed: int = 0) -> Summary:
        """Return means, standard deviations, central intervals of that level, and the modes."""
        check_count("samples", samples, 2)
        check_fits("samples", samples, 4 * self.prior.dimension)
        check_share("level", level)
        check_seed("seed", seed)
        phi, info = self.sample(samples, seed=seed)
        return summarize(self, phi, info, level)
