"""A typed client: `GeniusClient("http://127.0.0.1:8000", api_key="...")`. Responses are the server's own models.

Repeats what is safe to repeat: after 503 with its Retry-After, and connections that were never made. Any other response that
is not a success raises `ServerError`, a `GeniusError` with the server's one line, its status and request id.

In an `async` program: `await asyncio.to_thread(client.search, "a red bicycle")`.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx
from PIL import Image
from pydantic import BaseModel, ValidationError

from genius.errors import GeniusError
from genius.serve.schemas import (
    AddResponse,
    AnyTarget,
    CodesResponse,
    DeleteResponse,
    ExplainResponse,
    InfoResponse,
    ItemDetail,
    ListedItem,
    ListResponse,
    Mode,
    PutResponse,
    SearchBatchResponse,
    SearchResponse,
    SearchResult,
    TargetName,
)
from genius.types import ContentInput, ImageInput, Item, coerce_content

BATCH_QUERIES = 100  # queries of one request
M = TypeVar("M", bound=BaseModel)


class ServerError(GeniusError):
    """A response that is not a success. `status` is 0 if there was no response."""

    def __init__(self, message: str, status: int = 0, request_id: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id
        self.retry_after: float | None = None


class GeniusClient:
    """A client of `genius serve`. Keeps connections open: close it, or use it in a `with`. Safe to share between threads."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        certificate: str | Path | None = None,
        transport: httpx.BaseTransport | None = None,
        collection: str | None = None,
    ) -> None:
        """Connect to a server.

        Args:
            url: Address of the server.
            api_key: If the server needs one.
            timeout_s: Seconds a response may take.
            retries: How often a request is repeated when the server is overloaded.
            certificate: A PEM file to trust, for a server with a self-signed certificate.
            transport: How requests travel (httpx), for tests and proxies.
            collection: Name of a collection, for a server with several; by default its first.
        """
        headers = {}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        trusted: ssl.SSLContext | bool = True
        if certificate is not None:
            trusted = ssl.create_default_context(cafile=certificate)
        self._base = "/v1"
        if collection is not None:
            self._base = f"/v1/collections/{quote(collection, safe='')}"
        self.retries = retries
        self._http = httpx.Client(
            base_url=url.rstrip("/"), headers=headers, timeout=timeout_s, verify=trusted, transport=transport
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> GeniusClient:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- search ------------------------------------------------------------------------------------------------

    def search(
        self,
        text: str | None = None,
        image: ImageInput | None = None,
        *,
        like: str | None = None,
        instruction: str | None = None,
        target: AnyTarget | None = None,
        modality: TargetName | None = None,
        k: int = 10,
        where: str | None = None,
        min_score: float | None = None,
        beams: int | None = None,
        rerank: int | None = None,
        diverse: bool = False,
        minus: ContentInput | None = None,
        minus_like: str | None = None,
        vector: Sequence[float] | None = None,
        mode: Mode | None = None,
        words_weight: float | None = None,
        item_bias: bool | None = None,
        min_probability: float | None = None,
    ) -> SearchResponse:
        """Search with text, an image, or both, or like an indexed item, or with a vector of your own.

        Args:
            text: Query text.
            image: Query image: path, bytes or `PIL.Image`.
            like: Id of an indexed item to use as the query's image (or text).
            instruction: What is wanted, in words.
            target: Modality to return: image (anything with an image), text (anything with a text), pair or any. Default: images,
                or texts if the collection has no images.
            modality: Exactly this modality, in place of `target`.
            k: Number of hits.
            where: SQL filter over metadata.
            min_score: Drop hits with a lower score.
            beams: Beam width; the model's default if None.
            rerank: Candidates to re-rank; the model's default if None.
            diverse: Return at most one hit per code prefix.
            minus: Text or image to steer away from.
            minus_like: Id of an indexed item to steer away from.
            vector: Of your own, in place of text and image.
            mode: similarity, words (full text) or hybrid (both).
            words_weight: Of words in a hybrid search; similarity has 1.
            item_bias: False: without what the index learned from queries.
            min_probability: No hits if the probability that the collection holds a match is lower.

        Returns:
            Hits, best first.

        Raises:
            ServerError: The server's one line, with its status.
        """
        body = _query_body(
            image,
            minus,
            text=text,
            like=like,
            instruction=instruction,
            target=target,
            modality=modality,
            k=k,
            where=where,
            min_score=min_score,
            beams=beams,
            rerank=rerank,
            diverse=diverse or None,
            minus_like=minus_like,
            vector=vector,
            mode=mode,
            words_weight=words_weight,
            item_bias=item_bias,
            min_probability=min_probability,
        )
        return self._call(SearchResponse, "POST", f"{self._base}/search", body)

    def search_many(self, queries: Sequence[str | Mapping[str, Any]], **options: Any) -> list[SearchResult]:
        """Search with many queries, up to 100 per request.

        Args:
            queries: Each a text, or the arguments of `search` by name (`image` as path, bytes or `PIL.Image`).
            options: Arguments of `search` for all queries, such as `k` and `where`.

        Returns:
            One result per query, in their order.
        """
        bodies = []
        for query in queries:
            if isinstance(query, str):
                query = {"text": query}
            bodies.append(_query_body(**{**options, **query}))
        results: list[SearchResult] = []
        for start in range(0, len(bodies), BATCH_QUERIES):
            part = {"queries": bodies[start : start + BATCH_QUERIES]}
            results += self._call(SearchBatchResponse, "POST", f"{self._base}/search/batch", part).results
        return results

    def explain(self, text: str | None = None, image: ImageInput | None = None, *, k: int = 3, **options: Any) -> ExplainResponse:
        """How the results of a query come about: the codes generated, their log-probabilities, and what is below them.

        Args:
            text: Query text.
            image: Query image.
            k: Number of hits that are explained, at most ten.
            options: More arguments of `search`, such as `like`, `target`, `where` and `minus`.
        """
        body = _query_body(image, text=text, k=k, **options)
        return self._call(ExplainResponse, "POST", f"{self._base}/explain", body)

    # -- items -------------------------------------------------------------------------------------------------

    def add(self, items: Iterable[Item], *, batch_size: int = 50) -> AddResponse:
        """Add items. Existing ids stay as they are. Images are uploaded.

        Args:
            items: With `text`, `image` or both, or vectors of your own.
            batch_size: Items per request.

        Returns:
            How many were new, how many were there, and how many the index holds now.
        """
        total = AddResponse(added=0, unchanged=0, count=0)
        batch: list[dict[str, Any]] = []
        for item in items:
            batch.append({"id": item.id, **_body(item)})
            if len(batch) == batch_size:
                total = self._add(total, batch)
                batch = []
        if batch:
            total = self._add(total, batch)
        return total

    def items(
        self,
        where: str | None = None,
        *,
        order_by: str | None = None,
        descending: bool = False,
        page_size: int = 100,
    ) -> Iterator[ListedItem]:
        """All items, page by page.

        Args:
            where: SQL filter over metadata.
            order_by: Metadata field; by default items are ordered by id.
            descending: Largest values first.
            page_size: Items per request.

        Yields:
            Items in order; those without the field last.
        """
        given = {"limit": page_size, "where": where, "order_by": order_by, "descending": descending or None}
        parameters = {name: str(value) for name, value in given.items() if value is not None}
        while True:
            page = self._call(ListResponse, "GET", f"{self._base}/items?{urlencode(parameters)}")
            yield from page.items
            if page.next_cursor is None:
                return
            parameters["cursor"] = page.next_cursor

    def _add(self, total: AddResponse, batch: Sequence[Mapping[str, Any]]) -> AddResponse:
        done = self._call(AddResponse, "POST", f"{self._base}/items", {"items": batch})
        return AddResponse(added=total.added + done.added, unchanged=total.unchanged + done.unchanged, count=done.count)

    def put(self, item: Item) -> PutResponse:
        """Add an item, or replace the one with its id.

        Args:
            item: The item.
        """
        return self._call(PutResponse, "PUT", self._path("items", item.id), _body(item))

    def delete(self, item_id: str) -> DeleteResponse:
        """Delete an item.

        Args:
            item_id: Its id.
        """
        return self._call(DeleteResponse, "DELETE", self._path("items", item_id))

    def get(self, item_id: str) -> ItemDetail:
        """An item, its codes, and how many items share each prefix of its ID.

        Args:
            item_id: Its id.
        """
        return self._call(ItemDetail, "GET", self._path("items", item_id))

    def image(self, item_id: str) -> bytes:
        """The image of an item, as the bytes of a file.

        Args:
            item_id: Its id.
        """
        return self._send("GET", self._path("images", item_id)).content

    def thumbnail(self, item_id: str) -> bytes:
        """A small JPEG of the image of an item.

        Args:
            item_id: Its id.
        """
        return self._send("GET", self._path("thumbnails", item_id)).content

    # -- overview ----------------------------------------------------------------------------------------------

    def codes(self, prefix: Sequence[int] | str = ()) -> CodesResponse:
        """Items below a prefix of codes.

        Args:
            prefix: Codes, from the first; without one: the first codes.
        """
        if not isinstance(prefix, str):
            prefix = "-".join(str(int(code)) for code in prefix)
        return self._call(CodesResponse, "GET", self._path("codes", prefix))

    def info(self) -> InfoResponse:
        """What the server holds and accepts."""
        return self._call(InfoResponse, "GET", f"{self._base}/info")

    def ready(self) -> bool:
        """True if the server is ready."""
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def _path(self, route: str, item_id: str) -> str:
        return f"{self._base}/{route}/{quote(item_id, safe='')}"

    # -- transport ---------------------------------------------------------------------------------------------

    def _call(self, model: type[M], method: str, path: str, body: Any = None) -> M:
        answer = self._send(method, path, body)
        try:
            return model.model_validate_json(answer.content)
        except ValidationError:
            raise ServerError(f"{self._http.base_url} does not answer like a GENIUS server", answer.status_code) from None

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        attempt = 0
        while True:
            try:
                answer = self._http.request(method, path, json=body)
            except httpx.ConnectError as error:
                problem = ServerError(f"cannot connect to {self._http.base_url}: {error}")
            except httpx.HTTPError as error:
                raise ServerError(f"{method} {path}: {error or type(error).__name__}") from None
            else:
                if answer.is_success:
                    return answer
                problem = _problem(answer)
                if problem.status != 503:
                    raise problem
            if attempt >= self.retries:
                raise problem
            time.sleep(min(10.0, problem.retry_after or 0.2 * 2**attempt))
            attempt += 1


def _problem(answer: httpx.Response) -> ServerError:
    try:
        error = answer.json()["error"]
        problem = ServerError(str(error["message"]), answer.status_code, str(error["request_id"]))
    except (ValueError, KeyError, TypeError):  # a proxy in between
        problem = ServerError(f"the server answered {answer.status_code}", answer.status_code)
    after = answer.headers.get("retry-after", "")
    if after.isdigit():
        problem.retry_after = float(after)
    return problem


def _body(item: Item) -> dict[str, Any]:
    body: dict[str, Any] = {"metadata": dict(item.metadata)}
    if item.text is not None:
        body["text"] = item.text
    if item.image is not None:
        body["image"] = _base64(item.image)
    if isinstance(item.vector, Mapping):
        raise GeniusError(f"item {item.id!r}: two vectors of one item cannot be sent over HTTP, send their unit sum")
    if item.vector is not None:
        body["vector"] = [float(value) for value in item.vector]
        body["modality"] = item.modality.label
    return body


def _query_body(image: ImageInput | None = None, minus: ContentInput | None = None, **fields: Any) -> dict[str, Any]:
    """A query as JSON: what was not given is not sent."""
    if image is not None:
        fields["image"] = _base64(image)
    if minus is not None:
        negative = coerce_content(minus)
        fields["minus"] = negative["text"]
        if negative["image"] is not None:
            fields["minus_image"] = _base64(negative["image"])
    return {name: value for name, value in fields.items() if value is not None}


def _base64(image: ImageInput) -> str:
    """The image's own bytes if there are some; PNG of an opened one."""
    if isinstance(image, Image.Image):
        buffer = BytesIO()
        image.save(buffer, "PNG")
        image = buffer.getvalue()
    elif isinstance(image, str | Path):
        path = Path(image)
        try:
            image = path.read_bytes()
        except OSError as error:
            raise GeniusError(f"cannot read {path}: {error.strerror or error}") from None
    return base64.b64encode(image).decode()
