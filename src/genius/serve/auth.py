"""API keys: who sends a request, and what they may do.

A key has a role (read or write; admin is accepted and equals write), a name, and optionally an expiry date. Only its SHA-256 is
kept. Keys come from the environment (`GENIUS_API_KEYS="read:KEY,write:KEY"`) and from a file with one key per line:

    read  KEY                              # searches and shows
    write KEY name=importer                # also changes; logs call it "importer"
    write sha256:HEX name=anna expires=2027-01-31

The file is read again when it changes, so keys are added and withdrawn without a restart. Without any key the service is open,
and therefore listens on loopback only. Shares of time and memory are counted per caller: a key's name, or an address.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from starlette.types import Scope as AsgiScope

from genius.errors import GeniusError
from genius.serve.errors import ApiError
from genius.serve.logs import event
from genius.serve.settings import ServeConfig

Role = Literal["read", "write"]
ENVIRONMENT = "GENIUS_API_KEYS"
MIN_KEY_LENGTH = 16
GRANTS: Mapping[str, tuple[Role, ...]] = {"read": ("read",), "write": ("read", "write"), "admin": ("read", "write")}
RELOAD_INTERVAL_S = 1.0  # between looks at the key file
LINE_FORMAT = "expected 'read KEY' or 'write KEY', then optionally name=NAME and expires=DATE"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, by its digest."""

    digest: bytes
    role: str
    name: str
    expires: datetime | None = None

    @classmethod
    def make(cls, role: str, key: str, where: str, name: str | None = None, expires: str | None = None) -> ApiKey:
        """A key from its text form.

        Args:
            role: read, write or admin.
            key: The key, or `sha256:` and the digest of one.
            where: Place that errors name; they never show the key itself.
            name: What logs call it; by default the role and part of the digest.
            expires: Date (valid until its end, UTC) or time.

        Raises:
            GeniusError: A part is not valid.
        """
        if role not in GRANTS:
            raise GeniusError(f"{where}: unknown role {role!r}, use 'read' or 'write'")
        if re.fullmatch(r"sha256:[0-9a-fA-F]{64}", key):
            digest = bytes.fromhex(key.removeprefix("sha256:"))
        elif len(key) < MIN_KEY_LENGTH:
            raise GeniusError(f"{where}: a {role} key is shorter than {MIN_KEY_LENGTH} characters")
        else:
            digest = _digest(key)
        if name is not None and not re.fullmatch(r"[\w.@-]{1,64}", name):
            raise GeniusError(f"{where}: a key's name has letters, digits and . _ - @, at most 64")
        expiry = None
        if expires is not None:
            expiry = _parse_expiry(expires, where)
        return cls(digest, role, name or f"{role}-{digest[:4].hex()}", expiry)

    @property
    def scopes(self) -> tuple[Role, ...]:
        return GRANTS[self.role]

    def expired(self) -> bool:
        return self.expires is not None and self.expires <= datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Keys:
    """The configured keys."""

    entries: tuple[ApiKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)  # expired ones count: a server whose keys have all expired is closed, not open

    @classmethod
    def parse(cls, pairs: Sequence[tuple[str, str]], where: str) -> Keys:
        """Keys from (role, key) pairs."""
        return cls(tuple(ApiKey.make(role, key, where) for role, key in pairs))

    @classmethod
    def load(cls, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Keys:
        """Keys of the file and of the environment together."""
        if environ is None:
            environ = os.environ
        entries: list[ApiKey] = []
        if file is not None:
            entries += _read_key_file(file)
        for part in re.split(r"[,\s]+", environ.get(ENVIRONMENT, "")):
            if part:
                role, _, key = part.partition(":")
                entries.append(ApiKey.make(role, key, ENVIRONMENT))
        return cls(tuple(entries))

    def find(self, presented: str | None) -> ApiKey | None:
        """The presented key, with its strongest role if it is listed twice. All keys are compared, in constant time."""
        if presented is None:
            return None
        digest = _digest(presented)
        matching = [key for key in self.entries if hmac.compare_digest(key.digest, digest)]
        valid = [key for key in matching if not key.expired()]
        return max(valid or matching, key=lambda key: len(key.scopes), default=None)

    def scopes(self, presented: str | None) -> tuple[Role, ...]:
        """What the presented key may do now."""
        key = self.find(presented)
        if key is None or key.expired():
            return ()
        return key.scopes


class KeyRing:
    """The keys as they are now. An unusable file leaves the keys as they were and is reported in the log."""

    def __init__(self, keys: Keys, file: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._keys = keys
        self._file = file
        self._environ = environ
        self._file_state = self._stat()
        self._checked_at = time.monotonic()

    @classmethod
    def load(cls, file: Path | None = None, environ: Mapping[str, str] | None = None) -> KeyRing:
        return cls(Keys.load(file, environ), file, environ)

    def current(self) -> Keys:
        now = time.monotonic()
        if self._file is not None and now - self._checked_at >= RELOAD_INTERVAL_S:
            self._checked_at = now
            state = self._stat()
            if state != self._file_state:
                self._file_state = state
                self._reload()
        return self._keys

    def _reload(self) -> None:
        try:
            self._keys = Keys.load(self._file, self._environ)
        except GeniusError as error:
            event("keys_not_reloaded", logging.ERROR, message=str(error))
        else:
            event("keys_reloaded", keys=[f"{key.role} {key.name}" for key in self._keys.entries])

    def _stat(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            about = self._file.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino


def _read_key_file(file: Path) -> list[ApiKey]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GeniusError(f"cannot read the key file {file}: {error}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        where = f"{file}, line {number}"
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        options = dict(word.partition("=")[::2] for word in words[2:])
        if len(words) < 2 or set(options) - {"name", "expires"} or len(options) != len(words) - 2:
            raise GeniusError(f"{where}: {LINE_FORMAT}")
        keys.append(ApiKey.make(words[0], words[1], where, options.get("name"), options.get("expires")))
    if not keys:
        raise GeniusError(f"the key file {file} holds no key")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _parse_expiry(text: str, where: str) -> datetime:
    """A date (valid until its end, UTC) or a time."""
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return datetime.combine(date.fromisoformat(text) + timedelta(days=1), datetime.min.time(), UTC)
        when = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise GeniusError(f"{where}: expires={text!r} is no date such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    if when.tzinfo is None:
        return when.replace(tzinfo=UTC)
    return when


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and what they may do."""

    name: str  # of the key; "anyone" on a server without keys
    scopes: tuple[Role, ...]
    address: str
    keyed: bool  # False: identified by the address alone

    @property
    def owner(self) -> str:
        """Whose share of the work a request belongs to."""
        if self.keyed:
            return self.name
        return self.address


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return headers.get("x-api-key") or None


def identify(keys: Keys, headers: Mapping[str, str], address: str) -> Caller:
    """The caller, or 401: no key, an unknown one, or an expired one."""
    if not keys:
        return Caller("anyone", ("read", "write"), address, False)
    presented = presented_key(headers)
    key = keys.find(presented)
    if key is None:
        problem = "this API key is not known"
        if presented is None:
            problem = "this server needs an API key"
        raise ApiError(401, f"{problem}: send 'Authorization: Bearer KEY'")
    if key.expired():
        raise ApiError(401, f"this API key has expired, on {key.expires:%Y-%m-%d}")
    return Caller(key.name, key.scopes, address, True)


def authorize(caller: Caller, needed: Role) -> None:
    """403 for a key that may not."""
    if needed not in caller.scopes:
        raise ApiError(403, f"this API key may {' and '.join(caller.scopes)}, not {needed}")


def guard_open_server(config: ServeConfig, headers: Mapping[str, str], method: str) -> None:
    """Without keys, refuse other web sites: a page elsewhere must not use a local server through the browser.

    DNS rebinding shows in the Host header, a cross-site form in Origin or Sec-Fetch-Site.
    """
    host_header = headers.get("host", "")
    host = None
    if _is_address(f"//{host_header}"):
        host = urlsplit(f"//{host_header}").hostname
    if host not in LOCAL_HOSTS and host not in config.allowed_hosts and host != config.host:
        raise ApiError(403, "this server has no API keys and answers only to local names: use localhost, or set keys")
    if method in ("GET", "HEAD", "OPTIONS"):
        return
    origin = headers.get("origin")
    same_origin = origin is None or (_is_address(origin) and urlsplit(origin).netloc == host_header)
    if not same_origin or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ApiError(403, "requests from other web sites are refused")


def _is_address(url: str) -> bool:
    """Whether a URL has only characters of an address, and can be parsed."""
    try:
        urlsplit(url)
    except ValueError:  # brackets without an IPv6 address between them
        return False
    return bool(re.fullmatch(r"[\w.:/\[\]-]+", url))


def check_exposure(config: ServeConfig, keys: Keys) -> None:
    """Refuse to listen beyond this machine without keys."""
    if not keys and not config.loopback:
        raise GeniusError(
            f"listening on {config.host} without API keys would open the index to the network: "
            f"set {ENVIRONMENT}='read:KEY,write:KEY' or --keys FILE, or listen on 127.0.0.1"
        )


def address_of(host: str) -> str:
    """An address as one client: itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def client_of(scope: AsgiScope) -> str:
    return address_of((scope.get("client") or ("", 0))[0])


def owner_of(scope: AsgiScope) -> str:
    """Whose share of the work a request belongs to: the key's, once it is known, or the address's."""
    caller = scope.get("state", {}).get("caller")
    if isinstance(caller, Caller):
        return caller.owner
    return client_of(scope)
