"""What one client may hold back from the others: bytes of bodies, places in the queue, memory for pictures."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image
from serve_fixtures import SlowIndex, encoded, keys_of
from starlette.testclient import TestClient

from genius import Item
from genius.index import Index
from genius.serve.app import create_app
from genius.serve.auth import Keys
from genius.serve.backend import Backend
from genius.serve.bodies import Arrivals, decode_image
from genius.serve.errors import ApiError
from genius.serve.settings import ServeConfig

CROWD, OTHER = "crowd-key-0123456789", "other-key-0123456789"


def test_one_client_holds_half_of_the_memory_for_bodies() -> None:
    arrivals = Arrivals(capacity=1000, free=100)
    for _ in range(2):
        arrivals.grow("crowd", 0, 340)  # 240 bytes count
    with pytest.raises(ApiError) as refused:
        arrivals.grow("crowd", 0, 340)
    assert refused.value.status == 503 and refused.value.retry_after
    arrivals.release("crowd", 340)
    arrivals.grow("other", 0, 600)  # the other half is for others
    with pytest.raises(ApiError):
        arrivals.grow("third", 0, 400)  # now all of it is taken
    for owner, size in (("crowd", 340), ("crowd", 340), ("other", 600), ("third", 400)):
        arrivals.release(owner, size)
    assert arrivals.held == 0


def test_a_body_grows_piece_by_piece() -> None:
    arrivals = Arrivals(capacity=1000, free=100)
    for size in range(50, 600, 50):
        arrivals.grow("one", size - 50, size)
    assert arrivals.held == 450
    with pytest.raises(ApiError):
        arrivals.grow("one", 550, 700)


def test_small_bodies_are_always_accepted() -> None:
    arrivals = Arrivals(capacity=1000, free=100)
    with pytest.raises(ApiError):
        arrivals.grow("crowd", 0, 1100)
    for _ in range(50):
        arrivals.grow("crowd", 0, 100)


def _calls(keys: Keys | None, index: SlowIndex, calls: Callable[[httpx.AsyncClient, Any], Any], **config: Any) -> Any:
    app = create_app(index, ServeConfig(**config), keys)  # type: ignore[arg-type]

    async def together() -> Any:
        transport = httpx.ASGITransport(app)
        life, client = app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://localhost")
        async with life, client:
            return await calls(client, app.state.service)

    return asyncio.run(asyncio.wait_for(together(), 60))


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.005)


def test_a_key_gets_its_place_in_a_queue_that_another_has_filled() -> None:
    index = SlowIndex()
    keys = keys_of(("read", CROWD), ("read", OTHER))

    async def calls(client: httpx.AsyncClient, service: Any) -> list[httpx.Response]:
        def ask(key: str, text: str) -> asyncio.Task[httpx.Response]:
            headers = {"Authorization": f"Bearer {key}"}
            return asyncio.create_task(client.post("/v1/search", json={"text": text, "k": 1}, headers=headers))

        first = ask(CROWD, "first")
        await until(index.entered.is_set)
        crowd = [ask(CROWD, f"crowd{n}") for n in range(6)]
        await until(lambda: service.batcher.depth == 6)
        other = ask(OTHER, "other")
        await until(lambda: any(task.done() for task in crowd))
        index.go.set()
        return [await first, await other, *[await task for task in crowd]]

    answers = _calls(keys, index, calls, queue_size=6, max_batch=1)
    statuses = [answer.status_code for answer in answers]
    assert statuses[:2] == [200, 200] and statuses[2:].count(503) == 1 and answers[-1].status_code == 503  # the newest
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert index.asked[1] == (1, None) and answers[1].json()["hits"][0]["id"] == "other-0"


def test_large_searches_do_not_hold_up_plain_ones() -> None:
    """Eight that cannot share a pass wait; a plain search that comes last is answered after the one that runs."""
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient, service: Any) -> None:
        async def ask(name: str, **more: Any) -> None:
            assert (await client.post("/v1/search", json={"text": name, "k": 1, **more})).status_code == 200

        tasks = [asyncio.create_task(ask("first", beams=900))]
        await until(index.entered.is_set)
        tasks += [asyncio.create_task(ask(f"large{n}", beams=100 + n)) for n in range(8)]
        await until(lambda: service.batcher.depth == 8)
        tasks.append(asyncio.create_task(ask("plain")))
        await until(lambda: service.batcher.depth == 9)
        index.go.set()
        await asyncio.gather(*tasks)

    _calls(None, index, calls)
    assert index.texts.index("plain") <= 2  # of ten


def test_pictures_wait_in_the_size_the_encoder_takes() -> None:
    picture = encoded(Image.new("RGB", (1500, 900)))
    index = SimpleNamespace(get=lambda ids, missing: [Item(ids[0], image=picture)], model=SimpleNamespace(encoder=None))
    without = Backend(index, query_side=200).like("a", None)[1]  # type: ignore[arg-type]
    assert isinstance(without, Image.Image) and without.size == (200, 120)
    index.model = SimpleNamespace(encoder=SimpleNamespace(prepare_image=lambda opened: opened.resize((7, 7))))
    shrunk = Backend(index).like("a", None)[1]  # type: ignore[arg-type]
    assert isinstance(shrunk, Image.Image) and shrunk.size == (7, 7)
    assert decode_image(picture, ServeConfig(), Backend(index).shrink).size == (7, 7)  # type: ignore[arg-type]


def test_the_thumbnail_stands_for_a_picture_too_large_for_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.pictures.MAX_PIXELS", 1_000_000)
    picture = encoded(Image.new("RGB", (1500, 900)))
    thumbnail = encoded(Image.new("RGB", (250, 150)))
    index = SimpleNamespace(
        get=lambda ids, missing: [Item(ids[0], image=picture)],
        model=SimpleNamespace(encoder=None),
        thumbnail=lambda _: thumbnail,
    )
    found = Backend(index, query_side=300).like("a", None)[1]  # type: ignore[arg-type]
    assert isinstance(found, Image.Image) and found.size == (250, 150)


@pytest.mark.skipif(not hasattr(psutil, "LINUX") or not psutil.LINUX, reason="looks at resident memory")
def test_large_pictures_take_little_memory(start_server: Callable[..., Any]) -> None:
    """Eight pictures of 9 megapixels in one POST, then eight `like` requests at once: 36 MB each and as much for every copy."""
    server = start_server(items=3)
    process = psutil.Process(server.process.pid)
    large = base64.b64encode(encoded(Image.new("RGB", (3000, 3000), (9, 90, 200)))).decode()
    small = base64.b64encode(encoded(Image.new("RGB", (40, 30)))).decode()

    def most(work: Callable[[], None]) -> int:
        """The most resident memory while `work` goes on; every call counts from nothing."""
        peak, stop = [0], threading.Event()

        def watch() -> None:
            while not stop.wait(0.005):
                peak[0] = max(peak[0], process.memory_info().rss)

        watcher = threading.Thread(target=watch)
        watcher.start()
        work()
        stop.set()
        watcher.join()
        return peak[0]

    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client:

        def post(name: str, picture: str) -> None:
            items = [{"id": f"{name}{n}", "image": picture} for n in range(8)]
            client.post("/v1/items", json={"items": items}).raise_for_status()

        def like(name: str) -> None:
            threads = [
                threading.Thread(target=lambda: client.post("/v1/search", json={"like": name}).raise_for_status())
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        post("small", small)
        like("small3")
        before = process.memory_info().rss
        posted = most(lambda: post("large", large)) - before
        liked = most(lambda: like("large3")) - before
    assert posted < 400e6 and liked < 250e6, (posted, liked)


@pytest.mark.parametrize(("kind", "side", "status"), [("WEBP", 4000, 413), ("AVIF", 4096, 413), ("WEBP", 600, 200)])
def test_images_that_decode_to_more_than_the_budget_are_refused_by_their_header(
    kind: str, side: int, status: int, make_web: Callable[..., TestClient], make_index: Callable[..., Index]
) -> None:
    """WebP and AVIF decoders hold an image several times: 16 megapixels take more than 256 MB."""
    data = encoded(Image.new("RGB", (side, side)), kind)
    web = make_web(make_index(3))
    found = web.post("/v1/search", files={"image": ("a", data)})
    assert found.status_code == status, found.text
    assert web.post("/v1/items", data={"id": "large"}, files={"image": ("a", data)}).status_code == status
    if status == 413:
        assert "MB to decode" in found.json()["error"]["message"]


def test_explanations_wait_in_the_queue_of_searches() -> None:
    """A plain search that comes after eight explanations is answered after the one that runs."""
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient, service: Any) -> None:
        backend = service.backend

        def explain(job: Any) -> dict[str, Any]:
            index.search_each([job.query], [job.request])
            about = {"summary": "", "plan": "flat", "considered": 0, "traces": []}
            return {**about, "answers": [], "answerable": None, "doubtful": False, "thumbnails": {}}

        backend.explain = explain

        async def ask(name: str, path: str) -> None:
            found = await client.post(path, json={"text": name, "k": 1})
            assert found.status_code == 200, found.text

        tasks = [asyncio.create_task(ask("first", "/v1/explain"))]
        await until(index.entered.is_set)
        tasks += [asyncio.create_task(ask(f"why{n}", "/v1/explain")) for n in range(8)]
        await until(lambda: service.batcher.depth == 8)
        tasks.append(asyncio.create_task(ask("plain", "/v1/search")))
        await until(lambda: service.batcher.depth == 9)
        index.go.set()
        await asyncio.gather(*tasks)
        refused = await client.post("/v1/explain", json={"text": "x", "beams": 101})
        assert refused.status_code == 422 and "at most 100" in refused.json()["error"]["message"]

    _calls(None, index, calls)
    assert index.texts.index("plain") <= 1
