r"""Ranks: one idea behind every check of calibration.

Mix the true parameters φ_0 of a datum y among draws φ_1 … φ_N of the prior. Given y alone, the
true ones are φ_i with probability w_i = r(φ_i, y) / Σ_j r(φ_j, y). So for any statistic T that
does not know which of them are true,

    u = Σ_{j: T_j > T_0} w_j + U Σ_{j: T_j = T_0} w_j,      U uniform on (0, 1),

is uniform on (0, 1) if r is the true ratio, for every N: few draws make a check weak, not wrong.
Scores need no normaliser. Data that share their draws also share the draws' unevenness: the draws
must outnumber the data by far, or the test of uniformity must allow for it.

    T = −φ_d                     simulation-based calibration, one rank per parameter
    T = log p r                  coverage of highest-density regions: the region of level c covers
                                 φ_0 if u < c
    T = −‖φ − reference‖         TARP, with a reference drawn from the prior for every datum

Draws of a proposal q(φ | y_i) that knows the datum but not its true parameters, one for each datum,
serve as well, with w ∝ p r / q: they come near posteriors that no prior draw comes near.

None of them can see a posterior that ignores the data: the prior's own ranks are uniform. This is
why the held-out log ratio is reported with them.

To add a statistic, enter it in ``JOINT_STATISTICS`` below and, in ``verdicts.py``, say what its
failure means. Diagnoses, figures and bridges take it from there.

References:
    Talts et al., *Validating Bayesian inference algorithms with simulation-based calibration*,
    2018;
    Hermans et al., *A trust crisis in simulation-based inference?*, 2022 (expected coverage);
    Lemos et al., *Sampling-based accuracy testing of posterior estimators*, 2023 (TARP).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eande.diagnostics.marginals import (
    divergence_of_points,
    divergence_of_samples,
    divergence_of_weights,
)
from eande.inference.candidates import Candidates
from eande.inference.levels import mass_above, tied
from eande.inference.normalizer import normalizer_of_weights


@dataclass(frozen=True)
class Points:
    """Parameters, with everything a rank statistic may look at.

    Args:
        phi: parameters (m, N, D); a first axis of 1 where all data share them.
        log_density: of the posterior of each datum, up to a constant per datum, (m, N).
        references: one per datum, drawn from the prior, (m, D).
        centre: the prior's mean (D,).
        scale: the prior's standard deviation (D,), 1 where that is 0.
    """

    phi: Tensor
    log_density: Tensor
    references: Tensor
    centre: Tensor
    scale: Tensor

    def distance(self) -> Tensor:
        """Return the distance from the reference in standard deviations of the prior, (m, N)."""
        references = (self.references.unsqueeze(1) - self.centre) / self.scale
        points = (self.phi - self.centre) / self.scale
        # By differences: a matrix product would lose the digits that tell draws from the truth.
        mode = "donot_use_mm_for_euclid_dist"
        return torch.cdist(references, points, compute_mode=mode)[:, 0]


@dataclass(frozen=True)
class Statistic:
    """What true parameters are ranked by; the rank is the mass where it is higher.

    Args:
        value: of each of some points, (m, N).
        equal: which values are ties.
    """

    value: Callable[[Points], Tensor]
    equal: Callable[[Tensor, Tensor], Tensor] = torch.eq


# Statistics of all parameters together, by the names of their checks.
JOINT_STATISTICS = {
    "coverage": Statistic(lambda points: points.log_density, equal=tied),
    "TARP": Statistic(lambda points: -points.distance()),
}


@dataclass(frozen=True)
class Weighed:
    """What posteriors say about data of known parameters, one row per datum.

    Args:
        log_ratio: log r of the true parameters in nats: too few draws do not make it look better.
        own_share: of the weight, that the true parameters themselves have among the draws, (m,).
        ranks: of each true parameter, (m, D).
        joint_ranks: rank by each of ``JOINT_STATISTICS``, (m,).
        mean: of the posterior, (m, D).
        deviation: its standard deviation, (m, D).
        effective_draws: effective sample size of the draws, or the number of samples, (m,).
        divergence: of each marginal posterior from its prior in nats, (m, D), in 100 bins;
            unreliable where the effective sample size is small.
        log_normalizer: log C by the draws, (m,).
        normalizer_error: its standard error, (m,).
    """

    log_ratio: Tensor
    own_share: Tensor
    ranks: Tensor
    joint_ranks: dict[str, Tensor]
    mean: Tensor
    deviation: Tensor
    effective_draws: Tensor
    divergence: Tensor
    log_normalizer: Tensor
    normalizer_error: Tensor

    @property
    def level(self) -> Tensor:
        """Level of the smallest highest-density region that holds the true parameters, (m,)."""
        return self.joint_ranks["coverage"]

    @property
    def tarp(self) -> Tensor:
        """Rank of the true parameters' distance from the reference, (m,)."""
        return self.joint_ranks["TARP"]


def weigh(
    scores: Tensor,
    own: Tensor,
    draws: Tensor,
    phi: Tensor,
    references: Tensor,
    chance: Tensor,
    densities: tuple[Tensor, Tensor] | None = None,
) -> Weighed:
    """Weight prior draws by the ratio of each of some data, and rank the true parameters.

    Args:
        scores: log r up to a constant per datum, of every datum and draw (m, N).
        own: of every datum and its true parameters (m,).
        draws: of the prior (N, D).
        phi: true parameters (m, D).
        references: for TARP (m, D).
        chance: uniform numbers that break ties (m,).
        densities: the prior's log density of the draws (N,) and of the true parameters (m,);
            None where it is constant or unknown, and regions are those of the highest ratio.
    """
    log_weights = torch.cat([own.unsqueeze(1), scores], dim=1).double().log_softmax(1)
    log_density = scores
    own_density = own
    if densities is not None:
        log_density = scores + densities[0]
        own_density = own + densities[1]
    centre, scale = _centre_and_scale(draws)
    ranks, joint_ranks = _rank(
        Points(draws.unsqueeze(0), log_density, references, centre, scale),
        Points(phi.unsqueeze(1), own_density.unsqueeze(1), references, centre, scale),
        chance,
        weights=log_weights[:, 1:].exp(),
        own_weight=log_weights[:, 0].exp(),
    )
    # Moments use the draws alone: where none comes near the truth, their weights beside it
    # would all be zero.
    posterior = scores.double().softmax(1)
    normalizer = normalizer_of_weights(scores)
    mean = posterior @ draws.double()
    variance = (posterior @ draws.double().square() - mean.square()).clamp(min=0)
    return Weighed(
        log_ratio=log_weights[:, 0] + math.log(scores.shape[1] + 1),
        own_share=log_weights[:, 0].exp(),
        ranks=ranks,
        joint_ranks=joint_ranks,
        mean=mean,
        deviation=variance.sqrt(),
        effective_draws=1 / posterior.square().sum(1),
        divergence=divergence_of_weights(posterior, draws),
        log_normalizer=normalizer.log_value,
        normalizer_error=normalizer.error,
    )


def weigh_candidates(
    candidates: Candidates,
    scores: Tensor,
    log_prior: Tensor,
    draws: Tensor,
    references: Tensor,
    chance: Tensor,
) -> Weighed:
    """Weight the candidates of each of some data, and rank the true parameters among them.

    This gives the same as :func:`weigh` where prior draws are too far from the true parameters.

    Args:
        candidates: of each datum, the true parameters first.
        scores: log r of them up to a constant per datum, (m, 1 + k).
        log_prior: the prior's log density of them, (m, 1 + k).
        draws: of the prior, for scales and bins (N, D).
        references: for TARP (m, D).
        chance: uniform numbers that break ties (m,).
    """
    tilted = candidates.tilted(scores)
    weights = tilted.softmax(1)
    log_density = scores + log_prior
    centre, scale = _centre_and_scale(draws)
    others = candidates.phi[:, 1:]
    ranks, joint_ranks = _rank(
        Points(others, log_density[:, 1:], references, centre, scale),
        Points(candidates.phi[:, :1], log_density[:, :1], references, centre, scale),
        chance,
        weights=weights[:, 1:],
        own_weight=weights[:, 0],
    )
    posterior = tilted[:, 1:].softmax(1)
    normalizer = normalizer_of_weights(tilted[:, 1:])
    mean = (posterior.unsqueeze(2) * others.double()).sum(1)
    apart = others.double() - mean.unsqueeze(1)
    return Weighed(
        log_ratio=candidates.log_ratio(scores),
        own_share=weights[:, 0],
        ranks=ranks,
        joint_ranks=joint_ranks,
        mean=mean,
        deviation=(posterior.unsqueeze(2) * apart.square()).sum(1).sqrt(),
        effective_draws=1 / posterior.square().sum(1),
        divergence=divergence_of_points(posterior, others, draws),
        log_normalizer=normalizer.log_value,
        normalizer_error=normalizer.error,
    )


def rank_samples(
    samples: Tensor,
    densities: Tensor,
    own: Tensor,
    draws: Tensor,
    phi: Tensor,
    reference: Tensor,
    chance: Tensor,
    by_draws: Weighed,
    row: slice,
) -> Weighed:
    """Rank the true parameters of one datum among independent samples of its posterior.

    This gives the same as :func:`weigh` where prior draws are too far from the true parameters.

    Args:
        samples: of the posterior (n, D).
        densities: its log density at them, up to a constant, (n,).
        own: at the true parameters (1,).
        draws: of the prior, for scales and bins (N, D).
        phi: the true parameters (1, D).
        reference: for TARP (1, D).
        chance: a uniform number that breaks ties (1,).
        by_draws: of all data, for the log ratio and the normaliser, which samples do not tell.
        row: of the datum among them.
    """
    centre, scale = _centre_and_scale(draws)
    ranks, joint_ranks = _rank(
        Points(samples.unsqueeze(0), densities.unsqueeze(0), reference, centre, scale),
        Points(phi.unsqueeze(1), own.unsqueeze(1), reference, centre, scale),
        chance,
        weights=None,
        own_weight=torch.ones_like(chance),
    )
    return Weighed(
        log_ratio=by_draws.log_ratio[row].to(chance),
        own_share=torch.full_like(chance, 1 / (len(samples) + 1)),
        ranks=ranks,
        joint_ranks=joint_ranks,
        mean=samples.double().mean(0, keepdim=True),
        deviation=samples.double().std(0).unsqueeze(0),
        effective_draws=torch.full_like(chance, len(samples)),
        divergence=divergence_of_samples(samples, draws),
        log_normalizer=by_draws.log_normalizer[row].to(chance),
        normalizer_error=by_draws.normalizer_error[row].to(chance),
    )


def join(parts: Sequence[Weighed]) -> Weighed:
    """Return all data of several parts, on the CPU."""

    def together(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts]).cpu()

    return Weighed(
        log_ratio=together("log_ratio"),
        own_share=together("own_share"),
        ranks=together("ranks"),
        joint_ranks={
            name: torch.cat([part.joint_ranks[name] for part in parts]).cpu()
            for name in JOINT_STATISTICS
        },
        mean=together("mean"),
        deviation=together("deviation"),
        effective_draws=together("effective_draws"),
        divergence=together("divergence"),
        log_normalizer=together("log_normalizer"),
        normalizer_error=together("normalizer_error"),
    )


def replaced(weighed: Weighed, rows: Tensor, better: Weighed) -> Weighed:
    """Return all data, with what is known better of some of them.

    Args:
        weighed: of all data.
        rows: which data are known better, (m,).
        better: of these, in their order.
    """

    def merged(all_data: Tensor, some: Tensor) -> Tensor:
        found = all_data.clone()
        found[rows] = some.to(found)
        return found

    joint_ranks = {
        name: merged(ranks, better.joint_ranks[name]) for name, ranks in weighed.joint_ranks.items()
    }
    others = {
        field.name: merged(getattr(weighed, field.name), getattr(better, field.name))
        for field in fields(Weighed)
        if field.name != "joint_ranks"
    }
    return Weighed(joint_ranks=joint_ranks, **others)


def _centre_and_scale(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of prior draws, 1 for constant parameters."""
    deviation = draws.std(0)
    return draws.mean(0), torch.where(deviation > 0, deviation, 1.0)


def _rank(
    candidates: Points,
    truth: Points,
    chance: Tensor,
    *,
    weights: Tensor | None,
    own_weight: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the rank of each parameter (m, D), and of all together by each statistic (m,)."""

    def rank(statistic: Statistic) -> Tensor:
        return mass_above(
            statistic.value(candidates),
            statistic.value(truth)[:, 0],
            weights,
            own_weight=own_weight,
            ties=chance,
            equal=statistic.equal,
        )

    parameters = [Statistic(_minus_parameter(d)) for d in range(truth.phi.shape[-1])]
    ranks = torch.stack([rank(parameter) for parameter in parameters], dim=1)
    return ranks, {name: rank(statistic) for name, statistic in JOINT_STATISTICS.items()}


def _minus_parameter(d: int) -> Callable[[Points], Tensor]:
    """Return the statistic −φ_d: its rank is the mass of smaller values of that parameter."""
    return lambda points: -points.phi[..., d]
