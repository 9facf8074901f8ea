"""What makes networks fast on a GPU: kernels that are launched once one by one and from then on all together, and products on tensor cores."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from eande.networks.mlp import ResidualMLP
from eande.similarities.similarity import Similarity

_WARM_UPS = 3
# Recordings kept, one per shape of the inputs.
_MOST = 8
# A copy for tensor cores may change posteriors by so many nats where they are within so many of their top, given so many data.
_AGREES, _FAR, _AS_DATA = 0.01, 20.0, 256


class Recorder:
    """Calls a function of tensors, and on a GPU records its kernels once, as a CUDA graph, to replay them from then on.

    A step of a deep network launches thousands of kernels, and launching takes the processor longer than the GPU needs to run them. A replay is one
    launch. Until a call has come ``_WARM_UPS`` times with the same shapes, and when there are recordings of enough other shapes, it simply runs.
    What it writes (gradients, running averages) it must write in place, and what it reads beside its arguments must stay where it is.

    Args:
        function: of tensors, returns a dictionary of tensors.
        enabled: whether to record at all.
    """

    def __init__(self, function: Callable[..., dict[str, Tensor]], *, enabled: bool) -> None:
        self.function, self.enabled = function, enabled
        self._seen: Counter[tuple[torch.Size, ...]] = Counter()
        self._recordings: dict[tuple[torch.Size, ...], _Recording] = {}

    @property
    def recorded(self) -> bool:
        """Whether there is a recording: gradients then live in memory of its own and must not be replaced."""
        return bool(self._recordings)

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return what the function returns; of a replay, copies."""
        shapes = tuple(x.shape for x in inputs)
        if shapes in self._recordings:
            return self._recordings[shapes].replay(inputs)
        if not self.enabled or len(self._recordings) == _MOST:
            return self.function(*inputs)
        self._seen[shapes] += 1
        if self._seen[shapes] <= _WARM_UPS:
            return self._beside(inputs)
        self._recordings[shapes] = _Recording(self.function, inputs)
        return self._recordings[shapes].replay(inputs)

    def _beside(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Run on a stream of its own, as a recording does: what is compiled or allocated at the first calls must not be recorded."""
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            outputs = self.function(*inputs)
        main.wait_stream(side)
        return outputs


class _Recording:
    """The kernels of one call, with the memory they read and write."""

    def __init__(
        self, function: Callable[..., dict[str, Tensor]], inputs: Sequence[Tensor]
    ) -> None:
        with torch.inference_mode(
            False
        ):  # memory made in that mode could not be written to outside it
            self.inputs = [x.detach().clone() for x in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = function(*self.inputs)

    def replay(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return {name: x.clone() for name, x in self.outputs.items()}


@torch.no_grad()
def for_tensor_cores(emulator: nn.Module, similarity: Similarity, phi: Tensor) -> nn.Module:
    """Return a copy of one of our residual MLPs whose products run on a GPU's tensor cores.

    Any other network comes back as it is, and so does one whose copy would change posteriors.

    Args:
        emulator: the network.
        similarity: how its outputs are scored.
        phi: what to compare the two on: standardised draws of the prior (m, D).
    """
    if type(emulator) is not ResidualMLP:
        return emulator
    fast = copy.deepcopy(emulator)
    for module in list(fast.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, SplitLinear(child))
    exact = emulator(phi)
    # Where data are embedded, too, if the model is any good.
    observed = similarity.place_datum(exact[:_AS_DATA])
    before, after = (
        similarity.score(observed, similarity.place(points)) for points in (exact, fast(phi))
    )
    near = before > before.amax(1, keepdim=True) - _FAR
    agrees = ((after - before).abs()[near] <= _AGREES).all() and torch.isfinite(before).all()
    return fast if agrees else emulator


class SplitLinear(nn.Module):
    """A linear layer for tensor cores, which multiply numbers of eleven bits: every factor comes as a sum of two such.

    x W = (x₁ + x₂)(W₁ + W₂) ≈ x₂W₁ + x₁W₂ + x₁W₁, one product three times as long, summed in float32. Tensor cores cut digits off where float32
    rounds, so the small terms come first, while the sum is small. A single product of eleven bits would change a sharp posterior by whole nats.
    Numbers beyond ±65,504 overflow.

    Args:
        linear: the layer.
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        large, small = _split(linear.weight.detach())
        self.register_buffer("weight", torch.cat([large, small, large], dim=1).T)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (m, inputs) to (m, outputs)."""
        large, small = _split(x)
        product = torch.mm(
            torch.cat([small, large, large], dim=1), self.weight, out_dtype=torch.float32
        )
        return product if self.bias is None else product + self.bias


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a float32 tensor as two of half precision: the leading bits and the rest."""
    large = x.half()
    return large, (x - large.float()).half()
