r"""Tempered sampling, for posteriors of many parameters: no prior draw comes near them, and single chains stay in one mode.

Particles pass through p(φ) e^{β s(φ)} from β = 0, where the bank's prior draws are already, to β =
1, the posterior. Each β is the largest that leaves the weights e^{Δβ s} an effective size of half
the particles. After systematic resampling a Gaussian mixture is fitted to the particles, and rounds
of two Metropolis moves follow: random walks with the covariance of a component drawn at random, and
independent proposals from the mixture, which carry particles between modes and so set the modes'
weights right. Rounds end when no parameter (nor the score) is correlated with its value at the
temperature's start. A box is stretched first, into coordinates in which the prior is the standard
normal law: there are no edges then.

References:
    Del Moral, Doucet and Jasra, *Sequential Monte Carlo samplers*, 2006;
    Lee and Whiteley, *Variance estimation in the particle filter*, 2018 (errors from the particles'
    ancestry).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from eande.foundations.checks import EandeWarning, InputError, check_count
from eande.foundations.seeds import derive_seed
from eande.inference.samplers.known import sampler
from eande.inference.samplers.rejection import BudgetExceeded
from eande.inference.target import Target

# A round has eight moves, five of them proposals of the mixture, but one where fewer than a
# twentieth of those are accepted.
_MOVES, _JUMPS, _RARE = 8, 5, 0.05
_WALKS_ACCEPTED = 0.3
# The effective share of the particles each temperature leaves; rounds end under the correlation, or
# when they are spent.
_KEEP, _CORRELATION, _ROUNDS = 0.5, 0.2, 10
_COMPONENTS = 8
# A correlation above which the last rounds have not forgotten their start.
_WORRYING = 0.5


@dataclass(frozen=True)
class TemperedInfo:
    """News about tempered sampling; tuples have one entry per temperature.

    Args:
        evaluations: scores computed; the bank's are not counted.
        exponents: β, increasing; the last is 1 unless the budget ended first.
        walk_acceptance: accepted steps of the random walks.
        jump_acceptance: accepted proposals of the mixture; where it is 0, modes do not exchange
            particles.
        correlation: what was left of it when the rounds ended.
        effective_samples: per parameter, of all particles, from their ancestry: siblings that still
            resemble each other count less.
        log_normalizer: log C by this sampler's own path.
        normalizer_error: its standard error.
    """

    evaluations: int
    exponents: tuple[float, ...]
    walk_acceptance: tuple[float, ...]
    jump_acceptance: tuple[float, ...]
    correlation: tuple[float, ...]
    effective_samples: tuple[float, ...]
    log_normalizer: float
    normalizer_error: float


@sampler("tempered")
def tempered(
    posterior: Target,
    n: int,
    *,
    seed: int = 0,
    particles: int = 20_000,
    max_evaluations: int = 20_000_000,
) -> tuple[Tensor, TemperedInfo]:
    """Draw ``n`` samples of a posterior, shape (n, D); the prior needs a density.

    What it cannot see: a mode so narrow beside the others that no particle comes near it at small
    exponents, such as one of a third of their width in every one of ten parameters. It is then
    missing, and nothing in ``info`` tells.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        particles: how many to move, at least ``n``. More give smaller errors, of mode weights too.
        max_evaluations: the budget; beyond it :class:`BudgetExceeded` is raised, with particles of
            the exponent reached.
    """
    if not posterior.prior.has_density:
        raise InputError(
            "sampler: expected acceptance_rejection for a prior without a density, got tempered"
        )
    check_count("particles", particles, 100)
    check_count("max_evaluations", max_evaluations, 1)
    run = _Run(posterior, max(n, particles), seed, max_evaluations)
    while run.beta < 1:
        run.warm()
    if run.left[-1] > _WORRYING:
        warnings.warn(
            f"sampling: particles are still correlated with where they began ({run.left[-1]:.2f}); more of them, or another sampler, may be needed",
            EandeWarning, stacklevel=3,
        )  # fmt: skip
    order = torch.randperm(run.size, generator=run.stream, device=run.x.device)[:n]
    return run.posterior.prior.constrain(run.x[order]).float(), run.info()


class _Run:
    """Particles on their way."""

    def __init__(self, posterior: Target, size: int, seed: int, budget: int) -> None:
        self.posterior, self.size, self.budget = posterior, size, budget
        device = posterior.device
        self.stream = torch.Generator(device).manual_seed(derive_seed(seed, "tempered"))
        self.s = posterior.bank_scores().double()
        self.drawn, self.finite = len(self.s), int(torch.isfinite(self.s).sum())
        if not self.finite:
            raise InputError("prior: expected draws inside the training prior's support, got none")
        self.x = posterior.prior.unconstrain(posterior.bank.phi)
        self.p, self.ancestor = (
            self.posterior.prior.unconstrained_log_prob(self.x),
            torch.arange(self.drawn, device=device),
        )
        self.beta, self.step, self.evaluations, self.log_normalizer = (
            0.0,
            2.38 / math.sqrt(self.x.shape[1]),
            0,
            0.0,
        )
        self.exponents: list[float] = []
        self.walked: list[float] = []
        self.jumped: list[float] = []
        self.left: list[float] = []

    def warm(self) -> None:
        """Go on to the next exponent: weigh, resample, move."""
        least = _KEEP * self.size if self.beta else min(self.size, _KEEP * self.finite)
        following = _next_exponent(self.s, self.beta, least)
        weights = (following - self.beta) * self.s
        self.log_normalizer += (weights.logsumexp(0) - math.log(len(self.s))).item()
        rows = _systematic(weights.softmax(0), self.size, self.stream)
        self.x, self.s, self.p, self.ancestor = (
            self.x[rows],
            self.s[rows],
            self.p[rows],
            self.ancestor[rows],
        )
        self.beta = following
        self.exponents.append(following)
        self.left.append(1.0)
        start, mixture, jumps = self._state(), _Mixture(self.x, _COMPONENTS, self.stream), _JUMPS
        rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(_ROUNDS):
            if self.evaluations + _MOVES * self.size > self.budget:
                raise BudgetExceeded(
                    f"sampling: expected the exponent 1 within {self.budget} evaluations, got to {self.beta:.2g}; raise max_evaluations",
                    self.posterior.prior.constrain(self.x).float(), self.info(),
                )  # fmt: skip
            self._round(mixture, jumps, rates)
            # Where the mixture does not fit, walk.
            jumps = _JUMPS if rates[True][-1] > _RARE else 1
            self.left[-1] = _correlation(start, self._state())
            if self.left[-1] < _CORRELATION:
                break
        self.walked.append(sum(rates[False]) / len(rates[False]))
        self.jumped.append(sum(rates[True]) / len(rates[True]))

    def _state(self) -> Tensor:
        return torch.cat([self.x.double(), self.s.unsqueeze(1)], dim=1)

    def _round(self, mixture: _Mixture, jumps: int, rates: dict[bool, list[float]]) -> None:
        q = mixture.log_prob(self.x)
        for move in range(_MOVES):
            jump = move < jumps
            point, offset = mixture.draw(self.size, self.stream)
            new = point if jump else self.x + self.step * offset
            new_p = self.posterior.prior.unconstrained_log_prob(new)
            with torch.no_grad():
                new_s = (
                    self.posterior.score(self.posterior.prior.constrain(new))
                    .double()
                    .nan_to_num(nan=-torch.inf, neginf=-torch.inf)
                )
            new_s = new_s.masked_fill(new_p == -torch.inf, -torch.inf)
            new_q = mixture.log_prob(new) if jump else q
            chance = torch.rand(
                self.size, generator=self.stream, device=new.device, dtype=torch.float64
            )
            accepted = chance.log() < new_p - self.p + self.beta * (new_s - self.s) + q - new_q
            self.x = torch.where(accepted.unsqueeze(1), new, self.x)
            self.s, self.p, q = (
                torch.where(accepted, new_s, self.s),
                torch.where(accepted, new_p, self.p),
                torch.where(accepted, new_q, q),
            )
            rates[jump].append(accepted.double().mean().item())
            if not jump:
                self.step *= math.exp(rates[jump][-1] - _WALKS_ACCEPTED)
        self.evaluations += _MOVES * self.size

    def info(self) -> TemperedInfo:
        """Return the news so far."""
        x = self.x.double()
        columns = torch.cat([x - x.mean(0), torch.ones_like(x[:, :1])], dim=1)
        families = columns.new_zeros(self.drawn, columns.shape[1]).index_add_(
            0, self.ancestor, columns
        ) / len(x)
        spread = families.square().sum(0)
        return TemperedInfo(
            self.evaluations, tuple(self.exponents), tuple(self.walked), tuple(self.jumped), tuple(self.left),
            tuple((x.var(0) / spread[:-1]).tolist()), self.log_normalizer, spread[-1].sqrt().item(),
        )  # fmt: skip


class _Mixture:
    """A Gaussian mixture fitted by expectation–maximisation; rare components are proposed more often than they occur."""

    def __init__(
        self,
        x: Tensor,
        components: int,
        stream: torch.Generator,
        *,
        iterations: int = 12,
        rows: int = 4_000,
    ) -> None:
        self.mean, self.deviation = x.mean(0), x.std(0).clamp_min(1e-30)
        z = (
            x[torch.randperm(len(x), generator=stream, device=x.device)[:rows]] - self.mean
        ) / self.deviation
        n, d = z.shape
        centres, nearest = z[:1], z.new_full((n,), torch.inf)
        for turn in range(components - 1):
            nearest = torch.minimum(nearest, ((z - centres[-1]) ** 2).sum(-1))
            # The farthest rows first: a mode of few particles must get a component. The rest by
            # k-means++.
            pick = (
                nearest.argmax().view(1)
                if 2 * turn < components
                else torch.multinomial(nearest.clamp_min(1e-30), 1, generator=stream)
            )
            centres = torch.cat([centres, z[pick]])
        share = functional.one_hot(torch.cdist(z, centres).argmin(1), components).to(z.dtype)
        for _ in range(iterations):
            size = share.sum(0)
            self.centres = share.T @ z / size.clamp_min(1e-6).unsqueeze(-1)
            scatter = torch.stack(
                [
                    ((z - c) * r.unsqueeze(-1)).T @ (z - c)
                    for c, r in zip(self.centres, share.T, strict=True)
                ]
            )
            pooled = torch.diag(
                scatter.diagonal(dim1=1, dim2=2).sum(0) / n + 1e-6
            )  # a component of few rows leans on what is common to all
            self.factors = torch.linalg.cholesky((scatter + d * pooled) / (size + d).view(-1, 1, 1))
            self.inverses = torch.linalg.inv(self.factors)
            self.weights = (size + 1e-2) / (size + 1e-2).sum()
            share = self._joint(z).softmax(-1)
        self.weights = self.weights.sqrt() / self.weights.sqrt().sum()

    def _joint(self, z: Tensor) -> Tensor:
        squares = torch.stack(
            [
                (((z - c) @ inverse.T) ** 2).sum(-1)
                for c, inverse in zip(self.centres, self.inverses, strict=True)
            ],
            -1,
        )
        joint: Tensor = (
            self.weights.log() + self.inverses.diagonal(dim1=1, dim2=2).log().sum(-1) - squares / 2
        )
        return joint

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density, up to a constant."""
        return self._joint((x - self.mean) / self.deviation).logsumexp(-1).double()

    def draw(self, n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw points, and their offsets from the centres of their components."""
        component = torch.multinomial(self.weights, n, replacement=True, generator=stream)
        counts = component.bincount(minlength=len(self.weights)).tolist()
        noise = torch.split(
            torch.randn(n, len(self.mean), generator=stream, device=self.mean.device), counts
        )
        offsets = torch.cat(
            [part @ factor.T for part, factor in zip(noise, self.factors, strict=True)]
        )
        points = offsets + self.centres.repeat_interleave(
            component.bincount(minlength=len(self.weights)), 0
        )
        order = torch.randperm(n, generator=stream, device=self.mean.device)
        return self.mean + points[order] * self.deviation, offsets[order] * self.deviation


def _next_exponent(s: Tensor, beta: float, least: float) -> float:
    """Return the largest β whose weights have at least that effective size."""
    low, high = beta, 1.0
    for attempt in range(50):
        middle = high if attempt == 0 else (low + high) / 2
        weights = ((middle - beta) * s).softmax(0)
        low, high = (middle, high) if 1 / (weights**2).sum() >= least else (low, middle)
    return low if low > beta else high


def _systematic(weights: Tensor, n: int, stream: torch.Generator) -> Tensor:
    """Draw ``n`` rows, each as often as its weight says up to one."""
    places = torch.arange(n, dtype=torch.float64, device=weights.device) + torch.rand(
        1, generator=stream, dtype=torch.float64, device=weights.device
    )
    return torch.searchsorted(weights.cumsum(0), places / n).clamp_max(len(weights) - 1)


def _correlation(a: Tensor, b: Tensor) -> float:
    """Return the largest correlation of a column of one with the same column of the other."""
    a, b = a - a.mean(0), b - b.mean(0)
    return (
        ((a * b).mean(0) / ((a**2).mean(0) * (b**2).mean(0)).sqrt().clamp_min(1e-300))
        .abs()
        .max()
        .item()
    )
