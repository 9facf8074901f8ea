"""Simulations that a model was trained on are known again, by the digests of a few of them.

What a model has seen in training says nothing of how well it does on other data, and nobody who
passes it by mistake would notice.
"""

import math
from collections.abc import Iterable

import torch

from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import Rows, digest

# Kept of the training simulations; and looked at, of others, at most.
KEPT = 32
_LOOKED_AT = 20_000
# So many numbers of a datum, at least, are read to know it again.
NUMBERS = 1_000


def digests_of_some(simulations: Simulations) -> tuple[str, ...]:
    """Return digests of a few simulations from everywhere: of their φ, then of their y."""
    rows = _spread(len(simulations), KEPT).tolist()
    return tuple(digest(simulations.phi[row]) + _digest_of_data(simulations, row) for row in rows)


def known_again(digests: Iterable[str], simulations: Simulations) -> int:
    """Return how many of the few are among these simulations.

    Parameters alone prove nothing, for some priors have few different ones; data are read only
    where these agree.

    Example:
        >>> simulations = Simulations.from_arrays(torch.rand(100, 2), torch.rand(100, 3))
        >>> known_again(digests_of_some(simulations), simulations[:50])
        16
    """
    known = set(digests)
    parameters = {one[:16] for one in known}
    rows = _spread(len(simulations), _LOOKED_AT) if known else torch.zeros(0, dtype=torch.long)
    found = set()
    for row in rows.tolist():
        of_phi = digest(simulations.phi[row])
        if of_phi in parameters:
            found.add(of_phi + _digest_of_data(simulations, row))
    return len(found & known)


def _digest_of_data(simulations: Simulations, row: int) -> str:
    """Digest the end of a datum: a whole one may be large, and its beginning always the same."""
    entries, *rest = simulations.y_shape
    length = min(entries, math.ceil(NUMBERS / math.prod(rest)))
    start = torch.tensor([entries - length])
    return digest(Rows(simulations.y, torch.tensor([row])).windows(start, length))


def _spread(count: int, most: int) -> torch.Tensor:
    """Return so many rows at most, evenly spread."""
    return torch.linspace(0, count - 1, min(count, most)).round().long().unique()
