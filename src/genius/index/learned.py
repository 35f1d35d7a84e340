"""The queries that an index has learned from: one file in its folder, `queries.safetensors`.

It holds a bank of query vectors (`genius.model.query_bank`), the weight and temperature of each direction, and which model they
are of. It appears whole, after it was read back, or not at all. A file of another model, or one that cannot be read, counts as
none: a search without it is a search without this correction. Knows the file; nothing of how a bank is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from genius.errors import GeniusError, said
from genius.files import write_whole
from genius.index.paths import LEARNED, remove
from genius.model.query_bank import MODALITIES, QueryBank
from genius.types import Modality

MAX_DIGITS = 18  # of a number in the metadata


@dataclass(frozen=True, slots=True)
class Direction:
    """What was learned of one direction.

    Args:
        query: Modality of the queries.
        target: Modality that they want.
        queries: How many there are, with those of the model that complete a short log.
        weight: w of the item bias; 0: no correction.
        temperature: t of it.
    """

    query: str
    target: str
    queries: int
    weight: float
    temperature: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What an index has learned from queries.

    Args:
        queries: Different queries of the log that are kept.
        directions: What follows for each direction that has enough of them.
        version: Of the index when they were learned.
        chosen_by: "positives" where the log had enough of them, else "agreement".
        ignored: Queries of the log that have nothing to do with this collection, and were left out.
        skipped: Lines that could not be read.
    """

    queries: int
    directions: tuple[Direction, ...]
    version: int
    chosen_by: str = "agreement"
    ignored: int = 0
    skipped: int = 0


def directions_of(bank: QueryBank) -> tuple[Direction, ...]:
    """The directions of a bank that correct anything, or could."""
    out = []
    for query in range(MODALITIES):
        for target in range(MODALITIES):
            count = int(bank.in_direction(query, target).sum())
            if count:
                weight = round(bank.bias_weight(query, target), 4)
                temperature = round(bank.temperature(query, target), 4)
                out.append(Direction(Modality(query).label, Modality(target).label, count, weight, temperature))
    return tuple(out)


def stamp(folder: Path) -> tuple[int, int, int] | None:
    """What tells one file from the next; None: there is none."""
    try:
        found = (folder / LEARNED).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def save(folder: Path, bank: QueryBank, about: Mapping[str, str]) -> None:
    """Write the file: on the disk, and read back, before it takes the place of the one before.

    Raises:
        GeniusError: If it cannot be written, or reads back as something else; the one before stays.
    """

    def write(path: Path) -> None:
        bank.write(path, about)
        if QueryBank.read(path, bank.width).digest() != bank.digest():
            raise GeniusError(f"cannot write {folder / LEARNED}: it reads back as something else; the index is unchanged")

    try:
        write_whole(folder / LEARNED, write, durable=True)
    except GeniusError as error:
        if _holds(folder, bank):
            raise GeniusError(f"{said(error)}; the change is made, but a power cut may undo it") from None
        raise


def _holds(folder: Path, bank: QueryBank) -> bool:
    """Whether the file is this bank."""
    try:
        found = QueryBank.load(folder, bank.width)
    except GeniusError:
        return False
    return found is not None and found.digest() == bank.digest()


def load(folder: Path, fingerprint: str, width: int, version: int | None) -> QueryBank | None:
    """The bank of an index.

    Args:
        folder: Of the index.
        fingerprint: Of its model: queries of another one count as none.
        width: D of the model.
        version: An older version that is shown: what was learned later counts as none. None: the newest.
    """
    about = learned_metadata(folder)
    if about.get("fingerprint") != fingerprint:
        return None
    if version is not None and int(about.get("version", "0")) > version:
        return None
    try:
        return QueryBank.load(folder, width)
    except GeniusError:
        return None


def learned_metadata(folder: Path) -> dict[str, str]:
    """The metadata of the file; empty where there is none, or none that can be read."""
    path = folder / LEARNED
    if not path.is_file() or path.is_symlink():
        return {}
    try:
        with safe_open(path, "np") as file:
            about = dict(file.metadata() or {})
    except (OSError, SafetensorError, MemoryError):
        return {}
    for name in ("version", "queries"):
        number = about.get(name, "0")
        if not number.isdecimal() or len(number) > MAX_DIGITS:  # the folder may be anybody's
            return {}
    return about


def forget(folder: Path) -> bool:
    """Remove the file; whether there was one."""
    there = stamp(folder) is not None
    remove(folder / LEARNED, folder)
    return there
