"""Replicas and their front, without a cluster: whole answers, another replica for one that died, 503 when all are full."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra: pip install 'genius-search[ray]'")

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from starlette.requests import Request
from starlette.responses import Response

from genius import Index, Item
from genius.errors import GeniusError
from genius.scale.serving import TRIES, Front, Replica, ReplicaConfig, deploy
from genius.serve.settings import ServeConfig

HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]


@pytest.fixture(scope="module")
def replica(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Replica:
    path = tmp_path_factory.mktemp("replica") / "r.genius"
    Index(path, model_folder).add([Item(f"i{n}", text=f"a thing of number {n}") for n in range(20)])
    return Replica(path, ServeConfig(read_only=True), None, {}, "cpu")


class Handle:
    """Stands for Ray's handle of the replicas: fails as told, then answers with a real one."""

    def __init__(self, replica: Replica, failures: list[Exception]) -> None:
        self.replica, self.failures, self.asked = replica, failures, 0
        self.answer = self

    async def remote(self, scope: Any, body: bytes) -> Any:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return await self.replica.answer(scope, body)


def ask(front: Front, method: str = "POST", path: str = "/v1/search", body: bytes = b'{"text": "a thing", "k": 3}') -> Response:
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": HEADERS,
        "http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http",
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return asyncio.run(front(Request(scope, receive)))  # type: ignore[arg-type]


def test_a_request_that_a_replica_dies_over_is_answered_by_the_next(replica: Replica) -> None:
    handle = Handle(replica, [RayActorError(), RayActorError()])
    answer = ask(Front(handle, 1000))
    assert answer.status_code == 200 and handle.asked == 3
    assert len(json.loads(bytes(answer.body))["hits"]) == 3 and answer.headers["content-type"] == "application/json"


def test_no_replica_or_no_room_is_503_with_a_time_to_come_back(replica: Replica) -> None:
    gone: list[Exception] = [RayActorError() for _ in range(TRIES)]
    for failures in (gone, [BackPressureError(num_queued_requests=9, max_queued_requests=9)]):
        answer = ask(Front(Handle(replica, list(failures)), 1000))
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
        assert json.loads(bytes(answer.body))["error"]["message"]


def test_what_the_app_refuses_stays_refused(replica: Replica) -> None:
    front = Front(Handle(replica, []), 1000)
    assert ask(front, body=b"{").status_code in (400, 422)
    assert ask(front, body=b"x" * 1001).status_code == 413
    assert ask(front, "GET", "/v1/items/none", b"").status_code == 404
    assert ask(front, "DELETE", "/v1/items/i1", b"").status_code == 403  # replicas only read
    replica.check_health()


def test_replicas_follow_the_index(replica: Replica, model_folder: str) -> None:
    path = replica.service.backend.index.path
    Index(path, model_folder).upsert([Item("late", text="something quite late")])
    answer = ask(Front(Handle(replica, []), 1000), "GET", "/v1/items/late", b"")
    assert answer.status_code == 200 and b"quite late" in bytes(answer.body)


def test_bad_counts_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="replicas"):
        deploy(tmp_path, ServeConfig(), None, {}, ReplicaConfig(least=3, most=2))
