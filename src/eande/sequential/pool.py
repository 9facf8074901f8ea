"""The simulations of all rounds, and what each is used for.

Every simulation has its role for ever, by the round that made it and its number there: nine in ten
are fitted to, the others judge the models of all rounds and are never fitted to.

The regions of rounds lie one in the other. So what of an earlier round lies in the present region
are draws of the present prior, as those made for it are, and all of them are used alike. Failed
simulations have roles, too: they belong to the prior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eande.foundations.seeds import generator
from eande.priors.prior import Prior
from eande.simulation.read.joined import join
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take

# The share that judges.
HELD_OUT = 0.1


class Pool:
    """Simulations of all rounds so far.

    Args:
        seed: of the roles.
        reuse: whether those of earlier rounds are used again.
    """

    def __init__(self, seed: int, *, reuse: bool) -> None:
        self._seed = seed
        self._reuse = reuse
        self._rounds: list[tuple[Simulations, Tensor, Tensor]] = []

    def add(self, made: Simulations) -> None:
        """Take in the simulations of a further round."""
        stream = generator(self._seed, "roles", len(self._rounds))
        role = torch.rand(len(made) + len(made.failures), generator=stream) < HELD_OUT
        self._rounds.append((made, role[: len(made)], role[len(made) :]))

    def inside(self, prior: Prior) -> tuple[Simulations, Simulations]:
        """Return what lies in a prior's support: simulations to fit to, and held-out ones."""
        used = self._rounds if self._reuse else self._rounds[-1:]
        parts: tuple[list[Simulations], list[Simulations]] = ([], [])
        for made, held, failed_held in used:
            inside = prior.contains(made.phi)
            failed_inside = prior.contains(made.failures.phi) if len(made.failures) else failed_held
            for part, role in zip(parts, (False, True), strict=True):
                rows = (inside & (held == role)).nonzero()[:, 0]
                failed = (failed_inside & (failed_held == role)).nonzero()[:, 0]
                part.append(
                    Simulations(
                        made.phi[rows],
                        take(made.y, rows),
                        made.groups[rows],
                        made.failures[failed],
                        made.names,
                    )
                )
        fitted, held_out = (join(part) for part in parts)
        return fitted, held_out
