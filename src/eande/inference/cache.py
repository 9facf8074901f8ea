"""What a model keeps between posteriors: prior draws with their emulated points, and CUDA graphs.

One object owns all of it. It is stale when a weight that emulated points or scores depend on was
written to or lies elsewhere; every use looks, and starts afresh. Fused optimisers do not bump a
tensor's ``_version``, so a model clears its cache when it enters or leaves training, too. Priors,
and weights behind ``.data``, are taken not to change. ``train()``, ``.to(device)`` and ``record()``
clear it; copies start empty; a fifth bank drops the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.inference.cuda_graphs import GraphedFunction
from eande.inference.normalizer import PriorBank
from eande.priors.prior import Prior

_BANKS_KEPT = 4
# Graphed scores round the number of parameters up to a multiple of this: few graphs serve all.
_PADDING = 2_048


class KeptBank(NamedTuple):
    """A bank with what it is a bank of, and the function of observations if it is graphed."""

    prior: Prior
    draws: int
    bank: PriorBank
    locate: GraphedFunction | None


class Graphs(NamedTuple):
    """The functions of a model that run as CUDA graphs.

    Args:
        score: of embeddings (1, n) and parameters (k, D); returns ``{"scores": (1, k)}``.
        locate: of observations and a bank; see :meth:`EmbedAndEmulate.locate`.
    """

    score: GraphedFunction
    locate: Callable[..., dict[str, Tensor]]


class Cache:
    """Banks of prior draws and CUDA graphs of one model."""

    def __init__(self) -> None:
        self.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        """Return an empty one: what is kept belongs to the weights it was made with."""
        return Cache()

    def __reduce__(self) -> tuple[type[Cache], tuple[()]]:
        """Leave everything behind when a model is sent elsewhere."""
        return Cache, ()

    def clear(self) -> None:
        """Forget everything."""
        self.graphs: Graphs | None = None
        self._banks: list[KeptBank] = []
        self._watched: list[Tensor] = []
        self._stamp: tuple[tuple[int, int], ...] = ()

    def refresh(self, modules: Sequence[nn.Module]) -> None:
        """Forget everything if a weight of these modules is not what it was."""
        # A CUDA graph replays the memory it was captured with: while there are any, only that is
        # looked at, for listing the weights anew takes half a millisecond.
        tensors = _weights(modules) if self.graphs is None else self._watched
        if self._stamp != _stamp(tensors):
            self.clear()
            self.watch(modules)

    def watch(self, modules: Sequence[nn.Module]) -> None:
        """Remember the state of these modules' weights, by which staleness is noticed."""
        self._watched = _weights(modules)
        self._stamp = _stamp(self._watched)

    def bank(
        self,
        prior: Prior,
        draws: int,
        make: Callable[[Prior, int], PriorBank],
    ) -> KeptBank:
        """Return the bank of that prior and number of draws, made if it is not kept."""
        if prior.distinct_draws is not None:
            # Once each: repeating draws adds nothing, and would pass for more of them.
            draws = min(draws, prior.distinct_draws)
        for kept in self._banks:
            # One prior, or one and the same Distribution wrapped twice.
            same = getattr(kept.prior, "distribution", kept.prior) is getattr(
                prior, "distribution", prior
            )
            if kept.draws == draws and same:
                return kept
        bank = make(prior, draws)
        graphed = None
        if self.graphs is not None:
            graphed = GraphedFunction(partial(self.graphs.locate, bank=bank), enabled=True)
        self._banks = [*self._banks[1 - _BANKS_KEPT :], KeptBank(prior, draws, bank, graphed)]
        return self._banks[-1]

    def score(self, f: Tensor, phi: Tensor) -> Tensor | None:
        """Return the scores (1, k) by a CUDA graph; None where none may be used."""
        if self.graphs is None or len(f) != 1 or torch.is_grad_enabled():
            return None
        padded = functional.pad(phi, (0, 0, 0, -len(phi) % _PADDING))
        return self.graphs.score(f, padded)["scores"][:, : len(phi)]


def _weights(modules: Sequence[nn.Module]) -> list[Tensor]:
    return [x for module in modules for x in (*module.parameters(), *module.buffers())]


def _stamp(tensors: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Return where tensors lie in memory and how often each was written to."""
    return tuple((x.data_ptr(), x._version) for x in tensors)
