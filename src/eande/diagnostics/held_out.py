"""Held-out simulations as the encoder sees them."""

import torch

from eande.calibration.calibrate import check_pairs, first_of_groups
from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View, fixed_views


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
    if not isinstance(simulations, Simulations):
        raise InputError(
            f"{name}: expected Simulations (from arrays: Simulations.from_arrays(phi, y)), "
            f"got {type(simulations).__name__}"
        )
    if views is None:
        check_pairs(model, simulations.phi, simulations.y, simulations.groups)
    chosen = simulations
    if one_per_group:
        chosen = simulations[first_of_groups(simulations.groups)]
    if views is not None:
        seen = torch.cat(list(fixed_views(views, chosen.y)))
        chosen = Simulations(chosen.phi, seen, chosen.groups)
        check_pairs(model, chosen.phi, chosen.y, chosen.groups)
    return chosen
