"""Who is calling, what they may do, and who changed what: API keys, the key of a request, the guards of a server without keys,
and the audit log.

A key has a role, a name, and perhaps a day on which it ends. Only its SHA-256 is kept. Keys come from the environment
(`GENIUS_API_KEYS="read:KEY,write:KEY"`) and from a file, one key a line:

    read  KEY                              # searches and shows
    write KEY name=importer                # also changes; the audit log calls it "importer"
    admin sha256:HEX name=anna expires=2027-01-31

The file is read again when it changes: keys are added, replaced and withdrawn without a restart. Without any key the service is
open, and therefore listens on loopback only. A caller is a key's name, or an address: what one may hold back from the others is
counted by it.

The audit log is one JSON object a line, on disk before the answer is sent: ids, never contents or keys. The file is opened anew
for every line, so it may be moved away at any time. When a line cannot be written it goes to the service's log, and changes are
refused until one can.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.types import Scope as AsgiScope

from genius.errors import GeniusError
from genius.serve.logs import ApiError, event
from genius.serve.settings import ServeConfig

Scope = Literal["read", "write", "admin"]
ENVIRONMENT = "GENIUS_API_KEYS"
SHORTEST_KEY = 16
GRANTS: Mapping[str, tuple[Scope, ...]] = {
    "read": ("read",),
    "write": ("read", "write"),
    "admin": ("read", "write", "admin"),
}
LOOK_AGAIN_S = 1.0  # between looks at the key file
LINE = "expected 'read KEY', 'write KEY' or 'admin KEY', then name=NAME and expires=DATE where wanted"

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
Outcome = Literal["done", "failed", "refused", "unknown"]
"""`unknown`: the caller was told that it takes too long; a second line of the same request says how it ended."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without the key."""

    digest: bytes
    role: str
    name: str
    expires: datetime | None = None

    @classmethod
    def make(cls, role: str, key: str, where: str, name: str | None = None, expires: str | None = None) -> Key:
        if role not in GRANTS:
            raise GeniusError(f"{where}: unknown role {role!r}, use 'read', 'write' or 'admin'")
        if re.fullmatch(r"sha256:[0-9a-fA-F]{64}", key):
            digest = bytes.fromhex(key.removeprefix("sha256:"))
        elif len(key) < SHORTEST_KEY:  # never print the key itself
            raise GeniusError(f"{where}: a {role} key is shorter than {SHORTEST_KEY} characters")
        else:
            digest = _digest(key)
        if name is not None and not re.fullmatch(r"[\w.@-]{1,64}", name):
            raise GeniusError(f"{where}: a key's name has letters, digits and . _ - @, at most 64")
        return cls(digest, role, name or f"{role}-{digest[:4].hex()}", None if expires is None else _when(expires, where))

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return GRANTS[self.role]

    def expired(self) -> bool:
        return self.expires is not None and self.expires <= datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Keys:
    """The configured keys."""

    entries: tuple[Key, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)  # expired ones count: a server whose keys have ended is closed, not open

    @classmethod
    def parse(cls, pairs: Sequence[tuple[str, str]], where: str) -> Keys:
        return cls(tuple(Key.make(role, key, where) for role, key in pairs))

    @classmethod
    def load(cls, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Keys:
        """Keys of the file and of the environment together."""
        variable = (os.environ if environ is None else environ).get(ENVIRONMENT, "")
        pairs = [part.partition(":") for part in re.split(r"[,\s]+", variable.strip()) if part]
        entries = cls.parse([(role, key) for role, _, key in pairs], ENVIRONMENT).entries
        return cls((*(_read(file) if file is not None else ()), *entries))

    def find(self, presented: str | None) -> Key | None:
        """The key that was presented, its strongest role where it is listed twice. All are compared, in constant time."""
        if presented is None:
            return None
        digest = _digest(presented)
        known = [key for key in self.entries if hmac.compare_digest(key.digest, digest)]
        valid = [key for key in known if not key.expired()]
        return max(valid or known, key=lambda key: len(key.scopes), default=None)

    def scopes(self, presented: str | None) -> tuple[Scope, ...]:
        """What the presented key may do now."""
        key = self.find(presented)
        return () if key is None or key.expired() else key.scopes


def _read(file: Path) -> tuple[Key, ...]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GeniusError(f"cannot read the key file {file}: {error}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        words, where = line.split("#", 1)[0].split(), f"{file}, line {number}"
        if not words:
            continue
        options = dict(word.partition("=")[::2] for word in words[2:])
        if len(words) < 2 or set(options) - {"name", "expires"} or len(options) != len(words) - 2:
            raise GeniusError(f"{where}: {LINE}")
        entries.append(Key.make(words[0], words[1], where, options.get("name"), options.get("expires")))
    if not entries:
        raise GeniusError(f"the key file {file} holds no key")
    return tuple(entries)


class KeyRing:
    """The keys as they are now. A file that cannot be used leaves the keys as they were, and says so in the log."""

    def __init__(self, keys: Keys, file: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._keys, self._file, self._environ = keys, file, environ
        self._seen, self._looked = self._mark(), time.monotonic()

    @classmethod
    def load(cls, file: Path | None = None, environ: Mapping[str, str] | None = None) -> KeyRing:
        return cls(Keys.load(file, environ), file, environ)

    def current(self) -> Keys:
        if self._file is not None and time.monotonic() - self._looked >= LOOK_AGAIN_S:
            self._looked = time.monotonic()
            mark = self._mark()
            if mark != self._seen:
                self._seen = mark
                self._reload()
        return self._keys

    def _reload(self) -> None:
        try:
            self._keys = Keys.load(self._file, self._environ)
        except GeniusError as error:
            event("keys_not_reloaded", logging.ERROR, message=str(error))
        else:
            event("keys_reloaded", keys=[f"{key.role} {key.name}" for key in self._keys.entries])

    def _mark(self) -> object:
        try:
            about = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return about and (about.st_mtime_ns, about.st_size, about.st_ino)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _when(text: str, where: str) -> datetime:
    """A day (the key works until its end, UTC) or a time."""
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return datetime.combine(date.fromisoformat(text) + timedelta(days=1), datetime.min.time(), UTC)
        when = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise GeniusError(f"{where}: expires={text!r} is no date such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


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


@dataclass(frozen=True, slots=True)
class Caller:
    """The one behind a request, once it is known what they may do."""

    name: str  # of the key; "anyone" on a server without keys
    scopes: tuple[Scope, ...]
    address: str
    keyed: bool  # False: told apart by the address alone

    @property
    def owner(self) -> str:
        """Whose share of the work this is."""
        return self.name if self.keyed else self.address


def address_of(host: str) -> str:
    """An address as one client: itself, or the network of an IPv6 address, of which everyone has a whole one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def client_of(scope: AsgiScope) -> str:
    return address_of((scope.get("client") or ("", 0))[0])


def owner_of(scope: AsgiScope) -> str:
    """The caller's share of the work, known or not."""
    caller = scope.get("state", {}).get("caller")
    return caller.owner if isinstance(caller, Caller) else client_of(scope)


@dataclass(slots=True)
class Change:
    """A change that somebody asked for."""

    caller: Caller
    operation: str
    request_id: str
    ids: list[str] = field(default_factory=list)
    begun: bool = False  # it came to its turn
    settled: bool = False  # a line is on record


class Audit:
    """Writes lines to `path`; without one it does nothing."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._lock = threading.Lock()
        self._broken = False
        if self._path is not None:
            try:
                self._append("")
            except OSError as error:
                raise GeniusError(f"cannot write the audit log {self._path}: {error.strerror or error}") from None

    def __bool__(self) -> bool:
        return self._path is not None

    def usable(self) -> bool:
        """False while lines cannot be written."""
        if self._broken and self._path is not None:
            try:
                self._append("\n")  # what was cut off ends here
                self._broken = False
            except OSError:
                return False
        return True

    def record(self, change: Change, outcome: Outcome, status: int, message: str = "") -> None:
        if self._path is None:
            return
        change.settled = True
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "who": change.caller.name,
            "client": change.caller.address,
            "operation": change.operation,
            "ids": change.ids,
            "outcome": outcome,
            "status": status,
            "request_id": change.request_id,
        }
        if message:
            line["message"] = message
        try:
            self._append(json.dumps(line, ensure_ascii=True) + "\n")
        except OSError as error:
            self._broken = True
            event("audit_failed", logging.ERROR, message=str(error), line=line)

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest lines, newest first."""
        if self._path is None:
            raise GeniusError("this server keeps no audit log")
        try:
            with self._path.open(encoding="utf-8") as file:
                lines = deque(file, maxlen=count)
        except FileNotFoundError:  # moved away just now
            return []
        return [entry for line in reversed(lines) if (entry := _parsed(line)) is not None]

    def _append(self, text: str) -> None:
        assert self._path is not None
        with self._lock:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            try:
                left = text.encode()
                while left:
                    left = left[os.write(handle, left) :]
                os.fsync(handle)
            finally:
                os.close(handle)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:  # cut off by a full disk
        return None
    return entry if isinstance(entry, dict) else None
