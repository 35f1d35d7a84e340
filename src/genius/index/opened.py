"""What is alive in an index at one version: a base, the rows added since, and which rows are gone.

`Live` is the one owner of what is alive: engines are made from it and only show it. It knows rows, codes and vectors; items and
their words stay in the table. `genius.index.Index` opens it, brings it up to date, and guards it by a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.index.cache import Base
from genius.index.reader import Reader
from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, ScanCache, SearchEngine
from genius.search.vectors import StoredVectors
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model.genius import Genius

MERGE_FROM, MERGE_SHARE = 8_192, 0.1  # additions, absolute and as a share, at which the engine folds them in
WASTE_FROM, WASTE_SHARE = 10_000, 0.5  # dead rows, absolute and as a share, at which it pays to start afresh
MAX_ADDITIONS = 32  # blocks of vectors added to one engine before it is made anew
MAX_HELD = 64 << 20  # bytes of vectors that were written and not yet searched
MASKS = 64  # filters whose rows are remembered: a byte an item each

CACHE_FROM = 2_000  # smaller indexes are read whole when opened: quicker than a cache
RETRIES = 4  # of a read whose version was removed by genius optimize


class Replaced(GeniusError):
    """Another folder has taken the place of the index that was opened."""


class HistoryDiverged(GeniusError):
    """The table does not continue what this process saw of it: it was put back, or replaced."""


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """Rows that this process wrote in one change."""

    seqs: NDArray[np.int64]  # (n,)
    ids: list[str]
    codes: NDArray[np.uint16]  # (n, M)
    vectors: NDArray[np.float16]  # (n, D)


class Live:
    """Row i of the engine is `seqs[i]`; seqs only grow, so rows are found by binary search."""

    def __init__(self, model: Genius, base: Base, reader: Reader) -> None:
        self.model = model
        self.base = base
        self.reader = reader
        self.seqs: NDArray[np.int64] = np.asarray(base.seqs)
        self.dead: NDArray[np.bool_] = np.zeros(base.items, bool)
        self.delta_codes: NDArray[np.uint16] = np.empty((0, base.trie.levels), np.uint16)
        self.delta_ids: dict[str, int] = {}
        self._unsearched: list[tuple[int, NDArray[np.float16]]] = []  # vectors that this process just wrote: first row, (n, D)
        self._masks: dict[str, NDArray[np.bool_]] = {}  # of this version, by condition
        self._modalities: set[int] | None = None  # of this version
        self._engine: SearchEngine | None = None
        self._folded = 0  # rows that the engine's first trie stands for; the others are its second
        self._stale = True  # rows were added or died since the engine was made
        self.scans: ScanCache | None = None  # where the scan of the base is kept
        self.learned: QueryBank | None = None  # what item biases follow from, in place of the model's own queries
        if base.exactly(reader):
            reader.shown = base.shown
        else:
            self.advance(reader)

    @classmethod
    def verified(cls, model: Genius, base: Base, reader: Reader) -> Live | None:
        """From a cached base, after comparing it with the table row by row; None if they tell different stories."""
        try:
            live = cls(model, base, reader)
        except HistoryDiverged:
            return None
        present = reader.seqs()
        live.dead = ~np.isin(live.seqs, present)
        # some of the table's rows are not here: another story
        if live.alive == len(present):
            return live
        return None

    @property
    def version(self) -> int:
        return self.reader.version

    @property
    def cached(self) -> bool:
        return self.base.cached

    @property
    def alive(self) -> int:
        return len(self.seqs) - int(self.dead.sum())

    @property
    def wasteful(self) -> bool:
        """Whether most rows are dead: every upsert leaves one behind."""
        dead = int(self.dead.sum())
        return dead > max(WASTE_FROM, WASTE_SHARE * len(self.seqs))

    def relearn(self, bank: QueryBank | None) -> None:
        """Search with item biases of another bank."""
        if bank is not self.learned:
            self.learned = bank
            self._engine = None

    # -- moving to a newer version -----------------------------------------------------------------------------

    def advance(
        self, reader: Reader, gone: Sequence[int] = (), trust: bool = True, committed: CommittedRows | None = None
    ) -> None:
        """Become version `reader.version`.

        Args:
            reader: the version.
            gone: rows known to be deleted; others are found if the count says so.
            trust: that the table continues what was seen of it; otherwise all rows are compared.
            committed: the rows that are new, if this process wrote them and nobody wrote in between; otherwise they are read.
        """
        known = -1
        if len(self.seqs):
            known = int(self.seqs[-1])
        if committed is None:
            parts = list(reader.codes(f"_seq > {known}"))  # seqs only grow: what is new is larger
        else:
            parts = [(committed.seqs, committed.ids, committed.codes)]
            if self.base.has_vectors:
                self._hold(len(self.seqs), committed.vectors)
        self.dead[np.asarray(gone, np.int64)] = True
        if parts:
            seqs, codes = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
            ids = [item_id for part in parts for item_id in part[1]]
            order = np.argsort(seqs)
            first = len(self.seqs)
            self.seqs = np.concatenate([self.seqs, seqs[order]])
            self.dead = np.concatenate([self.dead, np.zeros(len(seqs), bool)])
            self.delta_codes = np.concatenate([self.delta_codes, codes[order]])
            self.delta_ids.update((ids[position], first + i) for i, position in enumerate(order))
        if not trust or reader.count() != self.alive:  # someone else deleted, too
            self.dead = ~np.isin(self.seqs, reader.seqs())
            if reader.count() != self.alive:
                raise HistoryDiverged(f"version {reader.version} holds {reader.count()} items where {self.alive} were expected")
        self.reader = reader
        self._masks.clear()
        self._modalities = None
        self._stale = True

    def modalities(self, labelled: bool) -> set[int]:
        """Kinds of the items of this version, from first codes that say it (`labelled`), or from the table."""
        if self._modalities is None:
            if labelled:
                old = self.base.trie.children(())[0] if self.base.items else np.empty(0, np.int64)
                self._modalities = {int(modality) for part in (old, self.delta_codes[:, 0]) for modality in np.unique(part)}
            else:
                self._modalities = {int(modality) for modality in Modality if self.reader.count(f"modality = '{modality.label}'")}
        return self._modalities

    def engine(self) -> SearchEngine | None:
        """The engine at this version; None while nothing was ever added. Brought up to date here, so that a long
        run of additions without a search costs no tries and holds no vectors."""
        rows = len(self.seqs)
        most = max(len(self.base.segments) - 1, 0) + MAX_ADDITIONS
        if self._engine is not None and self._engine.rows < rows and self._engine.segments > most:
            self._engine = None  # each addition is a block of vectors that every search visits: start over with one
        if self._engine is None:
            if not rows:
                return None
            self._engine = self._new_engine()
            self._stale = True
        if self._stale:
            known = self._engine.rows
            folding = rows - self._folded > max(MERGE_FROM, MERGE_SHARE * rows)
            if folding:
                self._folded = rows
            self._engine = self._engine.changed(
                self._folded,
                self.delta_codes[self._folded - self.base.items :],
                self._vectors(known) if known < rows and self.base.has_vectors else None,
                ~self.dead if self.dead.any() else None,
                self._living_trie() if folding else None,
            )
            self._stale = False
        return self._engine

    def _new_engine(self) -> SearchEngine:
        """Of the base, or, where it is empty, of what was added."""
        trie = self.base.trie
        vectors: StoredVectors | NDArray[np.float16] | None = self.base.vectors()
        self._folded = self.base.items
        if not self.base.items:
            trie = CodeTrie.build(self.delta_codes, self._level_sizes)
            if self.base.has_vectors:
                vectors = self._vectors(0)
            self._folded = len(self.seqs)
        bank = None
        if self.model.config.rerank_embedding == "fused":
            bank = self.model.queries
        scans = None
        if self.base.items:
            scans = self.scans
        return SearchEngine(
            self.model.generator,
            self.model.quantizer,
            trie,
            vectors,
            self.model.device,
            bank=bank,
            bias_bank=self.learned,
            cache=scans,
            by_codes=not self.base.has_vectors,
        )

    def _living_trie(self) -> CodeTrie:
        rows = np.flatnonzero(~self.dead)
        return CodeTrie.build(self.codes_of(rows), self._level_sizes, rows)

    @property
    def _level_sizes(self) -> tuple[int, ...]:
        return self.model.config.quantizer.level_sizes

    def _vectors(self, first: int) -> NDArray[np.float16]:
        """(n, D) embeddings of rows from `first` on; zeros for rows that are gone already."""
        held = [(row, vectors) for row, vectors in self._unsearched if row >= first]
        self._unsearched.clear()  # the engine has them from here on
        whole = bool(held) and held[0][0] == first and held[-1][0] + len(held[-1][1]) == len(self.seqs)
        if whole:
            return np.concatenate([vectors for _, vectors in held])
        out = np.zeros((len(self.seqs) - first, self.model.config.quantizer.width), np.float16)
        for seqs, embeddings in self.reader.embeddings(f"_seq >= {int(self.seqs[first])}"):
            out[self.rows_of(seqs) - first] = embeddings
        return out

    def _hold(self, first: int, vectors: NDArray[np.float16]) -> None:
        """Keep vectors that were just written for the next search, unless a long run of additions has made them too many."""
        follows = self._unsearched and self._unsearched[-1][0] + len(self._unsearched[-1][1]) == first
        if not follows:
            self._unsearched.clear()
        self._unsearched.append((first, vectors))
        if sum(part.nbytes for _, part in self._unsearched) > MAX_HELD:
            self._unsearched.clear()

    # -- rows --------------------------------------------------------------------------------------------------

    def find(self, ids: Iterable[str]) -> dict[str, int]:
        """Row of each id that is alive."""
        found: dict[str, int] = {}
        doubtful: list[tuple[str, int]] = []
        for item_id in ids:
            row = self.delta_ids.get(item_id)
            if row is not None and not self.dead[row]:
                found[item_id] = row
            else:
                doubtful += [(item_id, int(r)) for r in self.base.candidates(item_id) if not self.dead[r]]
        if doubtful:
            rows = self.reader.rows([int(self.seqs[row]) for _, row in doubtful], ["id"])
            found.update((item_id, row) for item_id, row in doubtful if rows[int(self.seqs[row])]["id"] == item_id)
        return found

    def rows_of(self, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of seqs of this version."""
        return np.searchsorted(self.seqs, seqs).astype(np.int64)

    def mask(self, sql: str) -> NDArray[np.bool_]:
        """(rows,) which rows match a condition; the last few are remembered."""
        if sql not in self._masks:
            mask = np.zeros(len(self.seqs), bool)
            mask[self.rows_of(self.reader.seqs(sql))] = True
            while len(self._masks) >= MASKS:
                self._masks.pop(next(iter(self._masks)))
            self._masks[sql] = mask
        return self._masks[sql]

    def codes_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, M) codes of rows."""
        out = np.empty((len(rows), self.base.trie.levels), np.int64)
        old = rows < self.base.items
        if old.any():
            out[old] = self.base.trie.codes_of(rows[old])
        out[~old] = self.delta_codes[rows[~old] - self.base.items]
        return out

    def below(self, prefix: tuple[int | None, ...]) -> NDArray[np.int64]:
        """Living rows whose codes start with `prefix`, in the order they were added; None is any code, and looks at all below."""
        known = prefix
        if None in prefix:
            known = prefix[: prefix.index(None)]
        if self.base.items:
            below = self.base.trie.rows_below(tuple(code for code in known if code is not None))
        else:
            below = np.empty(0, int)
        if None in prefix:
            below = below[self._match(self.codes_of(below), prefix)]
        match = self._match(self.delta_codes, prefix)
        rows = np.concatenate([np.sort(below), np.flatnonzero(match) + self.base.items])
        alive: NDArray[np.int64] = rows[~self.dead[rows]]
        return alive

    @staticmethod
    def _match(codes: NDArray[Any], prefix: tuple[int | None, ...]) -> NDArray[np.bool_]:
        """(N,) which of `codes` (N, M) start with `prefix`."""
        given = [(level, code) for level, code in enumerate(prefix) if code is not None]
        levels = [level for level, _ in given]
        wanted = np.array([code for _, code in given], np.int64)
        same: NDArray[np.bool_] = (codes[:, levels] == wanted).all(axis=1)
        return same
