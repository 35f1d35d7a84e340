"""Finding the processes that a proof may kill: those of its own Ray, which carry its mark in their environment, and no others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MARK = "GENIUS_PROOF"


def mark() -> None:
    """To be called before Ray starts: what it starts inherits the mark."""
    os.environ[MARK] = f"{os.getpid()}"
    os.environ.setdefault("RAY_worker_niceness", "0")  # its 15 would make a proof on a shared machine wait for everyone else


def marked(title: str) -> list[int]:
    """Processes of our own Ray whose title contains `title`, such as "ray::PartWriter"."""
    found = []
    ours = f"{MARK}={os.environ[MARK]}".encode()
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            if title.encode() in (place / "cmdline").read_bytes() and ours in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:  # gone meanwhile
            continue
    return sorted(found)


def keep(path: Path, body: dict[str, Any]) -> None:
    """Results beside the program, and on the screen."""
    text = json.dumps(body, indent=1)
    path.write_text(text + "\n")
    print(text, flush=True)
