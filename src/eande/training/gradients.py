"""The gradient of a contrastive loss, at the memory of a whole batch or of a micro-batch, and recorded for a GPU.

The loss couples all pairs of a batch, so it cannot be summed over micro-batches. But it depends on the networks through
their outputs alone: embed every micro-batch without a graph, take the gradient of the loss with respect to the
embeddings, then run each micro-batch again with a graph and feed it its part of that gradient. The result is the
gradient of the full batch, exactly, for networks that treat rows independently (dropout included: both passes use the
same random numbers). With batch normalisation, statistics are those of the micro-batch, and running averages are
updated in the second pass only.

Reference:
    Gao et al., *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*, 2021.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from eande.core.seeds import derive_seed

Network = Callable[[Tensor], Tensor]
Loss = Callable[[Sequence[Tensor]], Tensor]
_WARM_UPS = 3


def backward(
    fabric: Fabric, model: nn.Module, *, inputs: Sequence[tuple[Network, Tensor]], loss: Loss, micro_batch: int | None, seed: int
) -> list[Tensor]:
    """Accumulate the gradient of ``loss([network(x) for network, x in inputs])`` and return the networks' outputs.

    Args:
        fabric: sets the precision of the networks and does the backward passes.
        model: holds the networks; its batch statistics are protected.
        inputs: networks with their whole-batch inputs.
        loss: function of their outputs.
        micro_batch: rows per pass, at most; None takes all at once, with the random numbers torch's generators have in store.
        seed: of this step, for layers that draw random numbers: both passes of a micro-batch draw the same.
    """
    networks, batches = [network for network, _ in inputs], [x for _, x in inputs]
    if micro_batch is None:
        with fabric.autocast():
            outputs = [network(x) for network, x in inputs]
        fabric.backward(loss(outputs))
        return [output.detach() for output in outputs]
    # Equal parts, so that none is a single row, which has no batch statistics.
    parts = [x.tensor_split(-(-len(x) // micro_batch)) for x in batches]
    leaves = []
    with torch.no_grad(), _frozen_statistics(model):
        for i, (network, pieces) in enumerate(zip(networks, parts, strict=True)):
            leaves.append(torch.cat([_run(fabric, network, piece, derive_seed(seed, i, k)) for k, piece in enumerate(pieces)]))
    for leaf in leaves:
        leaf.requires_grad_(True)
    fabric.backward(loss(leaves))
    for i, (network, pieces, leaf) in enumerate(zip(networks, parts, leaves, strict=True)):
        if leaf.grad is None:
            continue
        for k, (piece, gradient) in enumerate(zip(pieces, leaf.grad.tensor_split(len(pieces)), strict=True)):
            fabric.backward(_run(fabric, network, piece, derive_seed(seed, i, k)), gradient=gradient)
    return [leaf.detach() for leaf in leaves]


def _run(fabric: Fabric, network: Network, x: Tensor, seed: int) -> Tensor:
    torch.manual_seed(seed)
    with fabric.autocast():
        return network(x)


class Recorder:
    """Calls a function of tensors, and on a GPU records its kernels once, as a CUDA graph, to replay them from then on.

    A step of a deep network launches thousands of kernels, and launching takes the processor longer than the GPU needs to run them. A replay is one
    launch. Until a call has come ``_WARM_UPS`` times with the same shapes, and whenever it comes with others, the function simply runs.
    What it writes (gradients, running averages) it must write in place, and what it reads beside its arguments must stay where it is.

    Args:
        function: of tensors, returns a dictionary of tensors.
        enabled: whether to record at all.
    """

    def __init__(self, function: Callable[..., dict[str, Tensor]], *, enabled: bool) -> None:
        self.function, self.enabled = function, enabled
        self._seen: Counter[tuple[torch.Size, ...]] = Counter()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: dict[str, Tensor] = {}

    @property
    def recorded(self) -> bool:
        """Whether there is a graph: gradients then live in memory of its own and must not be replaced."""
        return self._graph is not None

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return what the function returns; of a replay, copies."""
        shapes = tuple(x.shape for x in inputs)
        if not self.enabled or (self.recorded and shapes != tuple(x.shape for x in self._inputs)):
            return self.function(*inputs)
        self._seen[shapes] += 1
        if self._graph is None and self._seen[shapes] <= _WARM_UPS:
            return self._beside(inputs)
        if self._graph is None:
            self._inputs = [x.clone() for x in inputs]
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = self.function(*self._inputs)
        else:
            torch._foreach_copy_(self._inputs, list(inputs))
        self._graph.replay()
        return {name: x.clone() for name, x in self._outputs.items()}

    def _beside(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Run on a stream of its own, as a recording does: what is compiled or allocated at the first calls must not be recorded."""
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            outputs = self.function(*inputs)
        main.wait_stream(side)
        return outputs


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
