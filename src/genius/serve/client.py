"""A typed client: `GeniusClient("http://127.0.0.1:8000", api_key="...")`. Answers are the server's own models.

Retries what is safe to retry: 503 with its Retry-After, and connections that were never made. Any other answer that
is not a success raises `ServerError`, a `GeniusError` with the server's one line, its status and request id.

`AsyncGeniusClient` is the client for `async` programs: each call runs in a thread, so that others go on meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import httpx
from PIL import Image
from pydantic import BaseModel, ValidationError

from genius.errors import GeniusError
from genius.serve.schemas import (
    AddResponse,
    CodesResponse,
    DeleteResponse,
    ExplainResponse,
    InfoResponse,
    ItemDetail,
    PutResponse,
    SearchResponse,
    Target,
)
from genius.types import ContentInput, ImageInput, Item, coerce_content

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
R = TypeVar("R")


class ServerError(GeniusError):
    """An answer that is not a success. `status` is 0 when there was no answer at all."""

    def __init__(self, message: str, status: int = 0, request_id: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after


class GeniusClient:
    """Talks to a `genius serve`. Keeps connections open; close it, or use it in a `with`. Safe to share between threads."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        certificate: str | Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`url`: where the server is; `api_key`: if it asks for one; `timeout_s`: seconds an answer may take; `retries`: how
        often a busy server is asked again; `certificate`: a PEM file to trust, for a server with a certificate of your own
        making; `transport`: how requests travel (httpx), for tests and proxies."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.retries = retries
        trusted = ssl.create_default_context(cafile=certificate) if certificate is not None else True
        self._http = httpx.Client(
            base_url=url.rstrip("/"), headers=headers, timeout=timeout_s, verify=trusted, transport=transport
        )

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def __enter__(self) -> GeniusClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- search ------------------------------------------------------------------------------------------------

    def search(
        self,
        text: str | None = None,
        image: ImageInput | None = None,
        *,
        like: str | None = None,
        instruction: str | None = None,
        target: Target | None = None,
        modality: Target | None = None,
        k: int = 10,
        where: str | None = None,
        min_score: float | None = None,
        beams: int | None = None,
        rerank: int | None = None,
        diverse: bool = False,
        minus: ContentInput | None = None,
        minus_like: str | None = None,
    ) -> SearchResponse:
        """Find items with words, a picture (path, bytes or PIL), or both; or like an indexed item, by its id.

        `target`: image (anything with a picture), text (anything with words) or pair; `modality`: exactly that kind. `k` answers
        that match `where` and score at least `min_score`; `beams` and `rerank` trade speed for recall. `instruction`: what is
        wanted, in words. `diverse`: answers that differ. `minus`: what they should not be like, as words or a picture;
        `minus_like`: an indexed item that they should not be like.
        """
        question = {"text": text, "like": like, "instruction": instruction, "target": target, "modality": modality}
        wanted = {"k": k, "where": where, "min_score": min_score, "beams": beams, "rerank": rerank, "diverse": diverse or None}
        return self._call(SearchResponse, "POST", "/v1/search", _question(image, minus, minus_like, **question, **wanted))

    def explain(
        self,
        text: str | None = None,
        image: ImageInput | None = None,
        *,
        like: str | None = None,
        instruction: str | None = None,
        target: Target | None = None,
        modality: Target | None = None,
        k: int = 3,
        where: str | None = None,
        minus: ContentInput | None = None,
        minus_like: str | None = None,
    ) -> ExplainResponse:
        """How the answers to a question come about: which codes were written, how likely each was, what lives below it.

        A question as `search` takes it: `text`, `image`, `like`, `instruction`, `target`, `modality`, `k`, `where`, `minus`,
        `minus_like`.
        """
        question = {"text": text, "like": like, "instruction": instruction, "target": target, "modality": modality}
        fields = _question(image, minus, minus_like, **question, k=k, where=where)
        return self._call(ExplainResponse, "POST", "/v1/explain", fields)

    # -- items -------------------------------------------------------------------------------------------------

    def add(self, items: Iterable[Item], *, batch_size: int = 50) -> AddResponse:
        """Add items, `batch_size` a request; ids that are there already stay as they are. Pictures are uploaded."""
        total = AddResponse(added=0, unchanged=0, count=0)
        batch: list[dict[str, Any]] = []
        for item in items:
            batch.append({"id": item.id, **_body(item)})
            if len(batch) == batch_size:
                total, batch = self._add(total, batch), []
        return self._add(total, batch) if batch else total

    def _add(self, total: AddResponse, batch: Sequence[Mapping[str, Any]]) -> AddResponse:
        done = self._call(AddResponse, "POST", "/v1/items", {"items": batch})
        return AddResponse(added=total.added + done.added, unchanged=total.unchanged + done.unchanged, count=done.count)

    def put(self, item: Item) -> PutResponse:
        """Add an item, or replace the one with its id."""
        return self._call(PutResponse, "PUT", _path("items", item.id), _body(item))

    def delete(self, item_id: str) -> DeleteResponse:
        """Take the item `item_id` out of the index."""
        return self._call(DeleteResponse, "DELETE", _path("items", item_id))

    def get(self, item_id: str) -> ItemDetail:
        """The item `item_id`, its codes, and how many items share each step of its ID."""
        return self._call(ItemDetail, "GET", _path("items", item_id))

    def image(self, item_id: str) -> bytes:
        """The picture of the item `item_id`, as a file."""
        return self._send("GET", _path("images", item_id)).content

    def thumbnail(self, item_id: str) -> bytes:
        """A small JPEG of the picture of the item `item_id`."""
        return self._send("GET", _path("thumbnails", item_id)).content

    # -- the rest ----------------------------------------------------------------------------------------------

    def codes(self, prefix: Sequence[int] | str = ()) -> CodesResponse:
        """What lives under a prefix of codes; the first codes without one."""
        text = prefix if isinstance(prefix, str) else "-".join(str(int(code)) for code in prefix)
        return self._call(CodesResponse, "GET", f"/v1/codes/{quote(text, safe='')}" if text else "/v1/codes")

    def info(self) -> InfoResponse:
        """What the server holds and takes."""
        return self._call(InfoResponse, "GET", "/v1/info")

    def ready(self) -> bool:
        """True if the server can answer now."""
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Return once the server can answer; an error after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if time.monotonic() > deadline:
                raise ServerError(f"{self._http.base_url} is not ready after {timeout_s:g} s")
            time.sleep(0.1)

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
                answer = self._http.request(method, path, json=body) if body is not None else self._http.request(method, path)
            except httpx.ConnectError as error:
                problem = ServerError(f"cannot reach {self._http.base_url}: {error}")
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
        message, request_id = str(error["message"]), str(error["request_id"])
    except (ValueError, KeyError, TypeError):  # a proxy in between
        message, request_id = f"the server answered {answer.status_code}", ""
    after = answer.headers.get("retry-after", "")
    return ServerError(message, answer.status_code, request_id, float(after) if after.isdigit() else None)


def _path(kind: str, item_id: str) -> str:
    return f"/v1/{kind}/{quote(item_id, safe='')}"


def _body(item: Item) -> dict[str, Any]:
    body: dict[str, Any] = {"metadata": dict(item.metadata)}
    if item.text is not None:
        body["text"] = item.text
    if item.image is not None:
        body["image"] = _base64(item.image)
    return body


def _question(image: ImageInput | None, minus: ContentInput | None, minus_like: str | None, **fields: Any) -> dict[str, Any]:
    """A question as JSON: what was not said is not sent."""
    unwanted = {"text": None, "image": None} if minus is None else coerce_content(minus)
    pictures = {"image": image, "minus_image": unwanted["image"]}
    sent = {name: _base64(picture) for name, picture in pictures.items() if picture is not None}
    said = {**fields, "minus": unwanted["text"], "minus_like": minus_like}
    return {name: value for name, value in said.items() if value is not None} | sent


def _base64(image: ImageInput) -> str:
    """The picture's own bytes where there are some; PNG of an opened one."""
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


def _later(
    method: Callable[Concatenate[GeniusClient, P], R],
) -> Callable[Concatenate[AsyncGeniusClient, P], Coroutine[Any, Any, R]]:
    @functools.wraps(method)
    async def call(self: AsyncGeniusClient, /, *args: P.args, **options: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.client, *args, **options)

    return call


class AsyncGeniusClient:
    """The same methods as `GeniusClient`, to be awaited: `hits = (await client.search("a red bicycle")).hits`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """As `GeniusClient`."""
        self.client = GeniusClient(*args, **options)

    async def __aenter__(self) -> AsyncGeniusClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    search = _later(GeniusClient.search)
    explain = _later(GeniusClient.explain)
    add = _later(GeniusClient.add)
    put = _later(GeniusClient.put)
    get = _later(GeniusClient.get)
    delete = _later(GeniusClient.delete)
    image = _later(GeniusClient.image)
    thumbnail = _later(GeniusClient.thumbnail)
    codes = _later(GeniusClient.codes)
    info = _later(GeniusClient.info)
    ready = _later(GeniusClient.ready)
    wait_until_ready = _later(GeniusClient.wait_until_ready)
    close = _later(GeniusClient.close)
