"""The gradients of an update as a CUDA graph: recorded once, then replayed by a single launch.

A graph repeats what the GPU did, on the same memory, and nothing of what Python did. So its inputs are copied
into buffers of its own, what it returns is overwritten by the next replay, and numbers that change from
update to update (learning rates, counts of steps) have to stay outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from initmem.errors import ConfigError

T = TypeVar("T")

WARM_UPS = 3  # libraries allocate their workspaces, and choose algorithms, in the first calls


class CudaGraph:
    """What a function does on a GPU, in a memory pool of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._graph = device, torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], T]) -> T:
        """Record a function without executing it; `replay` fills what it returns."""
        with torch.cuda.device(self._device):
            # Recording is not possible on the default stream. The function warms up on the stream that is
            # recorded, because libraries keep their handles by stream.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    function()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(self._graph, stream=stream):
                return function()

    def replay(self) -> None:
        """Do it again."""
        self._graph.replay()


class Graphed(Generic[T]):
    """Calls a function of batches; from the graph of its first call if they have `size` examples."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._graph: CudaGraph | None = None
        self._x: Tensor
        self._y: Tensor
        self._output: T

    def __call__(self, function: Callable[[Tensor, Tensor], T], x: Tensor, y: Tensor) -> T:
        """The value of the function, always the same one; the next call may overwrite it."""
        if len(x) != self._size:
            return function(x, y)
        if self._graph is None:
            self._graph = self._captured(function, x, y)
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        return self._output

    def _captured(self, function: Callable[[Tensor, Tensor], T], x: Tensor, y: Tensor) -> CudaGraph:
        self._x, self._y = x.clone(), y.clone()
        try:
            graph = CudaGraph(self._device)
            self._output = graph.capture(lambda: function(self._x, self._y))
        except torch.OutOfMemoryError:  # a smaller pack may fit
            raise
        except RuntimeError as error:
            said = str(error).strip().partition("\n")[0]
            raise ConfigError(f"compile = 'graphs': CUDA cannot record it ({said}; allowed: none)") from error
        return graph
