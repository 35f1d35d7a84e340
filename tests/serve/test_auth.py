"""Keys, scopes, and what an open server refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from serve_fixtures import keys_of, scopes
from starlette.testclient import TestClient

from genius.errors import GeniusError
from genius.index import Index
from genius.serve.auth import Keys, check_exposure
from genius.serve.settings import ServeConfig

READ, WRITE = "read-key-0123456789", "write-key-0123456789"


@pytest.fixture
def guarded(make_web: Callable[..., TestClient], make_index: Callable[..., Index]) -> TestClient:
    keys = keys_of(("read", READ), ("write", WRITE))
    return make_web(make_index(6), keys)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


ROUTES = [
    ("read", "POST", "/v1/collections/shapes/search"),
    ("write", "DELETE", "/v1/collections/shapes/items/new"),
    ("read", "GET", "/v1/info"),
    ("read", "GET", "/v1/items/circle/red.png"),
    ("read", "GET", "/v1/images/circle/red.png"),
    ("read", "GET", "/v1/thumbnails/circle/red.png"),
    ("read", "GET", "/v1/codes"),
    ("read", "GET", "/v1/codes/0"),
    ("read", "GET", "/metrics"),
    ("read", "POST", "/v1/search"),
    ("read", "POST", "/v1/search/batch"),
    ("read", "POST", "/v1/explain"),
    ("read", "GET", "/v1/items"),
    ("read", "GET", "/v1/collections"),
    ("write", "POST", "/v1/items"),
    ("write", "PUT", "/v1/items/new"),
    ("write", "DELETE", "/v1/items/new"),
]
BODIES = {
    "/v1/collections/shapes/search": {"text": "red"},
    "/v1/search": {"text": "red"},
    "/v1/explain": {"text": "red"},
    "/v1/search/batch": {"queries": [{"text": "red"}]},
    "/v1/items": {"items": [{"id": "new", "text": "t"}]},
    "/v1/items/new": {"text": "t"},
}


@pytest.mark.parametrize(("needs", "method", "path"), ROUTES)
def test_every_route_asks_for_its_scope(guarded: TestClient, needs: str, method: str, path: str) -> None:
    body = BODIES.get(path) if method in ("POST", "PUT") else None

    def status(headers: dict[str, str]) -> int:
        return guarded.request(method, path, json=body, headers=headers).status_code

    assert status({}) == 401
    assert status(bearer("wrong-key-0123456789")) == 401
    assert status(bearer(READ[:-1])) == 401 and status(bearer(READ + "x")) == 401
    assert status({"Authorization": f"Basic {READ}"}) == 401
    assert status(bearer(READ)) == (200 if needs == "read" else 403)
    assert status({"X-API-Key": WRITE}) in ((200, 201, 404) if needs == "write" else (200,))


def test_no_route_was_forgotten(guarded: TestClient) -> None:
    """Whatever the OpenAPI document lists is either in ROUTES or meant to be open."""
    listed = {
        (method.upper(), path.replace("{item_id}", "*").replace("{prefix}", "*"))
        for path, methods in guarded.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    named = {(method, path) for method, path in listed if path.startswith("/v1/collections/{collection}/")}
    assert {path.replace("/v1/collections/{collection}", "/v1") for _, path in named} <= {path for _, path in listed - named}
    listed -= named  # the same functions under a second name
    tested = {
        (method, path.replace("circle/red.png", "*").replace("items/new", "items/*").replace("codes/0", "codes/*"))
        for _, method, path in ROUTES
    }
    assert listed - tested == {("GET", "/healthz"), ("GET", "/readyz")}


def test_health_and_the_page_are_open(guarded: TestClient) -> None:
    for path in ("/healthz", "/readyz", "/", "/static/main.js", "/docs", "/openapi.json"):
        assert guarded.get(path).status_code == 200


def test_401_says_how_and_names_the_scheme(guarded: TestClient) -> None:
    answer = guarded.get("/v1/info")
    assert answer.headers["www-authenticate"] == "Bearer" and "Authorization: Bearer" in answer.json()["error"]["message"]


def test_info_tells_the_caller_its_scopes(guarded: TestClient) -> None:
    assert guarded.get("/v1/info", headers=bearer(READ)).json()["scopes"] == ["read"]
    assert guarded.get("/v1/info", headers=bearer(WRITE)).json()["scopes"] == ["read", "write"]


def test_an_open_server_keeps_other_web_sites_out(make_web: Callable[..., TestClient], make_index: Callable[..., Index]) -> None:
    web = make_web(make_index(6))
    search = {"text": "red"}
    assert web.post("/v1/search", json=search, headers={"Host": "evil.example"}).status_code == 403  # DNS rebinding
    for host in ("evil.example:8000", "testserver", "testserver:8000", "localhost.evil.example", "", "[::1", "[localhost]"):
        assert web.get("/v1/info", headers={"Host": host}).status_code == 403
    assert web.post("/v1/search", json=search, headers={"Origin": "http://evil.example"}).status_code == 403
    assert web.post("/v1/search", json=search, headers={"Origin": "null"}).status_code == 403
    assert web.post("/v1/search", json=search, headers={"Origin": "http://[::1"}).status_code == 403
    assert web.delete("/v1/items/circle/red.png", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    local = {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    assert web.post("/v1/search", json=search, headers=local).status_code == 200
    assert web.post("/v1/search", json=search, headers={"Host": "[::1]:8000"}).status_code == 200


def test_keys_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\nread {READ}   # the page\n\nwrite {WRITE}\n")
    keys = Keys(file, {"GENIUS_API_KEYS": "read:another-key-0123456, write:yet-another-key-0123"})
    assert scopes(keys, READ) == ("read",) and scopes(keys, WRITE) == ("read", "write")
    assert scopes(keys, "another-key-0123456") == ("read",) and scopes(keys, "yet-another-key-0123") == ("read", "write")
    assert scopes(keys, "nothing") == () and scopes(keys, "") == ()
    assert READ not in repr(vars(keys))  # only digests are kept
    assert not Keys()


@pytest.mark.parametrize("variable", ["read:hunter2", "owner:long-enough-0123456", "just-a-key-without-scope", "write:"])
def test_bad_keys_are_refused_without_showing_them(variable: str) -> None:
    with pytest.raises(GeniusError) as caught:
        Keys(None, {"GENIUS_API_KEYS": variable})
    secret = variable.partition(":")[2]
    assert not secret or secret not in str(caught.value)


def test_bad_key_files_are_refused(tmp_path: Path) -> None:
    for content in ("", "# nothing\n", "read\n", "read a b c\n"):
        (tmp_path / "keys").write_text(content)
        with pytest.raises(GeniusError, match="key"):
            Keys(tmp_path / "keys", {})
    with pytest.raises(GeniusError, match="cannot read"):
        Keys(tmp_path / "absent", {})


def test_beyond_this_machine_only_with_keys() -> None:
    keys = keys_of(("read", READ))
    for host in ("127.0.0.1", "localhost", "::1", "127.8.9.1"):
        check_exposure(ServeConfig(host=host), Keys())
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        check_exposure(ServeConfig(host=host), keys)
        with pytest.raises(GeniusError, match="without API keys"):
            check_exposure(ServeConfig(host=host), Keys())


def test_a_key_that_is_listed_twice_has_its_stronger_role() -> None:
    for roles in (("read", "write"), ("write", "read")):
        assert "write" in scopes(keys_of(*((role, WRITE) for role in roles)), WRITE)
