"""API keys: who sends a request, and what they may do.

A key has a role (read or write) and a name. Only its SHA-256 is kept. Keys come from the environment
(`GENIUS_API_KEYS="read:KEY,write:KEY"`) and from a file with one key per line:

    read  KEY                     # searches and shows
    write KEY name=importer       # also changes; logs call it "importer"
    write sha256:HEX name=anna

The file is read again when it changes, so keys are added and withdrawn without a restart. Without any key the service is open,
and therefore listens on loopback only. Shares of time and memory are counted per caller: a key's name, or an address.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
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
LINE_FORMAT = "expected 'read KEY' or 'write KEY', then optionally name=NAME"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key, besides its digest."""

    name: str  # what logs call it
    role: Role


class Keys:
    """The configured keys, by digest. A file of keys is read again when it changes; an unusable one leaves the keys as they were.

    Args:
        file: One key per line.
        environ: Environment variables, of which `GENIUS_API_KEYS` has more keys.

    Raises:
        GeniusError: A key or the file is not valid.
    """

    def __init__(self, file: Path | None = None, environ: Mapping[str, str] = MappingProxyType({})) -> None:
        self._file = file
        self._environ = environ
        self._file_state = self._stat()
        self._keys = _read_keys(file, environ)

    def __bool__(self) -> bool:
        return bool(self._current())

    def find(self, presented: str) -> ApiKey | None:
        """The key that is presented. Digests are compared: how long that takes says nothing of a key."""
        return self._current().get(_digest(presented))

    def _current(self) -> Mapping[bytes, ApiKey]:
        state = self._stat()
        if state != self._file_state:
            self._file_state = state
            try:
                self._keys = _read_keys(self._file, self._environ)
            except GeniusError as error:
                event("keys_not_reloaded", logging.ERROR, message=str(error))
            else:
                event("keys_reloaded", keys=[f"{key.role} {key.name}" for key in self._keys.values()])
        return self._keys

    def _stat(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            about = self._file.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino


def _read_keys(file: Path | None, environ: Mapping[str, str]) -> dict[bytes, ApiKey]:
    keys: dict[bytes, ApiKey] = {}
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise GeniusError(f"cannot read the key file {file}: {error}") from None
        for number, line in enumerate(lines, 1):
            text = " ".join(line.split("#", 1)[0].split())
            if text:
                _add_key(keys, text, f"{file}, line {number}")
        if not keys:
            raise GeniusError(f"the key file {file} holds no key")
    for part in re.split(r"[,\s]+", environ.get(ENVIRONMENT, "")):
        if part:
            _add_key(keys, part.replace(":", " ", 1), ENVIRONMENT)
    return keys


def _add_key(keys: dict[bytes, ApiKey], text: str, where: str) -> None:
    """Add the key of one line; `where` begins the error, which never shows the key itself."""
    match = re.fullmatch(r"(\S*) (\S+)(?: name=([\w.@-]{1,64}))?", text)
    if match is None:
        raise GeniusError(f"{where}: {LINE_FORMAT}")
    role, key, name = match.groups()
    if role not in ("read", "write"):
        raise GeniusError(f"{where}: unknown role {role!r}, use 'read' or 'write'")
    if re.fullmatch(r"sha256:[0-9a-fA-F]{64}", key):
        digest = bytes.fromhex(key.removeprefix("sha256:"))
    elif len(key) < MIN_KEY_LENGTH:
        raise GeniusError(f"{where}: a {role} key is shorter than {MIN_KEY_LENGTH} characters")
    else:
        digest = _digest(key)
    if role == "write" or digest not in keys:  # a key that is listed twice has its stronger role
        keys[digest] = ApiKey(name or f"{role}-{digest[:4].hex()}", role)  # type: ignore[arg-type]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and what they may do."""

    key: str | None  # its name; None on a server without keys
    role: Role
    address: str

    @property
    def owner(self) -> str:
        """Whose share of the work a request belongs to."""
        return self.key or self.address

    @property
    def scopes(self) -> tuple[Role, ...]:
        """What the caller may do."""
        if self.role == "write":
            return ("read", "write")
        return ("read",)


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return headers.get("x-api-key") or None


def identify(keys: Keys, headers: Mapping[str, str], address: str) -> Caller:
    """The caller, or 401: no key, or an unknown one."""
    if not keys:
        return Caller(None, "write", address)
    presented = presented_key(headers)
    if presented is None:
        raise ApiError(401, "this server needs an API key: send 'Authorization: Bearer KEY'")
    key = keys.find(presented)
    if key is None:
        raise ApiError(401, "this API key is not known: send 'Authorization: Bearer KEY'")
    return Caller(key.name, key.role, address)


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
