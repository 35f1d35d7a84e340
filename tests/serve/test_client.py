"""The typed client against a real server process: every call, odd ids, retries, errors."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from serve_fixtures import draw, encoded

from genius import Item
from genius.errors import GeniusError
from genius.serve.client import GeniusClient, ServerError

AWKWARD = (
    "plain",
    "a/b/c.png",
    "100%",
    "50%25",
    "a b+c",
    "ümläut/日本",
    "?q=1#x",
    "..%2Fup",
    "../up",
    "image",
    "a//b",
    "x/",
    "quote\"'",
    "%",
)


@pytest.fixture(scope="module")
def client(live: Any) -> Iterator[GeniusClient]:
    with GeniusClient(live.url) as opened:
        yield opened


@pytest.mark.parametrize("item_id", AWKWARD)
def test_put_get_delete_with_any_id(client: GeniusClient, item_id: str) -> None:
    item = Item(item_id, text="a striped zebra", image=draw("bar", "#222222"), metadata={"price": 3})
    assert client.put(item).created is True
    assert client.put(item).created is False
    shown = client.get(item_id)
    assert (shown.id, shown.text, shown.metadata, shown.modality) == (item_id, "a striped zebra", {"price": 3}, "pair")
    assert Image.open(io.BytesIO(client.image(item_id))).size == (96, 96)
    assert client.thumbnail(item_id)[:3] == b"\xff\xd8\xff"
    assert [hit.id for hit in client.search("a striped zebra", draw("bar", "#222222"), target="any", k=1).hits] == [item_id]
    assert client.delete(item_id).count == 108
    with pytest.raises(ServerError) as caught:
        client.get(item_id)
    assert caught.value.status == 404 and caught.value.request_id
    assert item_id not in [hit.id for hit in client.search("a striped zebra", target="any", k=50).hits]


def test_search_with_path_bytes_and_opened_picture_agree(client: GeniusClient, tmp_path: Path) -> None:
    picture = draw("ring", "blue")
    (tmp_path / "q.png").write_bytes(encoded(picture))
    answers = [
        client.search(image=image, target="any", k=5)
        for image in (tmp_path / "q.png", str(tmp_path / "q.png"), encoded(picture), picture)
    ]
    found = [[hit.id for hit in answer.hits] for answer in answers]
    assert found[0][0] == "ring/blue.png" and all(other == found[0] for other in found)
    assert answers[0].hits[0].score == pytest.approx(1.0, abs=1e-3) and answers[0].took_ms > 0


def test_search_options_reach_the_server(client: GeniusClient) -> None:
    hits = client.search(
        "a red circle", target="pair", k=40, where="round = true", min_score=-2, beams=30, rerank=50, instruction="find it"
    ).hits
    assert len(hits) == 12 and {hit.modality for hit in hits} == {"pair"} and all(hit.metadata["round"] for hit in hits)
    assert "circle/red.png" not in [hit.id for hit in client.search(like="circle/red.png").hits]


def test_add_streams_in_batches(client: GeniusClient) -> None:
    items = [Item(f"many/{i}", text=f"line number {i}") for i in range(7)]
    done = client.add(iter(items), batch_size=3)
    assert (done.added, done.unchanged, done.count) == (7, 0, 115)
    assert client.add(items).unchanged == 7
    for item in items:
        client.delete(item.id)


def test_codes_and_info(client: GeniusClient) -> None:
    info = client.info()
    root = client.codes()
    assert root.count == info.items == 108 and [child.code for child in root.children] == [0, 1, 2]
    below = client.codes([0, root.path[0].code if root.path else client.get("circle/red.png").codes[1]])
    assert below.level == 2 and below.count >= 1
    assert client.codes("0").count == 36
    assert client.ready()


def test_the_servers_line_is_the_error(client: GeniusClient) -> None:
    with pytest.raises(GeniusError, match="unknown column 'prize'"):
        client.search("x", where="prize < 3")
    with pytest.raises(ServerError, match="cannot be read"):
        client.search(image=b"this is no picture")
    with pytest.raises(GeniusError, match=r"cannot read .*nowhere\.png"):
        client.search(image="nowhere.png")


def _answering(*answers: httpx.Response | Exception) -> tuple[GeniusClient, list[httpx.Request]]:
    asked: list[httpx.Request] = []
    line = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = line.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return GeniusClient("http://server", retries=2, transport=httpx.MockTransport(handle)), asked


def _busy() -> httpx.Response:
    return httpx.Response(
        503, json={"error": {"code": "unavailable", "message": "busy", "request_id": "r"}}, headers={"Retry-After": "0"}
    )


def test_busy_is_retried_then_told(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("genius.serve.client.time.sleep", waits.append)
    fine = httpx.Response(200, json={"hits": [], "took_ms": 1.0, "batch_size": 1})
    client, asked = _answering(_busy(), httpx.ConnectError("refused"), fine)
    assert client.search("x").hits == [] and len(asked) == 3 and len(waits) == 2
    client, asked = _answering(_busy(), _busy(), _busy())
    with pytest.raises(ServerError, match="busy") as caught:
        client.search("x")
    assert len(asked) == 3 and caught.value.status == 503


def test_a_dropped_write_is_not_repeated() -> None:
    client, asked = _answering(httpx.ReadError("reset"))
    with pytest.raises(ServerError, match="reset"):
        client.put(Item("a", text="b"))
    assert len(asked) == 1


def test_a_stranger_is_noticed() -> None:
    client, _ = _answering(httpx.Response(200, text="<html>hello</html>"))
    with pytest.raises(ServerError, match="does not answer like a GENIUS server"):
        client.info()
    client, _ = _answering(httpx.Response(502, text="bad gateway"))
    with pytest.raises(ServerError, match="answered 502"):
        client.info()
