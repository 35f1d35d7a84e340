"""`Scan`: approximate search by product codes in the queries' metric, one inverted file (`genius.search.cells`) per modality.

A search scans the codes in the best cells and returns the best rows by codes; the re-ranker compares their vectors. Narrow
filters and small modalities are answered by comparing all that they let through. `ScanIndex` is the data: arrays on disk,
checked when they are loaded, inverted lists in memory. `Scan` is the plan. Knows vectors, rows and masks; nothing of decoders
or IDs.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from genius.errors import GeniusError
from genius.files import read_json, write_whole
from genius.search.arrays import HOST, Floats, Ints
from genius.search.collection import Collection
from genius.search.flat import compare_all
from genius.search.params import SearchParams
from genius.search.rerank import BUILT_IN
from genius.search.types import MODALITIES, Candidates, QueryBatch
from genius.search.vectors import Vectors

if TYPE_CHECKING:  # Faiss takes its time to import, and small collections never need it
    from genius.search.cells import Cells
    from genius.search.tensor_cells import TensorCells

    SearchedCells = Cells | TensorCells

FORMAT = "genius-scan-5"
META = "scan.json"
ARRAYS = "scan.safetensors"

# -- how it is built -----------------------------------------------------------------------------------------------
FEWEST = 4_096  # items of a modality below which all are compared
OUTGROWN = 2.0  # times the items it was fitted to, at which it is built anew
CALIBRATION_QUERIES = 200  # items, and queries of each modality that codes do not follow, that are searched for after the fit
CALIBRATION_RECALL = 0.99  # of the ten nearest others of items that must be among the candidates
CALIBRATION_RECALL_OF_QUERIES = 0.995  # of the ten nearest items of queries: of their first hits as many are lost as of all
FEWEST_QUERIES = 30  # of one modality that say something about others
CALIBRATION_EFFORTS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # factors on the budgets below that are tried, in this order
CALIBRATION_SEED = 2
UNKNOWN = -1  # modality of a query
TIE = 1e-5  # of similarities

# -- how it is searched ----------------------------------------------------------------------------------------------
KEPT_FILTERS = 8  # masks of the last searches, of which is known what they let through: an eighth of a byte per item each
EXACT = 2_000  # rows that a filter lets through up to which all are compared, whatever a scan would cost
FILTERED = 0.35  # power of 1 / (share of items that a filter lets through) by which more cells are scanned
READ = 6.0  # inner products in the time in which a vector is read
LOOKED_UP = 0.2  # likewise, in which an item is scored by its codes under a filter
FEWEST_ITEMS = 80_000  # of a collection from which a scan pays: below, all vectors are compared in milliseconds, and exactly
START_MS = {"cpu": 0.15, "cuda": 0.0085}  # of a query, roughly; on a GPU in batches of 512
SCANNED = 20_000  # codes that are scanned for ten hits
PROBED = 180  # cells that are scanned for ten hits, at least
REFINED = 200  # vectors compared for one hit, beyond itself; they grow with the root of k
BIASED = 2  # times as many rows are found by codes where their item bias has a say in which vectors are compared
EFFORT = 2_000  # `SearchParams.rerank` at which these budgets hold; they grow and shrink with it


def compared_whole(items: int) -> bool:
    """Whether the default search compares a query with every item of a collection of this size.

    Args:
        items: Of the collection.
    """
    return items < FEWEST_ITEMS


class Queries(Protocol):
    """What a scan knows of queries: a bank of them (`genius.model.query_bank`)."""

    @property
    def z(self) -> Floats:
        """(n, D) their vectors."""
        ...

    @property
    def modality(self) -> Ints:
        """(n,) what each consists of."""
        ...

    @property
    def target(self) -> Ints:
        """(n,) the modality that each wants."""
        ...

    def metric(self, target: int) -> Floats:
        """(D, D) C = E[q q^T] of queries that want this modality."""
        ...


def refine_budget(k: int, effort: float = 1.0) -> int:
    """Rows whose vectors are compared for k hits."""
    return k + int(effort * REFINED * k**0.5)


def probe_budget(k: int, cells: int, items: int, effort: float = 1.0) -> int:
    """Cells that are scanned for k hits: those of about `SCANNED` codes for ten, and at least `PROBED`."""
    for_ten = max(PROBED, SCANNED * cells / max(items, 1))
    return min(cells, max(1, int(effort * for_ten * (max(k, 10) / 10) ** 0.3)))


def comparing_is_cheaper(passing: int, scanned: int, count: int, queries: int) -> bool:
    """Whether all rows that a filter lets through are compared sooner than codes are scanned and the best rows compared.

    Args:
        passing: Rows that pass.
        scanned: Items whose codes a query would scan.
        count: Candidates per query.
        queries: That share the filter: each of `passing` is read once for all of them.
    """
    return passing * (READ + queries) <= queries * (scanned * LOOKED_UP + count * (READ + 1))


def calibrated_efforts(cells: Cells, vectors: Vectors, rows: Ints, judges: Mapping[int, Floats]) -> dict[int, float] | None:
    """Factors on the budgets of a search with which items find their ten nearest others, and queries their ten nearest items.

    The budgets suit vectors whose neighbourhoods the cells follow. Where they do not (many small clusters, hardly any
    structure, queries far from all items), more cells are scanned and more vectors compared. Texts lie farther from images than
    images do: each query modality has a factor of its own.

    Args:
        cells: Of `rows`.
        vectors: By row.
        rows: (n,) of one modality.
        judges: (m, D) held-out queries by query modality.

    Returns:
        By query modality the least of `CALIBRATION_EFFORTS` that is enough for items and for its queries (the largest where it is
        enough for items alone); at `UNKNOWN` the largest of all, for other queries. None: none is enough for items.
    """
    random = np.random.default_rng(CALIBRATION_SEED)
    chosen = random.choice(rows, min(CALIBRATION_QUERIES, len(rows)), replace=False)
    of_items = _Calibration(vectors, rows, vectors.arrays.host(vectors.take(chosen)), chosen)
    enough = (effort for effort in CALIBRATION_EFFORTS if of_items.recall(cells, effort) >= CALIBRATION_RECALL)
    least = next(enough, None)
    if least is None:
        return None
    tried = [effort for effort in CALIBRATION_EFFORTS if effort >= least]
    efforts = {UNKNOWN: least}
    for modality, queries in judges.items():
        own = _Calibration(vectors, rows, queries, np.full(len(queries), -1))
        found = (effort for effort in tried if own.recall(cells, effort) >= CALIBRATION_RECALL_OF_QUERIES)
        efforts[modality] = next(found, tried[-1])
    efforts[UNKNOWN] = max(efforts.values())
    return efforts


class _Calibration:
    """Queries whose ten nearest among some rows are known.

    Args:
        vectors: By row.
        rows: (n,) that are searched.
        queries: (Q, D).
        own: (Q,) the row that each query is, which does not count; -1: none.
    """

    def __init__(self, vectors: Vectors, rows: Ints, queries: Floats, own: Ints) -> None:
        self.vectors = vectors
        self.queries = np.ascontiguousarray(queries, np.float32)
        self.own = own
        scores, nearest = compare_all(vectors.take, vectors.arrays, rows, self.queries, 11)
        self.tenth = [row_scores[found != row][:10].min() for row_scores, found, row in zip(scores, nearest, own, strict=True)]

    def recall(self, cells: Cells, effort: float) -> float:
        """Share of the ten nearest that are among the candidates."""
        count = min(refine_budget(11, effort), len(cells))
        found = cells.search(self.queries, count, probe_budget(10, cells.count, len(cells), effort))[1]
        total = 0.0
        for query, row in enumerate(self.own):
            candidates = found[query][(found[query] >= 0) & (found[query] != row)]
            similarity = self.vectors.arrays.host(self.vectors.take(candidates)) @ self.queries[query]
            as_near = int((similarity >= self.tenth[query] - TIE).sum())  # items of equal vectors are as good
            total += min(as_near, 10) / 10
        return total / len(self.own)


@dataclass(frozen=True)
class ScanIndex:
    """The codes of a collection: cells of every large modality, and the rows of small ones.

    Args:
        cells: By modality.
        efforts: By modality of `cells`, and there by the modality of queries or `UNKNOWN`: factor on the budgets of a search
            (`calibrated_efforts`).
        few: Rows by modality of those that have too few items for cells, or whose items the codes describe too badly. All of
            them are compared.
        rows: Rows of the collection, dead or alive, that are covered.
    """

    cells: dict[int, Cells]
    efforts: dict[int, dict[int, float]]
    few: dict[int, Ints]
    rows: int

    @classmethod
    def build(cls, collection: Collection, bank: Queries | None = None) -> ScanIndex:
        """Fit cells and codes to all living items of a collection with vectors.

        Args:
            collection: The items.
            bank: Queries, in whose metric codes are fitted; None: nothing is known of queries.
        """
        vectors = collection.vectors
        if vectors is None:
            raise GeniusError("a scan is built from vectors: this collection stores none")
        cells: dict[int, Cells] = {}
        efforts: dict[int, dict[int, float]] = {}
        few: dict[int, Ints] = {}
        for modality, rows in _rows_by_modality(collection, 0):
            if len(rows) < FEWEST:
                few[modality] = rows
                continue
            from genius.search.cells import Cells

            metric = None
            if bank is not None:
                metric = bank.metric(modality)
            followed, judges = _queries_of(bank, modality, vectors.width)
            own = Cells.build(vectors, rows, metric, followed)
            enough = calibrated_efforts(own, vectors, rows, judges)
            if enough is None:
                few[modality] = rows
                continue
            cells[modality] = own
            efforts[modality] = enough
        return cls(cells, efforts, few, len(collection))

    def extended(self, collection: Collection, bank: Queries | None = None) -> ScanIndex | None:
        """This index with the rows that the collection has beyond it; None: it has outgrown the fit, build anew.

        Args:
            collection: Its first rows are those of this index.
            bank: The queries that this index was built with.
        """
        vectors = collection.vectors
        if vectors is None or len(collection) < self.rows:
            return None
        cells = dict(self.cells)
        few = dict(self.few)
        for modality, rows in _rows_by_modality(collection, self.rows):
            if modality in cells:
                followed, _ = _queries_of(bank, modality, vectors.width)
                cells[modality] = cells[modality].extended(vectors, rows, followed)
                if len(cells[modality]) > OUTGROWN * cells[modality].fitted:
                    return None
            else:
                before = few.get(modality, np.empty(0, np.int64))
                few[modality] = np.concatenate([before, rows])
                if len(few[modality]) > OUTGROWN * max(FEWEST, len(before)):
                    return None
        return ScanIndex(cells, self.efforts, few, len(collection))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(own.nbytes for own in self.cells.values()) + sum(rows.nbytes for rows in self.few.values())

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path, identity: str) -> None:
        """Write the arrays and their checksum into a folder.

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
            "efforts": {str(modality): own for modality, own in self.efforts.items()},
            "sha256": _sha256(folder / ARRAYS),
        }
        write_whole(folder / META, lambda path: path.write_text(json.dumps(meta) + "\n", encoding="utf-8"))

    @classmethod
    def load(cls, folder: Path, identity: str) -> ScanIndex | None:
        """Read what `save` wrote; None if it is of something else, of another format, incomplete or damaged.

        The arrays are numbers, and every number that says where to look is checked: a file that an attacker made may give
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
            efforts: dict[int, dict[int, float]] = {}
            few: dict[int, Ints] = {}
            for modality in range(3):
                own = {name[2:]: array for name, array in arrays.items() if name.startswith(f"{modality}.")}
                if "few" in own:
                    few[modality] = _checked_rows(own["few"], rows)
                elif own:
                    cells[modality] = Cells(_checked(own, rows), int(meta["fitted"][str(modality)]))
                    efforts[modality] = _checked_efforts(meta["efforts"][str(modality)])
            return cls(cells, efforts, few, rows)
        except (OSError, MemoryError, ValueError, KeyError, TypeError, SafetensorError):  # GeniusError is a ValueError
            return None


def _checked_efforts(efforts: Any) -> dict[int, float]:
    """By query modality. Files of before have one number for all queries."""
    if not isinstance(efforts, dict):
        efforts = {UNKNOWN: efforts}
    known = {int(modality): effort for modality, effort in efforts.items()}
    if UNKNOWN not in known or any(effort not in CALIBRATION_EFFORTS for effort in known.values()):
        raise GeniusError(f"unknown efforts: {efforts!r}")
    return {modality: float(effort) for modality, effort in known.items()}


def _checked_rows(rows: NDArray[Any], total: int) -> Ints:
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise GeniusError("rows must be whole numbers")
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= total or len(np.unique(rows)) < len(rows)):
        raise GeniusError("a row is out of range, or occurs twice")
    return rows


def _checked(arrays: dict[str, NDArray[Any]], total: int) -> dict[str, NDArray[Any]]:
    """Arrays of `Cells` whose shapes fit each other and whose rows are those of a collection."""
    from genius.search.cells import CODE_BITS, CODE_VALUES, MOST_CODES

    cells, width = arrays["means"].shape
    subspaces, values, part = arrays["codebooks"].shape
    if values != CODE_VALUES or subspaces * part != width or not 0 < subspaces <= MOST_CODES:
        raise GeniusError("codebooks do not fit the vectors")
    items = len(_checked_rows(arrays["rows"], total))
    expected = {
        "item_transform": (width, width),
        "query_transform": (width, width),
        "codes": (items, (subspaces * CODE_BITS + 7) // 8),
        "sizes": (cells,),
    }
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise GeniusError(f"{name} has shape {arrays[name].shape}, expected {shape}")
    for name in ("means", "item_transform", "query_transform", "codebooks"):
        if arrays[name].dtype != np.float32 or not np.isfinite(arrays[name]).all():
            raise GeniusError(f"{name} is not finite")
    sizes = arrays["sizes"]
    if arrays["codes"].dtype != np.uint8 or sizes.dtype != np.int64 or int(sizes.min()) < 0 or int(sizes.sum()) != items:
        raise GeniusError("codes and cells do not fit each other")
    return arrays


def _queries_of(bank: Queries | None, modality: int, width: int) -> tuple[Floats, dict[int, Floats]]:
    """Queries of a bank that want a modality: (m, D) that codes follow, and held-out ones by query modality.

    Codes that follow a query find its neighbours better than those of others: the effort is chosen by queries that they do not
    follow.
    """
    judges: dict[int, Floats] = {}
    if bank is None:
        return np.empty((0, width), np.float32), judges
    random = np.random.default_rng(CALIBRATION_SEED)
    followed = bank.target == modality
    for one in np.unique(bank.modality[followed]).tolist():
        own = random.permutation(np.flatnonzero(followed & (bank.modality == one)))
        held_out = own[: min(CALIBRATION_QUERIES, len(own) // 2)]
        if len(held_out) >= FEWEST_QUERIES:
            judges[one] = bank.z[held_out]
            followed[held_out] = False
    return bank.z[followed], judges


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rows_by_modality(collection: Collection, first: int) -> Iterator[tuple[int, Ints]]:
    """Living rows from `first` on of every modality that has some; all as 0 where codes do not say it."""
    rows = np.arange(first, len(collection))
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
        writable: Whether a scan that was built may be saved there.
    """

    folder: Path
    identity: str
    writable: bool = True


class Scan:
    """Search by codes. Its index is loaded or built when it is first needed, or by `prepare`.

    Args:
        collection: With vectors.
        bank: Queries, in whose metric codes are fitted; None: nothing is known of queries.
        cache: Where the index of this very collection is kept; None: in memory only.
        before: The scan of the collection that this one continues: its index is extended by the rows added since.
    """

    name = "scan"

    def __init__(
        self,
        collection: Collection,
        bank: Queries | None = None,
        cache: ScanCache | None = None,
        before: Scan | None = None,
    ) -> None:
        self.collection = collection
        self.bank = bank
        self.cache = cache
        self._before = before
        self._index: ScanIndex | None = None
        self._lock = threading.Lock()
        self._living: _Filter | None = None
        self._filters: list[_Filter] = []  # the last ones
        self._moved: dict[int, TensorCells] | None = None

    def changed(self, collection: Collection) -> Scan:
        """The scan of what the collection has become."""
        if self._index is None and self._before is not None:
            return Scan(collection, self.bank, None, self._before)
        return Scan(collection, self.bank, None, self)

    def prepare(self) -> ScanIndex:
        """Load, extend or build the index."""
        with self._lock:
            if self._index is None:
                self._index = self._made()
                self._before = None
            return self._index

    def _made(self) -> ScanIndex:
        if self._before is not None:
            extended = self._before.prepare().extended(self.collection, self.bank)
            if extended is not None:
                return extended
            return ScanIndex.build(self.collection, self.bank)
        if self.cache is None:
            return ScanIndex.build(self.collection, self.bank)
        known = ScanIndex.load(self.cache.folder, self.cache.identity)
        if known is not None and known.rows == len(self.collection):
            return known
        made = ScanIndex.build(self.collection, self.bank)
        if self.cache.writable:
            with suppress(OSError, GeniusError):  # on a full or read-only disk it serves from memory
                made.save(self.cache.folder, self.cache.identity)
        return made

    # -- plan --------------------------------------------------------------------------------------------------

    def suits(self, batch: QueryBatch, k: int, params: SearchParams) -> bool:
        """Whether there are vectors to build it from."""
        return self.collection.vectors is not None

    def cost(self, batch: QueryBatch, k: int, params: SearchParams) -> float:
        """Rough milliseconds; infinite for a collection that is too small to build an index for, or that has no useful codes."""
        if compared_whole(self.collection.items):
            return float("inf")
        if self._index is not None and not self._index.cells:
            return float("inf")
        start = START_MS.get(self.collection.device, START_MS["cuda"])
        return len(batch) * start * max(1.0, params.rerank / EFFORT) * (1 + k / 100)

    def run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        """The best rows by codes, less their item bias; more than k of them for a re-ranker to choose from."""
        index = self.prepare()
        search = _Search(self.collection, index, self._searched(index), k, params)
        if batch.allowed is None or batch.allowed.ndim == 1:
            return search.run(batch, self._filter(batch.allowed))
        parts = []
        for query in range(len(batch)):
            parts.append(search.run(batch.select(np.array([query])), self._filter(batch.allowed[query])))
        return Candidates.cat(parts)

    def _searched(self, index: ScanIndex) -> Mapping[int, SearchedCells]:
        """The cells of an index where they are searched: moved to a GPU when the first search needs them there."""
        if self.collection.device == "cpu":
            return index.cells
        with self._lock:
            if self._moved is None:
                from genius.search.tensor_cells import TensorCells
                from genius.search.tensors import tensor_arrays

                ops = tensor_arrays(self.collection.device)
                self._moved = {modality: TensorCells(own.arrays(), ops) for modality, own in index.cells.items()}
            return self._moved

    def _filter(self, mask: NDArray[np.bool_] | None) -> _Filter | None:
        """Rows that may be found; None: all. What a mask that was given before lets through is still known."""
        if mask is None:
            return None
        if mask is self.collection.alive:
            if self._living is None:
                self._living = _Filter(np.packbits(mask), self.collection)
            return self._living
        packed = np.packbits(mask)
        for known in self._filters:
            if np.array_equal(known.packed, packed):
                return known
        made = _Filter(packed, self.collection)
        self._filters = [made, *self._filters[: KEPT_FILTERS - 1]]
        return made


class _Filter:
    """A mask over the rows of a collection, and what it lets through. It keeps no array of a caller, who may change it.

    Args:
        packed: (N / 8,) uint8, the mask (`numpy.packbits`).
        collection: Of the rows.
    """

    def __init__(self, packed: NDArray[np.uint8], collection: Collection) -> None:
        self.packed = packed
        self.collection = collection
        self._selector: Any = None
        self._passing: dict[int, int] = {}
        self._rows: dict[int, Ints] = {}

    def selector(self, cells: SearchedCells) -> Any:
        """The mask as these cells, and all others of a scan, read it."""
        if self._selector is None:
            self._selector = cells.selector(self._mask())
        return self._selector

    def passing(self, modality: int) -> int:
        """How many rows of a modality pass."""
        if modality not in self._passing:
            self._passing[modality] = int(np.count_nonzero(self._mask(modality)))
        return self._passing[modality]

    def rows(self, modality: int) -> Ints:
        """Rows of a modality that pass."""
        if modality not in self._rows:
            self._rows[modality] = np.flatnonzero(self._mask(modality))
        return self._rows[modality]

    def _mask(self, modality: int | None = None) -> NDArray[np.bool_]:
        """(N,) rows that pass: of one modality; None: of all."""
        passes: NDArray[np.bool_] = np.unpackbits(self.packed, count=len(self.collection)).view(np.bool_)
        if modality is None or self.collection.modality is None:
            return passes
        passes &= self.collection.modality == modality
        return passes


class _Search:
    """One call of the plan.

    Args:
        collection: What is searched.
        index: Its codes.
        cells: Of the index, where they are searched.
        k: Hits per query.
        params: Settings of the search.
    """

    def __init__(
        self,
        collection: Collection,
        index: ScanIndex,
        cells: Mapping[int, SearchedCells],
        k: int,
        params: SearchParams,
    ) -> None:
        self.collection = collection
        self.index = index
        self.cells = cells
        self.k = k
        self.params = params

    def run(self, batch: QueryBatch, allowed: _Filter | None) -> Candidates:
        """Candidates of queries that share a filter, in the modalities that each of them wants."""
        groups = batch.target
        if batch.modality is not None:
            groups = groups * (MODALITIES + 1) + batch.modality  # the modality of a query says how much effort it takes
        different = set(groups.tolist())
        if len(different) == 1:
            return self._of_target(batch, int(batch.target[0]), allowed)
        parts = []
        for group in different:
            queries = np.flatnonzero(groups == group)
            parts.append((queries, self._of_target(batch.select(queries), int(batch.target[queries[0]]), allowed)))
        return Candidates.scattered(len(batch), parts)

    def _of_target(self, batch: QueryBatch, target: int, allowed: _Filter | None) -> Candidates:
        """Candidates of queries of one modality that want the same modality. Where they do not say which (-1), the likeliest is
        searched first, and others while they can still hold one of the k best."""
        if self.collection.modality is None:
            return self._of_modality(batch, 0, allowed)
        if target >= 0:
            return self._of_modality(batch, target, allowed)
        found = Candidates.empty(len(batch))
        modalities = sorted({*self.index.cells, *self.index.few})
        log_probs = batch.modality_log_probs
        if log_probs is None:
            for modality in modalities:
                found = found.beside(self._of_modality(batch, modality, allowed))
            return found
        likeliest_first = HOST.top_k(log_probs[:, modalities], len(modalities))[1]
        for place in range(len(modalities)):
            for number, modality in enumerate(modalities):
                open_ones = np.flatnonzero(likeliest_first[:, place] == number)
                if place:
                    bound = log_probs[open_ones, modality] + np.linalg.norm(batch.dense[open_ones], axis=1)
                    open_ones = open_ones[bound > self._kth(found.scores[open_ones])]
                if len(open_ones):
                    more = self._of_modality(batch.select(open_ones), modality, allowed)
                    more = replace(more, scores=more.scores + log_probs[open_ones, modality, None])
                    found = found.beside(Candidates.scattered(len(batch), [(open_ones, more)]))
        return found

    def _kth(self, scores: Floats) -> Floats:
        """(Q,) the k-th best of scores (Q, C); -inf where there are fewer."""
        if scores.shape[1] < self.k:
            return np.full(len(scores), -np.inf, np.float32)
        return HOST.top_k(scores, self.k)[0][:, -1]

    def _of_modality(self, batch: QueryBatch, modality: int, allowed: _Filter | None) -> Candidates:
        """Candidates of one modality: where items have a bias, the best of more rows by what it leaves of their scores."""
        effort = self._effort(batch, modality)
        wanted = self._candidates(batch, effort)
        count = wanted
        if batch.item_bias is not None:
            count *= BIASED
        if modality in self.index.few:
            rows = self.index.few[modality]
            if allowed is not None:
                rows = allowed.rows(modality)
            found = self._compared(batch, rows, count)
        elif modality in self.cells:
            found = self._scanned(batch, modality, allowed, count, effort)
        else:
            return Candidates.empty(len(batch))
        bias = batch.bias(found.rows)
        if bias is None:
            return found
        scores, best = HOST.top_k(found.scores - bias, wanted)
        return Candidates(np.take_along_axis(found.rows, best, 1), scores, found.considered)

    def _effort(self, batch: QueryBatch, modality: int) -> float:
        """Factor on the budgets of queries of one modality among the items of a modality."""
        effort = max(self.params.rerank, 1) / EFFORT
        known = self.index.efforts.get(modality)
        if known is None:
            return effort
        of_queries = UNKNOWN
        if batch.modality is not None:
            of_queries = int(batch.modality[0])
        return effort * known.get(of_queries, known[UNKNOWN])

    def _candidates(self, batch: QueryBatch, effort: float) -> int:
        """Candidates per query."""
        if self.params.reranker == "none" and batch.item_bias is None:
            return self.k
        count = refine_budget(self.k, effort)
        if self.params.reranker not in BUILT_IN:
            return max(count, self.params.rerank)
        return count

    def _scanned(self, batch: QueryBatch, modality: int, allowed: _Filter | None, count: int, effort: float) -> Candidates:
        """The best `count` rows by codes; by their vectors, where a filter lets so few through that this is cheaper."""
        cells = self.cells[modality]
        items = len(cells)
        probes = probe_budget(self.k, cells.count, items, effort)
        passing = items
        selector = None
        if allowed is not None:
            passing = allowed.passing(modality)
            share = min(1.0, max(passing, 1) / items)
            probes = min(cells.count, int(probes * share**-FILTERED))
            if passing <= EXACT or comparing_is_cheaper(passing, probes * items // cells.count, count, len(batch)):
                return self._compared(batch, allowed.rows(modality), count)
            selector = allowed.selector(cells)
        count = min(count, passing)
        scores, rows = cells.search(batch.dense, count, probes, selector)
        considered = np.full(len(batch), items * probes // cells.count)
        if (rows[:, -1:] < 0).any():  # they are sorted: padding is last
            short = np.flatnonzero((rows >= 0).sum(1) < min(self.k, passing))
            if len(short) and probes < cells.count:  # fewer than k of the filtered rows are in the cells that were probed
                scores[short], rows[short] = cells.search(batch.dense[short], count, cells.count, selector)
                considered[short] = items
            scores[rows < 0] = -np.inf
        return Candidates(rows, scores, considered)

    def _compared(self, batch: QueryBatch, rows: Ints, count: int) -> Candidates:
        """The best `count` of all `rows`, by their vectors."""
        vectors = self.collection.vectors
        assert vectors is not None
        scores, best = compare_all(vectors.take, vectors.arrays, rows, batch.dense, count)
        return Candidates(best, scores, np.full(len(batch), len(rows)))
