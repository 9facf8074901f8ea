"""CUDA graphs: the kernels of a function captured once and replayed with one launch.

A step of a deep network launches thousands of kernels, and launching takes the processor longer
than the GPU needs to run them. A replay is one launch.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_WARM_UPS = 3
# Graphs kept, one per combination of input shapes.
_MOST_GRAPHS = 8

Function = Callable[..., dict[str, Tensor]]
Shapes = tuple[torch.Size, ...]


class GraphedFunction:
    """A function of tensors that is captured as a CUDA graph once its inputs' shapes are known.

    Until a call has come ``_WARM_UPS`` times with the same shapes, and when there are graphs of
    enough other shapes, the function simply runs. What it writes (gradients, running averages) it
    must write in place, and what it reads beside its arguments must stay where it is.

    Args:
        function: of tensors, returns a dictionary of tensors.
        enabled: whether to capture at all.
    """

    def __init__(self, function: Function, *, enabled: bool) -> None:
        self.function = function
        self.enabled = enabled
        self._seen: Counter[Shapes] = Counter()
        self._graphs: dict[Shapes, _Graph] = {}

    @property
    def captured(self) -> bool:
        """Whether there is a graph: gradients then live in its memory and must not be replaced."""
        return bool(self._graphs)

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return what the function returns; of a replay, copies."""
        shapes = tuple(x.shape for x in inputs)
        if shapes in self._graphs:
            return self._graphs[shapes].replay(inputs)
        if not self.enabled or len(self._graphs) == _MOST_GRAPHS:
            return self.function(*inputs)
        self._seen[shapes] += 1
        if self._seen[shapes] <= _WARM_UPS:
            return self._warm_up(inputs)
        self._graphs[shapes] = _Graph(self.function, inputs)
        return self._graphs[shapes].replay(inputs)

    def _warm_up(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Run on a side stream, as capturing does: first calls compile and allocate."""
        side = torch.cuda.Stream()
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            outputs = self.function(*inputs)
        main.wait_stream(side)
        return outputs


class _Graph:
    """The kernels of one call, with the memory they read and write."""

    def __init__(self, function: Function, inputs: Sequence[Tensor]) -> None:
        # Memory made in inference mode could not be written to outside it.
        with torch.inference_mode(False):
            self.inputs = [x.detach().clone() for x in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = function(*self.inputs)

    def replay(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return {name: x.clone() for name, x in self.outputs.items()}
