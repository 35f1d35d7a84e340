"""Keys with roles, names and ends; a key file that changes; who changed what; TLS."""

from __future__ import annotations

import hashlib
import json
import logging
import os
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
from genius.serve import GeniusClient, auth
from genius.serve.auth import Audit, Caller, Change, KeyRing, Keys
from genius.serve.run import tls_context

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
    assert found.scopes(ADMIN) == ("read", "write", "admin") and found.scopes(WRITE) == ("read", "write")


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
    assert web.get("/v1/keys", headers=bearer(READ)).status_code == 403  # known
    late = web.get("/v1/keys", headers=bearer(WRITE))
    assert late.status_code == 401 and "expired, on 2000-01-02" in late.json()["error"]["message"]
    time.sleep(0.7)
    assert web.get("/v1/keys", headers=bearer(READ)).status_code == 401
    assert web.get("/v1/keys").status_code == 401  # all have ended: the server is closed, not open


def test_the_strongest_of_two_entries_counts_and_an_ended_one_does_not() -> None:
    both = Keys.parse([("read", READ), ("admin", READ), ("write", READ)], "test")
    assert both.scopes(READ) == ("read", "write", "admin")
    ended = auth.Key.make("admin", READ, "test", expires="2001-01-01")
    assert Keys((ended, *Keys.parse([("read", READ)], "test").entries)).scopes(READ) == ("read",)


def test_keys_change_without_a_restart(
    make_web: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auth, "LOOK_AGAIN_S", 0.0)
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
    listed = web.get("/v1/keys", headers=bearer(ADMIN)).json()["keys"]
    assert [(key["name"], key["role"]) for key in listed[:2]] == [("anna", "admin"), ("page", "read")]
    assert listed[1]["expires"].startswith("3000-01-01") and len(listed) == 3
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


# -- the audit log ---------------------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_every_change_is_on_record(make_web: Callable[..., TestClient], make_index: Callable[..., Index], tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    (tmp_path / "keys").write_text(f"read {READ} name=page\nwrite {WRITE} name=importer\nadmin {ADMIN} name=anna\n")
    web = make_web(make_index(6), Keys.load(tmp_path / "keys", {}), audit=str(path))
    sent = {**bearer(WRITE), "X-Request-ID": "r-1"}
    web.post("/v1/items", json={"items": [{"id": "a", "text": "a secret text"}, {"id": "b", "text": "b"}]}, headers=sent)
    web.put("/v1/items/a", json={"text": "again"}, headers=sent)
    web.delete("/v1/items/a", headers=sent)
    web.delete("/v1/items/a", headers=sent)  # gone already
    web.put("/v1/items/c", json={"text": ""}, headers=sent)  # 422
    web.put("/v1/items/c", content=b"{", headers={**sent, "Content-Type": "application/json"})  # 400
    web.put("/v1/items/c", json={"image": "QUJD"}, headers=sent)  # no picture
    web.delete("/v1/items/b", headers=bearer(READ))  # may not
    web.delete("/v1/items/b", headers=bearer("unknown-key-0123456789"))  # a stranger cannot fill the log
    web.post("/v1/search", json={"text": "a"}, headers=sent)  # no change
    found = lines(path)
    assert [(line["who"], line["operation"], line["ids"], line["outcome"], line["status"]) for line in found] == [
        ("importer", "add", ["a", "b"], "done", 200),
        ("importer", "put", ["a"], "done", 200),
        ("importer", "delete", ["a"], "done", 200),
        ("importer", "delete", ["a"], "failed", 404),
        ("importer", "put", ["c"], "refused", 422),
        ("importer", "put", ["c"], "refused", 400),
        ("importer", "put", ["c"], "refused", 422),
        ("page", "delete", [], "refused", 403),
    ]
    assert all(line["request_id"] == "r-1" for line in found[:7]) and found[0]["time"].endswith("Z") and found[0]["client"]
    assert "secret" not in path.read_text() and WRITE not in path.read_text()
    shown = web.get("/v1/audit?last=2", headers=bearer(ADMIN)).json()["changes"]
    assert [change["who"] for change in shown] == ["page", "importer"]
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_a_moved_log_begins_anew_and_a_full_disk_stops_changes(
    make_web: Callable[..., TestClient], make_index: Callable[..., Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    web = make_web(make_index(6), audit=str(path))
    assert web.put("/v1/items/a", json={"text": "a"}).status_code == 201
    path.rename(tmp_path / "audit.1")
    assert web.put("/v1/items/b", json={"text": "b"}).status_code == 201
    assert [line["ids"] for line in lines(tmp_path / "audit.1") + lines(path)] == [["a"], ["b"]]
    real, full = os.write, [True]

    def write(handle: int, data: bytes) -> int:
        if full[0] and data.startswith((b'{"time"', b"\n")):
            raise OSError(28, "No space left on device")
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)
    assert web.put("/v1/items/c", json={"text": "c"}).status_code == 201  # done before it was known
    refused = web.put("/v1/items/d", json={"text": "d"})
    assert refused.status_code == 503 and "audit" in refused.json()["error"]["message"] and refused.headers["retry-after"]
    assert web.get("/v1/items/d").status_code == 404
    full[0] = False
    assert web.put("/v1/items/d", json={"text": "d"}).status_code == 201
    assert lines(path)[-1]["ids"] == ["d"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_change_that_outlives_its_caller_is_on_record_twice(
    fails: bool, tmp_path: Path, make_web: Callable[..., TestClient]
) -> None:
    index, path = SlowIndex(), tmp_path / "audit.jsonl"
    index.fails = fails
    web = make_web(index, audit=str(path), write_timeout_s=0.2)
    assert web.put("/v1/items/a", json={"text": "a"}).status_code == 504
    waited = web.put("/v1/items/b", json={"text": "b"})  # behind it, and never begun
    assert waited.status_code == 503 and "nothing was written" in waited.json()["error"]["message"]
    index.go.set()
    deadline = time.monotonic() + 60
    while len(lines(path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    end = "failed" if fails else "done"
    assert [(line["ids"], line["outcome"]) for line in lines(path)] == [(["a"], "unknown"), (["b"], "refused"), (["a"], end)]
    assert index.wrote == ([] if fails else ["a"])


def test_an_audit_log_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="cannot write the audit log"):
        Audit(str(tmp_path / "nowhere" / "audit.jsonl"))
    cut = tmp_path / "cut.jsonl"
    cut.write_text('{"time": "x"}\n{"ti\n[1]\n')
    assert Audit(str(cut)).last(10) == [{"time": "x"}]
    nothing = Audit("")
    nothing.record(Change(Caller("x", (), "", False), "put", "r"), "done", 200)
    assert not nothing and nothing.usable()


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
    assert tls_context("", "") is None and tls_context(cert, key) is not None
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
            tls_context(*wrong)
        assert "\n" not in str(error.value)
