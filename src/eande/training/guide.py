r"""How the guide of a model is learned: by draws of its own posteriors, in seconds.

A guide q proposes parameters for a datum from its embedding
(:mod:`eande.inference.guide_network`). What it should propose is known without any further
simulation: the model's posterior p r̂, not the parameters that the training data came from, whose
embeddings are over-fitted to them.

1. A few steps on the pairs (f(y_i), φ_i) of the simulations, the likelihood of a mixture density
   network, bring q near; it is too narrow then.
2. In every further step q, with wider tails and a tenth of the prior, proposes parameters for some
   data. The model weighs them, w = p r̂ / q, tempered where few of them are effective, and the loss
   is −Σ w log q: the Kullback–Leibler divergence of q from p r̂, up to a constant.

For an ensemble, whose posterior is the mean of its members', each step takes one of them.

References:
    Bornschein and Bengio, *Reweighted wake-sleep*, 2015;
    Cappé et al., *Adaptive importance sampling in general mixture classes*, 2008.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from rich.progress import Progress
from torch import Tensor, nn

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    check_count,
    check_flag,
    check_same,
    check_seed,
)
from eande.foundations.documents import as_document, as_json
from eande.foundations.files import read_tensors, write_tensors
from eande.foundations.seeds import derive_seed, generator, global_seed
from eande.inference.guide import DataScores
from eande.inference.guide_network import MOST_PARAMETERS, GuideNetwork, GuideSettings
from eande.inference.held_out import check_held_out
from eande.inference.integral import can_be_proposed
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import estimate_normalizer
from eande.inference.samplers.resampling import largest_exponents
from eande.inference.weights import load_weights
from eande.similarities.calibrated import Calibrated
from eande.similarities.prior_only import PriorOnly
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View
from eande.simulation.run.bars import columns
from eande.training.checkpoints import OF_ANOTHER_CALL
from eande.training.run import Call, Split, doing
from eande.training.validation import HeldOut

# A guide is learned where more than such a share of data have fewer effective draws among so many
# of the prior: summaries would need proposals for them.
_DRAWS = 10_000
_ENOUGH_DRAWS = 250
_SHARE = 0.1
_LOOKED_AT = 200
# Simulations that it is learned by, at most.
_DATA = 4_096
# Components; in few dimensions, where posteriors are curved and components cost little, more.
_COMPONENTS = 8
_MORE_COMPONENTS = 16
_FEW = 3
# Steps on pairs, and pairs in each.
_PAIR_STEPS = 150
_PAIRS = 256
# Steps on proposals, data in each, and proposals for each of them.
_STEPS = 300
_DATA_TOGETHER = 64
_PROPOSALS = 32
# Weights are tempered until such a share of proposals is effective.
_LEAST_EFFECTIVE = 0.1
_LEARNING_RATE = 3e-3
_WARMUP = 0.1
_CLIP = 5.0
# Farther out, in usual deviations, a proposal of some weight moves q no more.
_FAR = 1e3


class _Seen(NamedTuple):
    """Simulations as the members of a model see them.

    Args:
        members: the models, one where it is single.
        embedded: by each of them, (m, n_j).
        features: of all of them side by side, (m, p).
        x: unconstrained parameters of the simulations, (m, D).
    """

    members: Sequence[EmbedAndEmulate]
    embedded: list[Tensor]
    features: Tensor
    x: Tensor


def learn_guide(
    model: EmbedAndEmulate,
    simulations: Simulations,
    *,
    views: View | None = None,
    seed: int = 0,
    progress: bool = True,
) -> EmbedAndEmulate:
    """Return a model that has learned where its posteriors lie, so that their samples are quick.

    A fit does this by itself where prior draws are too few. It is for models of older files, and
    for ensembles of your own. Answers change by it within their stated errors, as they do by other
    random numbers.

    Args:
        model: fitted; it is not changed.
        simulations: of the kind that it was fitted to; the same may be taken again. Not those that
            it is to be calibrated or diagnosed by: their parameters would have a part in what is
            proposed for them.
        views: what the encoder sees of a datum, where the model was fitted with views.
        seed: same seed and simulations, same guide.
        progress: whether to show a progress bar.

    Example:
        >>> guided = eande.learn_guide(model, simulations, progress=False)
        >>> guided.guide is None, model.posterior(y_observed).guide.rounds > 0
        (False, True)
        >>> guided.posterior(y_observed).guide.rounds  # none: they are known from the start
        0
    """
    check_seed("seed", seed)
    check_flag("progress", progress)
    pairs = check_held_out("simulations", model, simulations, views, one_per_group=False)
    if model.combined_views is not None:
        raise InputError(
            "model: expected one of a single view, got one that combines several; learn the guide "
            "first, then combine"
        )
    reason = _impossible(model)
    if reason is not None:
        raise InputError(f"model: expected one that a guide can be learned for, but {reason}")
    bar = Progress(*columns(remaining=True)) if progress else None
    with torch.inference_mode(False), nullcontext() if bar is None else bar:
        seen = _see(model, [_some(pairs, None, _DATA)])
        return model.with_guide(_learned(_untrained(model, seen, seed), seen, seed, bar))


def with_learned_guide(
    call: Call, model: EmbedAndEmulate, split: Split, *, asked: bool | None, seed: int
) -> EmbedAndEmulate:
    """Return the model of a fit with a guide, where one is needed and can be.

    Args:
        call: of the fit.
        model: fitted.
        split: all of its simulations.
        asked: whether there is to be one; None for where prior draws are too few.
        seed: of the fit.
    """
    reason = _impossible(model)
    if asked is False or reason is not None:
        if asked:
            warnings.warn(f"guide: none was learned, for {reason}", EandeWarning, stacklevel=3)
        return model
    known = _read(call, model)
    if known is not None:
        return model.with_guide(known)
    parts = (split.train, split.held_out)
    count = sum(map(len, parts))
    data = [_some(part, call.views, math.ceil(_DATA * len(part) / count)) for part in parts]
    if asked is None and not _few_draws(_members(model)[0], data[1].some(_LOOKED_AT)):
        return model
    with doing(call.bar, "embedding data for the guide"):
        seen = _see(model, data)
    network = _learned(_untrained(model, seen, seed), seen, seed, call.bar)
    _write(call, network)
    return model.with_guide(network)


def _impossible(model: EmbedAndEmulate) -> str | None:
    """Return why a model can have no guide, None where it can."""
    prior = model.prior
    if isinstance(model.similarity, PriorOnly):
        return "the model returns the prior"
    if prior.dimension > MOST_PARAMETERS:
        return f"there are more than {MOST_PARAMETERS} parameters: {prior.dimension}"
    if not prior.has_density or not can_be_proposed(prior):
        return "the prior has no density that integrates to one"
    return None


def _members(model: EmbedAndEmulate) -> tuple[EmbedAndEmulate, ...]:
    """Return the members of a model, or itself, as they were before any calibration."""
    similarity = model.similarity
    if model.members or not isinstance(similarity, Calibrated):
        return model.members or (model,)
    return (model.with_similarity(similarity.inner),)


@torch.no_grad()
def _see(model: EmbedAndEmulate, data: Sequence[HeldOut]) -> _Seen:
    """Return data as the members of a model see them."""
    members = _members(model)
    embedded = [torch.cat([part.embedded(member) for part in data]) for member in members]
    pairs = zip(members, embedded, strict=True)
    features = torch.cat([member.similarity.features(f) for member, f in pairs], dim=1)
    phi = torch.cat([part.simulations.phi for part in data]).to(model.device)
    return _Seen(members, embedded, features, model.prior.unconstrain(phi).float())


def _untrained(model: EmbedAndEmulate, seen: _Seen, seed: int) -> GuideNetwork:
    """Return a guide before its first step."""
    dimension = model.prior.dimension
    settings = GuideSettings(
        features=model.features,
        dimension=dimension,
        components=_MORE_COMPONENTS if dimension <= _FEW else _COMPONENTS,
    )
    with global_seed(seed, "guide", device=model.device):
        return GuideNetwork(settings).to(model.device)


def _some(simulations: Simulations, views: View | None, most: int) -> HeldOut:
    """Return so many simulations at most, from everywhere, with one view of each."""
    chosen = simulations
    if len(simulations) > most:
        chosen = simulations[torch.linspace(0, len(simulations) - 1, most).long()]
    return HeldOut(chosen, views, _DRAWS)


def _few_draws(model: EmbedAndEmulate, data: HeldOut) -> bool:
    """Return whether few prior draws come near the posteriors of more than a few data."""
    bank = model.prior_bank(model.prior, _DRAWS)
    with torch.no_grad():
        effective = estimate_normalizer(model.similarity, data.embedded(model), bank)
    few = effective.effective_draws < _ENOUGH_DRAWS
    return few.double().mean().item() > _SHARE


@torch.enable_grad()
def _learned(network: GuideNetwork, seen: _Seen, seed: int, bar: Progress | None) -> GuideNetwork:
    """Train a guide, first on pairs and then on proposals of its own; return it."""
    network.standardize(seen.features, seen.x)
    steps = _PAIR_STEPS + _STEPS
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=steps, pct_start=_WARMUP
    )
    device = seen.x.device
    task = None if bar is None else bar.add_task("guide", total=steps)
    for step in range(steps):
        stream = generator(seed, "guide", step)
        together = _PAIRS if step < _PAIR_STEPS else _DATA_TOGETHER
        rows = torch.randint(len(seen.x), (together,), generator=stream).to(device)
        if step < _PAIR_STEPS:
            loss = -network.mixture(seen.features[rows]).log_prob(seen.x[rows].unsqueeze(1)).mean()
        else:
            number = int(torch.randint(len(seen.members), (1,), generator=stream))
            loss = _loss_of_proposals(network, seen, rows, number, derive_seed(seed, "guide", step))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), _CLIP)
        optimizer.step()
        schedule.step()
        if bar is not None and task is not None:
            bar.advance(task)
    if bar is not None and task is not None:
        bar.remove_task(task)
    return network.requires_grad_(False).eval()


def _loss_of_proposals(
    network: GuideNetwork, seen: _Seen, rows: Tensor, number: int, seed: int
) -> Tensor:
    """Return −Σ w log q of proposals for some data, weighed by one member."""
    mixture = network.mixture(seen.features[rows])
    member = seen.members[number]
    with torch.no_grad():
        guide = network.with_tails(mixture, member.prior)
        x = guide.draw(_PROPOSALS, seed)
        scores = DataScores(member, seen.embedded[number][rows])
        log_weight = guide.weigh(scores, x).log_weight
        least = torch.full_like(log_weight[:, 0], _LEAST_EFFECTIVE * _PROPOSALS)
        tempered = largest_exponents(log_weight, least).unsqueeze(1) * log_weight
        # Data for which no proposal has a weight say nothing.
        weights = tempered.softmax(1).nan_to_num(0.0)
        near = mixture.location + mixture.scale * (
            (x - mixture.location) / mixture.scale
        ).nan_to_num(0.0).clamp(-_FAR, _FAR)
    return -(weights * mixture.log_prob(near)).sum(1).mean()


# The file of a guide, so that a fit that has ended returns at once.

_FILE = "guide.safetensors"
_FORMAT = 1


@dataclass
class _Document:
    """The document of that file.

    Args:
        fingerprint: of the call of ``fit``.
        settings: of the guide.
        format: of the file.
    """

    fingerprint: dict[str, Any]
    settings: GuideSettings
    format: int = _FORMAT


def _read(call: Call, model: EmbedAndEmulate) -> GuideNetwork | None:
    """Return what an earlier call has learned; None where there is nothing of such a model."""
    path = None if call.folder is None else call.folder / _FILE
    if path is None or not (path.exists() or path.is_symlink()):
        return None
    document, tensors = read_tensors(path, "guide")
    known = as_document(path, document, _Document)
    check_count(f"{path}: format", known.format, _FORMAT, at_most=_FORMAT)
    check_same(
        path,
        call.fingerprint,
        known.fingerprint,
        what="a guide of this very fit",
        remedy=OF_ANOTHER_CALL,
    )
    expected = (model.features, model.prior.dimension)
    if (known.settings.features, known.settings.dimension) != expected:
        # Of fewer members: a later call may add some.
        return None
    network = GuideNetwork(known.settings)
    load_weights(network, tensors, path)
    network.check_scales(str(path))
    return network.to(model.device).requires_grad_(False).eval()


def _write(call: Call, network: GuideNetwork) -> None:
    if call.folder is None:
        return
    document = _Document(call.fingerprint, network.settings)
    write_tensors(call.folder / _FILE, "guide", as_json(document), network.state_dict())
