"""Sources cut into parts, each of which one worker does alone: some files, or a stretch of rows of a table.

A part's name is made of what is in it (files, their size and time, rows) and of what is done to it (settings, the model): a
second run finds the same names for the same work, and only those. Ray's own blocks differ from run to run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from genius.data.readers import cut_rows
from genius.errors import GeniusError
from genius.index.ingest import Found, IngestConfig, IngestReport, file_mark, find_files, kind_of_file

MAX_PARTS = 1 << 15  # of one job: each part has its own range of row numbers
MAX_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker does in one go."""

    name: str
    files: tuple[Found, ...]
    items: int  # about how many, for the time left; 0: unknown

    def __str__(self) -> str:
        first, last = self.files[0], self.files[-1]
        if first.stretch is not None and len(self.files) == 1:
            return f"{first.name}, rows from {first.stretch.first + 1:,} on"
        return first.name if first is last else f"{first.name} to {last.name}"


def cut(paths: Sequence[str | Path], config: IngestConfig, rows: int, salt: str, report: IngestReport) -> list[Part]:
    """Everything under `paths` in parts of at most `rows` items, in the order in which one process would read it.

    `salt`: what else decides the outcome (the model). Files that cannot be cut are left to a worker, who says why.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise GeniusError(f"rows of a part must be 1 to {MAX_ROWS:,}, got {rows}")
    about = f"{salt}|{json.dumps(asdict(config), sort_keys=True)}"
    parts = [_part(files, items, about, config) for files, items in _groups(find_files(paths, config, report), rows)]
    if len(parts) > MAX_PARTS:
        raise GeniusError(f"{len(parts):,} parts, more than {MAX_PARTS:,}: let each hold more than {rows:,} items (--part-rows)")
    return parts


def _groups(found: Iterator[Found], rows: int) -> Iterator[tuple[list[Found], int]]:
    single: list[Found] = []
    for file in found:
        if kind_of_file(file.path) == "table":
            if single:
                yield single, len(single)
                single = []
            yield from _stretches(file, rows)
            continue
        single.append(file)
        if len(single) == rows:
            yield single, len(single)
            single = []
    if single:
        yield single, len(single)


def _stretches(file: Found, rows: int) -> Iterator[tuple[list[Found], int]]:
    try:
        stretches = cut_rows(file.path, rows)
    except (GeniusError, OSError):
        yield [file], 0
        return
    for stretch in stretches:
        yield [replace(file, stretch=stretch)], stretch.count if stretch.count <= rows else 0


def _part(files: Sequence[Found], items: int, about: str, config: IngestConfig) -> Part:
    digest = hashlib.blake2b(about.encode(), digest_size=12)
    for file in files:
        marks = [_mark(path, config) for path in (file.path, file.caption) if path is not None]
        stretch = None if file.stretch is None else asdict(file.stretch)
        digest.update(repr((str(file.path), file.name, marks, stretch)).encode("utf-8", "backslashreplace"))
    return Part(digest.hexdigest(), tuple(files), items)


def _mark(path: Path, config: IngestConfig) -> str:
    try:
        return file_mark(path, config.by_content)
    except OSError:
        return "gone"  # the worker will say so
