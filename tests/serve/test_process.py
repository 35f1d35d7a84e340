"""The real command: starts, logs JSON, drains on SIGTERM, and fails with one line when it cannot."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_encoder
import httpx
import pytest
from typer.testing import CliRunner

from genius.cli import app
from genius.serve.logs import JsonFormatter


def test_sigterm_answers_what_is_in_flight_then_exits(start_server: Callable[..., Any]) -> None:
    server = start_server()
    answers: list[int] = []
    broken: list[str] = []
    stop = threading.Event()

    def caller() -> None:
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            while not stop.is_set():
                try:
                    answers.append(client.post("/v1/search", json={"text": "a red circle", "k": 50}).status_code)
                except httpx.ConnectError:
                    return  # the door is closed: fine
                except httpx.HTTPError as error:
                    broken.append(repr(error))
                    return

    threads = [threading.Thread(target=caller) for _ in range(6)]
    for thread in threads:
        thread.start()
    host, port = server.url.removeprefix("http://").split(":")
    body = b'{"text": "a red circle", "k": 3}'
    with socket.create_connection((host, int(port)), timeout=60) as slow:  # its body is on its way when SIGTERM comes
        head = (
            f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        slow.sendall(head.encode() + body[:10])
        deadline = time.monotonic() + 60
        while len(answers) < 30:
            assert time.monotonic() < deadline, broken
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None  # it waits for the rest
        slow.sendall(body[10:])
        answer = b""
        while part := slow.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    assert server.process.wait(60) == 0
    stop.set()
    for thread in threads:
        thread.join(60)
    assert set(answers) <= {200, 503} and answers.count(200) >= 30
    # a keep-alive connection may be closed between two requests; an answer that has begun must arrive whole
    assert all("RemoteProtocolError" in error or "ReadError" in error for error in broken), broken
    events = [line["event"] for line in server.logged()]
    assert events.index("stop") > events.index("drain")
    assert next(line for line in server.logged() if line["event"] == "stop")["drained"] is True
    answered = [line for line in server.logged() if line["event"] == "request" and line["path"] == "/v1/search"]
    assert len(answered) >= len(answers) + 1  # every answer was logged


def test_logs_are_json_lines_without_queries_or_keys(live: Any) -> None:
    key, server = "read-key-0123456789abc", live
    httpx.post(
        f"{server.url}/v1/search",
        json={"text": "a very private question"},
        headers={"Authorization": f"Bearer {key}", "X-Request-ID": "private"},
        trust_env=False,
        timeout=60,
    )
    odd = {"X-API-Key": key, "X-Request-ID": "odd"}
    httpx.get(f"{server.url}/v1/items/line%01break%22", headers=odd, trust_env=False, timeout=60)
    requests = server.logged_requests("private", "odd")
    assert [(line["method"], line["status"]) for line in requests] == [("POST", 200), ("GET", 422)]
    assert all({"time", "level", "ms", "request_id", "client"} <= line.keys() for line in requests)
    text = server.log.read_text()
    assert "very private question" not in text and key not in text


def test_a_log_line_is_one_printable_line_whatever_was_sent() -> None:
    record = logging.LogRecord("genius.serve", logging.INFO, "", 0, "request", (), None)
    record.fields = {"path": "/v1/items/\x1b[2J\n", "status": 200}
    line = JsonFormatter().format(record)
    assert '"path": "/v1/items/\\u001b[2J\\n", "status": 200' in line and line.isprintable()


def test_command_line_mistakes_are_one_line_and_status_2(
    model_folder: Path, live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = live.process.args[5]
    port = live.url.rsplit(":", 1)[1]
    wrong = [
        (["serve", str(tmp_path / "nothing.genius")], "no index at"),
        (["serve", index, "--model", str(model_folder), "--host", "0.0.0.0"], "without API keys"),
        (["serve", index, "--model", str(model_folder), "--port", port], "cannot listen on"),
        (["serve", index, "--keys", str(tmp_path / "absent")], "cannot read the key file"),
        (["serve", index, "--config", str(tmp_path / "absent.toml")], "no such config"),
        (["serve", index, "--batch", "0"], "max_batch"),
    ]
    monkeypatch.delenv("GENIUS_API_KEYS", raising=False)
    monkeypatch.setattr("genius.serve.logs.configure", lambda level: None)
    fake_encoder.register()
    for arguments, message in wrong:
        done = CliRunner().invoke(app, arguments)
        errors = [line for line in done.stderr.splitlines() if line.startswith("genius: ")]
        assert done.exit_code == 2 and len(errors) == 1 and message in errors[0], (arguments, done.stderr)


def test_help_teaches() -> None:
    done = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    for word in ("--keys", "--read-only", "--port", "SIGTERM", "API"):
        assert word in done.stdout


@pytest.mark.parametrize("body", [b"", b"not toml [", b"unknown_field = 1", b'max_batch = "many"'])
def test_bad_config_files(tmp_path: Path, body: bytes) -> None:
    from genius.cli.serve import _settings
    from genius.errors import GeniusError

    (tmp_path / "serve.toml").write_bytes(body)
    if body == b"":
        assert _settings(tmp_path / "serve.toml", {"port": 9, "host": None}).port == 9
    else:
        with pytest.raises(GeniusError):
            _settings(tmp_path / "serve.toml", {})
