"""Pictures opened by a few threads, a batch ahead of whoever uses them.

Decoding releases the interpreter lock, so a few threads keep an encoder busy. At most two batches of results are in
memory; how much the decoding itself takes is bounded by `load.DECODING`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from genius.errors import GeniusError
from genius.pictures.load import ImageInput
from genius.pictures.memory import tidy

T = TypeVar("T")
THREADS = 4


def open_ahead(
    sources: Sequence[ImageInput | None], open_one: Callable[[int, ImageInput], T], batch_size: int, threads: int = THREADS
) -> Iterator[tuple[int, list[T | GeniusError | None]]]:
    """(start, results) batch by batch: `open_one(position, source)` of each source, None where there is none.

    A `GeniusError` it raises stands in its place. While the caller is busy with one batch, threads open the next.
    """

    def attempt(position: int) -> T | GeniusError | None:
        source = sources[position]
        try:
            return None if source is None else open_one(position, source)
        except GeniusError as error:
            return error

    batches = [range(start, min(start + batch_size, len(sources))) for start in range(0, len(sources), batch_size)]
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
