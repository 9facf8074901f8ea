"""The posterior of one observation (or of several independent ones, pooled): equation (4).

    q(φ | y) = p(φ) e^{s(f(y), g(φ))} / C(y)

f(y) is computed before a Posterior is made; nothing here runs the encoder. For pooled observations
the score is the sum of theirs, and C belongs to all of them together.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

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
from eande.foundations.tables import html_table
from eande.inference.conditional import Marginal, sliced
from eande.inference.derived import Derived, add_derived, check_derived
from eande.inference.exports import as_dataframe, as_dataset
from eande.inference.guide import Guide, MemberScores
from eande.inference.normalizer import ENOUGH_DRAWS, PriorBank, normalizer_of_scores
from eande.inference.samplers.choose import draw
from eande.inference.samplers.guided import Found, find_guide
from eande.inference.samplers.tempered import tempered
from eande.inference.search import CLIMBERS, climb
from eande.inference.summary import Summary, summarize
from eande.inference.target import Embedded, Sampler, Scorer
from eande.priors.prior import Prior

# Proposals for log C, and the smallest error that is told apart from none.
_POINTS = 20_000
_LEAST_ERROR = 1e-6


class KnownNormalizer(NamedTuple):
    """What is known of log C."""

    log_value: float
    error: float
    effective_draws: float


class Posterior:
    """A normalised posterior: values, samples, its maximum and a summary.

    Args:
        scorer: the ratio as a function of φ, up to a constant.
        prior: the one the posterior is for.
        bank: draws of it.
        log_normalizer: log C, estimated over the bank's draws.
        normalizer_error: its standard error.
        effective_draws: the effective sample size of that estimate.
        sampler: the default sampler, where the model has one of its own.
        near: a proposal from near the posterior, where there is one already.

    Attributes:
        by_draws: what the bank's draws tell of log C, however few of them are effective.

    Example:
        >>> posterior = model.posterior(y_observed)
        >>> posterior
        Posterior(of slope, offset; log C = ..., effective sample size ... of 10,000)
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
        near: Guide | None = None,
    ) -> None:
        self.scorer = scorer
        self.prior = prior
        self.bank = bank
        self.by_draws = KnownNormalizer(log_normalizer, normalizer_error, effective_draws)
        self.default_sampler = sampler
        self.near = near

    def __repr__(self) -> str:
        """Return of what, and how well its normaliser is known, in a line."""
        # What is not known yet is not computed for a line of text.
        known = vars(self).get("_normalizer", self.by_draws)
        text = f"log C = {known.log_value:.3f} ± {known.error:.2g}"
        if known is self.by_draws:
            near = f"{known.effective_draws:.0f} of {len(self.bank.phi):,}"
            text += f", effective sample size {near}"
        return f"Posterior(of {', '.join(self.prior.names)}; {text})"

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks; nothing is computed for it."""
        known = vars(self).get("_normalizer", self.by_draws)
        rows = [
            ("parameters", ", ".join(self.prior.names)),
            ("prior", type(self.prior).__name__),
            ("log C", f"{known.log_value:.3f} ± {known.error:.2g}"),
        ]
        if known is self.by_draws:
            near = f"{known.effective_draws:.0f} of {len(self.bank.phi):,} prior draws"
            rows.append(("effective sample size", near))
        return html_table("Posterior", rows)

    @property
    def log_normalizer(self) -> float:
        """Log C, the log of the prior mean of e^s.

        The difference between two priors is the log ratio of their evidences. Where less than a
        hundred of the bank's draws come near, it is found by proposals that do.
        """
        return self._normalizer.log_value

    @property
    def normalizer_error(self) -> float:
        """The standard error of log C."""
        return self._normalizer.error

    @property
    def effective_draws(self) -> float:
        """As many independent draws of the posterior would tell log C as well.

        Under 100, where the prior has no density, it may be off by more than its standard error.
        """
        return self._normalizer.effective_draws

    @cached_property
    def _normalizer(self) -> KnownNormalizer:
        if self.by_draws.effective_draws >= ENOUGH_DRAWS or not self.prior.has_density:
            return self.by_draws
        return self._closer_normalizer(_POINTS, 0)

    def _closer_normalizer(self, points: int, seed: int) -> KnownNormalizer:
        """Find log C by proposals from near the posterior, or where they fail by tempering."""
        found = self.guide.judged(self, points, seed) if self.bank.proposable else None
        if found is not None and found.reliable:
            log_value, error = found.normalizer()
        else:
            _, info = tempered(self, 1, seed=seed, particles=points)
            log_value, error = info.log_normalizer, info.normalizer_error
        return KnownNormalizer(log_value, error, max(error, _LEAST_ERROR) ** -2)

    @cached_property
    def guide(self) -> Found:
        """A proposal from near the posterior, found once; only where the prior has a density."""
        scorer = self.scorer
        learned = None
        if self.near is None and isinstance(scorer, Embedded):
            learned = scorer.propose(self.prior)
        return find_guide(self, start=self.near, learned=learned)

    @cached_property
    def apart(self) -> MemberScores | None:
        """The scores of an ensemble's members alone; None where the ratio is not their mean."""
        scorer = self.scorer
        return scorer.apart(self.prior) if isinstance(scorer, Embedded) else None

    @property
    def device(self) -> torch.device:
        """Where values are computed."""
        return self.scorer.device

    def score(self, phi: Any) -> Tensor:
        """Return s(f, g(φ)), shape (n,): log r without its normaliser.

        It is minus infinity outside the support of the prior trained under.

        Example:
            >>> scores = posterior.score([[0.5, -0.2], [0.5, 5.0]])
            >>> scores[1]  # outside the prior's box
            tensor(-inf)
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
        """Return log p(φ) + s(f, g(φ)), shape (n,): the log density up to log C.

        Example:
            >>> phi = torch.tensor([[0.5, -0.2]])
            >>> log_prob = posterior.unnormalized(phi) - posterior.log_normalizer
            >>> torch.allclose(log_prob, posterior.log_prob(phi))
            True
        """
        phi = as_float_tensor("phi", phi, device=self.device)
        return self.score(phi) + self.prior.log_prob(phi)

    def log_ratio(self, phi: Any) -> Tensor:
        """Return log r(φ, y), the posterior relative to the prior in nats, shape (n,).

        Warns where the effective sample size of log C is too small.

        Example:
            >>> ratios = posterior.log_ratio([[0.5, -0.2], [-0.9, 0.9]])
            >>> ratios[0] > 0 > ratios[1]  # likelier, and less likely, than before the observation
            tensor(True)
        """
        self.warn_of_few_draws()
        return self.score(phi) - self.log_normalizer

    def log_prob(self, phi: Any) -> Tensor:
        """Return the normalised log density, shape (n,); differentiable in ``phi``.

        Warns where the effective sample size of log C is too small.

        Example:
            >>> slope, offset = torch.meshgrid(*[torch.linspace(-1, 1, 101)] * 2, indexing="ij")
            >>> grid = torch.stack([slope.flatten(), offset.flatten()], 1)
            >>> total = posterior.log_prob(grid).exp().mean() * 4  # the area of the prior's box
            >>> abs(total - 1) < 0.1
            tensor(True)
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
        else:
            remedy = "more draws in model.posterior(..., draws=...)"
        # No numbers of this datum: of equal warnings in a loop Python shows the first.
        warnings.warn(
            f"log C has an effective sample size under {ENOUGH_DRAWS} of {drawn:,} prior draws, "
            "so that values may be off by a constant, more than posterior.normalizer_error "
            f"(samples are not): {remedy}",
            EandeWarning,
            stacklevel=3,
        )

    def refine(self, *, particles: int = 20_000, seed: int = 0) -> Self:
        """Return this posterior with log C found anew, by proposals from near it.

        See :mod:`eande.inference.samplers.guided`; where its proposals fail, by tempering.

        Args:
            particles: how many to draw; four times as many halve the error.
            seed: same seed, same value.

        Example:
            >>> refined = posterior.refine(particles=2_000)
            >>> abs(refined.log_normalizer - posterior.log_normalizer) < 0.2
            True
        """
        if not self.prior.has_density:
            raise InputError(
                "prior: expected one with a density, got draws only; take more of them: "
                "model.posterior(..., draws=...)"
            )
        check_seed("seed", seed)
        check_count("particles", particles, 100)
        check_fits("particles", particles, 16 * (self.prior.dimension + 4))
        refined = copy.copy(self)
        refined._normalizer = self._closer_normalizer(particles, seed)
        return refined

    def bank_scores(self) -> Tensor:
        """Return the scores of the bank's prior draws, without running the emulator again.

        Example:
            >>> posterior.bank_scores().shape
            torch.Size([10000])
        """
        with torch.no_grad():
            scores = self.scorer.bank_scores(self.bank)
        return scores.masked_fill(~self.bank.inside, -torch.inf)

    def bound(self) -> float | None:
        """Return a rigorous upper bound of the score over all φ, None where there is none.

        Example:
            >>> (posterior.bank_scores() <= posterior.bound()).all()
            tensor(True)
        """
        return self.scorer.bound()

    def sample(
        self, n: int, *, seed: int = 0, sampler: str | Sampler | None = None, **options: Any
    ) -> tuple[Tensor, Any]:
        """Draw ``n`` samples, shape (n, D), and return them with the sampler's ``info``.

        Args:
            n: how many.
            seed: same seed, same samples.
            sampler: ``"rejection"`` (exact), ``"guided"`` (proposals from near the posterior,
                accepted or rejected), ``"tempered"``, ``"importance"`` (prior draws by their
                weights), ``"bank"`` (rejection among prior draws), or a function
                ``sampler(posterior, n, seed=seed, **options) -> (phi, info)``. By default the rule
                of :mod:`eande.inference.samplers.choose`: acceptance–rejection of prior draws
                where these promise that it is quick, else a guide, else tempering.
            options: of that sampler, such as ``bound`` or ``particles``; without a name only
                ``max_evaluations``, the budget of both that the rule chooses from.

        Example:
            >>> phi, info = posterior.sample(1_000, seed=0)
            >>> phi.shape, 0 < info.acceptance_rate <= 1
            (torch.Size([1000, 2]), True)
            >>> phi, info = posterior.sample(1_000, seed=0, sampler="importance")
            >>> info.effective_draws > 100
            True
        """
        chosen = self.default_sampler if sampler is None else sampler
        return draw(self, n, seed=seed, sampler=chosen, options=options)

    def conditional(self, given: Mapping[str, float]) -> Posterior:
        """Return the posterior of the other parameters, with values of some given: exactly.

        The prior is one whose law of some parameters given others is known: a box, a product,
        independent or normal parameters.

        Args:
            given: values by parameters' names.

        Example:
            >>> offset = posterior.conditional({"slope": 0.5})
            >>> offset
            Posterior(of offset; log C = ...)
            >>> offset.sample(100)[0].shape
            torch.Size([100, 1])
        """
        scorer, bank = sliced(self, given, self.scorer.rows)
        known = normalizer_of_scores(bank.emulated.T, bank.inside)
        return Posterior(
            scorer,
            scorer.support,
            bank,
            log_normalizer=known.log_value.item(),
            normalizer_error=known.error.item(),
            effective_draws=known.effective_draws.item(),
        )

    def marginal(self, names: Sequence[str]) -> Marginal:
        """Return the posterior of some parameters, whatever the others are: samples and density.

        Args:
            names: which.

        Example:
            >>> posterior.marginal(["slope"]).sample(100)[0].shape
            torch.Size([100, 1])
        """
        return Marginal(self, names)

    def map(self) -> Tensor:
        """Return the parameters of the highest density, shape (D,).

        Relative to the prior where that has no density.

        Example:
            >>> highest = posterior.log_prob(posterior.map()[None])
            >>> (highest >= posterior.log_prob(posterior.best_draws(10))).all()
            tensor(True)
        """
        starts = self.best_draws(CLIMBERS)
        if not self.prior.has_density:
            return starts[0]
        ends = climb(self.unnormalized, starts, self.bank.phi.std(0))
        return ends[self.unnormalized(ends).argmax()]

    def best_draws(self, count: int) -> Tensor:
        """Return the prior draws of the highest score, best first, shape (count, D).

        Example:
            >>> posterior.best_draws(3).shape
            torch.Size([3, 2])
        """
        check_count("count", count, 1)
        best = self.bank_scores().topk(min(count, len(self.bank.phi))).indices
        return self.bank.phi[best]

    def summary(
        self,
        *,
        samples: int = 10_000,
        level: float = 0.9,
        derived: Derived | None = None,
        seed: int = 0,
    ) -> Summary:
        """Return means, standard deviations, central intervals of that level, and the modes.

        Args:
            samples: how many to draw.
            level: probability of the intervals.
            derived: further quantities by name, functions of a mapping from the parameters' names
                to tensors (n,), such as ``{"beta": lambda p: p["R0"] / p["period"]}``.
            seed: same seed, same samples.

        Example:
            >>> summary = posterior.summary(samples=1_000)
            >>> print(summary)
                          mean         std  90% interval
            slope  ...
            offset ...
            mode at (...) with weight ...
            >>> (summary.lower < summary.mean).all()
            tensor(True)
        """
        check_count("samples", samples, 2)
        check_fits("samples", samples, 4 * self.prior.dimension)
        check_share("level", level)
        check_seed("seed", seed)
        # Before it takes the time to draw samples.
        check_derived(self.prior.names, derived)
        phi, info = self.sample(samples, seed=seed)
        return summarize(self, phi, info, level, derived)

    def to_dataframe(
        self, n: int = 10_000, *, seed: int = 0, derived: Derived | None = None, **options: Any
    ) -> Any:
        """Draw samples and return them as a pandas DataFrame, a column per parameter.

        Args:
            n: how many.
            seed: same seed, same samples.
            derived: further columns by name, each a function of the parameters by name.
            options: as :meth:`sample` takes them.

        Example:
            >>> frame = posterior.to_dataframe(
            ...     100, derived={"end": lambda p: p["slope"] + p["offset"]}
            ... )
            >>> list(frame.columns), len(frame)
            (['slope', 'offset', 'end'], 100)
        """
        check_derived(self.prior.names, derived)
        phi, _ = self.sample(n, seed=seed, **options)
        return as_dataframe(*add_derived(self.prior.names, phi, derived))

    def to_xarray(
        self, n: int = 10_000, *, seed: int = 0, derived: Derived | None = None, **options: Any
    ) -> Any:
        """Draw samples and return them as an xarray Dataset, a variable per parameter.

        They lie along ``draw``; what the sampler reports is in the attributes.

        Args:
            n: how many.
            seed: same seed, same samples.
            derived: further variables by name, each a function of the parameters by name.
            options: as :meth:`sample` takes them.

        Example:
            >>> dataset = posterior.to_xarray(100)
            >>> list(dataset.data_vars), dict(dataset.sizes)
            (['slope', 'offset'], {'draw': 100})
        """
        check_derived(self.prior.names, derived)
        phi, info = self.sample(n, seed=seed, **options)
        names, values = add_derived(self.prior.names, phi, derived)
        return as_dataset(names, values, {"sampler": str(info)})
