"""`Scan`: approximate search by product codes in the queries' metric, one inverted file (`genius.search.cells`) per modality.

A search scans the codes in the best cells and returns the best rows by codes; the re-ranker compares their vectors. Narrow
filters and small modalities are answered by comparing all that they let through. `ScanIndex` is the data: plain arrays on disk,
checked when they are loaded, inverted lists in memory. `Scan` is the plan. Knows vectors, rows and masks; nothing of decoders
or IDs.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from genius.errors import GeniusError
from genius.files import read_json, write_whole
from genius.search.collection import Collection
from genius.search.params import SearchParams
from genius.search.rerankers import BUILT_IN
from genius.search.types import Candidates, QueryBatch

if TYPE_CHECKING:  # Faiss takes its time to import, and small collections never need it
    from genius.search.cells import Cells, RowSelector

FORMAT = "genius-scan-1"
META = "scan.json"
ARRAYS = "scan.safetensors"

# -- how it is built -----------------------------------------------------------------------------------------------
FEWEST = 4_096  # items of a modality below which all are compared
OUTGROWN = 2.0  # times the items it was fitted to, at which it is built anew

# -- how it is searched ----------------------------------------------------------------------------------------------
EXACT = 20_000  # rows that a filter lets through up to which all are compared
FEWEST_ITEMS = 80_000  # of a collection that is worth a scan: below, all vectors are compared in milliseconds, and exactly
START_MS = 0.15  # of a query, roughly
SCANNED = 20_000  # codes that are scanned for ten hits
PROBED = 176  # cells that are scanned for ten hits, at least
EFFORT = 2_000  # `SearchParams.rerank` at which the budgets below hold; they grow and shrink with it

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Metric = Callable[[int], Tensor | None]
"""Target modality -> (D, D) C = E[q q^T] of queries that want it; None: unknown, the identity."""


def refine_budget(k: int, effort: float = 1.0) -> int:
    """Rows whose vectors are compared for k hits."""
    return k + int(effort * 110 * k**0.5)


def probe_budget(k: int, cells: int, items: int, effort: float = 1.0) -> int:
    """Cells that are scanned for k hits: those of about `SCANNED` codes for ten, and at least `PROBED`."""
    for_ten = max(PROBED, SCANNED * cells / max(items, 1))
    return min(cells, max(1, int(effort * for_ten * (max(k, 10) / 10) ** 0.3)))


@dataclass(frozen=True)
class ScanIndex:
    """The codes of a collection: cells of every large modality, and the rows of small ones.

    Args:
        cells: By modality.
        few: Rows by modality of those that have too few items for cells.
        rows: Rows of the collection, dead or alive, that are covered.
    """

    cells: dict[int, Cells]
    few: dict[int, Ints]
    rows: int

    @classmethod
    def build(cls, collection: Collection, metric: Metric | None = None) -> ScanIndex:
        """Fit cells and codes to all living items of a collection with vectors."""
        from genius.search.cells import Cells

        vectors = collection.vectors
        if vectors is None:
            raise GeniusError("a scan is built from vectors: this collection stores none")
        cells: dict[int, Cells] = {}
        few: dict[int, Ints] = {}
        for modality, rows in _rows_by_modality(collection, 0):
            if len(rows) < FEWEST:
                few[modality] = rows.cpu().numpy()
            else:
                cells[modality] = Cells.build(vectors, rows, None if metric is None else metric(modality))
        return cls(cells, few, len(collection))

    def extended(self, collection: Collection) -> ScanIndex | None:
        """This index with the rows that the collection has beyond it; None: it has outgrown the fit, build anew."""
        vectors = collection.vectors
        if vectors is None or len(collection) < self.rows:
            return None
        cells = dict(self.cells)
        few = dict(self.few)
        for modality, rows in _rows_by_modality(collection, self.rows):
            if modality in cells:
                cells[modality] = cells[modality].extended(vectors, rows)
                if len(cells[modality]) > OUTGROWN * cells[modality].fitted:
                    return None
            else:
                few[modality] = np.concatenate([few.get(modality, np.empty(0, np.int64)), rows.cpu().numpy()])
                if len(few[modality]) > OUTGROWN * FEWEST:
                    return None
        return ScanIndex(cells, few, len(collection))

    @property
    def nbytes(self) -> int:
        """Bytes of codes and rows."""
        return sum(len(own) * (len(own.codebooks) + 8) for own in self.cells.values()) + sum(r.nbytes for r in self.few.values())

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path, identity: str) -> None:
        """Write plain arrays and their checksum into a folder.

        Args:
            folder: It is made if it is not there.
            identity: Of what it was built from; `load` asks for the same.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for modality, own in self.cells.items():
            arrays.update({f"{modality}.{name}": np.ascontiguousarray(array) for name, array in own.arrays().items()})
        arrays.update({f"{modality}.few": rows for modality, rows in self.few.items()})
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ARRAYS, lambda path: save_file(arrays, path))
        meta = {
            "format": FORMAT,
            "identity": identity,
            "rows": self.rows,
            "fitted": {str(modality): own.fitted for modality, own in self.cells.items()},
            "sha256": _sha256(folder / ARRAYS),
        }
        write_whole(folder / META, lambda path: path.write_text(json.dumps(meta) + "\n", encoding="utf-8"))

    @classmethod
    def load(cls, folder: Path, identity: str) -> ScanIndex | None:
        """Read what `save` wrote; None if it is of something else, of another format, incomplete or damaged.

        The arrays are plain numbers, and every number that says where to look is checked: a file that an attacker made may give
        wrong results, and nothing else.
        """
        from genius.search.cells import Cells

        try:
            meta = read_json(folder / META, 1 << 20)
            if meta["format"] != FORMAT or meta["identity"] != identity or meta["sha256"] != _sha256(folder / ARRAYS):
                return None
            with safe_open(folder / ARRAYS, "np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            rows = int(meta["rows"])
            cells: dict[int, Cells] = {}
            few: dict[int, Ints] = {}
            for modality in range(3):
                own = {name[2:]: array for name, array in arrays.items() if name.startswith(f"{modality}.")}
                if "few" in own:
                    few[modality] = _checked_rows(own["few"], rows)
                elif own:
                    cells[modality] = Cells(_checked(own, rows), int(meta["fitted"][str(modality)]))
            return cls(cells, few, rows)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):  # GeniusError is a ValueError
            return None


def _checked_rows(rows: NDArray[Any], total: int) -> Ints:
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise GeniusError("rows must be whole numbers")
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= total or len(np.unique(rows)) < len(rows)):
        raise GeniusError("a row is outside of the collection, or there twice")
    return rows


def _checked(arrays: dict[str, NDArray[Any]], total: int) -> dict[str, NDArray[Any]]:
    """Arrays of `Cells` whose shapes fit each other and whose rows are those of a collection."""
    cells, width = arrays["means"].shape
    subspaces = arrays["codes"].shape[1]
    items = len(_checked_rows(arrays["rows"], total))
    expected = {
        "centroids": (cells, width),
        "item_transform": (width, width),
        "query_transform": (width, width),
        "codebooks": (subspaces, 256, width // subspaces),
        "codes": (items, subspaces),
        "sizes": (cells,),
    }
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise GeniusError(f"{name} has shape {arrays[name].shape}, expected {shape}")
    for name in ("centroids", "means", "item_transform", "query_transform", "codebooks"):
        if arrays[name].dtype != np.float32 or not np.isfinite(arrays[name]).all():
            raise GeniusError(f"{name} is not finite")
    sizes = arrays["sizes"]
    if arrays["codes"].dtype != np.uint8 or sizes.dtype != np.int64 or int(sizes.min()) < 0 or int(sizes.sum()) != items:
        raise GeniusError("codes and cells do not fit each other")
    return arrays


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rows_by_modality(collection: Collection, first: int) -> Iterator[tuple[int, Tensor]]:
    """Living rows from `first` on of every modality that has some; all as 0 where codes do not say it."""
    rows = torch.arange(first, len(collection), device=collection.device)
    if collection.alive is not None:
        rows = rows[collection.alive[first:]]
    if collection.modality is None:
        if len(rows):
            yield 0, rows
        return
    modality = collection.modality[rows]
    for one in range(3):
        own = rows[modality == one]
        if len(own):
            yield one, own


@dataclass(frozen=True)
class ScanCache:
    """Where a scan is kept between processes.

    Args:
        folder: It holds nothing else.
        identity: Of the collection, the model and the queries that it is built from.
        writable: Whether a scan that was built may be written there.
    """

    folder: Path
    identity: str
    writable: bool = True


class Scan:
    """Search by codes. Its index is loaded or built when it is first needed, or by `prepare`.

    Args:
        collection: With vectors.
        metric: Of queries; None: the identity.
        cache: Where the index of this very collection is kept; None: in memory only.
        before: The scan of the collection that this one continues: its index is extended by the rows added since.
    """

    name = "scan"

    def __init__(
        self,
        collection: Collection,
        metric: Metric | None = None,
        cache: ScanCache | None = None,
        before: Scan | None = None,
    ) -> None:
        self.collection = collection
        self.metric = metric
        self.cache = cache
        self._before = before
        self._index: ScanIndex | None = None
        self._lock = threading.Lock()
        self._living: _Filter | None = None

    def changed(self, collection: Collection) -> Scan:
        """The scan of what the collection has become."""
        unbuilt = self._index is None and self._before is not None
        return Scan(collection, self.metric, None, self._before if unbuilt else self)

    def prepare(self) -> ScanIndex:
        """Load, extend or build the index."""
        with self._lock:
            if self._index is None:
                self._index = self._made()
                self._before = None
            return self._index

    def _made(self) -> ScanIndex:
        if self._before is not None:
            extended = self._before.prepare().extended(self.collection)
            return ScanIndex.build(self.collection, self.metric) if extended is None else extended
        if self.cache is None:
            return ScanIndex.build(self.collection, self.metric)
        known = ScanIndex.load(self.cache.folder, self.cache.identity)
        if known is not None and known.rows == len(self.collection):
            return known
        made = ScanIndex.build(self.collection, self.metric)
        if self.cache.writable:
            with suppress(OSError, GeniusError):  # without room or permission it serves from memory
                made.save(self.cache.folder, self.cache.identity)
        return made

    # -- plan --------------------------------------------------------------------------------------------------

    def suits(self, batch: QueryBatch, k: int, params: SearchParams) -> bool:
        """Wherever there are vectors to build it from."""
        return self.collection.vectors is not None

    def cost(self, batch: QueryBatch, k: int, params: SearchParams) -> float:
        if self.collection.items < FEWEST_ITEMS:
            return float("inf")  # not worth building
        return len(batch) * START_MS * max(1.0, params.rerank / EFFORT) * (1 + k / 100)

    def run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        index = self.prepare()
        queries = np.ascontiguousarray(batch.dense.cpu().numpy())
        effort = max(params.rerank, 1) / EFFORT
        final = params.reranker == "none" and batch.item_bias is None
        count = k if final else refine_budget(k, effort)
        if params.reranker not in BUILT_IN:
            count = max(count, params.rerank)
        found = _Found(len(queries))
        masks = batch.allowed
        shared = masks is None or masks.ndim == 1
        groups = [np.arange(len(queries))] if shared else [np.array([query]) for query in range(len(queries))]
        targets = batch.target.cpu().numpy()
        log_probs = None if batch.modality_log_probs is None else batch.modality_log_probs.cpu().numpy()
        for group in groups:
            allowed = self._filter(masks if masks is None or shared else masks[int(group[0])])
            job = _Job(self.collection, index, allowed, queries, targets, log_probs, k, count, effort, found)
            job.run(group)
        candidates = found.candidates(batch.z.device)
        if batch.item_bias is None or batch.modality is None:
            return candidates
        bias = batch.item_bias.take(batch.modality, candidates.rows)
        return replace(candidates, scores=candidates.scores - bias)

    def _filter(self, mask: Tensor | None) -> _Filter | None:
        """Rows that may be found; None: all."""
        if mask is None:
            return None
        if mask is not self.collection.alive:
            return _Filter(mask.cpu().numpy())
        if self._living is None:
            self._living = _Filter(mask.cpu().numpy())
        return self._living


class _Filter:
    """A mask over rows, as inverted files read it, and which rows of each modality it lets through."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        from genius.search.cells import RowSelector

        self.mask = mask
        self.selector: RowSelector = RowSelector(mask)
        self._rows: dict[int, Ints] = {}

    def rows(self, modality: int, collection: Collection) -> Ints:
        """Rows of a modality that pass."""
        if modality not in self._rows:
            passing = self.mask
            if collection.modality is not None:
                passing = passing & (collection.modality.cpu().numpy() == modality)
            self._rows[modality] = np.flatnonzero(passing)
        return self._rows[modality]


class _Found:
    """Rows and scores of every query, from several modalities."""

    def __init__(self, queries: int) -> None:
        self.rows: list[list[Ints]] = [[] for _ in range(queries)]
        self.scores: list[list[Floats]] = [[] for _ in range(queries)]
        self.considered = np.zeros(queries, np.int64)

    def add(self, query: int, rows: Ints, scores: Floats) -> None:
        self.rows[query].append(rows)
        self.scores[query].append(scores)

    def kth(self, query: int, k: int) -> float:
        """The k-th best score so far; -inf where fewer were found."""
        scores = np.concatenate(self.scores[query]) if self.scores[query] else np.empty(0, np.float32)
        return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if len(scores) >= k else -np.inf

    def candidates(self, device: torch.device) -> Candidates:
        widths = [sum(map(len, rows)) for rows in self.rows]
        rows = np.full((len(widths), max(widths, default=0)), -1, np.int64)
        scores = np.full(rows.shape, -np.inf, np.float32)
        for query, width in enumerate(widths):
            if width:
                rows[query, :width] = np.concatenate(self.rows[query])
                scores[query, :width] = np.concatenate(self.scores[query])
        return Candidates(
            torch.from_numpy(rows).to(device), torch.from_numpy(scores).to(device), torch.from_numpy(self.considered).to(device)
        )


@dataclass(frozen=True)
class _Job:
    """Queries that share a filter."""

    collection: Collection
    index: ScanIndex
    allowed: _Filter | None
    queries: Floats
    targets: Ints
    log_probs: Floats | None  # (Q, 3)
    k: int
    count: int  # candidates per query
    effort: float
    found: _Found

    def run(self, group: Ints) -> None:
        """Search the modalities that each query wants; where it does not say, the likeliest first, and others while they can
        still hold one of its k best."""
        there = sorted({*self.index.cells, *self.index.few})
        if self.collection.modality is None:
            self._search(group, 0)
            return
        for modality in there:
            self._search(group[self.targets[group] == modality], modality)
        unknown = group[self.targets[group] < 0]
        if not len(unknown) or not there:
            return
        if self.log_probs is None:
            for modality in there:
                self._search(unknown, modality)
            return
        ranked = np.array(there)[np.argsort(-self.log_probs[unknown][:, there], axis=1, kind="stable")]
        for place in range(len(there)):
            for modality in there:
                own = unknown[ranked[:, place] == modality]
                if place:
                    best = [self.log_probs[q, modality] + float(np.linalg.norm(self.queries[q])) for q in own]
                    own = own[[bound > self.found.kth(q, self.k) for q, bound in zip(own.tolist(), best, strict=True)]]
                self._search(own, modality)

    def _search(self, group: Ints, modality: int) -> None:
        """Candidates of one modality for some of the queries."""
        if not len(group):
            return
        rows = self._few_rows(modality)
        if rows is not None:
            self._compare(group, modality, rows)
            return
        cells = self.index.cells.get(modality)
        if cells is None:
            return
        passing = len(cells) if self.allowed is None else len(self.allowed.rows(modality, self.collection))
        share = passing / max(len(cells), 1)
        probes = probe_budget(self.k, cells.count, len(cells), self.effort)
        if share < 1:
            probes = min(cells.count, int(probes / share) + 1)
        count = min(self.count, passing)
        selector = None if self.allowed is None else self.allowed.selector
        scores, found = cells.search(self.queries[group], count, probes, selector)
        wanted = min(self.k, passing)
        short = np.flatnonzero((found >= 0).sum(1) < wanted) if probes < cells.count else np.empty(0, np.int64)
        if len(short):  # the filter, or a large k, reaches beyond the cells that were probed
            scores[short], found[short] = cells.search(self.queries[group[short]], count, cells.count, selector)
        considered = np.full(len(group), len(cells) * probes // cells.count)
        considered[short] = len(cells)
        self.found.considered[group] += considered
        for place, query in enumerate(group.tolist()):
            real = found[place] >= 0
            self.found.add(query, found[place][real], self._with_log_prob(query, modality, scores[place][real]))

    def _few_rows(self, modality: int) -> Ints | None:
        """All rows of a modality that may be found, where they are few enough to compare; None: more."""
        small = self.index.few.get(modality)
        if self.allowed is None:
            return small
        passing = self.allowed.rows(modality, self.collection)
        return passing if small is not None or len(passing) <= EXACT else None

    def _compare(self, group: Ints, modality: int, rows: Ints) -> None:
        """The best of all `rows`, by their vectors."""
        vectors = self.collection.vectors
        assert vectors is not None
        if not len(rows):
            return
        products = self.queries[group] @ vectors.take(torch.from_numpy(rows).to(self.collection.device)).cpu().numpy().T
        self.found.considered[group] += len(rows)
        for query, scores in zip(group.tolist(), products, strict=True):
            best = np.argpartition(-scores, self.count)[: self.count] if len(rows) > self.count else np.arange(len(rows))
            self.found.add(query, rows[best], self._with_log_prob(query, modality, scores[best]))

    def _with_log_prob(self, query: int, modality: int, scores: Floats) -> Floats:
        if self.log_probs is None or self.targets[query] >= 0 or self.collection.modality is None:
            return scores
        shifted: Floats = scores + self.log_probs[query, modality]
        return shifted
