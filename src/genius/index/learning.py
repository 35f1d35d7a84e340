"""`learn`: an index looks at queries, and what follows for the scores of its items (`genius.model.query_bank`).

A query is a text, an image, both, or a vector of this model, with or without its target and with or without the items that
people chose (`clicked`). Queries are embedded as a search embeds them; equal ones count once. No text and no image is kept.
`QueryLog` collects such queries while an index is searched. Knows indexes and query banks; nothing of HTTP.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.encoders.base import batched
from genius.errors import GeniusError, said
from genius.features import as_numpy
from genius.files import open_regular, parse_json, reading
from genius.index import learned, searching
from genius.index.learned import Learned
from genius.index.target import spread
from genius.index.vectors import unit_vector
from genius.model.bias_choice import (
    FEWEST_JUDGED,
    JudgedQueries,
    choose_crossed,
    fitting,
    shrink,
)
from genius.model.query_bank import FEWEST, MODALITIES, SIZE, QueryBank
from genius.types import ContentInput, Modality, Query, as_vector

if TYPE_CHECKING:
    from genius.index import Index

MOST_LINES = 200_000  # of a log: what is beyond is not read
MAX_LINE = 1 << 20  # bytes
MOST_ITEMS = 100_000  # of each modality on which weights are chosen
BATCH = 64  # queries embedded at a time
LOG_BYTES = 64 << 20  # of a query log; the one before is kept as FILE.1
Floats = NDArray[np.float32]
Progress = Callable[[int], None]
_CONTENT = frozenset({"text", "image", "instruction", "target", "modality"})


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """One query of a log.

    Args:
        query: What was searched; None: only its vector is known.
        vector: (D,) of the model that made it.
        modality: What a query that is only a vector consists of.
        target: What it wants; None: unknown.
        clicked: Ids of items that answered it.
    """

    query: Query | None
    vector: Floats | None = None
    modality: Modality | None = None
    target: Modality | None = None
    clicked: tuple[str, ...] = ()

    def key(self) -> object:
        """What equal queries share."""
        if self.query is None:
            assert self.vector is not None
            return self.vector.tobytes(), self.target
        image: object = self.query.image
        if image is not None and not isinstance(image, str | bytes | Path):
            image = id(image)
        return self.query.text, image, self.query.instruction, self.target


def read_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a query log: JSON objects with the fields of a search request, `vector` and `clicked`.

    Args:
        path: A JSONL file.

    Raises:
        GeniusError: If it cannot be read, or a line is not a JSON object; the line is named.
    """
    with reading(path), open_regular(Path(path)) as file:
        for number in range(1, MOST_LINES + 1):
            line = file.readline(MAX_LINE + 1)
            if not line:
                return
            if len(line) > MAX_LINE:
                raise GeniusError(f"{path}, line {number}: longer than {MAX_LINE:,} bytes")
            if not line.strip():
                continue
            try:
                body = parse_json(line)
            except ValueError as error:
                raise GeniusError(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(body, dict):
                raise GeniusError(f"{path}, line {number} is not an object with 'text', 'image' or 'vector'")
            yield body


def learn(
    state: Index, queries: Iterable[Query | ContentInput | Mapping[str, Any]], on_progress: Progress | None = None
) -> Learned:
    """Learn from queries; see `Index.learn`."""
    state.check_writable()
    if state.model.config.rerank_embedding != "fused":
        raise GeniusError(
            "this model ranks by the encoder's own vectors, for which no item bias is learned; the index is unchanged"
        )
    parsed, skipped = _parsed(state, queries)
    distinct = {entry.key(): entry for entry in parsed}
    entries = list(distinct.values())
    if len(entries) < FEWEST:
        raise GeniusError(
            f"{len(entries):,} different queries of {len(parsed) + skipped:,}: "
            f"at least {FEWEST} are needed to learn anything; the index is unchanged"
        )
    return state.following(lambda: _learned(state, entries, skipped, on_progress))


def _learned(state: Index, entries: list[LoggedQuery], skipped: int, on_progress: Progress | None) -> Learned:
    """Learn from different queries; run again, with its encoder, if another index takes the place of this one meanwhile."""
    bank, owners = _embedded(state, entries, on_progress)
    items, modality, place = _items(state, [name for entry in entries for name in entry.clicked])
    selected = np.ones(len(bank), bool)
    if state.model.queries is not None:
        selected = fitting(bank, state.model.queries, items, modality)
    ignored = int((~selected).sum())
    rows = np.flatnonzero(selected)
    bank = bank.subset(selected)
    owners = [owners[row] for row in rows]
    if not bank.directions():
        left_out = ""
        if ignored:
            left_out = f"; {ignored:,} have nothing to do with this collection"
        raise GeniusError(
            f"no direction (such as text -> image) has {FEWEST} different queries{left_out}: the index is unchanged"
        )
    bank, chosen_by = _chosen(bank, [entries[owner] for owner in owners], items, modality, place, state.model.queries)
    with state.write_lock.hold():
        version = state.reader().version  # refused if it was replaced since the queries were embedded
        about = {
            "index": state.about.id,
            "fingerprint": state.about.fingerprint,
            "version": str(version),
            "learned": datetime.now(UTC).isoformat(timespec="seconds"),
            "chosen_by": chosen_by,
            "queries": str(len(rows)),
        }
        learned.save(state.path, bank, about)
    state.follow_learned()
    return Learned(len(rows), learned.directions_of(bank), version, chosen_by, ignored, skipped)


# -- reading queries ---------------------------------------------------------------------------------------------


def _parsed(state: Index, queries: Iterable[Any]) -> tuple[list[LoggedQuery], int]:
    """Queries, and how many could not be read."""
    parsed = []
    skipped = 0
    for number, value in enumerate(queries, 1):
        if number > MOST_LINES:
            break
        if isinstance(value, Mapping) and ("like" in value or not (set(value) & {"text", "image", "vector"})):
            skipped += 1
            continue
        try:
            parsed.append(_entry(state, value))
        except GeniusError as error:
            raise GeniusError(f"query {number:,}: {said(error)}; the index is unchanged") from None
    return parsed, skipped


def _entry(state: Index, value: Any) -> LoggedQuery:
    if not isinstance(value, Mapping):
        query = Query.of(value)
        return LoggedQuery(query, target=query.target)
    named = value.get("target", value.get("modality"))
    target = None
    if named is not None:
        target = Modality.parse(named)
    clicked = value.get("clicked") or ()
    if isinstance(clicked, str):
        clicked = (clicked,)
    if not isinstance(clicked, list | tuple) or not all(isinstance(name, str) for name in clicked):
        raise GeniusError("'clicked' is not an id or a list of ids")
    if "vector" in value:
        vector = _vector(state, value)
        return LoggedQuery(None, vector, Modality.parse(value.get("query_modality", "text")), target, tuple(clicked))
    content = {name: value.get(name) for name in ("text", "image", "instruction")}
    return LoggedQuery(Query(**content, target=target), target=target, clicked=tuple(clicked))


def _vector(state: Index, value: Mapping[str, Any]) -> Floats:
    """The unit vector of a query that is given as numbers, or as float16 in base64."""
    given = value["vector"]
    fingerprint = value.get("fingerprint")
    if fingerprint is not None and fingerprint != state.about.fingerprint:
        raise GeniusError(
            f"its vector comes from another model ({str(fingerprint)[:8]}; this index: {state.about.fingerprint[:8]})"
        )
    if isinstance(given, str):
        try:
            given = np.frombuffer(base64.b64decode(given, validate=True), np.float16)
        except ValueError:
            raise GeniusError("'vector' is neither numbers nor float16 in base64") from None
    vector = as_vector(given, "the log")
    if not isinstance(vector, np.ndarray) or len(vector) != state.about.width:
        shown = getattr(vector, "shape", "of a mapping")
        raise GeniusError(f"its vector has the shape {shown}; those of this index are {state.about.width} wide")
    return unit_vector(vector)


def _embedded(state: Index, entries: Sequence[LoggedQuery], on_progress: Progress | None) -> tuple[QueryBank, list[int]]:
    """The bank of all queries, each for every modality that a search would look for, and which entry each is of."""
    modalities = state.modalities()
    z: list[Floats] = []
    modality: list[int] = []
    target: list[int] = []
    owners: list[int] = []
    done = 0
    for part in batched(enumerate(entries), BATCH):
        worded = [(number, entry.query) for number, entry in part if entry.query is not None]
        queries, owner = spread([query for _, query in worded], modalities)
        if queries:
            embedded = state.model.embed_queries(queries)
            z.append(as_numpy(embedded.dense).astype(np.float32))
            modality += embedded.modality.tolist()
            target += [-1 if query.target is None else int(query.target) for query in queries]
            owners += [worded[place][0] for place in owner]
        for number, entry in part:
            if entry.vector is not None:
                z.append(entry.vector[None])
                modality.append(int(entry.modality or 0))
                target.append(-1 if entry.target is None else int(entry.target))
                owners.append(number)
        done += len(part)
        if on_progress is not None:
            on_progress(done)
    vectors = np.concatenate(z).astype(np.float16).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise GeniusError("the encoder gave a query vector that is not finite; the index is unchanged")
    targets = _known_targets(state, vectors, np.array(target, np.int64))
    order = np.sort(np.random.default_rng(0).permutation(len(vectors))[:SIZE])
    bank = QueryBank(vectors[order], np.array(modality, np.int64)[order], targets[order])
    return bank, [owners[row] for row in order]


def _known_targets(state: Index, vectors: Floats, target: NDArray[np.int64]) -> NDArray[np.int64]:
    """Targets, where unknown the likeliest modality that the index holds."""
    unknown = target < 0
    modalities = sorted(int(modality) for modality in state.modalities())
    if not unknown.any() or not modalities:
        return target
    with state.lock:
        engine = state.current().engine()
    if engine is None:
        return target
    log_probs = np.asarray(engine.modality_log_probs(vectors[unknown]))
    target[unknown] = np.array(modalities)[log_probs[:, modalities].argmax(1)]
    return target


def _items(state: Index, clicked: Sequence[str]) -> tuple[Floats, NDArray[np.int64], dict[str, int]]:
    """Vectors and modalities of items that weights are chosen on, and the rows of clicked ones."""
    clicked_ids = set(clicked)
    vectors: list[Any] = []
    modality: list[int] = []
    place: dict[str, int] = {}
    counts = [0] * MODALITIES
    for row in searching.stream(state, ["id", "modality", "_embedding"]):
        row_modality = int(Modality.parse(row["modality"]))
        if counts[row_modality] >= MOST_ITEMS and row["id"] not in clicked_ids:
            continue
        counts[row_modality] += 1
        if row["id"] in clicked_ids:
            place[row["id"]] = len(vectors)
        vectors.append(np.asarray(row["_embedding"], np.float16))
        modality.append(row_modality)
    if not vectors:
        raise GeniusError(f"{state.path} is empty: there is nothing to learn for")
    return np.stack(vectors).astype(np.float32), np.array(modality, np.int64), place


# -- choosing ----------------------------------------------------------------------------------------------------


def _chosen(
    bank: QueryBank,
    entries: Sequence[LoggedQuery],
    items: Floats,
    modality: NDArray[np.int64],
    place: Mapping[str, int],
    known: QueryBank | None,
) -> tuple[QueryBank, str]:
    """The bank with weights and temperatures, and what they were chosen by; `known`: the model's own queries."""
    positives = [[place[name] for name in entry.clicked if name in place] for entry in entries]
    rows = [row for row, query_positives in enumerate(positives) if query_positives]
    if len(rows) < FEWEST_JUDGED:
        return shrink(bank, items, modality, known), "agreement"
    judged = JudgedQueries(bank.z[rows], bank.modality[rows], bank.target[rows], [positives[row] for row in rows])
    return choose_crossed(bank, judged, rows, items, modality, known), "positives"


# -- collecting --------------------------------------------------------------------------------------------------


class QueryLog:
    """Appends the vectors of queries to a JSONL file that `learn` reads. No text and no image is stored.

    Args:
        path: The file. At `most` bytes it becomes `FILE.1`, in place of the one before, and a new one begins.
        fingerprint: Of the model that makes the vectors.
        most: Bytes of the file.
    """

    def __init__(self, path: str | Path, fingerprint: str, most: int = LOG_BYTES) -> None:
        self.path = Path(path)
        self.fingerprint = fingerprint
        self.most = most
        self._lock = threading.Lock()

    def add(self, z: Any, modality: Any, targets: Sequence[Modality | None]) -> None:
        """Append queries.

        Args:
            z: (Q, D), an array or a tensor.
            modality: (Q,) what each consists of.
            targets: What each wants; None: unknown.
        """
        lines = []
        for vector, query_modality, target in zip(as_numpy(z).astype(np.float16), modality.tolist(), targets, strict=True):
            body = {
                "vector": base64.b64encode(vector.tobytes()).decode("ascii"),
                "query_modality": Modality(query_modality).label,
                "fingerprint": self.fingerprint,
            }
            if target is not None:
                body["target"] = target.label
            lines.append(json.dumps(body) + "\n")
        with self._lock, contextlib.suppress(OSError):  # a full disk must not fail a search
            if self.path.exists() and self.path.stat().st_size >= self.most:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("a", encoding="ascii") as file:
                file.writelines(lines)
