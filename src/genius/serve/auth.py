"""Who may do what: the key of a request, and the guards of a server without keys.

Without any key the service is open, and therefore listens on loopback only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from genius.errors import GeniusError
from genius.serve.callers import Caller
from genius.serve.errors import ApiError
from genius.serve.keys import ENVIRONMENT, Keys, Scope
from genius.serve.settings import ServeConfig

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def presented_key(headers: Mapping[str, str]) -> str | None:
    """`Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return headers.get("x-api-key") or None


def identify(keys: Keys, headers: Mapping[str, str], address: str) -> Caller:
    """The caller, or 401: no key, an unknown one, or one whose time is over."""
    if not keys:
        return Caller("anyone", ("read", "write"), address, False)
    presented = presented_key(headers)
    key = keys.find(presented)
    if key is None:
        problem = "this server needs an API key" if presented is None else "this API key is not known"
        raise ApiError(401, f"{problem}: send 'Authorization: Bearer KEY'")
    if key.expired():
        raise ApiError(401, f"this API key has expired, on {key.expires:%Y-%m-%d}")
    return Caller(key.name, key.scopes, address, True)


def authorize(caller: Caller, needed: Scope) -> None:
    """403 for a key that may not, or without keys for what only an admin's may."""
    if needed not in caller.scopes:
        if not caller.keyed:
            raise ApiError(403, f"this needs an {needed} key, and this server has no keys")
        raise ApiError(403, f"this API key may {' and '.join(caller.scopes)}, not {needed}")


def guard_open_server(config: ServeConfig, headers: Mapping[str, str], method: str) -> None:
    """Without keys, keep other web sites out: a page elsewhere must not reach a local server through the browser.

    DNS rebinding shows in the Host header, a cross-site form in Origin or Sec-Fetch-Site.
    """
    host = urlsplit(f"//{headers.get('host', '')}").hostname if _plain(headers.get("host", "")) else None
    if host not in LOCAL_HOSTS and host not in config.allowed_hosts and host != config.host:
        raise ApiError(403, "this server has no API keys and answers only to local names: use localhost, or set keys")
    if method in ("GET", "HEAD", "OPTIONS"):
        return
    origin = headers.get("origin")
    same = origin is None or (_plain(origin) and urlsplit(origin).netloc == headers.get("host"))
    if not same or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ApiError(403, "requests from other web sites are refused")


def _plain(value: str) -> bool:
    return bool(re.fullmatch(r"[\w.:/\[\]-]+", value))


def check_exposure(config: ServeConfig, keys: Keys) -> None:
    """Refuse to listen beyond this machine without keys."""
    if not keys and not config.loopback:
        raise GeniusError(
            f"listening on {config.host} without API keys would open the index to the network: "
            f"set {ENVIRONMENT}='read:KEY,write:KEY' or --keys FILE, or listen on 127.0.0.1"
        )
