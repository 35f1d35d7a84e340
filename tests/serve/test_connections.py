"""Connections that keep the server waiting: time limits, room for others, and refusals in the promised shape."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from serve_fixtures import SlowIndex

from genius.serve.app import create_app
from genius.serve.auth import Caller, address_of
from genius.serve.connections import Listener
from genius.serve.run import build
from genius.serve.settings import ServeConfig

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HALF = b"GET /healthz HTTP/1.1\r\nHost: loc"


class Running:
    """The whole server in a thread, over an index that answers when it is let.

    Args:
        waiting: Connections with a request that are there before it accepts the first.
        config: Settings.
    """

    def __init__(self, waiting: int = 0, **config: Any) -> None:
        self.index = SlowIndex()
        settings = ServeConfig(port=0, drain_s=1, **config)
        self.app = create_app(self.index, settings)  # type: ignore[arg-type]
        self.server, listener, self.url = build(self.app, settings)
        self.address = (self.url.removeprefix("http://").split(":")[0], int(self.url.rsplit(":", 1)[1]))
        self.opened: list[socket.socket] = []
        for _ in range(waiting):
            self.connect(HEALTH)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[listener])), daemon=True)
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def connect(self, sent: bytes = b"") -> socket.socket:
        one = socket.create_connection(self.address, timeout=60)
        one.sendall(sent)
        self.opened.append(one)
        return one

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, trust_env=False)

    def search(self, text: str = "x") -> httpx.Response:
        return httpx.post(f"{self.url}/v1/search", json={"text": text, "k": 1}, timeout=60, trust_env=False)

    def rejected(self, reason: str) -> float:
        return float(self.app.state.service.metrics.rejected.labels(reason)._value.get())

    def close(self) -> None:
        self.index.go.set()
        for one in self.opened:
            one.close()
        self.server.should_exit = True
        self._thread.join(60)


@pytest.fixture
def run() -> Iterator[Any]:
    started: list[Running] = []

    def start(**config: Any) -> Running:
        started.append(Running(**config))
        return started[-1]

    yield start
    for one in started:
        one.close()


def answer(one: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of what comes back until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := one.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, json.loads(body)


def until(one: socket.socket, end: bytes) -> None:
    data = b""
    while not data.endswith(end):
        data += (part := one.recv(65536))
        assert part, data


def check_shape(found: tuple[int, dict[str, str], Any], status: int) -> str:
    code, headers, body = found
    assert code == status and headers["content-type"] == "application/json" and set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"code", "message", "request_id"} and error["request_id"] == headers["x-request-id"]
    return str(error["message"])


@pytest.mark.parametrize("sent", [b"", b"GET /v1/info HTTP/1.1\r\nHost: local", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"G"])
def test_headers_have_a_time_limit(run: Any, sent: bytes) -> None:
    server = run(header_timeout_s=0.3)
    assert "headers did not arrive" in check_shape(answer(server.connect(sent)), 408)
    assert server.rejected("slow_head") == 1


def test_a_header_that_trickles_in_is_no_exception(run: Any) -> None:
    server = run(header_timeout_s=0.6)
    one = server.connect(b"GET / HTTP/1.1\r\nX: ")
    started = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - started < 60:
            one.sendall(b"x")
            time.sleep(0.05)
            one.setblocking(False)
            try:
                if one.recv(1, socket.MSG_PEEK):
                    break
            except BlockingIOError:
                pass
            finally:
                one.setblocking(True)
    assert "headers" in check_shape(answer(one), 408)


def test_the_second_request_of_a_connection_has_the_same_limit(run: Any) -> None:
    server = run(header_timeout_s=0.4, keep_alive_s=20)
    one = server.connect(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    until(one, b'{"status":"ok"}')
    time.sleep(0.7)  # idle longer than the limit for headers: allowed
    one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    until(one, b'{"status":"ok"}')
    one.sendall(b"GET /healthz HT")
    assert "headers" in check_shape(answer(one), 408)


def test_idle_connections_are_closed(run: Any) -> None:
    server = run(keep_alive_s=0.3)
    one = server.connect(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    until(one, b'{"status":"ok"}')
    assert one.recv(10) == b""


@pytest.mark.parametrize("spare", [128, 4])
def test_the_connection_that_waits_longest_makes_room(run: Any, spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times as many half-sent requests as there are places: every search is answered at once all the same."""
    monkeypatch.setattr("genius.serve.connections.SPARE_CONNECTIONS", spare)
    server = run(max_connections=8, header_timeout_s=30)
    server.index.go.set()
    stuck = [server.connect(b"GET / HTTP/1.1\r\nHost: local") for _ in range(40)]
    for n in range(10):
        assert server.search(f"q{n}").json()["hits"][0]["id"] == f"q{n}-0"
        assert server.get("/healthz").status_code == 200
    found = answer(stuck[0])  # the first one had to go, and was told
    assert "kept others waiting" in check_shape(found, 503) and int(found[1]["retry-after"]) >= 1
    assert server.rejected("crowded") >= 32
    one = stuck[-1]
    one.sendall(b"host\r\n\r\n")  # a late one may still get its answer
    assert one.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 503", b"HTTP/1.1 403")


def test_no_connection_of_a_burst_is_closed_before_its_request_was_read(run: Any) -> None:
    server = run(waiting=100, max_connections=16)
    for one in server.opened:
        status, _, body = answer(one)
        assert (status, body) == (200, {"status": "ok"})


def give_up(address: tuple[str, int], sent: bytes, reset: bool) -> None:
    with socket.create_connection(address, timeout=60) as one:
        one.sendall(sent)
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def first_waiting(listener: Listener) -> tuple[socket.socket, Any]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return listener.accept()
        except BlockingIOError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield listener


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a client closed is seen on Linux only")
def test_connections_that_were_given_up_are_not_accepted(listener: Listener) -> None:
    address = listener.getsockname()
    for sent in (b"", HALF, HEALTH):
        give_up(address, sent, reset=True)
    for sent in (b"", HALF):
        give_up(address, sent, reset=False)
    give_up(address, HEALTH, reset=False)  # all was said, and only the writing end may be closed
    with socket.create_connection(address, timeout=60) as half, socket.create_connection(address, timeout=60) as silent:
        half.sendall(HALF)
        accepted = [first_waiting(listener) for _ in range(3)]
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert [place for _, place in accepted[1:]] == [half.getsockname(), silent.getsockname()]
        assert [one.recv(1000, socket.MSG_DONTWAIT) for one, _ in accepted[:2]] == [HEALTH, HALF]
        for one, _ in accepted:
            one.close()


def test_a_flood_of_given_up_connections_lets_the_event_loop_go_on(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.serve.connections.MAX_DROPPED", 3)
    for _ in range(5):
        give_up(listener.getsockname(), HALF, reset=True)
    with socket.create_connection(listener.getsockname(), timeout=60) as good:
        with pytest.raises(BlockingIOError):
            listener.accept()
        one, place = first_waiting(listener)
        assert place == good.getsockname()
        one.close()


def test_many_connections_may_wait_although_few_are_accepted_at_once(listener: Listener) -> None:
    listener.listen(1)  # as asyncio does
    with contextlib.ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(socket.create_connection(listener.getsockname(), timeout=60))  # refused ones wait for ever


def test_a_connection_that_is_being_served_is_kept_and_others_are_served_too(run: Any) -> None:
    server = run(max_connections=4, queue_size=50)
    found: list[int] = []
    threads = [threading.Thread(target=lambda n=n: found.append(server.search(f"held{n}").status_code)) for n in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while server.app.state.service.metrics.in_flight._value.get() < 4 or not server.index.entered.is_set():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(3):
        assert server.get("/healthz").json() == {"status": "ok"} and server.get("/readyz").status_code == 200
    server.index.go.set()
    for thread in threads:
        thread.join(60)
    assert found == [200] * 4
    assert server.search("later").status_code == 200


def test_slow_bodies_stop_nobody_and_end(run: Any) -> None:
    server = run(body_timeout_s=1.0)
    server.index.go.set()
    head = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    slow = [server.connect(f"{head}Content-Length: 16000000\r\n\r\n{{".encode()) for _ in range(20)]
    slow += [server.connect(f"{head}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n".encode()) for _ in range(20)]
    for n in range(5):
        assert server.search(f"q{n}").status_code == 200
    for one in (slow[0], slow[-1]):
        assert "body did not arrive within 1 s" in check_shape(answer(one), 408)
    assert server.rejected("slow_body") >= 2


def test_a_body_behind_a_request_that_is_being_answered_is_not_late(run: Any) -> None:
    server = run(body_timeout_s=0.4)
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = b'{"text": "x", "k": 1}'
    length = b"Content-Length: %d\r\n" % len(body)
    one = server.connect(head + length + b"\r\n" + body + head + length + b"Connection: close\r\n\r\n" + body[:5])
    assert server.index.entered.wait(60)
    time.sleep(1.5)
    one.sendall(body[5:])
    server.index.go.set()
    data = b""
    while part := one.recv(65536):
        data += part
    assert data.count(b"HTTP/1.1 200") == 2, data


def test_the_rest_of_a_refused_body_does_not_keep_the_connection(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.serve.connections.LINGER_S", 0.5)
    server = run(body_timeout_s=0.3)
    one = server.connect(
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n{"
    )
    assert one.recv(12) == b"HTTP/1.1 408"
    deadline, closed = time.monotonic() + 60, False
    try:
        while time.monotonic() < deadline:
            one.sendall(b" ")
            time.sleep(0.05)
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    if one.recv(65536) == b"":
                        raise ConnectionError
    except ConnectionError:
        closed = True
    assert closed


def test_a_search_whose_caller_hung_up_is_not_run(run: Any) -> None:
    server = run()
    first = threading.Thread(target=lambda: server.search("first"))
    first.start()
    assert server.index.entered.wait(60)
    body = b'{"text": "gone"}'
    head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    leaving = server.connect(head.encode() + body)
    service = server.app.state.service
    deadline = time.monotonic() + 60
    while service.batcher.depth < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    leaving.close()
    while float(service.metrics.in_flight._value.get()) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.index.go.set()
    first.join(60)
    assert server.search("last").status_code == 200
    assert len(server.index.asked) == 2  # "first" and "last"


def test_what_is_no_http_gets_the_promised_shape(run: Any) -> None:
    server = run()
    assert "request" in check_shape(answer(server.connect(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")), 400)
    assert "headers" in check_shape(answer(server.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000)), 431)


HEAD = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: 4", "Upgrade"),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked", "Upgrade"),
        ("Transfer-Encoding: gzip, chunked", "Transfer-Encoding"),
    ],
)
def test_a_body_that_would_not_be_read_as_one_is_refused_and_the_connection_closed(run: Any, more: str, said: str) -> None:
    server = run()
    one = server.connect(f"{HEAD}{more}\r\n\r\n".encode())
    time.sleep(0.05)
    with contextlib.suppress(OSError):
        one.sendall(HEALTH)  # in a body: no request
    assert said in check_shape(answer(one), 400)


def test_another_protocol_is_not_spoken_and_the_connection_goes_on(run: Any) -> None:
    server = run()
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    one = server.connect(asked)
    until(one, b'{"status":"ok"}')
    one.sendall(asked)
    until(one, b'{"status":"ok"}')


def test_a_body_of_one_byte_chunks_is_refused_early(run: Any) -> None:
    """Parsing costs time per chunk: a body of tiny ones is refused after a few hundred, not after its time limit."""
    server = run()
    one = server.connect(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\n \r\n" * 1000)
    assert "pieces" in check_shape(answer(one), 400)
    assert server.rejected("tiny_pieces") == 1
    assert server.get("/healthz").status_code == 200


def test_a_body_of_small_chunks_within_reason_is_read(run: Any) -> None:
    server = run()
    server.index.go.set()
    body = b'{"text": "' + b"x" * 200 + b'"}'
    chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in body) + b"0\r\n\r\n"
    one = server.connect(f"{HEAD}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks)
    assert one.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    "order", [("Content-Length: 4", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", "Content-Length: 4")]
)
def test_content_length_beside_transfer_encoding_is_refused_and_the_connection_closed(run: Any, order: tuple[str, str]) -> None:
    """A proxy that believes the other header would take what follows for somebody else's request."""
    server = run()
    smuggled = b"0\r\n\r\nGET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n"
    one = server.connect(f"{HEAD}{order[0]}\r\n{order[1]}\r\n\r\n".encode() + smuggled)
    check_shape(answer(one), 400)  # `answer` reads until the server closes: there is no second response


def test_framing_and_trailers_without_end_are_refused(run: Any) -> None:
    server = run()
    cases = {
        b"1;" + b"x" * 100_000: "65,536 bytes",
        b"0\r\nX: " + b"y" * 100_000: "65,536 bytes",
        b"0\r\n" + b"X-Trailer: y\r\n" * 200: "128 headers",
    }
    for rest, message in cases.items():
        one = server.connect(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            one.sendall(rest)
        assert message in check_shape(answer(one), 431)
    many = server.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200)
    assert "128 headers" in check_shape(answer(many), 431)


def test_pipelined_requests_are_answered_in_order_and_bounded(run: Any) -> None:
    server = run()
    server.index.go.set()
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    one = server.connect(get * 20 + get.replace(b"Host", b"Connection: close\r\nHost"))
    data = b""
    while part := one.recv(65536):
        data += part
    assert data.count(b"HTTP/1.1 200") == 21
    crowd = server.connect(get * 5000)
    with contextlib.suppress(ConnectionError):
        while crowd.recv(65536):
            pass
    assert server.rejected("pipelined") == 1 and server.get("/healthz").status_code == 200


def test_a_client_that_does_not_read_its_response_is_cut_off(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.serve.connections.SEND_TIMEOUT_S", 0.3)
    server = run()
    one = server.connect()
    with contextlib.suppress(OSError):
        for _ in range(400):  # more than the buffers of both sides hold
            one.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(0.005)
    deadline = time.monotonic() + 60
    while server.server.server_state.connections:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",), ("10.0.0.1",)])
def test_only_a_trusted_proxy_is_believed(run: Any, trusted: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    server = run(trusted_proxies=trusted)
    with caplog.at_level("INFO", "genius.serve"):
        httpx.get(f"{server.url}/static/main.js", headers={"X-Forwarded-For": "203.0.113.9"}, trust_env=False, timeout=60)
        server.close()  # the line is written after the answer is sent
    (line,) = [record.fields for record in caplog.records if record.message == "request"]
    assert line["client"] == ("203.0.113.9" if trusted == ("127.0.0.1",) else "127.0.0.1")


def test_one_client_cannot_keep_others_from_reading(run: Any) -> None:
    """A crowd of slow pictures: what is asked beside them takes its turn at once."""
    server = run()
    slow, service = threading.Event(), server.app.state.service
    crowd, other = (Caller(name, ("read",), name) for name in ("crowd", "other"))

    async def ask() -> list[str]:
        order: list[str] = []

        async def one(name: str, caller: Caller, lane: str, work: Any) -> None:
            await service.read(work, caller, lane)
            order.append(name)

        tasks = [asyncio.create_task(one("slow", crowd, "picture", lambda: slow.wait(60))) for _ in range(4)]
        tasks += [asyncio.create_task(one("queued", crowd, "picture", lambda: time.sleep(0.01))) for _ in range(100)]
        await asyncio.sleep(0.05)
        tasks.append(asyncio.create_task(one("other", other, "", lambda: None)))
        await asyncio.sleep(0.05)
        slow.set()
        await asyncio.gather(*tasks)
        return order

    order = asyncio.run(asyncio.wait_for(ask(), 120))
    assert order.index("other") <= 12  # of 105


def test_an_address_is_a_client() -> None:
    assert address_of("192.168.1.7") == "192.168.1.7"
    assert address_of("::ffff:192.168.1.7") == "192.168.1.7"
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:2") != address_of("2001:db8:0:1::1")
    assert address_of("fe80::1%eth0") == "fe80::/64" and address_of("testclient") == "testclient"
