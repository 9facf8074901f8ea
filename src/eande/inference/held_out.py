"""Held-out pairs (φ_i, y_i): checked against a model, and embedded from wherever they lie."""

from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_finite,
    check_function,
    check_instance,
    check_shape,
    show_shape,
)
from eande.inference.model import EmbedAndEmulate
from eande.simulation.read.simulations import Simulations, first_of_groups
from eande.simulation.read.views import View, fixed_views

_FEWEST = 20
# What stands for a model in messages.
MODEL = "a fitted model (from a file: eande.load(path))"


def check_held_out(
    name: str,
    model: EmbedAndEmulate,
    simulations: Simulations,
    views: View | None,
    *,
    one_per_group: bool,
) -> Simulations:
    """Return the simulations whose data have the model's ``y_shape``, or refuse them.

    Without views, data that lie on disk stay there. Views are kept in memory.

    Args:
        name: of the argument, for messages.
        model: fitted.
        simulations: not used in training.
        views: what the encoder sees of a simulation, one fixed view each; None for all of it.
        one_per_group: whether to take the first datum of every φ only: the others are not
            independent of it.
    """
    check_instance("model", model, EmbedAndEmulate, MODEL)
    check_instance(
        name,
        simulations,
        Simulations,
        "Simulations (from arrays: Simulations.from_arrays(phi, y))",
    )
    if views is not None:
        check_function("views", views, "(y, generator)")
    if views is None:
        check_pairs(model, simulations.phi, simulations.y, simulations.groups, name=name)
    chosen = simulations
    if one_per_group:
        chosen = simulations[first_of_groups(simulations.groups)]
    if views is not None:
        seen = torch.cat(list(fixed_views(views, chosen.y)))
        chosen = Simulations(chosen.phi, seen, chosen.groups, names=chosen.names)
        check_pairs(model, chosen.phi, chosen.y, chosen.groups, name=name)
    return chosen


def check_pairs(
    model: EmbedAndEmulate, phi: Tensor, y: Any, groups: Tensor, *, name: str = "held_out"
) -> None:
    """Refuse held-out pairs that do not fit the model, or too few of them."""
    check_shape("phi", phi, ("n", model.prior.dimension))
    if tuple(y.shape[1:]) != model.y_shape:
        raise InputError(
            f"y: expected shape {show_shape(('n', *model.y_shape))}, got {show_shape(y.shape)}"
        )
    check_finite("phi", phi)
    outside = int((~model.prior.contains(phi)).sum())
    if outside:
        raise InputError(
            f"phi: expected every row inside the prior's support, got {outside} outside"
        )
    distinct = len(groups.unique())
    if distinct < _FEWEST:
        raise InputError(
            f"{name}: expected at least {_FEWEST} different parameters, got {distinct}"
        )


@torch.no_grad()
def embed_rows(model: EmbedAndEmulate, y: Any, *, progress: bool = False) -> Tensor:
    """Embed data (m, *y_shape) that may lie on disk, some rows at a time, with a bar if asked."""
    parts = []
    starts = range(0, len(y), model.encoder_rows)
    for start in track(starts, "embedding", disable=not progress, transient=True):
        rows = as_float_tensor("y", y[start : start + model.encoder_rows])
        where = f"y[{start}:{start + len(rows)}]"
        model.check_data(where, rows)
        parts.append(model.embed(rows))
        check_finite(f"embeddings of {where}", parts[-1])
    return torch.cat(parts)
