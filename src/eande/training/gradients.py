"""The gradient of a contrastive loss, at the memory of a whole batch or of a micro-batch.

The loss couples all pairs of a batch, so it cannot be summed over micro-batches. But it depends on the networks through
their outputs alone: embed every micro-batch without a graph, take the gradient of the loss with respect to the
embeddings, then run each micro-batch again with a graph and feed it its part of that gradient. The result is the
gradient of the full batch, exactly, for networks that treat rows independently (dropout included: both passes use the
same random numbers). With batch normalisation, statistics are those of the micro-batch, and running averages are
updated in the second pass only.

Reference:
    Gao et al., *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*, 2021.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from eande.core.seeds import derive_seed

Network = Callable[[Tensor], Tensor]
Loss = Callable[[Sequence[Tensor]], Tensor]


def backward(fabric: Fabric, model: nn.Module, inputs: Sequence[tuple[Network, Tensor]], loss: Loss, *, micro_batch: int | None, seed: int) -> Tensor:
    """Accumulate the gradient of ``loss([network(x) for network, x in inputs])`` and return the loss.

    Args:
        fabric: does the backward passes.
        model: holds the networks; its batch statistics are protected.
        inputs: networks with their whole-batch inputs.
        loss: function of their outputs.
        micro_batch: rows per pass; None takes all at once.
        seed: of this step, for layers that draw random numbers.
    """
    if micro_batch is None:
        torch.manual_seed(seed)
        value = loss([network(x) for network, x in inputs])
        fabric.backward(value)
        return value.detach()
    with torch.no_grad(), _frozen_statistics(model):
        outputs = [
            torch.cat([_run(network, part, seed, i, k) for k, part in enumerate(x.split(micro_batch))]) for i, (network, x) in enumerate(inputs)
        ]
    leaves = [output.float().requires_grad_(True) for output in outputs]
    value = loss(leaves)
    fabric.backward(value)
    for i, ((network, x), leaf) in enumerate(zip(inputs, leaves, strict=True)):
        if leaf.grad is None:
            continue
        for k, (part, gradient) in enumerate(zip(x.split(micro_batch), leaf.grad.split(micro_batch), strict=True)):
            fabric.backward(_run(network, part, seed, i, k), gradient=gradient)
    return value.detach()


def _run(network: Network, x: Tensor, seed: int, network_index: int, part: int) -> Tensor:
    torch.manual_seed(derive_seed(seed, network_index, part))
    return network(x)


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Keep running averages of batch normalisation as they are, while batch statistics are still used."""
    layers = [module for module in model.modules() if isinstance(module, _NormBase) and module.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
