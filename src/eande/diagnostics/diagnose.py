"""diagnose: is a model calibrated, what did it learn, how much do the data say about each parameter?

Every held-out datum is embedded once and all share one bank of emulated prior draws; everything below follows from the draws' weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from eande.calibration.calibrate import check_pairs, embed_rows, first_of_groups
from eande.diagnostics.ranks import Uniformity, Weighed, rank_samples, uniformity, weigh
from eande.diagnostics.verdicts import Verdict, in_words
from eande.foundations.checks import InputError, check_count, check_share
from eande.foundations.seeds import derive_seed, generator
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    Normalizer,
    coefficient_of_variation,
    join_normalizers,
    normalizer_of_scores,
)
from eande.inference.samplers.importance import pareto_k
from eande.priors.draws import EmpiricalPrior
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take

LEVELS = (50, 80, 95)
# Weights worked on at once: 32 MB in float64, of which a dozen are alive.
_WEIGHTS_AT_ONCE = 4_000_000
_BOOTSTRAPS = 1_000
_DRAWS_PER_DATUM = 20
_PARETO_DATA = 100
# Where the true parameters carry more than this share of the weight, for want of draws near them, ranks are mostly tie-breaks and prove nothing.
_MOSTLY_OWN = 0.2


@dataclass(frozen=True)
class Diagnosis:
    """What held-out simulations say about a model; ``print(diagnosis)`` says it in words.

    Args:
        names: of the parameters.
        phi: true parameters of the held-out data used, one per group.
        prior_deviation: the prior's standard deviations.
        draws: prior draws used.
        samples: of each posterior, among which parameters were ranked instead; None for the draws.
        weighed: everything per datum.
        sbc: whether the ranks of each parameter are uniform.
        coverage: the same for the levels of highest-density regions.
        covered: share of data whose region of that level, in per cent, holds the true parameters.
        tarp: the same for the ranks of distances.
        log_ratio: mean log r of the true parameters in nats: 0 for the prior. It is also the InfoNCE lower bound of the information between
            parameters and data, at most ``ceiling``.
        log_ratio_error: its standard error, by bootstrap.
        ceiling: log (draws + 1).
        divergence: mean KL divergence of each marginal posterior from its prior, in nats. This and the next three are over data whose posterior is
            carried by at least 100 draws, NaN where there are none.
        shrinkage: 1 − (posterior variance / prior variance) per parameter, mean over data: 0 says nothing was learned of it.
        z_mean: mean over data of (posterior mean − truth) / posterior standard deviation, per parameter.
        z_rms: its root mean square: above 1 for posteriors too narrow, below for too wide ones.
        log_normalizer: log C of every datum.
        norm: ‖f(y)‖ of every datum, calibrated if the model is.
        cv_normalizer: coefficient of variation of C.
        cv_noise: what of it the finite number of draws explains.
        pareto_k: of the weights of up to 100 data, above 0.7 where prior draws do not carry the posterior; None without ArviZ.
        verdicts: all of this in words.
    """

    names: tuple[str, ...]
    phi: Tensor
    prior_deviation: Tensor
    draws: int
    samples: int | None
    weighed: Weighed
    sbc: tuple[Uniformity, ...]
    coverage: Uniformity
    covered: dict[int, float]
    tarp: Uniformity
    log_ratio: float
    log_ratio_error: float
    ceiling: float
    divergence: tuple[float, ...]
    shrinkage: tuple[float, ...]
    z_mean: tuple[float, ...]
    z_rms: tuple[float, ...]
    log_normalizer: Tensor
    norm: Tensor
    cv_normalizer: float
    cv_noise: float
    pareto_k: np.ndarray | None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def data(self) -> int:
        """Return the number of held-out data."""
        return len(self.phi)

    @property
    def tested(self) -> bool:
        """Whether prior draws are enough, and come near enough to the true parameters, to test ranks and coverage."""
        own = (self.weighed.log_ratio - self.ceiling).exp().mean().item()
        return self.samples is not None or (self.draws >= ENOUGH_DRAWS and own <= _MOSTLY_OWN)

    @property
    def passed(self) -> bool:
        """Whether everything was tested, and no check raised an alarm."""
        return self.tested and all(verdict.passed is not False for verdict in self.verdicts)

    def __str__(self) -> str:
        """Return the verdicts, one per line."""
        marks = {True: "ok   ", False: "ALARM", None: "     "}
        return "\n".join(
            f"{marks[verdict.passed]}  {verdict.name:<16}{verdict.text}"
            for verdict in self.verdicts
        )


def diagnose(
    model: EmbedAndEmulate,
    held_out: Simulations,
    *,
    draws: int = 50_000,
    samples: int | None = None,
    alarm: float = 0.01,
    seed: int = 0,
    progress: bool = True,
) -> Diagnosis:
    """Check a model by simulations it has not seen.

    Of several data of one φ (a group) the first is used: the others would not be independent of it.

    What it cannot see: errors that average out over the prior (a posterior too wide here and too narrow there; look at subsets), and anything
    about data unlike the simulations.

    Args:
        model: fitted, perhaps calibrated.
        held_out: simulations of the same prior, used neither in training nor in calibration.
        draws: of the prior, at least; twenty for every datum if that is more.
        samples: rank among so many samples of every posterior, not among weighed prior draws: for sharp posteriors of many parameters, which no
            prior draw comes near. Takes seconds per datum.
        alarm: how often each check of ranks may raise an alarm about a model that is right; the log ratio must be two standard errors over 0.
        seed: of the tie-breaks, TARP's references and samples.
        progress: whether to show a progress bar while sampling.

    Example:
        >>> from eande.simulators.von_mises_fisher import VonMisesFisher  # doctest: +SKIP
        >>> print(diagnose(model, held_out))  # doctest: +SKIP
        ok     log ratio       1.04 ± 0.03 nats, at least so much do the data say about the parameters
    """
    check_count("draws", draws, 100)
    check_share("alarm", alarm)
    check_count("seed", seed, 0)
    if samples is not None:
        check_count("samples", samples, ENOUGH_DRAWS)
    phi, embedded = _embed(model, held_out)
    draws = max(draws, _DRAWS_PER_DATUM * len(phi))
    bank = model.prior_bank(model.prior, draws)
    weighed, normalizer, k = _weigh_all(model, phi, embedded, draws, seed)
    if samples is not None:
        weighed = _rank_all(
            model,
            phi,
            take(held_out.y, first_of_groups(held_out.groups)),
            samples,
            weighed.log_ratio,
            seed,
            progress=progress,
        )
    shared = (
        len(bank.phi) if len(bank.phi) < _DRAWS_PER_DATUM * len(phi) and samples is None else None
    )
    ratios, deviation = weighed.log_ratio.numpy(), bank.phi.double().std(0).cpu()
    known = weighed.effective_draws >= ENOUGH_DRAWS
    spread = (
        (weighed.mean - phi.cpu()) / torch.where(weighed.deviation > 0, weighed.deviation, 1.0)
    )[known]
    # What the prior knows exactly, data cannot narrow.
    narrowed = torch.where(deviation > 0, weighed.deviation / deviation, 1.0)[known]
    resampled = np.random.default_rng(seed).choice(ratios, size=(_BOOTSTRAPS, len(ratios)))
    found = Diagnosis(
        names=model.prior.names,
        phi=phi.cpu(),
        prior_deviation=deviation,
        draws=len(bank.phi),
        samples=samples,
        weighed=weighed,
        sbc=tuple(uniformity(ranks, shared) for ranks in weighed.ranks.T),
        coverage=uniformity(weighed.level, shared),
        covered={level: (weighed.level < level / 100).double().mean().item() for level in LEVELS},
        tarp=uniformity(weighed.tarp, shared),
        log_ratio=float(ratios.mean()),
        log_ratio_error=float(resampled.mean(1).std()),
        ceiling=float(np.log(len(bank.phi) + 1)),
        divergence=tuple(weighed.divergence[known].mean(0).tolist()),
        shrinkage=tuple((1 - narrowed.square().mean(0)).tolist()),
        z_mean=tuple(spread.mean(0).tolist()),
        z_rms=tuple(spread.square().mean(0).sqrt().tolist()),
        log_normalizer=normalizer.log_value.cpu(),
        norm=model.similarity.features(embedded).norm(dim=-1).flatten().cpu(),
        cv_normalizer=coefficient_of_variation(normalizer.log_value),
        cv_noise=normalizer.error.square().mean().sqrt().item(),
        pareto_k=k,
    )
    return replace(found, verdicts=tuple(in_words(found, alarm, shared=shared is not None)))


def _embed(model: EmbedAndEmulate, held_out: Simulations) -> tuple[Tensor, Tensor]:
    """Return the parameters and embeddings of the first datum of every group."""
    if not isinstance(held_out, Simulations):
        raise InputError(
            f"held_out: expected Simulations (from arrays: Simulations.from_arrays(phi, y)), got {type(held_out).__name__}"
        )
    check_pairs(model, held_out.phi, held_out.y, held_out.groups)
    first = first_of_groups(held_out.groups)
    return held_out.phi[first].to(model.device), embed_rows(model, take(held_out.y, first))


@torch.no_grad()
def _weigh_all(
    model: EmbedAndEmulate, phi: Tensor, embedded: Tensor, draws: int, seed: int
) -> tuple[Weighed, Normalizer, np.ndarray | None]:
    """Weigh the bank's draws for all data, some at a time; also return the normalisers and the first data's Pareto k."""
    bank, similarity = model.prior_bank(model.prior, draws), model.similarity
    own = similarity.paired_score(embedded, model.emulate_all(phi))
    references, chance = _randomness(model, phi, seed)
    log_prior = (
        (model.prior.log_prob(bank.phi), model.prior.log_prob(phi))
        if model.prior.has_density
        else None
    )
    parts: list[Weighed] = []
    normalizers: list[Normalizer] = []
    k: np.ndarray | None = np.zeros(0)
    for rows in torch.arange(len(phi)).split(max(1, _WEIGHTS_AT_ONCE // len(bank.phi))):
        scores = similarity.score(embedded[rows], bank.emulated)
        normalizers.append(normalizer_of_scores(scores, bank.inside))
        if isinstance(model.prior, EmpiricalPrior):
            scores = scores.masked_fill(_themselves(bank.phi, phi[rows]), -torch.inf)
        densities = None if log_prior is None else (log_prior[0], log_prior[1][rows])
        parts.append(
            weigh(scores, own[rows], bank.phi, phi[rows], references[rows], chance[rows], densities)
        )
        if rows[0] < _PARETO_DATA:
            more = pareto_k(scores[: _PARETO_DATA - int(rows[0])])
            k = None if k is None or more is None else np.concatenate([k, more])
    return _join(parts), join_normalizers(normalizers), k


def _randomness(model: EmbedAndEmulate, phi: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return TARP's references (m, D) and the tie-breaks (m,)."""
    references = model.prior.sample(len(phi), seed=derive_seed(seed, "references")).to(phi)
    return references, torch.rand(
        len(phi), generator=generator(seed, "ties"), dtype=torch.float64
    ).to(phi.device)


def _join(parts: Sequence[Weighed]) -> Weighed:
    return Weighed(
        **{
            field.name: torch.cat([getattr(part, field.name) for part in parts]).cpu()
            for field in fields(Weighed)
        }
    )


@torch.no_grad()
def _rank_all(
    model: EmbedAndEmulate,
    phi: Tensor,
    y: Any,
    count: int,
    log_ratio: Tensor,
    seed: int,
    *,
    progress: bool,
) -> Weighed:
    """Rank the true parameters of all data among samples of their posteriors."""
    references, chance = _randomness(model, phi, seed)
    parts: list[Weighed] = []
    for i in track(range(len(phi)), "sampling", disable=not progress):
        posterior, row = model.posterior(y[i]), slice(i, i + 1)
        drawn, _ = posterior.sample(count, seed=derive_seed(seed, "ranked", i))
        density = posterior.unnormalized if posterior.prior.has_density else posterior.score
        about = (
            drawn,
            density(drawn),
            density(phi[row]),
            posterior.bank.phi,
            phi[row],
            references[row],
            chance[row],
        )
        parts.append(rank_samples(*about, log_ratio[row].to(phi.device)))
    return _join(parts)


def _themselves(draws: Tensor, phi: Tensor) -> Tensor:
    """Return which draw each datum's true parameters are, (m, N), at most one: they are mixed among the draws once already."""
    same = (draws == phi.unsqueeze(1)).all(-1)
    return same & (same.cumsum(1) == 1)
