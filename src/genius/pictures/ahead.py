"""Pictures opened before they are needed: by a few threads a batch ahead, or by processes of their own.

Decoding releases the interpreter lock, so a few threads keep an encoder busy. At most two batches of results are in
memory; how much the decoding itself takes is bounded by `load.DECODING`. Processes use many cores at once, where threads in one
process stand in each other's way: a worker opens a file, shrinks it to what the encoder wants and sends the small picture back.
Knows nothing of encoders.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import accumulate
from types import TracebackType
from typing import TypeVar

from PIL import Image

from genius.errors import GeniusError
from genius.pictures.load import WORKING_SIDE, ImageInput, loaded, tidy

T = TypeVar("T")
THREADS = 4

Shrink = Callable[[Image.Image], Image.Image]


def open_ahead(
    sources: Sequence[ImageInput | None],
    open_one: Callable[[int, ImageInput], T],
    batch_size: int | Sequence[int],
    threads: int = THREADS,
) -> Iterator[tuple[int, list[T | GeniusError | None]]]:
    """(start, results) batch by batch: `open_one(position, source)` of each source, None where there is none.

    A `GeniusError` it raises stands in its place. While the caller is busy with one batch, threads open the next.
    `batch_size` is one for all batches, or that of each.
    """

    def attempt(position: int) -> T | GeniusError | None:
        source = sources[position]
        try:
            return None if source is None else open_one(position, source)
        except GeniusError as error:
            return error

    if isinstance(batch_size, int):
        batch_size = [min(batch_size, len(sources) - start) for start in range(0, len(sources), batch_size)]
    batches = [range(end - size, end) for size, end in zip(batch_size, accumulate(batch_size), strict=True)]
    if len(sources) == 1 or all(source is None for source in sources):
        for batch in batches:  # nothing to wait for: no threads
            yield batch.start, [attempt(position) for position in batch]
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="genius-images") as pool:
        ahead: deque[tuple[int, list[Future[T | GeniusError | None]]]] = deque()
        try:
            for batch in batches:
                ahead.append((batch.start, [pool.submit(attempt, position) for position in batch]))
                if len(ahead) == 2:
                    first, futures = ahead.popleft()
                    yield first, [future.result() for future in futures]
            while ahead:
                first, futures = ahead.popleft()
                yield first, [future.result() for future in futures]
        finally:  # an error or an abandoned loop: do not open what nobody waits for
            pool.shutdown(wait=True, cancel_futures=True)
            ahead.clear()
            tidy()


class PictureWorkers:
    """So many processes that decode pictures. `shrink` must be something that can be sent to them."""

    def __init__(self, count: int, shrink: Shrink) -> None:
        self.count, self.shrink = count, shrink
        # spawned, not forked: a fork of a process with threads or a GPU may hang
        self._pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))

    def open(self, source: ImageInput, name: str) -> Image.Image:
        """The picture as `shrink` leaves it; waits for it, so call it from as many threads as there are workers."""
        try:
            return self._pool.submit(_open, source, name, self.shrink).result()
        except BrokenProcessPool:
            raise GeniusError("a process that decodes pictures was killed (is there too little memory?): start again") from None

    def __enter__(self) -> PictureWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _open(source: ImageInput, name: str, shrink: Shrink) -> Image.Image:
    with loaded(source, least=WORKING_SIDE, name=name) as picture:
        return shrink(picture)
