"""Under pressure: 503 with Retry-After, 504 when it takes too long, never a wrong or lost answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from serve_fixtures import SlowIndex, draw, encoded
from starlette.testclient import TestClient

from genius.errors import GeniusError
from genius.serve.app import create_app
from genius.serve.auth import Caller
from genius.serve.settings import ServeConfig
from genius.types import Item


async def _together(app: Any, calls: Callable[[httpx.AsyncClient], Any]) -> Any:
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await calls(client)


def run(index: SlowIndex, calls: Callable[[httpx.AsyncClient], Any], **config: Any) -> Any:
    app = create_app(index, ServeConfig(**config))  # type: ignore[arg-type]
    return asyncio.run(asyncio.wait_for(_together(app, calls), 120))


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.005)


def test_a_full_queue_answers_503_and_the_rest_correctly() -> None:
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient) -> list[httpx.Response]:
        async def one(i: int) -> httpx.Response:
            return await client.post("/v1/search", json={"text": f"q{i}", "k": 1 + i % 3})

        first = asyncio.create_task(one(0))
        await until(index.entered.is_set)
        tasks = [asyncio.create_task(one(i)) for i in range(1, 30)]
        await until(lambda: sum(task.done() for task in tasks) >= 24)  # refused at once, while the worker is busy
        index.go.set()
        return [await first, *[await task for task in tasks]]

    answers = run(index, calls, queue_size=5, max_batch=4)
    assert [answer.status_code for answer in answers].count(503) == 24
    for i, answer in enumerate(answers):
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1 and answer.json()["error"]["code"] == "unavailable"
        else:
            assert [hit["id"] for hit in answer.json()["hits"]] == [f"q{i}-{n}" for n in range(1 + i % 3)]


def test_requests_with_different_filters_share_a_pass() -> None:
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.create_task(client.post("/v1/search", json={"text": "first"}))
        await until(index.entered.is_set)
        wheres = ["a = 1", "b = 2", "a = 1", None, "a = 1"]
        bodies = [{"text": f"q{i}", **({"where": where} if where else {})} for i, where in enumerate(wheres)]
        tasks = [asyncio.create_task(client.post("/v1/search", json=body)) for body in bodies]
        service = client._transport.app.state.service  # type: ignore[attr-defined]
        await until(lambda: service.batcher.depth == 5)
        index.go.set()
        return [await first, *[await task for task in tasks]]

    answers = run(index, calls)
    assert all(answer.status_code == 200 for answer in answers)
    assert sorted(index.asked[1:], key=str) == sorted([(3, "a = 1"), (1, "b = 2"), (1, None)], key=str)
    assert answers[1].json()["hits"][0]["id"] == "q0-0"
    assert answers[1].json()["batch_size"] == 4  # the unfiltered has a lane of its own


def test_the_guilty_query_fails_alone() -> None:
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.create_task(client.post("/v1/search", json={"text": "first"}))
        await until(index.entered.is_set)
        bodies = [{"text": "fine"}, {"text": "crash"}, {"text": "x", "where": "bad"}, {"text": "also fine"}]
        tasks = [asyncio.create_task(client.post("/v1/search", json=body)) for body in bodies]
        service = client._transport.app.state.service  # type: ignore[attr-defined]
        await until(lambda: service.batcher.depth == 4)
        index.go.set()
        return [await first, *[await task for task in tasks]]

    answers = run(index, calls)
    assert [answer.status_code for answer in answers] == [200, 200, 500, 422, 200]
    assert answers[3].json()["error"]["message"] == "where: unknown column 'bad'"
    assert "a bug" not in answers[2].text  # what went wrong inside stays inside


def test_slow_is_504_queued_too_long_is_503_and_readyz_notices() -> None:
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient) -> list[Any]:
        entered = asyncio.create_task(until(index.entered.is_set))
        while not index.entered.is_set():  # a busy machine may give a search up before it runs
            first = asyncio.create_task(client.post("/v1/search", json={"text": "a"}))
            await asyncio.wait({first, entered}, return_when=asyncio.FIRST_COMPLETED)
        second = await client.post("/v1/search", json={"text": "b"})
        await until(lambda: client._transport.app.state.service.ready() is not None)  # type: ignore[attr-defined]
        ready = await client.get("/readyz")
        index.go.set()
        await until(lambda: client._transport.app.state.service.ready() is None)  # type: ignore[attr-defined]
        client._transport.app.state.service.config = ServeConfig()  # type: ignore[attr-defined]  # a limit for no busy machine
        return [await first, second, ready, await client.post("/v1/search", json={"text": "c"})]

    first, second, ready, after = run(index, calls, timeout_s=0.3)
    assert first.status_code == second.status_code == 504 and "no answer within 0.3 s" in first.json()["error"]["message"]
    assert ready.status_code == 503 and "has not answered" in ready.json()["error"]["message"]
    assert after.status_code == 200
    assert index.asked == [(1, None), (1, None)]  # "b" was given up: never run


def test_writes_wait_in_a_short_line() -> None:
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient) -> list[httpx.Response]:
        tasks = [asyncio.create_task(client.put(f"/v1/items/{i}", json={"text": "t"})) for i in range(6)]
        await until(lambda: sum(task.done() for task in tasks) == 3)
        index.go.set()
        return [await task for task in tasks]

    statuses = [answer.status_code for answer in run(index, calls, max_writes=3)]
    assert sorted(statuses) == [201, 201, 201, 503, 503, 503] and len(index.wrote) == 3


def test_shutting_down_finishes_the_queue() -> None:
    index = SlowIndex()

    async def calls(client: httpx.AsyncClient) -> list[httpx.Response]:
        service = client._transport.app.state.service  # type: ignore[attr-defined]
        tasks = [asyncio.create_task(client.post("/v1/search", json={"text": f"q{i}"})) for i in range(9)]
        await until(lambda: index.entered.is_set() and service.batcher.depth >= 1)
        await until(lambda: service.batcher.depth + index.asked[0][0] == 9)
        closing = asyncio.create_task(asyncio.to_thread(service.close))
        await until(lambda: service.draining)
        refused = [await client.post("/v1/search", json={"text": "late"}), await client.get("/readyz")]
        index.go.set()
        assert await closing is True
        return [*[await task for task in tasks], *refused]

    answers = run(index, calls, max_batch=2)
    assert [answer.status_code for answer in answers] == [200] * 9 + [503, 503]


def test_too_many_bytes_at_once_are_refused() -> None:
    index = SlowIndex()
    picture = encoded(draw("circle", "red"))

    async def calls(client: httpx.AsyncClient) -> list[httpx.Response]:
        def post() -> Any:
            return asyncio.create_task(client.post("/v1/search", files={"image": ("a.png", picture)}))

        first = post()
        await until(index.entered.is_set)
        second = post()
        await until(second.done)
        index.go.set()
        return [await first, await second]

    first, second = run(index, calls, max_inflight_bytes=2 * (len(picture) + 300), small_body_bytes=0)
    assert first.status_code == 200
    assert second.status_code == 503 and "large" in second.json()["error"]["message"]


def test_a_full_disk_is_507(make_web: Callable[..., TestClient]) -> None:
    answer = make_web(SlowIndex()).delete("/v1/items/x")
    assert answer.status_code == 507 and "disk is full" in answer.json()["error"]["message"]


def test_trouble_with_the_database_is_not_the_callers_fault(make_web: Callable[..., TestClient]) -> None:
    answer = make_web(SlowIndex()).get("/v1/items/x")
    assert answer.status_code == 503 and "secret" not in answer.text and answer.headers["retry-after"]


def test_a_hung_write_does_not_block_the_shutdown() -> None:
    index = SlowIndex()
    service = create_app(index, ServeConfig(drain_s=0.2)).state.service  # type: ignore[arg-type]
    caller = Caller(None, ("read", "write"), "127.0.0.1")

    async def write() -> None:
        task = asyncio.create_task(service.write("put", lambda: index.upsert([Item("a", text="t")]), caller))
        await until(index.entered.is_set)
        assert await asyncio.to_thread(service.close) is False
        index.go.set()
        await task

    asyncio.run(asyncio.wait_for(write(), 120))
    assert service.drained is False


def test_read_only_refuses_changes(make_web: Callable[..., TestClient]) -> None:
    web = make_web(SlowIndex(), read_only=True)
    for answer in (web.put("/v1/items/x", json={"text": "t"}), web.delete("/v1/items/x")):
        assert answer.status_code == 403 and "read-only" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "bad",
    [
        {"port": 70000},
        {"log_level": "loud"},
        {"max_batch": 0},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"drain_s": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(GeniusError):
        ServeConfig(**bad)
