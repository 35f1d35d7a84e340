"""Which paths are addresses in an object store. Apart, so that commands can ask without loading anything."""

from __future__ import annotations

import re
from pathlib import Path


def url_of(path: str | Path) -> str | None:
    """The address of something in an object store; None for a path. (A `Path` of it has lost one of its slashes.)"""
    found = re.fullmatch(r"s3:/{1,2}([^/].*)", str(path))
    return f"s3://{found[1].rstrip('/')}" if found else None
