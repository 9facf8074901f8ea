"""The gradient of a contrastive loss over a whole batch, at the memory of a micro-batch.

The loss couples all pairs of a batch, so it cannot be summed over micro-batches. But it depends on
the networks through their outputs alone: embed every micro-batch without a graph, take the gradient
of the loss with respect to the embeddings, then run each micro-batch again with a graph and
backpropagate its part of that gradient. The result is the gradient of the full batch, exactly, for
networks that treat rows independently (dropout included: both passes use the same random numbers).
With batch normalisation, statistics are those of the micro-batch, and running averages are updated
in the second pass only.

Reference:
    Gao et al., *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*, 2021.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from eande.foundations.seeds import derive_seed, seed_global

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Network = Callable[[Tensor], Tensor]


def micro_batched_backward(
    fabric: "Fabric",
    model: nn.Module,
    *,
    inputs: Sequence[tuple[Network, Tensor]],
    loss: Callable[..., Tensor],
    rows: int,
    seed: int,
) -> list[Tensor]:
    """Accumulate the gradient of ``loss(*(network(x) for network, x in inputs))``.

    Returns the networks' outputs.

    Args:
        fabric: sets the precision of the networks and does the backward passes.
        model: holds the networks; its batch statistics are protected.
        inputs: networks with their whole-batch inputs.
        loss: function of their outputs.
        rows: how many a micro-batch has at most.
        seed: of this step, for layers that draw random numbers: both passes of a micro-batch draw
            the same.
    """
    # Batch normalisation needs two rows at least, for a single one has no statistics.
    least = 2 if any(isinstance(module, _NormBase) for module in model.modules()) else 1
    parts = [
        x.tensor_split(max(1, min(math.ceil(len(x) / rows), len(x) // least))) for _, x in inputs
    ]
    networks = [network for network, _ in inputs]
    leaves = []
    with torch.no_grad(), _frozen_statistics(model):
        for i, (network, pieces) in enumerate(zip(networks, parts, strict=True)):
            outputs = [
                _run(fabric, network, piece, derive_seed(seed, i, k))
                for k, piece in enumerate(pieces)
            ]
            leaves.append(torch.cat(outputs))
    for leaf in leaves:
        leaf.requires_grad_(True)
    fabric.backward(loss(*leaves))
    for i, (network, pieces, leaf) in enumerate(zip(networks, parts, leaves, strict=True)):
        if leaf.grad is None:
            continue
        gradients = leaf.grad.tensor_split(len(pieces))
        for k, (piece, gradient) in enumerate(zip(pieces, gradients, strict=True)):
            output = _run(fabric, network, piece, derive_seed(seed, i, k))
            fabric.backward(output, gradient=gradient)
    return [leaf.detach() for leaf in leaves]


def _run(fabric: "Fabric", network: Network, x: Tensor, seed: int) -> Tensor:
    seed_global(seed, fabric.device)
    with fabric.autocast():
        return network(x)


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Leave the running averages of batch normalisation as they are.

    The layers still normalise by the statistics of the batch.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, _NormBase) and module.track_running_stats
    ]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
