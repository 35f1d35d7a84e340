"""Keys with roles and names; a key file that changes; the log of changes; TLS."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_fixtures import SlowIndex, scopes
from starlette.testclient import TestClient

from genius.errors import GeniusError
from genius.index import Index
from genius.serve import GeniusClient, logs
from genius.serve.auth import Keys
from genius.serve.run import check_tls

READ, WRITE, ANNA, NEW = (f"{name}-key-0123456789" for name in ("read", "write", "anna", "new"))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# -- keys ------------------------------------------------------------------------------------------------------


def test_a_line_has_a_role_a_key_and_a_name(tmp_path: Path) -> None:
    digest = hashlib.sha256(ANNA.encode()).hexdigest()
    (tmp_path / "keys").write_text(
        f"read {READ}\nwrite {WRITE} name=importer # the nightly job\nwrite sha256:{digest} name=anna@x\n"
    )
    found = Keys(tmp_path / "keys", {})
    names = [found.find(key).name for key in (READ, WRITE, ANNA)]  # type: ignore[union-attr]
    assert names[1:] == ["importer", "anna@x"] and names[0].startswith("read-")
    assert scopes(found, ANNA) == scopes(found, WRITE) == ("read", "write") and READ not in repr(vars(found))


@pytest.mark.parametrize(
    "line",
    [
        f"read {READ} nam=x",
        f"read {READ} name=x name=y",
        f"read {READ} name=",
        f"read {READ} name=a/b",
        f"read {READ} expires=2027-01-31",
        f"read {READ} x",
        f"owner {READ}",
        f"admin {READ}",
        "read sha256:abc",
        "read short",
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"# keys\nwrite {WRITE}\n{line}\n")
    with pytest.raises(GeniusError, match="line 3") as error:
        Keys(tmp_path / "keys", {})
    assert READ not in str(error.value)


def test_keys_change_without_a_restart(
    make_web: Callable[..., TestClient], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"

    def replace(text: str) -> None:  # as tools do it: whole or not at all
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").replace(file)

    replace(f"write {ANNA} name=anna\nread {READ} name=page\n")
    web = make_web(SlowIndex(), Keys(file, {"GENIUS_API_KEYS": f"write:{WRITE}"}))

    def status(key: str) -> int:
        return web.get("/v1/codes/9999", headers=bearer(key)).status_code

    assert status(READ) == 422 and status(NEW) == 401
    replace(f"write {ANNA} name=anna\nread {READ} name=page\nread {NEW} name=page\n")  # both work for a while
    assert status(READ) == status(NEW) == 422
    replace(f"write {ANNA} name=anna\nread {NEW} name=page\n")
    assert status(READ) == 401 and status(NEW) == 422 and status(WRITE) == 422  # the environment's stay
    with caplog.at_level(logging.ERROR, "genius.serve"):
        for broken in ("nonsense\n", "", f"read {NEW} name=\n"):
            replace(broken)
            assert status(NEW) == 422 and status(ANNA) == 422  # a slip of the pen locks nobody out
        file.unlink()
        assert status(NEW) == 422
    assert len(caplog.records) == 4 and all(record.message == "keys_not_reloaded" for record in caplog.records)
    assert NEW not in caplog.text
    replace(f"write {ANNA}\n")
    assert status(NEW) == 401 and status(ANNA) == 422


# -- the log of changes ----------------------------------------------------------------------------------------


def test_changes_are_logged_with_who_and_which_ids(
    make_web: Callable[..., TestClient], make_index: Callable[..., Index], tmp_path: Path
) -> None:
    path = tmp_path / "changes.jsonl"
    (tmp_path / "keys").write_text(f"read {READ} name=page\nwrite {WRITE} name=importer\n")
    web = make_web(make_index(6), Keys(tmp_path / "keys", {}))
    serving = logging.getLogger("genius.serve")
    handlers, level, propagate = serving.handlers, serving.level, serving.propagate
    try:
        serving.handlers = [logging.FileHandler(path)]
        serving.handlers[0].setFormatter(logs.JsonFormatter())
        serving.setLevel("INFO")
        sent = {**bearer(WRITE), "X-Request-ID": "r-1"}
        web.post("/v1/items", json={"items": [{"id": "a", "text": "a secret text"}, {"id": "b", "text": "b"}]}, headers=sent)
        web.put("/v1/items/a", json={"text": "again"}, headers=sent)
        web.delete("/v1/items/a", headers=sent)
        web.delete("/v1/items/a", headers=sent)  # gone already
        web.put("/v1/items/c", json={"text": ""}, headers=sent)
        web.post("/v1/search", json={"text": "a"}, headers=sent)  # no change
        web.delete("/v1/items/b", headers=bearer("unknown-key-0123456789"))  # an unknown caller cannot fill the file
    finally:
        serving.handlers, serving.propagate = handlers, propagate
        serving.setLevel(level)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line for line in entries if "operation" in line]
    assert [(line["key"], line["operation"], line["ids"], line["status"]) for line in lines] == [
        ("importer", "add", ["a", "b"], 200),
        ("importer", "put", ["a"], 200),
        ("importer", "delete", ["a"], 200),
        ("importer", "delete", ["a"], 404),
        ("importer", "put", ["c"], 422),
    ]
    assert all(line["request_id"] == "r-1" and line["time"].endswith("Z") and line["client"] for line in lines)
    assert "secret" not in path.read_text() and WRITE not in path.read_text()


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
        httpx.get(f"{server.url}/healthz", trust_env=False, timeout=60)  # unknown to the system
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{server.url.replace('https', 'http')}/healthz", trust_env=False, timeout=60)


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
