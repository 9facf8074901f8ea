"""The posterior of one observation (or of several independent ones, pooled).

    q(φ | y) = p(φ) e^{s(f, g(φ))} / C

f = f(y) is computed before a Posterior is made; nothing here runs the encoder. For pooled observations f is what the similarity
makes of their embeddings (for inner products their sum), and C belongs to all of them together.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    as_float_tensor,
    check_count,
    check_shape,
    check_share,
)
from eande.inference.normalizer import ENOUGH_DRAWS, PriorBank
from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo, acceptance_rejection
from eande.inference.samplers.tempered import tempered
from eande.inference.search import CLIMBERS, climb
from eande.inference.summary import Summary, summarize
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior

if TYPE_CHECKING:
    from eande.inference.model import EmbedAndEmulate

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
        effective_draws: how many of the draws carry the estimate; under 100 it may be off by more than its error, and :meth:`refine` is for that.
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
        self.model, self.similarity, self.embedded, self.prior, self.bank = (
            model,
            model.similarity,
            embedded,
            prior,
            bank,
        )
        self.log_normalizer, self.normalizer_error, self.effective_draws = (
            log_normalizer,
            normalizer_error,
            effective_draws,
        )

    def __repr__(self) -> str:
        """Return of what, and how well its normaliser is known, in a line."""
        known = f"log C = {self.log_normalizer:.3f} ± {self.normalizer_error:.2g}, carried by {self.effective_draws:.0f} draws"
        return f"Posterior(of {', '.join(self.prior.names)}; {known})"

    def score(self, phi: Any) -> Tensor:
        """Return s(f, g(φ)), shape (n,): log r without its normaliser, minus infinity outside the training prior's support."""
        phi = as_float_tensor("phi", phi, device=self.model.device)
        check_shape("phi", phi, ("n", self.prior.dimension))
        if not len(phi):
            return phi.new_zeros(0)
        with torch.set_grad_enabled(torch.is_grad_enabled() and phi.requires_grad):
            return torch.cat(
                [self._score_chunk(part) for part in phi.split(self.model.emulator_rows)]
            )

    def _score_chunk(self, phi: Tensor) -> Tensor:
        # By its own similarity: log C belongs to that, and calibration gives the model another.
        scores = self.model.score(self.similarity, self.embedded, phi)
        # NaN where parameters are so large that the emulator overflows: nothing lies there.
        return scores.masked_fill(scores.isnan() | ~self.model.prior.contains(phi), -torch.inf)

    def unnormalized(self, phi: Any) -> Tensor:
        """Return log p(φ) + s(f, g(φ)), shape (n,): the log density up to log C, which is all that searches and samplers need."""
        phi = as_float_tensor("phi", phi, device=self.model.device)
        return self.score(phi) + self.prior.log_prob(phi)

    def log_ratio(self, phi: Any) -> Tensor:
        """Return log r(φ, y), the posterior relative to the prior in nats, shape (n,); warns where too few prior draws carry log C."""
        self.warn_of_few_draws()
        return self.score(phi) - self.log_normalizer

    def log_prob(self, phi: Any) -> Tensor:
        """Return the normalised log density, shape (n,); differentiable in ``phi``; warns where too few prior draws carry log C."""
        self.warn_of_few_draws()
        return self.unnormalized(phi) - self.log_normalizer

    def warn_of_few_draws(self) -> None:
        """Warn the caller's caller where too few prior draws carry log C."""
        if self.effective_draws < ENOUGH_DRAWS:
            known = len(self.bank.phi)
            better = "take posterior.refine(), or " if self.prior.has_density else ""
            all_known = isinstance(self.prior, EmpiricalPrior) and known == len(self.prior.draws)
            warnings.warn(
                f"only {self.effective_draws:.2g} of {known} prior draws carry log C, so that values may be off by a constant, more than its stated "
                f"error of {self.normalizer_error:.2g} (samples are not): "
                + ("the prior has no more draws" if all_known else f"{better}more draws in model.posterior(..., draws=...)"),
                EandeWarning, stacklevel=3,
            )  # fmt: skip

    def refine(self, *, particles: int = 20_000, seed: int = 0) -> Self:
        """Return this posterior with log C by tempering (:mod:`eande.inference.samplers.tempered`), right where no prior draw comes near; takes a second or two.

        Args:
            particles: how many to move; four times as many halve the error.
            seed: same seed, same value.
        """
        if not self.prior.has_density:
            raise InputError(
                "prior: expected one with a density, got draws only; take more of them: model.posterior(..., draws=...)"
            )
        check_count("seed", seed, 0)
        info, refined = tempered(self, 1, seed=seed, particles=particles)[1], copy.copy(self)
        refined.log_normalizer, refined.normalizer_error = (
            info.log_normalizer,
            info.normalizer_error,
        )
        # As many independent draws would have that error.
        refined.effective_draws = info.normalizer_error**-2
        return refined

    def bank_scores(self) -> Tensor:
        """Return the scores of the bank's prior draws, without running the emulator again."""
        with torch.no_grad():
            scores = self.similarity.score(self.embedded.unsqueeze(0), self.bank.emulated)[0]
        return scores.masked_fill(~self.bank.inside, -torch.inf)

    def sample(
        self, n: int, *, seed: int = 0, sampler: Sampler | None = None, **options: Any
    ) -> tuple[Tensor, Any]:
        """Draw ``n`` samples, shape (n, D), and return them with the sampler's ``info``.

        Args:
            n: how many.
            seed: same seed, same samples.
            sampler: ``sampler(posterior, n, seed=seed, **options) -> (phi, info)``. By default acceptance–rejection, which is exact, where the
                bank says that it needs no more than a few million candidates, and it does not need many more; else
                :func:`eande.inference.samplers.tempered.tempered`.
            options: for the sampler; those that only one of the two has, such as ``bound`` or ``particles``, choose it.
        """
        check_count("n", n, 1)
        check_count("seed", seed, 0)
        if not (sampler is None or callable(sampler)):
            raise InputError(
                f"sampler: expected a function of (posterior, n, seed=...), got {sampler!r}"
            )
        if sampler is not None:
            return sampler(self, n, seed=seed, **options)
        scores = self.bank_scores().double()
        rate = (scores - scores.max()).exp().mean().item()
        if not self.prior.has_density or set(options) & {"bound", "proposal"}:
            return acceptance_rejection(self, n, seed=seed, **options)
        if "particles" in options:
            return tempered(self, n, seed=seed, **options)
        if n / rate <= _MOST_CANDIDATES and rate * len(self.bank.phi) > _CARRIED:
            # Where the bank misses the highest scores, as under a prior far from the data, many times the candidates it foretells do not do.
            budget = {
                "max_evaluations": _LEAST_BUDGET + math.ceil(_TIMES_FORETOLD * n / rate)
            } | options
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
        ends = climb(self.unnormalized, starts, self.bank.phi.std(0))
        return ends[self.unnormalized(ends).argmax()]

    def best_draws(self, count: int) -> Tensor:
        """Return the prior draws of the highest score, best first, shape (count, D)."""
        check_count("count", count, 1)
        best = self.bank_scores().topk(min(count, len(self.bank.phi))).indices
        return self.bank.phi[best]

    def summary(self, *, samples: int = 10_000, level: float = 0.9, seed: int = 0) -> Summary:
        """Return means, standard deviations, central intervals of that level, and modes with their weights."""
        check_count("samples", samples, 2)
        check_share("level", level)
        phi, info = self.sample(samples, seed=seed)
        return summarize(self, phi, info, level)


__all__ = ["Posterior", "SampleInfo", "Sampler"]
