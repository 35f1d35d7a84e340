"""The encoder protocol, devices and precision, and the encoding of items and queries to `Features`.

An encoder maps images and texts to vectors of one width. It is frozen here; `genius.train.encoder` trains one. Batching,
progress and error handling are shared by all encoders. Knows nothing of models or indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from PIL import Image

from genius.errors import GeniusError
from genius.features import Features, as_numpy
from genius.optional import import_torch
from genius.pictures import THREADS, WORKING_SIDE, PictureWorkers, Shrink, loaded, open_ahead
from genius.types import ImageInput, Item, Query, format_text, query_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}  # -> torch's name
OnError = Literal["raise", "skip"]
OnPicture = Callable[[int, Image.Image], None]
"""Called with an item's position and its image when it is opened, in the thread that opened it."""

T = TypeVar("T")
LARGEST = 1024  # pixels of the longer side, for encoders without `prepare_image`


def find_device(name: str = "auto", share: int = 0) -> torch.device:
    """The torch device of a name.

    Args:
        name: cpu, cuda, cuda:N or auto (a GPU if there is one).
        share: Number of this process among several: with auto, each takes the next GPU.

    Raises:
        GeniusError: If there is no such device.
    """
    import_torch(f"the device {name!r}")
    import torch

    count = 0
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
    if name == "auto" and count:
        return torch.device("cuda", share % count)
    if name == "auto":
        return torch.device("cpu")
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
    """Device of the encoder's weights; the CPU if it has none."""
    import torch

    if isinstance(encoder, torch.nn.Module):
        for tensor in (*encoder.parameters(), *encoder.buffers()):
            return tensor.device
    return torch.device("cpu")


def precision(encoder: object, name: Precision) -> AbstractContextManager[Any]:
    """A context in which the encoder runs in this precision (autocast). Its vectors stay float32."""
    if name == "fp32":
        return nullcontext()
    if name not in PRECISIONS:
        raise GeniusError(f"no precision {name!r}: use fp32, {', '.join(PRECISIONS)}")
    import torch

    return torch.autocast(device_of(encoder).type, getattr(torch, PRECISIONS[name]))


@runtime_checkable
class Encoder(Protocol):
    """Two towers of one output width. Implementations are nn.Modules in eval mode, on any device, or need no torch."""

    width: int

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB images -> (n, width) float32 on the CPU, not normalised: a tensor, or a numpy array (`without_torch`).

        Args:
            images: Upright RGB images, of any size.
        """
        ...

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU, not normalised.

        Args:
            texts: Texts; the encoder truncates what is too long.
        """
        ...

    def save(self, directory: Path) -> None:
        """Write a folder that `genius.encoders.load_encoder("local-dir:…")` reads.

        Args:
            directory: The folder, which is created.
        """
        ...

    def fingerprint(self) -> str:
        """A hex digest that changes when any weight does."""
        ...

    # Optional: `without_torch = True` for an encoder that returns numpy arrays: `Features` then hold such arrays.
    # Optional: `prepare_image(image) -> image` scales an image down to the input of `encode_images`, and leaves one of that
    # size unchanged. It runs in the threads that open images.


def widths_of(encoder: Encoder) -> tuple[int, int]:
    """Widths of its vectors of images and of texts. They differ where an encoder is read before its heads (`widths`)."""
    widths: tuple[int, int] | None = getattr(encoder, "widths", None)
    return widths or (encoder.width, encoder.width)


def batched(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` values; the last may be shorter."""
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
    items: Sequence[Item | Query],
    *,
    batch_size: int | Sequence[int] = 64,
    on_error: OnError = "raise",
    on_progress: Callable[[int], None] | None = None,
    on_picture: OnPicture | None = None,
    workers: PictureWorkers | None = None,
) -> tuple[Features, list[int], list[str]]:
    """Encode items. Images are decoded by a few threads, at most one batch ahead, so memory does not grow with the collection.

    Args:
        encoder: The encoder.
        items: The items; queries are read with their instructions.
        batch_size: Of all batches, or one size per batch.
        on_error: "raise" at the first unreadable image, or "skip" it.
        on_progress: Called with the number of items after every batch.
        on_picture: Called with every image before it is scaled down for the encoder; its shorter side has at least
            `WORKING_SIDE` pixels, or all it has. Not called with `workers`.
        workers: Processes that decode in place of threads.

    Returns:
        Features of the items that could be read, their positions, and one line for each that could not.
    """
    rows = [_row(item) for item in items]
    parts: list[Features] = []
    kept: list[int] = []
    problems: list[str] = []
    shrink = getattr(encoder, "prepare_image", _at_most)

    def load(position: int, source: ImageInput) -> Image.Image:
        name = f"the image of {rows[position].name!r}"
        if workers is not None:
            return workers.open(source, name)
        with loaded(source, least=WORKING_SIDE, name=name, large=True) as picture:
            if on_picture is not None:
                on_picture(position, picture)
            return shrink(picture)  # type: ignore[no-any-return]

    threads = THREADS
    if workers is not None:
        threads = workers.count
    for start, pictures in open_ahead([row.source for row in rows], load, batch_size, threads):
        good: list[tuple[_Row, Image.Image | None]] = []
        for position, picture in enumerate(pictures, start):
            if isinstance(picture, GeniusError):
                if on_error == "raise":
                    raise picture
                problems.append(f"{rows[position].name}: {picture}")
                continue
            kept.append(position)
            good.append((rows[position], picture))
        parts.append(_towers(good, encoder))
        if on_progress is not None:
            on_progress(len(pictures))
    features = Features.cat(parts or [_towers([], encoder)])
    if not getattr(encoder, "without_torch", False):
        features = features.as_tensors()
    return features, kept, problems


def encode_queries(encoder: Encoder, queries: Sequence[Query], *, batch_size: int = 64, instructions: bool = True) -> Features:
    """Encode queries. The text side reads instruction and text, so it is present if either is.

    Args:
        encoder: The encoder.
        queries: The queries.
        batch_size: Queries per encoder call.
        instructions: Whether a target without an instruction gets a default one.
    """
    if not instructions:
        queries = [replace(query, target=None) for query in queries]
    return encode_items(encoder, queries, batch_size=batch_size)[0]


class _Row(NamedTuple):
    """One item or query on its way to the encoder."""

    source: ImageInput | None
    text: str  # formatted; empty: none
    name: str  # for the message when the picture cannot be read


def _row(item: Item | Query) -> _Row:
    if isinstance(item, Query):
        return _Row(item.image, query_text(item), "the query")
    return _Row(item.image, format_text(item.text or ""), item.id)


def sent_to_workers(encoder: object) -> Shrink:
    """The function that scales images down for this encoder, picklable: never the encoder with its weights."""
    pixels = getattr(encoder, "pixels", None)
    prepare = getattr(pixels, "prepare", None)
    if callable(prepare):
        return prepare  # type: ignore[no-any-return]
    return _at_most


def _at_most(picture: Image.Image) -> Image.Image:
    if max(picture.size) > LARGEST:
        picture.thumbnail((LARGEST, LARGEST))  # in place: it is ours
    return picture


def _towers(batch: Sequence[tuple[_Row, Image.Image | None]], encoder: Encoder) -> Features:
    n = len(batch)
    image_width, text_width = widths_of(encoder)
    image: Any = np.zeros((n, image_width), np.float32)
    text: Any = np.zeros((n, text_width), np.float32)
    image_mask = np.array([picture is not None for _, picture in batch], dtype=bool)
    text_mask = np.array([bool(row.text) for row, _ in batch], dtype=bool)
    if image_mask.any():
        image[image_mask] = as_numpy(encoder.encode_images([picture for _, picture in batch if picture is not None]))
    if text_mask.any():
        text[text_mask] = as_numpy(encoder.encode_texts([row.text for row, _ in batch if row.text]))
    masks: Any = (image_mask, text_mask)
    return Features(image, text, *masks)
