"""Who may do what: API keys with a read or a write scope, and the guards of a server without keys.

Keys come from the environment (`GENIUS_API_KEYS="read:KEY,write:KEY"`) or a file (one `scope KEY` a line). Only
their SHA-256 is kept. Without any key the service is open, and therefore listens on loopback only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from genius.errors import GeniusError
from genius.serve.errors import ApiError
from genius.serve.settings import ServeConfig

Scope = Literal["read", "write"]
ENVIRONMENT = "GENIUS_API_KEYS"
SHORTEST_KEY = 16
GRANTS: Mapping[str, tuple[Scope, ...]] = {"read": ("read",), "write": ("read", "write")}  # write implies read
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "testserver"})


@dataclass(frozen=True, slots=True)
class Keys:
    """The configured keys, as (digest, scopes)."""

    entries: tuple[tuple[bytes, tuple[Scope, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    @classmethod
    def parse(cls, pairs: Sequence[tuple[str, str]], where: str) -> Keys:
        entries: list[tuple[bytes, tuple[Scope, ...]]] = []
        for scope, key in pairs:
            if scope not in GRANTS:
                raise GeniusError(f"{where}: unknown scope {scope!r}, use 'read' or 'write'")
            if len(key) < SHORTEST_KEY:  # never print the key itself
                raise GeniusError(f"{where}: a {scope} key is shorter than {SHORTEST_KEY} characters")
            entries.append((_digest(key), GRANTS[scope]))
        return cls(tuple(entries))

    @classmethod
    def load(cls, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Keys:
        """Keys of the file and of the environment together."""
        entries: tuple[tuple[bytes, tuple[Scope, ...]], ...] = ()
        if file is not None:
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise GeniusError(f"cannot read the key file {file}: {error}") from None
            pairs = []
            for number, line in enumerate(lines, 1):
                words = line.split("#", 1)[0].split()
                if words and len(words) != 2:
                    raise GeniusError(f"{file}, line {number}: expected 'read KEY' or 'write KEY'")
                if words:
                    pairs.append((words[0], words[1]))
            if not pairs:
                raise GeniusError(f"the key file {file} holds no key")
            entries += cls.parse(pairs, str(file)).entries
        variable = (os.environ if environ is None else environ).get(ENVIRONMENT, "")
        pairs = []
        for part in re.split(r"[,\s]+", variable.strip()):
            if part:
                scope, _, key = part.partition(":")
                pairs.append((scope, key))
        return cls(entries + cls.parse(pairs, ENVIRONMENT).entries)

    def scopes(self, presented: str | None) -> tuple[Scope, ...]:
        """What the presented key may do; every entry is compared, in constant time."""
        if presented is None:
            return ()
        digest, granted = _digest(presented), ()
        for known, scopes in self.entries:
            if hmac.compare_digest(known, digest) and len(scopes) > len(granted):
                granted = scopes  # type: ignore[assignment]
        return granted


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def presented_key(headers: Mapping[str, str]) -> str | None:
    """`Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return headers.get("x-api-key") or None


def authorize(keys: Keys, headers: Mapping[str, str], needed: Scope) -> tuple[Scope, ...]:
    """The caller's scopes, or 401 (no or unknown key) or 403 (a key that may not)."""
    if not keys:
        return ("read", "write")
    presented = presented_key(headers)
    granted = keys.scopes(presented)
    if not granted:
        problem = "this server needs an API key" if presented is None else "this API key is not known"
        raise ApiError(401, f"{problem}: send 'Authorization: Bearer KEY'")
    if needed not in granted:
        raise ApiError(403, f"this API key may {' and '.join(granted)}, not {needed}")
    return granted


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
