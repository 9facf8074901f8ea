"""Rounds: where regions are, what they keep of the prior, and what the models tell there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_instance
from eande.inference.held_out import MODEL
from eande.inference.model import EmbedAndEmulate
from eande.plots.style import COLORS, Axes, Figure, plain
from eande.priors.truncated import TruncatedPrior
from eande.sequential.record import Rounds

# Draws of the whole prior, and of the last one, that show where regions are.
_DRAWS = 4_000
_OF_THE_LAST = 1_000


def rounds(model: EmbedAndEmulate, info: Rounds) -> Figure:
    """Show the region closing in.

    On the left are draws of the prior in its first two parameters, dark where a later region keeps
    them, with draws of the last one; in the middle is what each round's region keeps of the prior;
    on the right what its model tells, in nats relative to the whole prior, with standard errors. A
    round whose model is not to be trusted near the observation is a cross.

    Args:
        model: of the last round.
        info: both from :func:`eande.rounds`.

    Example:
        >>> settings = eande.FitSettings(epochs=5, start="linear", device="cpu")  # short
        >>> made = eande.rounds(
        ...     simulator,
        ...     prior,
        ...     y_observed,
        ...     simulations=400,
        ...     rounds=2,
        ...     settings=settings,
        ...     progress=False,
        ... )
        >>> [axis.get_ylabel() for axis in rounds(*made).axes]
        ['offset', 'kept of the prior', 'held-out nats']
    """
    check_instance("model", model, EmbedAndEmulate, MODEL)
    check_instance("info", info, Rounds, "the second result of eande.rounds")
    if not info.rounds:
        raise InputError("info: expected at least one round, got none")
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    where, kept, told = figure.subplots(1, 3)
    _draw_regions(where, model)
    numbers = [one.number for one in info.rounds]
    kept.plot(numbers, np.exp([one.log_mass for one in info.rounds]), "-", color=COLORS[0])
    kept.set(yscale="log", ylabel="kept of the prior")
    scored = [one for one in info.rounds if one.nats is not None]
    told.errorbar(
        [one.number for one in scored],
        [one.nats for one in scored],
        [one.error or 0.0 for one in scored],
        color=COLORS[0],
        capsize=3,
    )
    told.set(ylabel="held-out nats")
    for one in info.rounds:
        style: dict[str, Any] = {"marker": "x" if one.alarms else "o", "color": COLORS[0]}
        kept.plot(one.number, np.exp(one.log_mass), **style)
        if one.nats is not None:
            told.plot(one.number, one.nats, **style)
    for axis in (kept, told):
        axis.set(xlabel="round", xticks=numbers)
    return figure


def _draw_regions(axis: Axes, model: EmbedAndEmulate) -> None:
    """Draw where the regions lie in the first two parameters, or against nothing for one."""
    prior = model.prior
    outer = prior.outer if isinstance(prior, TruncatedPrior) else prior
    regions = prior.regions if isinstance(prior, TruncatedPrior) else ()
    phi = outer.sample(_DRAWS, seed=0)
    levels = np.linspace(0.85, 0.35, len(regions) + 1)
    for number, level in enumerate(levels):
        if number:
            phi = phi[regions[number - 1](phi)]
        _scatter(axis, phi, color=str(level))
    _scatter(axis, prior.sample(_OF_THE_LAST, seed=0), color=COLORS[0])
    plain(axis.set_xlabel(prior.names[0]))
    plain(axis.set_ylabel(prior.names[1] if prior.dimension > 1 else ""))


def _scatter(axis: Axes, phi: Tensor, color: str) -> None:
    second = phi[:, 1] if phi.shape[1] > 1 else torch.zeros(len(phi))
    axis.plot(phi[:, 0].numpy(), second.numpy(), ".", markersize=2, color=color)
