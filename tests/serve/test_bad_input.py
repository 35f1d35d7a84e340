"""Malformed requests against a real server process: 4xx each, one clear line, never a 500, never a hang."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from bad_requests import cases, oversized

TIMEOUT_S = 60.0  # a hang, for a request that must be refused at once


@pytest.fixture(scope="module")
def client(live: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=TIMEOUT_S, trust_env=False) as opened:
        yield opened


def check_refusal(name: str, answer: httpx.Response, right: set[int]) -> str | None:
    """None, or what is wrong with this answer."""
    if answer.status_code not in right:
        return f"{name}: {answer.status_code}, expected {sorted(right)}: {answer.text[:200]}"
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError):
        return f"{name}: no error object: {answer.text[:200]}"
    if not error["message"] or "\n" in error["message"] or len(error["message"]) > 500 or not error["request_id"]:
        return f"{name}: not one clear line: {error}"
    if "Traceback" in answer.text or "site-packages" in answer.text or ".py" in error["message"].replace("app.py", ""):
        return f"{name}: shows our insides: {error}"
    return None


def test_more_than_200_bad_requests_are_refused_one_by_one(client: httpx.Client, live: Any) -> None:
    before = client.post("/v1/search", json={"text": "a red circle", "k": 20}).json()["hits"]
    wrong: list[str] = []
    tried = 0
    for name, method, path, options, right in cases():
        tried += 1
        try:
            problem = check_refusal(name, client.request(method, path, **options), right)
        except httpx.HTTPError as error:
            problem = f"{name}: no answer: {error!r}"
        if problem is not None:
            wrong.append(problem)
    assert not wrong, f"{len(wrong)} of {tried}:\n" + "\n".join(wrong)
    assert tried >= 250
    assert [line for line in live.logged() if line["event"] == "bug" or line.get("status", 0) >= 500] == []
    assert client.post("/v1/search", json={"text": "a red circle", "k": 20}).json()["hits"] == before  # and nothing was written
    assert client.get("/readyz").status_code == 200


def test_a_body_of_100_mb_is_413_whether_announced_or_not(client: httpx.Client) -> None:
    kind = {"Content-Type": "application/json"}
    announced = client.post("/v1/search", content=b" " * 100_000_000, headers=kind)
    chunked = client.post("/v1/search", content=oversized(), headers=kind)
    form = client.post("/v1/items", files={"image": ("a.png", b"\0" * 100_000_000)})
    for name, answer in (("announced", announced), ("chunked", chunked), ("form", form)):
        assert check_refusal(name, answer, {413}) is None
    assert client.get("/readyz").status_code == 200


def test_expect_100_continue_is_refused_before_the_body(live: Any) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    head = f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 900000000\r\nExpect: 100-continue\r\n\r\n"  # noqa: E501
    assert b" 413 " in _exchange(host, int(port), head.encode())


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 6\r\n\r\nhello",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/info HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /v1/info HTTP/1.0\r\n\r\n",  # no Host at all
    ],
)
def test_broken_http_is_refused_or_cut_off(live: Any, client: httpx.Client, sent: bytes) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    answer = _exchange(host, int(port), sent)
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4", answer[:200]
    assert client.get("/healthz").status_code == 200


def test_a_caller_that_leaves_is_no_bug(live: Any, client: httpx.Client) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    kinds = ("application/json", "multipart/form-data; boundary=x")
    for kind in kinds:
        head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 500\r\n\r\n--x"
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head.encode())
    deadline = time.monotonic() + 60
    while sum(line.get("status") == 499 for line in live.logged()) < len(kinds):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not [line for line in live.logged() if line["event"] == "bug"]


def _exchange(host: str, port: int, sent: bytes) -> bytes:
    """What comes back until the server closes, or falls silent after an answer."""
    answer = b""
    with socket.create_connection((host, port), timeout=60) as connection:
        try:
            connection.sendall(sent)
            while part := connection.recv(65536):
                answer += part
                connection.settimeout(1)
        except (TimeoutError, ConnectionError):
            pass
    return answer
