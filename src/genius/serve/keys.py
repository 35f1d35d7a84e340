"""API keys: a role, a name, and perhaps a day on which they end. Only their SHA-256 is kept.

They come from the environment (`GENIUS_API_KEYS="read:KEY,write:KEY"`) and from a file, one key a line:

    read  KEY                              # searches and shows
    write KEY name=importer                # also changes; the audit log calls it "importer"
    admin sha256:HEX name=anna expires=2027-01-31

The file is read again when it changes: keys are added, replaced and withdrawn without a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal

from genius.errors import GeniusError
from genius.serve.logs import event

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
