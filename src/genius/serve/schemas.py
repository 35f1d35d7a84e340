"""Requests and responses as pydantic models: requests are strict, responses are typed for the client.

Knows fields and limits that never change; limits that an operator may set are checked in `bodies.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema, field_validator, model_validator

from genius.pictures import NAMES
from genius.search.params import WORDS_WEIGHT

TargetName = Literal["image", "text", "pair"]
AnyTarget = Literal["image", "text", "pair", "any"]
Mode = Literal["similarity", "words", "hybrid"]
HARD_MAX_K = 1000
MAX_WIDTH = 16_384  # of vectors

# Control characters in an id would make logs and URLs ambiguous; "." and ".." cannot stand in a URL at all.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

ItemId = Annotated[str, StringConstraints(min_length=1, max_length=512)]
_VALUES = [{"type": name} for name in ("boolean", "number", "string", "null")]
MetadataValue = Annotated[Any, WithJsonSchema({"anyOf": [*_VALUES, {"type": "array", "items": {"type": "string"}}]})]
"""What `genius.index.metadata.check_metadata` accepts; it is called by the routes."""


def check_id(value: str) -> str:
    """An id that can be stored, logged and addressed, or ValueError."""
    if not value or len(value) > 512:
        raise ValueError("an id has 1 to 512 characters")
    if _CONTROL.search(value):
        raise ValueError("an id must not contain control characters")
    if value in (".", ".."):
        raise ValueError("an id must not be '.' or '..'")
    return value


def _no_nul(value: str | None) -> str | None:
    if value is not None and "\x00" in value:
        raise ValueError("text must not contain NUL characters")
    return value


class Strict(BaseModel):
    """Requests: no unknown fields, no coercion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SearchBody(Strict):
    """A query: at least one of `text`, `image` and `like`, or a `vector`."""

    text: str | None = Field(None, max_length=8000, description="Query text.")
    image: str | None = Field(
        None,
        description=f"Query image as base64 ({NAMES}); a data: URL works. Never a link.",
        json_schema_extra={"contentEncoding": "base64"},
    )
    like: ItemId | None = Field(
        None, description="Id of an indexed item to use as the image (or, without one, the text) of this query."
    )
    vector: list[float] | None = Field(
        None,
        min_length=1,
        max_length=MAX_WIDTH,
        description="A vector of your own, compared by cosine, in place of text and image.",
    )
    instruction: str | None = Field(None, max_length=2000, description="What is wanted, in words.")
    target: AnyTarget | None = Field(
        None,
        description="image: anything with an image; text: anything with a text; pair: both; any. Default: images, or texts if "
        "the collection has no images; with an instruction, any.",
    )
    modality: TargetName | None = Field(None, description="Exactly this modality, in place of `target`.")
    k: int = Field(10, ge=1, le=HARD_MAX_K, description="Number of results.")
    where: str | None = Field(None, max_length=2000, description="SQL filter over metadata: `price < 50 AND colour = 'red'`.")
    min_score: float | None = Field(None, description="Drop results with a lower score.")
    beams: int | None = Field(None, ge=1, le=1000, description="Beam width; the model's default if absent.")
    rerank: int | None = Field(None, ge=0, le=100_000, description="Candidates to re-rank; the model's default if absent.")
    diverse: bool = Field(False, description="At most one result per code prefix.")
    mode: Mode = Field(
        "similarity",
        description="words: full-text search (BM25); hybrid: both, fused by reciprocal ranks. `/v1/info` has `words`.",
    )
    words_weight: float = Field(WORDS_WEIGHT, ge=0, le=1000, description="Weight of words in a hybrid search; similarity has 1.")
    item_bias: bool | None = Field(None, description="False: do not correct scores by what was learned from queries.")
    min_probability: float | None = Field(
        None, ge=0, le=1, description="No results where an answer exists with a lower probability. Needs a calibrated model."
    )
    minus: str | None = Field(None, max_length=8000, description="Text to steer away from.")
    minus_image: str | None = Field(
        None, description="Image to steer away from, as base64.", json_schema_extra={"contentEncoding": "base64"}
    )
    minus_like: ItemId | None = Field(None, description="Id of an indexed item to steer away from.")
    _texts = field_validator("text", "instruction", "where", "minus")(_no_nul)

    @model_validator(mode="after")
    def _has_query(self) -> SearchBody:
        content = bool((self.text or "").strip()) or self.image is not None or self.like is not None
        if not content and self.vector is None:
            raise ValueError("send a text, an image, 'like' with an item's id, or a vector")
        negative = self.minus is not None or self.minus_image is not None or self.minus_like is not None
        if self.mode == "hybrid":
            content = self.image is not None or self.like is not None  # a text besides a vector is looked for by words
        if self.vector is not None and (content or negative):
            raise ValueError("send either a vector, or a text and an image")
        if self.image is not None and self.like is not None:
            raise ValueError("send either an image or 'like', not both")
        if self.minus_image is not None and self.minus_like is not None:
            raise ValueError("send either 'minus_image' or 'minus_like', not both")
        return self


class SearchBatch(Strict):
    """Several queries, answered together."""

    queries: list[SearchBody] = Field(min_length=1)


class ItemBody(Strict):
    """The content of an item. At least one of `text`, `image` and `vector`."""

    text: str | None = Field(None, max_length=100_000)
    image: str | None = Field(None, description="Image as base64.", json_schema_extra={"contentEncoding": "base64"})
    vector: list[float] | None = Field(
        None, min_length=1, max_length=MAX_WIDTH, description="A vector of your own in place of the encoder's."
    )
    modality: TargetName | None = Field(None, description="Of an item that is only a vector; text if absent.")
    metadata: dict[str, MetadataValue] = Field(
        default_factory=dict, max_length=64, description="Flat fields for `where` and for display."
    )

    _texts = field_validator("text")(_no_nul)

    @model_validator(mode="after")
    def _has_content(self) -> ItemBody:
        if not (self.text or "").strip() and self.image is None and self.vector is None:
            raise ValueError("an item needs a text, an image or a vector")
        return self


class ItemIn(ItemBody):
    """An item with its id."""

    id: ItemId

    _id = field_validator("id")(check_id)


class ItemsRequest(Strict):
    """Items to add."""

    items: list[ItemIn] = Field(min_length=1)

    @field_validator("items")
    @classmethod
    def _distinct(cls, value: list[ItemIn]) -> list[ItemIn]:
        seen: set[str] = set()
        for item in value:
            if item.id in seen:
                raise ValueError(f"the id {item.id!r} appears twice")
            seen.add(item.id)
        return value


# -- responses -------------------------------------------------------------------------------------------------


class CodeStep(BaseModel):
    """One code of an ID, and how many items share the ID up to here."""

    code: int
    prefix: str = Field(description="The codes up to here, joined by '-': what `/v1/codes/{prefix}` takes.")
    count: int


class ListedItem(BaseModel):
    """An item of a listing. `image_url` and `thumbnail_url` are paths on this server, or null."""

    id: str
    modality: TargetName
    text: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    image_url: str | None = None
    thumbnail_url: str | None = None


class ItemOut(ListedItem):
    """An indexed item with its ID."""

    codes: list[int]


class ListResponse(BaseModel):
    """A page of items."""

    items: list[ListedItem]
    total: int = Field(description="Items that match `where`.")
    next_cursor: str | None = Field(None, description="What `cursor` gets the next page; null at the end.")


class ItemDetail(ItemOut):
    """An item with its ID as a path, coarse to fine."""

    path: list[CodeStep]


class HitOut(ItemOut):
    """A result: an item and its score; higher is better."""

    score: float
    probability: float | None = Field(None, description="That it is relevant; null if the model was not calibrated.")
    ranks: dict[str, int] | None = Field(
        None, description="Its rank by similarity and by words, in a search of mode words or hybrid."
    )


class SearchResult(BaseModel):
    """Results of one query, best first."""

    hits: list[HitOut]
    answerable: float | None = Field(
        None, description="Probability that the index holds a relevant item; null if the model was not calibrated."
    )
    doubtful: bool = Field(False, description="Whether there is probably no relevant item.")
    why: str | None = Field(None, description="If nothing was found: why, and what to do.")
    fusion: dict[str, float] | None = Field(None, description="Weights of the rankings that were fused; null: similarity alone.")


class SearchResponse(SearchResult):
    """Results of one query, and how they were made."""

    took_ms: float = Field(description="Milliseconds in the server, waiting included.")
    batch_size: int = Field(description="Queries that shared the pass through the model.")


class SearchBatchResponse(BaseModel):
    """Results of several queries, in their order."""

    results: list[SearchResult]
    took_ms: float = Field(description="Milliseconds in the server, waiting included.")


class ExplainResponse(BaseModel):
    """How the results of a query come about: `Explanation.to_dict()` of the Python package, with URLs of images."""

    answers: list[dict[str, Any]] = Field(
        description="Results: id, score, probability, codes, modality, text, metadata, thumbnail_url; log_p of each code; "
        "lost_at, the level from which it was not among the beams (null: it was to the end); item_bias."
    )
    summary: str = Field(description="In one line, the plan that ran.")
    plan: str | None = Field(description="The plan that found the hits: flat, scan or beam; null: there was nothing to search.")
    considered: int = Field(description="Items that it scored in any way.")
    traces: list[dict[str, Any]] = Field(
        description="One for each target modality that was searched: steps (levels) and the same codes as a tree. Of a code: "
        "prefix, log_p given its prefix (null: the query fixed it), total log_p, items below it, kept among the beams, its rank "
        "there, answer (a result is below it), words that its siblings lack, ids of examples."
    )
    answerable: float | None
    doubtful: bool
    thumbnails: dict[str, str] = Field(description="Thumbnail URLs of the examples, by id.")
    why: str | None = Field(None, description="If nothing was found: why, and what to do.")
    fitted: bool = Field(True, description="Whether codes and decoder were fitted; if not, there are no traces and no log_p.")


class AddResponse(BaseModel):
    added: int = Field(description="Items that are new.")
    unchanged: int = Field(description="Items that were there already.")
    count: int = Field(description="Items in the index now.")


class PutResponse(BaseModel):
    id: str
    created: bool
    count: int


class DeleteResponse(BaseModel):
    id: str
    count: int


class ChildCode(BaseModel):
    code: int
    prefix: str
    count: int
    examples: list[ItemOut] = Field(description="A few items below it.")


class CodesResponse(BaseModel):
    """Items below a prefix of codes."""

    prefix: str
    path: list[CodeStep]
    level: int = Field(description="How many codes the prefix has.")
    levels: int = Field(description="How many codes a full ID has.")
    count: int = Field(description="Items below the prefix.")
    children_total: int
    children: list[ChildCode] = Field(description="Next codes, the fullest first.")
    items: list[ItemOut]


class Limits(BaseModel):
    max_body_bytes: int
    max_image_bytes: int
    max_pixels: int
    max_k: int
    max_items: int
    max_queries: int


class InfoResponse(BaseModel):
    """What this server holds and accepts."""

    version: str
    items: int
    level_sizes: list[int]
    fields: dict[str, str] = Field(description="Metadata fields that `where` may name, with their types.")
    words: list[str] = Field(default_factory=list, description="Fields that modes words and hybrid search; empty: neither works.")
    default_target: TargetName | None = Field(
        None, description="What a search without a target looks for; null: nothing is here."
    )
    needs_key: bool = Field(description="Whether keys are configured.")
    scopes: list[Literal["read", "write"]] = Field(description="What your key may do.")
    key: str | None = Field(None, description="The name of your key.")
    advice: str | None = Field(None, description="A hint about this index, such as images unlike those its model was trained on.")
    limits: Limits


class CollectionOut(BaseModel):
    """One collection of this server."""

    name: str
    items: int
    default: bool = Field(description="Whether paths without a collection mean this one.")


class CollectionsResponse(BaseModel):
    collections: list[CollectionOut]


class Health(BaseModel):
    status: Literal["ok", "ready"]
