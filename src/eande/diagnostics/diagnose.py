"""diagnose: is a model calibrated, what did it learn, what do the data say of each parameter?

Every held-out datum is embedded once, and all share one bank of emulated prior draws; everything
below follows from the weights of these draws. Data whose posteriors few of them come near get draws
of their own, from proposals that do (:mod:`eande.inference.guide`), weighted likewise.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from eande.diagnostics.diagnosis import Diagnosis, Near, Verdict
from eande.diagnostics.ranks import (
    Weighed,
    join,
    rank_samples,
    replaced,
    weigh,
    weigh_candidates,
)
from eande.diagnostics.uniformity import uniformity
from eande.diagnostics.verdicts import verdicts
from eande.foundations.checks import check_count, check_fits, check_flag, check_seed, check_share
from eande.foundations.seeds import derive_seed, generator
from eande.inference.candidates import Candidates
from eande.inference.held_out import check_held_out, embed_rows
from eande.inference.model import EmbedAndEmulate
from eande.inference.nearby import data_at_once, draws_near
from eande.inference.normalizer import ENOUGH_DRAWS, PriorBank, coefficient_of_variation
from eande.inference.samplers.importance import pareto_k
from eande.inference.trained_on import known_again
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View

# Credible levels whose coverage is reported, in per cent.
LEVELS = (50, 80, 95)
# Weights computed at once: 32 MB in float64, of which a dozen copies are alive.
_WEIGHTS_AT_ONCE = 4_000_000
_BOOTSTRAPS = 1_000
# Draws that data share outnumber them by this factor, else the test of ranks allows for it.
DRAWS_PER_DATUM = 20
# Proposals are so many for every datum, whatever their weights: ranks are uniform for any number.
_NEAR = 1_024
# Pareto k is estimated for this many data.
_PARETO_DATA = 100


def diagnose(
    model: EmbedAndEmulate,
    held_out: Simulations,
    *,
    draws: int = 50_000,
    samples: int | None = None,
    views: View | None = None,
    alarm: float = 0.01,
    seed: int = 0,
    progress: bool = True,
) -> Diagnosis:
    """Check a model by simulations it has not seen.

    Of several data of one φ (a group) the first is used: the others would not be independent.

    It cannot see errors that average out over the prior (a posterior too wide here and too narrow
    there; look at subsets), nor anything about data unlike the simulations.

    Args:
        model: fitted, perhaps calibrated.
        held_out: simulations of the same prior, used neither in training nor in calibration.
        draws: number of prior draws, at least; twenty for every datum if that is more.
        samples: None finds the rank of each true parameter among prior draws that are weighted by
            the posterior. A number draws so many samples from the posterior of every datum, and
            finds the rank among these: the same answer, but slower, up to seconds per datum.
        views: what the encoder sees of a simulation, where the model was fitted with views; one
            fixed view of each is used.
        alarm: how often each check of ranks may raise an alarm about a model that is right; the
            log ratio must be two standard errors above 0.
        seed: of the tie-breaks, TARP's references and samples.
        progress: whether to show progress bars.

    Example:
        >>> print(diagnose(model, held_out, draws=5_000, progress=False))
        ok     log ratio       ... nats: lower bound on the mutual information of ...
    """
    check_count("draws", draws, 100)
    check_share("alarm", alarm)
    check_seed("seed", seed)
    check_flag("progress", progress)
    seen = check_held_out("held_out", model, held_out, views, one_per_group=True)
    if samples is not None:
        check_count("samples", samples, ENOUGH_DRAWS)
        check_fits("samples", samples, 4 * model.prior.dimension)
    phi = seen.phi.to(model.device)
    embedded = embed_rows(model, seen.y, progress=progress)
    draws = max(draws, DRAWS_PER_DATUM * len(phi))
    weighed, k = _weigh_all(model, phi, embedded, draws, seed, progress=progress)
    nearer = 0
    if model.prior_bank(model.prior, draws).proposable:
        few_near = weighed.effective_draws < ENOUGH_DRAWS
        nearer = int(few_near.sum())
        if nearer:
            near, k_near = _weigh_near(
                model, phi, embedded, few_near, draws, seed, progress=progress
            )
            weighed = replaced(weighed, few_near, near)
            if k is not None and k_near is not None:
                judged = few_near[: len(k)].numpy()
                k[judged] = k_near[: judged.sum()]
    if samples is not None:
        weighed = _rank_all(model, phi, seen.y, samples, weighed, seed, progress=progress)
    prior_draws = model.prior_bank(model.prior, draws).phi
    found = conclude(
        weighed,
        names=model.prior.names,
        phi=phi,
        draws=prior_draws,
        samples=samples,
        nearer=nearer,
        norm=model.similarity.features(embedded).norm(dim=-1).flatten(),
        pareto_k=k,
        alarm=alarm,
        seed=seed,
        all_draws=len(prior_draws) < draws,
    )
    return replace(found, verdicts=(*_trained_on(model, held_out), *found.verdicts))


def _trained_on(model: EmbedAndEmulate, held_out: Simulations) -> Iterator[Verdict]:
    """Raise an alarm where the model was trained on what should have been held out."""
    digests = [one for each in (model, *model.members) for one in each.trained_on]
    if known_again(digests, held_out):
        text = "the model was trained on some of these data, so that they say nothing about it"
        yield Verdict("held out", False, f"{text}: pass simulations it has not seen")


def conclude(
    weighed: Weighed,
    *,
    names: tuple[str, ...],
    phi: Tensor,
    draws: Tensor,
    samples: int | None,
    nearer: int,
    norm: Tensor,
    pareto_k: np.ndarray | None,
    alarm: float,
    seed: int,
    near: Near | None = None,
    all_draws: bool = False,
) -> Diagnosis:
    """Return what the weights of draws say about a model, and the verdicts on it.

    Args:
        weighed: everything per datum.
        names: of the parameters.
        phi: true parameters (m, D).
        draws: of what is known of them before the data, (N, D): the prior, or a proposal.
        samples: of each posterior, where these and not draws were ranked among.
        nearer: number of data that were ranked among proposals.
        norm: of each embedded datum, (m,).
        pareto_k: of the weights of some data.
        alarm: how often each check of ranks may raise an alarm about a model that is right.
        seed: of the bootstrap.
        near: how the data were simulated, where that was near an observation.
        all_draws: whether there are no more draws of the prior than these.
    """
    # An empirical prior may have fewer draws than were asked for.
    few = len(draws) < DRAWS_PER_DATUM * len(phi) and samples is None
    shared = len(draws) if few else None
    deviation = draws.double().std(0).cpu()
    divergence, shrinkage, z_mean, z_rms = _averages(weighed, phi.cpu(), deviation)
    known = weighed.normalizer_error <= ENOUGH_DRAWS**-0.5
    log_c = weighed.log_normalizer[known]
    noise = weighed.normalizer_error[known].square().mean().sqrt().item()
    found = Diagnosis(
        names=names,
        phi=phi.cpu(),
        prior_deviation=deviation,
        draws=len(draws),
        samples=samples,
        weighed=weighed,
        sbc=tuple(uniformity(ranks, shared) for ranks in weighed.ranks.T),
        joint={name: uniformity(ranks, shared) for name, ranks in weighed.joint_ranks.items()},
        covered={level: (weighed.level < level / 100).double().mean().item() for level in LEVELS},
        log_ratio=weighed.log_ratio.mean().item(),
        log_ratio_error=_bootstrap_error(weighed.log_ratio.numpy(), seed),
        ceiling=float(np.log(len(draws) + 1)),
        nearer=nearer,
        divergence=tuple(divergence.tolist()),
        shrinkage=tuple(shrinkage.tolist()),
        z_mean=tuple(z_mean.tolist()),
        z_rms=tuple(z_rms.tolist()),
        log_normalizer=weighed.log_normalizer.masked_fill(~known, torch.nan),
        norm=norm.cpu(),
        cv_normalizer=coefficient_of_variation(log_c) if known.any() else float("nan"),
        cv_noise=noise,
        pareto_k=pareto_k,
        near=near,
        all_draws=all_draws,
    )
    return replace(found, verdicts=tuple(verdicts(found, alarm, shared=shared is not None)))


@torch.no_grad()
def _weigh_all(
    model: EmbedAndEmulate,
    phi: Tensor,
    embedded: Tensor,
    draws: int,
    seed: int,
    *,
    progress: bool,
) -> tuple[Weighed, np.ndarray | None]:
    """Weight the bank's draws for all data, some at a time.

    Also return the Pareto k of the first data.
    """
    bank = model.prior_bank(model.prior, draws)
    similarity = model.similarity
    own = similarity.paired_score(embedded, model.emulate_all(phi))
    references, chance = _randomness(model, phi, seed)
    log_prior = None
    if model.prior.has_density:
        log_prior = (model.prior.log_prob(bank.phi), model.prior.log_prob(phi))
    parts: list[Weighed] = []
    k: np.ndarray | None = np.zeros(0)
    batches = torch.arange(len(phi)).split(max(1, _WEIGHTS_AT_ONCE // len(bank.phi)))
    for rows in track(batches, "weighting prior draws", disable=not progress, transient=True):
        scores = similarity.score(embedded[rows], bank.emulated)
        if model.prior.distinct_draws is not None:
            scores = scores.masked_fill(_themselves(bank.phi, phi[rows]), -torch.inf)
        densities = None if log_prior is None else (log_prior[0], log_prior[1][rows])
        parts.append(
            weigh(scores, own[rows], bank.phi, phi[rows], references[rows], chance[rows], densities)
        )
        if rows[0] < _PARETO_DATA:
            more = pareto_k(scores[: _PARETO_DATA - int(rows[0])])
            k = None if k is None or more is None else np.concatenate([k, more])
    return join(parts), k


@torch.no_grad()
def _weigh_near(
    model: EmbedAndEmulate,
    phi: Tensor,
    embedded: Tensor,
    chosen: Tensor,
    draws: int,
    seed: int,
    *,
    progress: bool,
) -> tuple[Weighed, np.ndarray | None]:
    """Weight proposals from near the posteriors of the chosen data, some data at a time.

    Also return the Pareto k of the first of them.
    """
    data = (phi, embedded, *_randomness(model, phi, seed))
    bank = model.prior_bank(model.prior, draws)
    parts: list[Weighed] = []
    k: np.ndarray | None = np.zeros(0)
    batches = chosen.nonzero()[:, 0].split(data_at_once(model.device))
    for rows in track(batches, "weighting proposals", disable=not progress, transient=True):
        own_seed = derive_seed(seed, "near", int(rows[0]))
        found, own_k = _weigh_rows(model, data, rows, bank, own_seed, closeness=0)
        short = found.effective_draws < ENOUGH_DRAWS
        if short.any():
            # More points in every round find what has many parameters; whether that is needed was
            # told by the datum alone, so that ranks are as uniform.
            again, better_k = _weigh_rows(
                model, data, rows[short.cpu()], bank, own_seed, closeness=2
            )
            found = replaced(found, short, again)
            if own_k is not None and better_k is not None:
                own_k[short.cpu().numpy()] = better_k
        parts.append(found)
        if k is not None and len(k) < _PARETO_DATA:
            k = None if own_k is None else np.concatenate([k, own_k])
    return join(parts), None if k is None else k[:_PARETO_DATA]


def _weigh_rows(
    model: EmbedAndEmulate,
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    rows: Tensor,
    bank: PriorBank,
    seed: int,
    *,
    closeness: int,
) -> tuple[Weighed, np.ndarray | None]:
    """Weight proposals for some data, and return the Pareto k of their weights, too.

    Args:
        model: diagnosed.
        data: parameters, embedded data, TARP's references and tie-breaks, of all.
        rows: which.
        bank: prior draws, for scales and bins, and where proposals begin.
        seed: of the proposals.
        closeness: with which to look for the proposals.
    """
    prior = model.prior
    phi, embedded, references, chance = (x[rows.to(x.device)] for x in data)
    found, drawn = draws_near(model, embedded, bank, count=_NEAR, seed=seed, closeness=closeness)
    true_ratio = found.guide.prior_ratio(prior.unconstrain(phi).unsqueeze(1))
    candidates = Candidates(
        torch.cat([phi.unsqueeze(1), drawn.phi], dim=1),
        torch.cat([true_ratio, drawn.prior_ratio], dim=1),
    )
    flat = candidates.phi.flatten(0, 1)
    shape = candidates.phi.shape[:2]
    own_score = model.similarity.paired_score(embedded, model.emulate_all(phi)).unsqueeze(1)
    scores = torch.cat([own_score, drawn.score], dim=1)
    scores = scores.masked_fill(~prior.contains(flat).view(shape), -torch.inf)
    log_prior = prior.log_prob(flat).view(shape)
    weighed = weigh_candidates(candidates, scores, log_prior, bank.phi, references, chance)
    return weighed, pareto_k(candidates.tilted(scores)[:, 1:])


@torch.no_grad()
def _rank_all(
    model: EmbedAndEmulate,
    phi: Tensor,
    y: Any,
    count: int,
    by_draws: Weighed,
    seed: int,
    *,
    progress: bool,
) -> Weighed:
    """Rank the true parameters of all data among samples of their posteriors."""
    references, chance = _randomness(model, phi, seed)
    parts: list[Weighed] = []
    for i in track(range(len(phi)), "sampling", disable=not progress, transient=True):
        row = slice(i, i + 1)
        posterior = model.posterior(y[i])
        drawn, _ = posterior.sample(count, seed=derive_seed(seed, "ranked", i))
        density = posterior.unnormalized if posterior.prior.has_density else posterior.score
        parts.append(
            rank_samples(
                drawn,
                density(drawn),
                density(phi[row]),
                posterior.bank.phi,
                phi[row],
                references[row],
                chance[row],
                by_draws,
                row,
            )
        )
    return join(parts)


def _randomness(model: EmbedAndEmulate, phi: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return TARP's references (m, D) and the tie-breaks (m,)."""
    references = model.prior.sample(len(phi), seed=derive_seed(seed, "references"))
    chance = torch.rand(len(phi), generator=generator(seed, "ties"), dtype=torch.float64)
    return references.to(phi), chance.to(phi.device)


def _themselves(draws: Tensor, phi: Tensor) -> Tensor:
    """Return which draw each datum's true parameters are, (m, N), at most one.

    The true parameters are mixed among the draws once already, by their own weight.
    """
    same = (draws == phi.unsqueeze(1)).all(-1)
    return same & (same.cumsum(1) == 1)


def _bootstrap_error(values: np.ndarray, seed: int) -> float:
    """Return the standard error of the mean."""
    resampled = np.random.default_rng(seed).choice(values, size=(_BOOTSTRAPS, len(values)))
    return float(resampled.mean(1).std())


def _averages(
    weighed: Weighed, phi: Tensor, prior_deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return divergence, shrinkage, mean and root mean square of z-scores, (D,) each.

    They are over data whose posterior has a sufficient effective sample size.
    """
    known = weighed.effective_draws >= ENOUGH_DRAWS
    deviation = torch.where(weighed.deviation > 0, weighed.deviation, 1.0)
    z = ((weighed.mean - phi) / deviation)[known]
    # A parameter that the prior fixes cannot shrink.
    relative = torch.where(prior_deviation > 0, weighed.deviation / prior_deviation, 1.0)[known]
    shrinkage = 1 - relative.square().mean(0)
    return weighed.divergence[known].mean(0), shrinkage, z.mean(0), z.square().mean(0).sqrt()
