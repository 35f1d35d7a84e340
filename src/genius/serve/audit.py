"""The audit log: who changed what, when, and how it ended. One JSON object a line, on disk before the answer is sent.

Ids are written, contents and keys never. The file is opened anew for every line, so it may be moved away at any time.
When a line cannot be written it goes to the service's log, and changes are refused until one can.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from genius.errors import GeniusError
from genius.serve.auth import Caller
from genius.serve.logs import event

Outcome = Literal["done", "failed", "refused", "unknown"]
"""`unknown`: the caller was told that it takes too long; a second line of the same request says how it ended."""


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
