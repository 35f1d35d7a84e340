"""The encoder protocol, where encoders run and in which precision, and how items and queries become `Features`.

An encoder turns pictures and texts into vectors of one width. It is frozen here: its own training is
`genius.train.encoder`. Everything that needs batching, progress or error policy is written once, below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from PIL import Image
from torch import Tensor

from genius.errors import GeniusError
from genius.features import Features
from genius.pictures import THREADS, WORKING_SIDE, PictureWorkers, Shrink, loaded, open_ahead
from genius.types import ImageInput, Item, Query, format_text, query_text

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
OnError = Literal["raise", "skip"]
OnPicture = Callable[[int, Image.Image], None]
"""Hears of each picture as it is opened, with its item's position, in the thread that opened it."""

T = TypeVar("T")
LARGEST = 1024  # pixels of the longer side: for encoders that do not shrink pictures themselves


def find_device(name: str = "auto", share: int = 0) -> torch.device:
    """cpu, cuda, cuda:N, or auto: a GPU where there is one, and for process number `share` the next one in turn."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", share % count) if count else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise GeniusError(f"no device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "mps" and torch.backends.mps.is_available():
        return device
    if device.type not in ("cpu", "cuda"):
        raise GeniusError(f"no device {name!r}: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise GeniusError(f"device {name!r}, but this machine has {count or 'no'} GPU{'s' * (count > 1)} that torch can use")
    return device


def device_of(encoder: object) -> torch.device:
    """Where the encoder's weights are; encoders without any run on the CPU."""
    if isinstance(encoder, torch.nn.Module):
        for tensor in (*encoder.parameters(), *encoder.buffers()):
            return tensor.device
    return torch.device("cpu")


def precision(encoder: object, name: Precision) -> AbstractContextManager[Any]:
    """Inside, the encoder's large products run in this precision; its vectors come out as they always do."""
    if name == "fp32":
        return nullcontext()
    if name not in PRECISIONS:
        raise GeniusError(f"no precision {name!r}: use fp32, {', '.join(PRECISIONS)}")
    return torch.autocast(device_of(encoder).type, PRECISIONS[name])


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
    batch_size: int | Sequence[int] = 64,
    on_error: OnError = "raise",
    on_progress: Callable[[int], None] | None = None,
    on_picture: OnPicture | None = None,
    workers: PictureWorkers | None = None,
) -> tuple[Features, list[int], list[str]]:
    """Items -> features of those that could be read, their positions, and one line for each that could not.

    `batch_size` is one for all batches, or that of each.

    Pictures are opened by a few threads, at most one batch ahead, so memory does not grow with the collection. Each is
    decoded once: `on_picture` sees it (its shorter side at least `WORKING_SIDE` pixels, or all it has) before it is
    shrunk for the encoder. With `workers` processes decode instead, and `on_picture` hears of nothing.
    """
    rows = [_row(item) for item in items]
    towers = lambda batch: _towers(batch, encoder)  # noqa: E731
    return _encode(rows, encoder, towers, batch_size, on_error, on_progress, on_picture, workers)


def encode_queries(
    encoder: Encoder,
    queries: Sequence[Query],
    *,
    batch_size: int = 64,
    on_progress: Callable[[int], None] | None = None,
    instructions: bool = True,
    workers: PictureWorkers | None = None,
) -> Features:
    """Queries -> features. The text side reads instruction + text, so it is present whenever either is.

    Without `instructions` a wanted kind is not put into words; what a query itself says always is read."""
    if not instructions:
        queries = [replace(query, target=None) for query in queries]
    rows = [_row(query) for query in queries]
    return _encode(rows, encoder, lambda batch: _towers(batch, encoder), batch_size, "raise", on_progress, None, workers)[0]


def encode_joint(
    encoder: PairEncoder,
    inputs: Sequence[Item | Query],
    *,
    batch_size: int = 64,
    on_error: OnError = "raise",
    on_progress: Callable[[int], None] | None = None,
    workers: PictureWorkers | None = None,
) -> tuple[Features, list[int], list[str]]:
    """Items or queries -> one fused vector each, on the image side if there is an image, else on the text's.

    Score fusion of such features is the vector itself. Returns what `encode_items` does.
    """
    rows = [_row(one) for one in inputs]
    return _encode(rows, encoder, lambda batch: _joint(batch, encoder), batch_size, on_error, on_progress, None, workers)


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
    batch_size: int | Sequence[int],
    on_error: OnError,
    on_progress: Callable[[int], None] | None,
    on_picture: OnPicture | None = None,
    workers: PictureWorkers | None = None,
) -> tuple[Features, list[int], list[str]]:
    parts: list[Features] = []
    kept: list[int] = []
    problems: list[str] = []
    shrink = getattr(encoder, "prepare_image", _at_most)

    def load(position: int, source: ImageInput) -> Image.Image:
        if workers is not None:
            return workers.open(source, f"the image of {rows[position].name!r}")
        with loaded(source, least=WORKING_SIDE, name=f"the image of {rows[position].name!r}") as picture:
            if on_picture is not None:
                on_picture(position, picture)
            return shrink(picture)  # type: ignore[no-any-return]

    threads = THREADS if workers is None else workers.count
    for start, pictures in open_ahead([row.source for row in rows], load, batch_size, threads):
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


def sent_to_workers(encoder: object) -> Shrink:
    """What shrinks pictures for this encoder and can be sent to other processes: never the encoder with its weights."""
    pixels = getattr(encoder, "pixels", None)
    prepare = getattr(pixels, "prepare", None)
    return prepare if callable(prepare) else _at_most


def _at_most(picture: Image.Image) -> Image.Image:
    if max(picture.size) > LARGEST:
        picture.thumbnail((LARGEST, LARGEST))  # in place: it is ours
    return picture


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
