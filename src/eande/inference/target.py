"""What samplers and summaries need of a posterior, and what a posterior needs of a model.

Both are protocols: a baseline, an ensemble or a potential of another library is a posterior by
having these few methods.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from eande.inference.guide import Guide, MemberScores
from eande.inference.normalizer import PriorBank
from eande.priors.prior import Prior


class Scorer(Protocol):
    """The ratio of one observation (or of several independent ones) as a function of φ."""

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""

    @property
    def rows(self) -> int:
        """How many parameters to score at a time."""

    @property
    def support(self) -> Prior:
        """The prior trained under: outside its support the ratio is zero."""

    def score(self, phi: Tensor) -> Tensor:
        """Return log r up to a constant, (k, D) → (k,)."""

    def bank_scores(self, bank: PriorBank) -> Tensor:
        """Return the scores of prior draws that are emulated already, (N',)."""

    def bound(self) -> float | None:
        """Return a rigorous upper bound of the score, None where there is none."""


@runtime_checkable
class Embedded(Protocol):
    """The scorer of a model that may be an ensemble, and may have learned a guide."""

    def apart(self, prior: Prior) -> MemberScores | None:
        """Return the scores of its members under a prior; None where it is no mean."""

    def propose(self, prior: Prior) -> Guide | None:
        """Return what was learned to be proposed under a prior; None where nothing was."""


class Target(Protocol):
    """A posterior, as samplers see it."""

    prior: Prior
    bank: PriorBank

    @property
    def log_normalizer(self) -> float:
        """Log C."""

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""

    def score(self, phi: Any) -> Tensor:
        """Return log r up to a constant, (k, D) → (k,)."""

    def unnormalized(self, phi: Any) -> Tensor:
        """Return the log density up to a constant, (k, D) → (k,)."""

    def bank_scores(self) -> Tensor:
        """Return the scores of the bank's prior draws, (N',)."""

    def best_draws(self, count: int) -> Tensor:
        """Return the prior draws of the highest score, (count, D)."""

    def bound(self) -> float | None:
        """Return a rigorous upper bound of the score, None where there is none."""


# sampler(target, n, seed=seed, **options) -> (phi, info)
Sampler = Callable[..., tuple[Tensor, Any]]
