"""The encoder protocol, and how items and queries become `Features`.

An encoder turns pictures and texts into vectors of one width. It is frozen here: its own training is
`genius.train.encoder`. Everything that needs batching, progress or error policy is written once, below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from PIL import Image
from torch import Tensor

from genius.errors import GeniusError
from genius.features import Features
from genius.instructions import format_text, query_text
from genius.types import ImageInput, Item, Query, load_image

OnError = Literal["raise", "skip"]
T = TypeVar("T")
THREADS = 4
"""That open pictures. Decoding releases the interpreter lock, so a few are enough to keep an encoder busy."""


@runtime_checkable
class Encoder(Protocol):
    """Two towers of one output width. Implementations are nn.Modules in eval mode, on any device."""

    width: int

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures -> (n, width) float32 on the CPU, raw (not unit length)."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU, raw (not unit length)."""
        ...

    def save(self, directory: Path) -> None:
        """Write what `genius.encoders.load_encoder("local-dir:…")` reads."""
        ...

    def fingerprint(self) -> str:
        """A hex digest that changes when any weight does."""
        ...

    # Optional: `prepare_image(picture) -> picture` shrinks a picture to what `encode_images` needs and leaves one of that
    # size alone. It runs in the threads that open pictures.


@runtime_checkable
class PairEncoder(Protocol):
    """An encoder that reads image and text together: feature fusion, as CLIP-FF and BLIP-FF.

    One vector stands for an item, whatever it has: `encode_joint` gives those. One that is also an `Encoder` may stand
    under GENIUS: `encode_items` then gives a pair's vector in two halves, whose score fusion is the vector again.
    """

    width: int

    def encode_pairs(self, images: Sequence[Image.Image | None], texts: Sequence[str]) -> Tensor:
        """n pictures with n texts -> (n, width) float32. A picture may be None and a text empty, not both."""
        ...

    def fingerprint(self) -> str: ...


def batched(values: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for value in values:
        batch.append(value)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def encode_items(
    encoder: Encoder,
    items: Sequence[Item],
    *,
    batch_size: int = 64,
    on_error: OnError = "raise",
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Features, list[int], list[str]]:
    """Items -> features of those that could be read, their positions, and one line for each that could not.

    Pictures are opened by a few threads, at most one batch ahead, so memory does not grow with the collection.
    """
    rows = [_row(item) for item in items]
    return _encode(rows, encoder, lambda batch: _towers(batch, encoder), batch_size, on_error, on_progress)


def encode_queries(
    encoder: Encoder, queries: Sequence[Query], *, batch_size: int = 64, on_progress: Callable[[int], None] | None = None
) -> Features:
    """Queries -> features. The text side reads instruction + text, so it is present whenever either is."""
    rows = [_row(query) for query in queries]
    return _encode(rows, encoder, lambda batch: _towers(batch, encoder), batch_size, "raise", on_progress)[0]


def encode_joint(
    encoder: PairEncoder,
    inputs: Sequence[Item | Query],
    *,
    batch_size: int = 64,
    on_error: OnError = "raise",
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Features, list[int], list[str]]:
    """Items or queries -> one fused vector each, on the image side if there is an image, else on the text's.

    Score fusion of such features is the vector itself. Returns what `encode_items` does.
    """
    rows = [_row(one) for one in inputs]
    return _encode(rows, encoder, lambda batch: _joint(batch, encoder), batch_size, on_error, on_progress)


class _Row(NamedTuple):
    """One item or query on its way to the encoder."""

    source: ImageInput | None
    text: str  # formatted; empty: none
    name: str  # for the message when the picture cannot be read


_Batch = Sequence[tuple[_Row, Image.Image | None]]


def _row(one: Item | Query) -> _Row:
    if isinstance(one, Query):
        return _Row(one.image, query_text(one), "the query")
    return _Row(one.image, format_text(one.text or ""), one.id)


def _encode(
    rows: Sequence[_Row],
    encoder: Encoder | PairEncoder,
    encode_batch: Callable[[_Batch], Features],
    batch_size: int,
    on_error: OnError,
    on_progress: Callable[[int], None] | None,
) -> tuple[Features, list[int], list[str]]:
    parts: list[Features] = []
    kept: list[int] = []
    problems: list[str] = []
    for start, pictures in _load_ahead(rows, encoder, batch_size):
        batch = rows[start : start + len(pictures)]
        good: list[tuple[_Row, Image.Image | None]] = []
        for offset, (row, picture) in enumerate(zip(batch, pictures, strict=True)):
            if isinstance(picture, GeniusError):
                if on_error == "raise":
                    raise picture
                problems.append(f"{row.name}: {picture}")
                continue
            kept.append(start + offset)
            good.append((row, picture))
        parts.append(encode_batch(good))
        if on_progress is not None:
            on_progress(len(batch))
    if not parts:
        parts.append(encode_batch([]))
    return Features.cat(parts), kept, problems


def _joint(batch: _Batch, encoder: PairEncoder) -> Features:
    vectors = torch.zeros(0, encoder.width)
    if batch:
        vectors = encoder.encode_pairs([picture for _, picture in batch], [row.text for row, _ in batch]).float().cpu()
    image_mask = torch.tensor([picture is not None for _, picture in batch], dtype=torch.bool)
    text_mask = torch.tensor([bool(row.text) for row, _ in batch], dtype=torch.bool)
    return Features(vectors * image_mask[:, None], vectors * ~image_mask[:, None], image_mask, text_mask)


def _towers(batch: _Batch, encoder: Encoder) -> Features:
    n = len(batch)
    image, text = torch.zeros(n, encoder.width), torch.zeros(n, encoder.width)
    image_mask = torch.tensor([picture is not None for _, picture in batch], dtype=torch.bool)
    text_mask = torch.tensor([bool(row.text) for row, _ in batch], dtype=torch.bool)
    pairs = image_mask & text_mask if isinstance(encoder, PairEncoder) else torch.zeros(n, dtype=torch.bool)
    if pairs.any():
        assert isinstance(encoder, PairEncoder)
        rows = [batch[i] for i in pairs.nonzero()[:, 0].tolist()]
        joint = encoder.encode_pairs([p for _, p in rows if p is not None], [row.text for row, _ in rows]).float().cpu()
        image[pairs] = text[pairs] = joint / 2  # score fusion (Eq. 2) of the two halves is the joint vector
    alone = image_mask & ~pairs
    if alone.any():
        image[alone] = encoder.encode_images([batch[i][1] for i in alone.nonzero()[:, 0].tolist()]).float().cpu()  # type: ignore[misc]
    alone = text_mask & ~pairs
    if alone.any():
        text[alone] = encoder.encode_texts([batch[i][0].text for i in alone.nonzero()[:, 0].tolist()]).float().cpu()
    return Features(image, text, image_mask, text_mask)


def _load_ahead(
    rows: Sequence[_Row], encoder: Encoder | PairEncoder, batch_size: int
) -> Iterator[tuple[int, list[Image.Image | GeniusError | None]]]:
    """(start, pictures) batch by batch: while one batch is encoded, threads open and shrink the next.

    At most `THREADS` pictures of full size and two batches of shrunken ones are in memory.
    """
    prepare = getattr(encoder, "prepare_image", None)

    def load(source: ImageInput | None) -> Image.Image | GeniusError | None:
        if source is None:
            return None
        try:
            picture = load_image(source)
            return prepare(picture) if prepare is not None else picture
        except GeniusError as error:
            return error

    starts = range(0, len(rows), batch_size)
    if not any(row.source is not None for row in rows) or len(rows) == 1:
        for start in starts:  # nothing to wait for: no threads
            yield start, [load(row.source) for row in rows[start : start + batch_size]]
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="genius-images") as pool:
        ahead: deque[tuple[int, list[Future[Image.Image | GeniusError | None]]]] = deque()
        try:
            for start in starts:
                ahead.append((start, [pool.submit(load, row.source) for row in rows[start : start + batch_size]]))
                if len(ahead) == 2:
                    first, futures = ahead.popleft()
                    yield first, [future.result() for future in futures]
            while ahead:
                first, futures = ahead.popleft()
                yield first, [future.result() for future in futures]
        finally:  # an error or an abandoned loop: do not open what nobody waits for
            pool.shutdown(wait=True, cancel_futures=True)
