"""Recorded kernels: a search whose shapes depend on no number on the GPU is recorded once and replayed as one CUDA graph.

A replay launches thousands of kernels in the time of one. Where a device refuses to record, a warning says so, once, and nothing
is recorded any more. Knows tensors; nothing of what is computed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

logger = logging.getLogger("genius.search")
MOST = 16  # recordings that are kept; each holds the memory of its intermediate tensors


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    result: Any  # overwritten by every replay


class Recorder:
    """Records functions of tensors, one graph for each setting and size of a batch, and replays them."""

    def __init__(self) -> None:
        self._recordings: dict[Hashable, _Recording] = {}
        self._inputs: dict[Hashable, Tensor] = {}  # where graphs read: those of one shape share it
        self._pool: Any = None
        self._lock = threading.Lock()
        self.works = True

    def __call__(
        self,
        function: Callable[..., Any],
        setting: Hashable,
        queries: int,
        by_query: Sequence[Tensor | None],
        shared: Sequence[Tensor | None],
    ) -> Any:
        """The result of a function for some queries; None: the device does not record it, and `works` is then False.

        Args:
            function: Of `by_query` and `shared`, to a dataclass of tensors (Q, ...). It waits for no number on the device.
            setting: What else the function depends on. The same setting always means the same function.
            queries: Q.
            by_query: Tensors (Q, ...) on the device.
            shared: Tensors of other shapes.
        """
        size = 1 << (queries - 1).bit_length()  # of the batch that is recorded: the last query fills it
        tensors = [_filled(one, size) for one in by_query] + list(shared)
        shapes = tuple(one if one is None else (tuple(one.shape), one.dtype) for one in tensors)
        lowered = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        key = (setting, size, shapes, torch.backends.cuda.matmul.allow_tf32, lowered)
        device = next(one.device for one in tensors if one is not None)
        with self._lock, torch.cuda.device(device):
            inputs = []
            for place, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
                if tensor is not None:
                    tensor = self._inputs.setdefault((place, shape), torch.empty_like(tensor)).copy_(tensor)
                inputs.append(tensor)
            if key not in self._recordings:
                while len(self._recordings) >= MOST:
                    self._recordings.pop(next(iter(self._recordings)))
                made = self._record(function, inputs)
                if made is None:
                    return None
                self._recordings[key] = made
            recording = self._recordings[key]
            recording.graph.replay()
            result = recording.result
            fields = {name: getattr(result, name)[:queries].clone() for name in result.__dataclass_fields__}
            return type(result)(**fields)

    def _record(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> _Recording | None:
        """Run a function once, and record it."""
        current = torch.cuda.current_stream()
        self._warm(function, inputs)
        if not self._recordings:  # memory that recordings share is gone with the last of them
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.clear_autocast_cache()  # casts of weights are recorded, too: those that were made before do not last
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = function(*inputs)
        except RuntimeError as error:
            self.works = False
            _leave_recording(current)
            reason = str(error).partition("\n")[0]
            logger.warning("searches are not recorded on this GPU, and slower: %s", reason)
            return None
        finally:
            torch.clear_autocast_cache()
        return _Recording(graph, result)

    def _warm(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> None:
        """Load everything that a function needs, on a stream of its own."""
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            function(*inputs)
        current.wait_stream(stream)


def _leave_recording(stream: torch.cuda.Stream) -> None:
    """After a recording that failed: back to a stream, and to random numbers that belong to no recording."""
    torch.cuda.set_stream(stream)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _filled(tensor: Tensor | None, size: int) -> Tensor | None:
    """(Q, ...) -> (size, ...), the last repeated."""
    if tensor is None or len(tensor) == size:
        return tensor
    return torch.cat([tensor, tensor[-1:].expand(size - len(tensor), *tensor.shape[1:])])
