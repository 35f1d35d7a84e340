"""Keys with roles, names and expiry; a key file that changes; the log of changes; TLS."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_fixtures import SlowIndex
from starlette.testclient import TestClient

from genius.errors import GeniusError
from genius.index import Index
from genius.serve import GeniusClient, auth, logs
from genius.serve.auth import KeyRing, Keys
from genius.serve.run import check_tls

READ, WRITE, ADMIN, NEW = (f"{name}-key-0123456789" for name in ("read", "write", "admin", "new"))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# -- keys ------------------------------------------------------------------------------------------------------


def test_a_line_has_a_role_a_key_a_name_and_an_end(tmp_path: Path) -> None:
    digest = hashlib.sha256(ADMIN.encode()).hexdigest()
    (tmp_path / "keys").write_text(
        f"read {READ}\nwrite {WRITE} name=importer expires=2999-01-31 # the nightly job\nadmin sha256:{digest} name=anna@x\n"
    )
    found = Keys.load(tmp_path / "keys", {})
    assert [key.name for key in found.entries][1:] == ["importer", "anna@x"]
    assert found.entries[0].name.startswith("read-") and READ not in repr(found)
    assert found.entries[1].expires == datetime(2999, 2, 1, tzinfo=UTC)  # the whole day
    assert found.scopes(ADMIN) == ("read", "write") and found.scopes(WRITE) == ("read", "write")


@pytest.mark.parametrize(
    "line",
    [
        f"read {READ} nam=x",
        f"read {READ} name=x name=y",
        f"read {READ} name=",
        f"read {READ} name=a/b",
        f"read {READ} expires=soon",
        f"read {READ} expires=2027-13-01",
        f"read {READ} x",
        f"owner {READ}",
        "read sha256:abc",
        "read short",
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"# keys\nwrite {WRITE}\n{line}\n")
    with pytest.raises(GeniusError, match="line 3") as error:
        Keys.load(tmp_path / "keys", {})
    assert READ not in str(error.value)


def test_a_key_ends(make_web: Callable[..., TestClient], tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=0.6)).isoformat()
    (tmp_path / "keys").write_text(f"read {READ} expires={soon}\nread {WRITE} expires=2000-01-01\n")
    web = make_web(SlowIndex(), Keys.load(tmp_path / "keys", {}))
    assert web.get("/v1/codes/9999", headers=bearer(READ)).status_code == 422  # known
    late = web.get("/v1/codes/9999", headers=bearer(WRITE))
    assert late.status_code == 401 and "expired, on 2000-01-02" in late.json()["error"]["message"]
    time.sleep(0.7)
    assert web.get("/v1/codes/9999", headers=bearer(READ)).status_code == 401
    assert web.get("/v1/codes/9999").status_code == 401  # all have ended: the server is closed, not open


def test_the_strongest_of_two_entries_counts_and_an_ended_one_does_not() -> None:
    both = Keys.parse([("read", READ), ("admin", READ), ("write", READ)], "test")
    assert both.scopes(READ) == ("read", "write")
    ended = auth.ApiKey.make("admin", READ, "test", expires="2001-01-01")
    assert Keys((ended, *Keys.parse([("read", READ)], "test").entries)).scopes(READ) == ("read",)


def test_keys_change_without_a_restart(
    make_web: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auth, "RELOAD_INTERVAL_S", 0.0)
    file = tmp_path / "keys"

    def replace(text: str) -> None:  # as tools do it: whole or not at all
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").replace(file)

    replace(f"admin {ADMIN} name=anna\nread {READ} name=page\n")
    web = make_web(SlowIndex(), KeyRing.load(file, {"GENIUS_API_KEYS": f"write:{WRITE}"}))

    def status(key: str) -> int:
        return web.get("/v1/codes/9999", headers=bearer(key)).status_code

    assert status(READ) == 422 and status(NEW) == 401
    replace(f"admin {ADMIN} name=anna\nread {READ} name=page\nread {NEW} name=page\n")  # both work for a while
    assert status(READ) == status(NEW) == 422
    replace(f"admin {ADMIN} name=anna\nread {NEW} name=page expires=2999-12-31\n")
    assert status(READ) == 401 and status(NEW) == 422 and status(WRITE) == 422  # the environment's stay
    with caplog.at_level(logging.ERROR, "genius.serve"):
        for broken in ("nonsense\n", "", f"read {NEW} expires=never\n"):
            replace(broken)
            assert status(NEW) == 422 and status(ADMIN) == 422  # a slip of the pen locks nobody out
        file.unlink()
        assert status(NEW) == 422
    assert len(caplog.records) == 4 and all(record.message == "keys_not_reloaded" for record in caplog.records)
    assert NEW not in caplog.text
    replace(f"admin {ADMIN}\n")
    assert status(NEW) == 401 and status(ADMIN) == 422


# -- the log of changes ----------------------------------------------------------------------------------------


def test_changes_are_logged_with_who_and_which_ids(
    make_web: Callable[..., TestClient], make_index: Callable[..., Index], tmp_path: Path
) -> None:
    path = tmp_path / "changes.jsonl"
    (tmp_path / "keys").write_text(f"read {READ} name=page\nwrite {WRITE} name=importer\n")
    web = make_web(make_index(6), Keys.load(tmp_path / "keys", {}))
    serving = logging.getLogger("genius.serve")
    handlers, level, propagate = serving.handlers, serving.level, serving.propagate
    try:
        logs.configure("error", str(path))  # whatever the level of the other lines
        sent = {**bearer(WRITE), "X-Request-ID": "r-1"}
        web.post("/v1/items", json={"items": [{"id": "a", "text": "a secret text"}, {"id": "b", "text": "b"}]}, headers=sent)
        path.rename(tmp_path / "moved.jsonl")  # a rotated file begins anew
        web.put("/v1/items/a", json={"text": "again"}, headers=sent)
        web.delete("/v1/items/a", headers=sent)
        web.delete("/v1/items/a", headers=sent)  # gone already
        web.put("/v1/items/c", json={"text": ""}, headers=sent)
        web.post("/v1/search", json={"text": "a"}, headers=sent)  # no change
        web.delete("/v1/items/b", headers=bearer("unknown-key-0123456789"))  # an unknown caller cannot fill the file
    finally:
        serving.handlers, serving.propagate = handlers, propagate
        serving.setLevel(level)
    lines = [json.loads(line) for file in (tmp_path / "moved.jsonl", path) for line in file.read_text().splitlines()]
    assert [(line["key"], line["operation"], line["ids"], line["status"]) for line in lines] == [
        ("importer", "add", ["a", "b"], 200),
        ("importer", "put", ["a"], 200),
        ("importer", "delete", ["a"], 200),
        ("importer", "delete", ["a"], 404),
        ("importer", "put", ["c"], 422),
    ]
    assert all(line["request_id"] == "r-1" and line["time"].endswith("Z") and line["client"] for line in lines)
    assert "secret" not in path.read_text() and WRITE not in path.read_text()


def test_a_log_of_changes_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="cannot write the audit log"):
        logs.configure("info", str(tmp_path / "nowhere" / "audit.jsonl"))


# -- TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_tls_by_two_options(start_server: Callable[..., Any], certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    server = start_server("--tls-cert", str(cert), "--tls-key", str(key), items=6, verify=ssl.create_default_context(cafile=cert))
    assert server.url.startswith("https://")
    with GeniusClient(server.url, certificate=cert) as client:
        assert client.search("a red circle", k=2).hits and client.ready()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz", trust_env=False)  # unknown to the system
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{server.url.replace('https', 'http')}/healthz", trust_env=False)


def test_tls_files_that_do_not_fit_are_refused(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = map(str, certificate)
    check_tls("", "")
    check_tls(cert, key)
    (tmp_path / "empty.pem").write_text("")
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "rsa", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked], check=True, capture_output=True
    )
    for wrong in (
        (cert, ""),
        ("", key),
        (key, cert),
        (cert, str(tmp_path / "empty.pem")),
        (cert, "/nowhere"),
        (cert, str(locked)),
    ):
        with pytest.raises(GeniusError) as error:
            check_tls(*wrong)
        assert "\n" not in str(error.value)
