"""Pictures decoded in processes of their own: many cores at once, where threads in one process stand in each other's way.

A worker opens a file, shrinks it to what the encoder wants and sends the small picture back. Knows nothing of encoders.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType

from PIL import Image

from genius.errors import GeniusError
from genius.pictures.load import WORKING_SIDE, ImageInput, loaded

Shrink = Callable[[Image.Image], Image.Image]


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
