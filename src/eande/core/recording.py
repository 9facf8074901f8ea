"""Recording: on a GPU, a function's kernels are launched once one by one, and from then on all together."""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_WARM_UPS = 3
# Recordings kept, one per shape of the inputs.
_MOST = 4


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

    def __init__(self, function: Callable[..., dict[str, Tensor]], inputs: Sequence[Tensor]) -> None:
        self.inputs, self.graph = [x.clone() for x in inputs], torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = function(*self.inputs)

    def replay(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return {name: x.clone() for name, x in self.outputs.items()}
