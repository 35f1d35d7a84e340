"""CUDA graph capture: a search whose shapes depend on no number on the GPU is captured once, and replayed.

A replay launches thousands of kernels in the time of one. Where a device refuses the capture, one warning says so, and nothing is
captured any more. Knows tensors; nothing of what is computed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

logger = logging.getLogger("genius.search")
MAX_GRAPHS = 16  # that are kept; each holds the memory of its intermediate tensors


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    result: Any  # overwritten by every replay


class CudaGraphs:
    """Captures functions of tensors, one graph for each setting and batch size, and replays them."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, _Graph] = {}
        self._inputs: dict[Hashable, Tensor] = {}  # what graphs read: those of one shape share it
        self._pool: Any = None
        self._lock = threading.Lock()
        self.available = True

    def run(
        self,
        function: Callable[..., Any],
        setting: Hashable,
        queries: int,
        by_query: Sequence[Tensor | None],
        shared: Sequence[Tensor | None],
    ) -> Any:
        """The result of a function for some queries; None: the device refuses the capture, and `available` is then False.

        Args:
            function: Of `by_query` and `shared`, to a dataclass of tensors (Q, ...). It waits for no number on the device.
            setting: What else the function depends on. The same setting always means the same function.
            queries: Q.
            by_query: Tensors (Q, ...) on the device.
            shared: Tensors of other shapes.
        """
        size = 1 << (queries - 1).bit_length()  # of the captured batch: the last query fills it
        tensors = [_padded(one, size) for one in by_query] + list(shared)
        shapes = tuple(one if one is None else (tuple(one.shape), one.dtype) for one in tensors)
        autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        key = (setting, size, shapes, torch.backends.cuda.matmul.allow_tf32, autocast)
        device = next(one.device for one in tensors if one is not None)
        with self._lock, torch.cuda.device(device):
            inputs = []
            for place, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
                if tensor is not None:
                    tensor = self._inputs.setdefault((place, shape), torch.empty_like(tensor)).copy_(tensor)
                inputs.append(tensor)
            if key not in self._graphs:
                while len(self._graphs) >= MAX_GRAPHS:
                    self._graphs.pop(next(iter(self._graphs)))
                captured = self._capture(function, inputs)
                if captured is None:
                    return None
                self._graphs[key] = captured
            self._graphs[key].graph.replay()
            result = self._graphs[key].result
            fields = {name: getattr(result, name)[:queries].clone() for name in result.__dataclass_fields__}
            return type(result)(**fields)

    def _capture(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> _Graph | None:
        """Run a function once, then capture it; None: the device refuses."""
        current = torch.cuda.current_stream()
        self._warm_up(function, inputs)
        if not self._graphs:  # memory that graphs share is freed with the last of them
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.clear_autocast_cache()  # casts of weights are captured too: those made before do not last
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = function(*inputs)
        except RuntimeError as error:
            self.available = False
            _end_failed_capture(current)
            reason = str(error).partition("\n")[0]
            logger.warning("searches on this GPU are slower, because CUDA graph capture failed: %s", reason)
            return None
        finally:
            torch.clear_autocast_cache()
        return _Graph(graph, result)

    def _warm_up(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> None:
        """Load everything that a function needs, on a stream of its own."""
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            function(*inputs)
        current.wait_stream(stream)


def _end_failed_capture(stream: torch.cuda.Stream) -> None:
    """Return to the stream from before, and to a random number generator that belongs to no graph."""
    torch.cuda.set_stream(stream)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _padded(tensor: Tensor | None, size: int) -> Tensor | None:
    """(Q, ...) -> (size, ...), the last query repeated."""
    if tensor is None or len(tensor) == size:
        return tensor
    return torch.cat([tensor, tensor[-1:].expand(size - len(tensor), *tensor.shape[1:])])
