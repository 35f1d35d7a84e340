"""Public types: `Item`, `Query`, `Modality`. User input is validated here.

Also the default instructions that tell the model which modality a query wants (paper, section 3), and the text format that the
published encoders were trained with. Knows nothing of models or files; images are read by `genius.pictures`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from genius.errors import GeniusError
from genius.pictures import IMAGE_SUFFIXES, ImageInput, load_image

__all__ = [
    "IMAGE_SUFFIXES",
    "ContentInput",
    "ImageInput",
    "Item",
    "Modality",
    "Query",
    "coerce_content",
    "load_image",
    "modality_of",
]

NO_WORD = re.compile(
    r"(?i)^(img|dsc[nf]?|dcim|image|photo|picture|pic|pxl|scan|screenshot|file|untitled|copy|whatsapp|mvi|p|wp|gopr)?[\W\d_]*$"
)
SHOWN = 80  # characters of a text in the repr of an item
NAMED = ("tags", "keywords", "title", "name", "label", "category")  # metadata that describes an image


class Modality(IntEnum):
    """The first code of every ID (paper 4.2.3): what the item consists of.

    Examples:
        >>> [modality.label for modality in Modality]
        ['image', 'text', 'pair']
    """

    IMAGE = 0
    TEXT = 1
    PAIR = 2

    @classmethod
    def parse(cls, value: Modality | int | str) -> Modality:
        """Parse `"image"`, `"text"`, `"pair"` (or M-BEIR's `"image,text"`), 0-2, or a Modality.

        Args:
            value: Name, number or `Modality`.

        Examples:
            >>> Modality.parse("image,text").label
            'pair'
        """
        if isinstance(value, str):
            name = value.strip().lower().replace(" ", "")
            names = {"image": cls.IMAGE, "text": cls.TEXT, "pair": cls.PAIR, "image,text": cls.PAIR, "text,image": cls.PAIR}
            if name in names:
                return names[name]
        elif isinstance(value, int) and not isinstance(value, bool) and value in (0, 1, 2):
            return cls(value)
        raise GeniusError(f"unknown modality {value!r}: use 'image', 'text' or 'pair'")

    @property
    def label(self) -> str:
        return self.name.lower()


def as_picture(image: Any) -> Any:
    """An array of pixels (height, width[, 3 or 4]) as a `PIL.Image`; anything else unchanged."""
    if not hasattr(image, "__array_interface__") or isinstance(image, Image.Image):
        return image
    try:
        return Image.fromarray(image)
    except (TypeError, ValueError, KeyError):
        shape = getattr(image, "shape", "?")
        dtype = getattr(image, "dtype", "?")
        raise GeniusError(f"an array of shape {shape} and type {dtype} is no image: use (height, width, 3) of uint8") from None


ContentInput: TypeAlias = "str | Path | Image.Image | Mapping[str, Any]"
"""Input of `coerce_content`: text, an image, a path to an image, or {"text": …, "image": …}."""


def _clean_text(text: str | None) -> str | None:
    if text is None:
        return None
    if isinstance(text, list | tuple):
        raise GeniusError("a query has one text: search with several queries by search_many([...])")
    if not isinstance(text, str):
        raise GeniusError(f"text must be a string, got {type(text).__name__}")
    text = text.strip()
    return text or None


def is_unicode(text: str) -> bool:
    """False for text with lone surrogates, from JSON or file names, which can be neither stored nor encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


VectorInput: TypeAlias = "Sequence[float] | NDArray[Any] | Mapping[str, Sequence[float] | NDArray[Any]]"
"""A vector of your own, or {"image": …, "text": …}. Only directions count: vectors are compared by cosine."""


def as_vector(value: Any, what: str) -> NDArray[np.float32] | dict[str, NDArray[np.float32]]:
    """A user's vector, or those of its image and its text, as arrays (D,).

    Args:
        value: Numbers, an array or a tensor (D,), or a mapping with "image", "text" or both.
        what: Whose it is, for errors.

    Raises:
        GeniusError: If it is no vector, or holds NaN or infinity, or zeros only.
    """
    if isinstance(value, Mapping):
        unknown = sorted(set(value) - {"image", "text"}, key=str)
        if unknown or not value:
            raise GeniusError(f"{what}: a mapping of vectors has the keys 'image' and 'text'")
        return {name: _one_vector(value[name], f"{what}: its {name} vector") for name in sorted(value)}
    return _one_vector(value, f"{what}: its vector")


def _one_vector(value: Any, what: str) -> NDArray[np.float32]:
    try:
        vector = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise GeniusError(f"{what} is not a sequence of numbers") from None
    if vector.ndim != 1 or not len(vector):
        raise GeniusError(f"{what} has shape {vector.shape}; a vector has one dimension")
    if not np.isfinite(vector).all():
        raise GeniusError(f"{what} holds NaN or infinity")
    if not vector.any():
        raise GeniusError(f"{what} holds zeros only, so it has no direction")
    return vector


@dataclass(frozen=True, slots=True)
class Item:
    """Something to find.

    Args:
        id: Unique in an index.
        image: Path, bytes of a file, `PIL.Image` or array of pixels.
        text: Text. An item needs an image, a text or a vector.
        metadata: Strings, numbers, booleans, dates and lists of strings, for filters and display.
        vector: Your own vector of it, in place of the encoder's: (D,), or {"image": (D,), "text": (D,)}.
        modality: Of an item that is only a vector: "image", "text" or "pair". Default: what its vectors are of, else "text".

    Examples:
        >>> Item("7", vector=[0.1, 0.9], modality="image", metadata={"price": 3})
        Item('7', vector=<2 wide>, metadata={'price': 3})
    """

    id: str
    image: ImageInput | None = None
    text: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Any = field(default=None, compare=False)
    modality: Modality = None  # type: ignore[assignment]  # set below

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise GeniusError("an item needs a non-empty string id")
        object.__setattr__(self, "text", _clean_text(self.text))
        object.__setattr__(self, "image", as_picture(self.image))
        if self.vector is not None:
            object.__setattr__(self, "vector", as_vector(self.vector, f"item {self.id!r}"))
        object.__setattr__(self, "modality", self._modality())

    def _modality(self) -> Modality:
        """What it consists of; what was given counts where there is neither an image nor a text."""
        if self.image is not None or self.text is not None:
            return modality_of(self.image is not None, self.text is not None)
        if self.modality is not None:
            return Modality.parse(self.modality)
        if self.vector is None:
            raise GeniusError(f"item {self.id!r} has neither an image nor a text nor a vector")
        if isinstance(self.vector, Mapping):
            return modality_of("image" in self.vector, "text" in self.vector)
        return Modality.TEXT

    @classmethod
    def of(cls, value: Item | Mapping[str, Any]) -> Item:
        """Make an item from a mapping with its fields: {"id": ..., "image": ..., "text": ..., "metadata": {...}}.

        Args:
            value: An `Item`, which is returned as it is, or a mapping with its fields.

        Examples:
            >>> Item.of({"id": "1", "text": "a red bicycle", "metadata": {"price": 40}}).metadata["price"]
            40
        """
        if isinstance(value, Item):
            return value
        if not isinstance(value, Mapping):
            raise GeniusError(f"expected an Item or a dict, got {type(value).__name__}")
        unknown = sorted(set(value) - {"id", "image", "text", "metadata", "vector", "modality"})
        if unknown:
            raise GeniusError(f"an item has no {unknown[0]!r}: use id, image, text, vector, modality, and metadata for all else")
        return cls(
            value.get("id", ""),
            value.get("image"),
            value.get("text"),
            value.get("metadata") or {},
            value.get("vector"),
            value.get("modality"),  # type: ignore[arg-type]
        )

    def __repr__(self) -> str:
        """Short: an image as its path or size, a long text cut."""
        parts = [repr(self.id)]
        if self.image is not None:
            parts.append(f"image={_shown_image(self.image)}")
        if self.text is not None:
            parts.append(f"text={_shown_text(self.text)}")
        if self.vector is not None:
            parts.append(f"vector={_shown_vector(self.vector)}")
        if self.metadata:
            parts.append(f"metadata={dict(self.metadata)!r}")
        return f"Item({', '.join(parts)})"


def _shown_image(image: ImageInput) -> str:
    if isinstance(image, Image.Image):
        return f"<image of {image.width} x {image.height}>"
    if isinstance(image, bytes):
        return f"<{len(image):,} bytes>"
    return repr(str(image))


def _shown_vector(vector: Any) -> str:
    if isinstance(vector, Mapping):
        widths = ", ".join(f"{name} {len(one)}" for name, one in vector.items())
        return f"<{widths} wide>"
    return f"<{len(vector)} wide>"


def _shown_text(text: str) -> str:
    if len(text) > SHOWN:
        text = f"{text[: SHOWN - 1]}…"
    return repr(text)


@dataclass(frozen=True, slots=True)
class Query:
    """What to search for.

    Args:
        text: Query text.
        image: Query image. A query needs a text, an image, or both.
        instruction: What is wanted, in words; without `target` it leaves the modality to the model.
        target: Modality wanted; without `instruction` it picks a default one.
        minus: Another query to steer away from.
        vector: Your own vector in place of a text or an image: (D,), or {"image": (D,), "text": (D,)}. A text besides it is
            looked for by words (mode "hybrid").

    Examples:
        >>> Query("a red bicycle", target=Modality.IMAGE).target.label
        'image'
    """

    text: str | None = None
    image: ImageInput | None = None
    instruction: str | None = None
    target: Modality | None = None
    minus: Query | None = None
    vector: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _clean_text(self.text))
        object.__setattr__(self, "instruction", _clean_text(self.instruction))
        object.__setattr__(self, "image", as_picture(self.image))
        for text in (self.text, self.instruction):
            if text is not None and not is_unicode(text):
                raise GeniusError(f"{text[:40]!r} is not valid Unicode text")
        if self.target is not None:
            object.__setattr__(self, "target", Modality.parse(self.target))
        if self.minus is not None:
            object.__setattr__(self, "minus", Query.of(self.minus))
        if self.vector is not None:
            object.__setattr__(self, "vector", as_vector(self.vector, "a query"))
            if self.image is not None or self.minus is not None:
                raise GeniusError("a query is a vector, or made of a text and an image: use either")
        elif self.image is None and self.text is None:
            raise GeniusError("a query needs a text, an image, or both; or a vector")

    @classmethod
    def of(cls, value: Query | ContentInput) -> Query:
        """Make a query from text, an image, a path to one, or {"text": ..., "image": ...}.

        Args:
            value: Text, an image, a path to one, a mapping, or a `Query`, which is returned as it is.

        Examples:
            >>> Query.of("a red bicycle").text
            'a red bicycle'
        """
        if isinstance(value, Query):
            return value
        return cls(**coerce_content(value))

    @property
    def modality(self) -> Modality:
        """What it consists of; a vector that does not say counts as text."""
        if isinstance(self.vector, Mapping):
            return modality_of("image" in self.vector, "text" in self.vector)
        return modality_of(self.image is not None, self.text is not None or self.vector is not None)


def modality_of(has_image: bool, has_text: bool) -> Modality:
    """Modality of an item or query with these parts.

    Args:
        has_image: Whether it has an image.
        has_text: Whether it has a text.
    """
    if has_image and has_text:
        return Modality.PAIR
    if not has_image and not has_text:
        raise GeniusError("neither an image nor a text")
    if has_image:
        return Modality.IMAGE
    return Modality.TEXT


def coerce_content(value: ContentInput) -> dict[str, Any]:
    """Convert a user's value to {"text": …, "image": …}. A string that names an existing image file is its path.

    Args:
        value: A text, the path of an image, bytes of an image, an opened image, or a dictionary of both.
    """
    if isinstance(value, Mapping):
        unknown = set(value) - {"text", "image"}
        if unknown:
            raise GeniusError(f"unknown keys {sorted(unknown)}: a mapping may hold 'text' and 'image'")
        return {"text": value.get("text"), "image": value.get("image")}
    value = as_picture(value)
    if isinstance(value, Image.Image | Path | bytes):
        return {"text": None, "image": value}
    if isinstance(value, str):
        looks_like_file = len(value) < 4096 and "\n" not in value and Path(value).suffix.lower() in IMAGE_SUFFIXES
        if looks_like_file and Path(value).is_file():
            return {"text": None, "image": value}
        return {"text": value, "image": None}
    raise GeniusError(f"cannot use a {type(value).__name__} as text or image")


def name_of(item: Item) -> str | None:
    """Words that describe an image: its tags, else the words of its file name; None if there are none."""
    for key in NAMED:
        value = item.metadata.get(key)
        if isinstance(value, list):
            value = ", ".join(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    path = PurePath(item.id)
    if isinstance(item.image, str | PurePath):
        path = PurePath(item.image)
    words = [w for w in re.split(r"[\W\d_]+", path.stem) if len(w) > 2]
    if NO_WORD.match(path.stem) or not words:
        return None
    return " ".join(words)


I, T, P = Modality.IMAGE, Modality.TEXT, Modality.PAIR  # noqa: E741 - the paper's letters

TEMPLATES: dict[tuple[Modality, Modality], tuple[str, ...]] = {
    # (modality of the query, target): the eight tasks of M-BEIR, and image -> pair
    (T, I): (
        "Find an image that matches the description.",
        "Show me a picture of this.",
        "Retrieve the image that these words describe.",
        "I am looking for an image of the following.",
    ),
    (T, T): (
        "Find a text that answers or explains this.",
        "Retrieve a passage about the following.",
        "Which text says the same in other words?",
        "I am looking for a text on this subject.",
    ),
    (T, P): (
        "Find an illustrated text about this.",
        "Retrieve an image with its description for these words.",
        "Show me a picture together with the text that explains it.",
        "I am looking for an entry with image and text on this.",
    ),
    (I, T): (
        "Find a text that describes the image.",
        "Retrieve the description of this picture.",
        "What text belongs to this image?",
        "I am looking for words that say what the image shows.",
    ),
    (I, I): (
        "Find an image that shows the same thing.",
        "Retrieve a picture similar to this one.",
        "Show me another image of this.",
        "I am looking for images that look like this one.",
    ),
    (I, P): (
        "Find an illustrated text about what the image shows.",
        "Retrieve the entry, image and description, for this picture.",
        "Show me this with a picture and an explanation.",
        "I am looking for an entry with image and text on this picture.",
    ),
    (P, T): (
        "Find a text that answers the question about the image.",
        "Retrieve the passage that this image and question ask for.",
        "Which text explains what is asked about the picture?",
        "I am looking for a text that answers this about the image.",
    ),
    (P, I): (
        "Find an image like this one with the described change.",
        "Retrieve the picture that the edit would give.",
        "Show me this image, but changed as described.",
        "I am looking for a similar image with this modification.",
    ),
    (P, P): (
        "Find an illustrated text that answers the question about the image.",
        "Retrieve the image and description that this picture and question ask for.",
        "Show me an entry, picture and text, that answers this about the image.",
        "I am looking for an image with a text that answers this.",
    ),
}


def instruction_for(query: Modality, target: Modality, rng: random.Random | None = None) -> str:
    """The default instruction for a query of one modality and a target; with `rng`, a random paraphrase (training)."""
    choices = TEMPLATES[query, target]
    if rng is not None:
        return rng.choice(choices)
    return choices[0]


def format_text(text: str) -> str:
    """The text format of UniIR and the published GENIUS: no outer quotes, a capital first, a full stop last."""
    text = text.replace("\r", "").strip().strip('"')
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    if not text.endswith((".", "?", "!")):
        text += "."
    return text


def query_text(query: Query, instruction: str | None = None) -> str:
    """The text encoder's input for a query: instruction, then text, formatted. Empty only if both are."""
    if instruction is None:
        instruction = query.instruction
    if instruction is None and query.target is not None:
        instruction = instruction_for(query.modality, query.target)
    return format_text(" ".join(part for part in (instruction, query.text) if part))
