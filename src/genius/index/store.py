"""The truth on disk: one LanceDB table, a row an item. Knows arrow and SQL; knows nothing of models or search.

Every row has a `_seq` that is never used twice: the version it was written on top of plus one (27 bits), a random
number of the commit (16), the position in the commit (20). So "rows newer than version V" is a range, and (`_seq` ->
codes, embedding) never changes once written: whatever was computed from a row stays true of it, even if the table
was put back from a copy and took another turn. Writers hold the index's lock; readers look at one version each.

LanceDB's commits count only once they are acknowledged (`commit.py`): `latest` is what the ledger says, and a `change`
of several commits appears as one.
"""

from __future__ import annotations

import secrets
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from genius.errors import GeniusError
from genius.files import disk_errors
from genius.index import commit
from genius.index.commit import manifest_name, table_folder
from genius.index.ledger import Damaged, Ledger, LedgerState, file_sum
from genius.index.metadata import FieldType, arrow_rows, item_schema, metadata_schema
from genius.index.paths import LEDGER, TABLE
from genius.index.reader import Reader, Tally, Vanished, database_errors, good_rows

if TYPE_CHECKING:
    import pyarrow as pa

POSITION_BITS = 20
SEQ_SHIFT = 36
MAX_BATCH = 1 << POSITION_BITS
NEVER = timedelta(days=36_500)
INDEX_FROM = 10_000  # rows; a smaller table is scanned as quickly


class _Opened:
    """LanceDB's own handles. `view`: the folder, or a temporary one that stands for it."""

    def __init__(self, folder: Path, view: Path | TemporaryDirectory[str]) -> None:
        import lancedb

        self.folder = folder
        self.view = None
        if isinstance(view, Path):
            path = view
        else:
            self.view = view
            path = Path(view.name)
        if not table_folder(path).is_dir():  # LanceDB would make a folder here, where a swap is about to rename one to
            raise Vanished(f"cannot open the index {folder}: its table is gone, or is being replaced")
        with database_errors(f"open the index {folder}"):
            self.database: Any = lancedb.connect(path)
            self.table: Any = self.database.open_table(TABLE)  # for the writer

    def at(self, version: int) -> tuple[Any, object]:
        with database_errors(f"open version {version} of {self.folder}"):
            table = self.database.open_table(TABLE)
            table.checkout(version)
            return table, self.view


class Store:
    """The table of one index folder, for its writer; `at(version)` gives readers. LanceDB is loaded when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder)
        self._opening = threading.RLock()
        self._opened: _Opened | None = None
        self._confirmed = False  # whether what is open was last seen at a version that we acknowledged ourselves

    def _connect(self) -> None:
        """Forget what is open: the next use opens it anew."""
        with self._opening:
            self._opened = None
            self._confirmed = False

    @property
    def _open(self) -> _Opened:
        with self._opening:
            if self._opened is None:
                try:
                    self._opened = _Opened(self.folder, self.folder)
                except GeniusError:
                    state = None
                    with suppress(GeniusError):
                        state = self.ledger.read()
                    if state is None or max(commit.versions_on_disk(self.folder), default=0) <= state.head:
                        raise
                    self._opened = _Opened(self.folder, commit.view_without_strays(self.folder, state.head))
            return self._opened

    @property
    def _table(self) -> Any:
        return self._open.table

    @classmethod
    def create(cls, folder: Path, levels: int, width: int, vectors: bool = True) -> Store:
        """A new empty table; a half-made one of a crashed attempt is overwritten, one that ever held rows is not.

        Args:
            folder: Of the index.
            levels: Codes of an item.
            width: Of a vector.
            vectors: Whether vectors are stored, and not only codes.
        """
        import lancedb

        if commit.holds_data(folder):
            raise Damaged(f"{folder} holds a table with items: it is not made anew; genius repair {folder}")
        with database_errors(f"create an index at {folder}"):
            mode = "overwrite" if table_folder(folder).exists() else "create"
            lancedb.connect(folder).create_table(TABLE, schema=item_schema(levels, width, vectors), mode=mode)
        return cls(folder)

    @classmethod
    def fill(cls, folder: Path, schema: Any, rows: Iterator[pa.RecordBatch]) -> Store:
        """A new table of these rows, which have their checksums. Every row was read back when this returns.

        Args:
            folder: Of the index.
            schema: Of the rows.
            rows: All rows.
        """
        import lancedb
        import pyarrow as pa

        tally = Tally()
        with database_errors(f"create an index at {folder}"):
            reader = pa.RecordBatchReader.from_batches(schema, tally.counting(rows))
            lancedb.connect(folder).create_table(TABLE, data=reader, schema=schema)
        commit.refuse_cut_off(folder, ())
        store = cls(folder)
        store.verify_rows(tally)
        return store

    @classmethod
    def open(cls, folder: Path) -> Store:
        """The table as it was acknowledged last; refused if its files are not as they were written.

        Args:
            folder: Of the index.
        """
        commit.verify(folder, Ledger(folder))
        return cls(folder)

    # -- versions ----------------------------------------------------------------------------------------------

    def state(self) -> LedgerState:
        """What the ledger says; some microseconds where nothing is new."""
        state = self.ledger.read()
        if state is None and not self.folder.exists():
            raise Vanished(f"cannot open the index {self.folder}: it is gone, or is being replaced")
        if state is None:
            raise Damaged(f"{self.folder} is damaged: {LEDGER} is missing; genius repair {self.folder}")
        return state

    def latest(self) -> int:
        """The newest version that was acknowledged."""
        return self.state().head

    def at(self, version: int) -> Reader:
        """A version that was acknowledged, for reading.

        Args:
            version: Of the table.

        Raises:
            Vanished: It was never acknowledged, or is cleaned away.
            GeniusError: The file that defines it is not as it was written.
        """
        try:
            if version not in self.state().shown:
                raise Vanished(f"there is no version {version} of {self.folder} (genius info --versions lists them)")
            return self._reader(version, self._check_manifest(version))
        except Vanished:
            state = self.state()
            if state.head == version:
                gone = commit.missing_head(self.folder, state)
                raise Damaged(f"{self.folder} is damaged: {gone}; genius repair {self.folder}") from None
            raise

    @staticmethod
    def alone(folder: Path, version: int) -> Reader:
        """A version without those after it, acknowledged or not, opened at once: for repairing.

        Args:
            folder: Of the index.
            version: Of the table.
        """
        with disk_errors(f"cannot open version {version} of {folder}"):
            commit.refuse_other_places(folder, version)
            opened = _Opened(folder, commit.view_without_strays(folder, version))
        reader = Reader(lambda: opened.at(version), version)
        _ = reader.columns
        return reader

    def _reader(self, version: int, noted: str | None) -> Reader:
        return Reader(lambda: self._same(version, noted), version, noted)

    def _same(self, version: int, noted: str | None) -> tuple[Any, object]:
        """`_checked_out`, if that is what the reader was made for: another index under this name may have the same version."""
        table = self._checked_out(version)
        if noted is not None and self._check_manifest(version) != noted:
            raise Vanished(f"cannot open version {version} of {self.folder}: another index has taken its place")
        return table

    def _checked_out(self, version: int) -> tuple[Any, object]:
        """LanceDB's table at a version, and what has to stay while it is read from."""
        try:
            commit.refuse_other_places(self.folder, version)
        except FileNotFoundError:
            raise Vanished(f"cannot open version {version} of {self.folder}: a file of this version is gone") from None
        with self._opening:
            try:
                return self._open.at(version)
            except Vanished:
                if self._open.view is None:
                    raise
                self._connect()  # the view was made before this version was
                return self._open.at(version)

    def _check_manifest(self, version: int) -> str:
        """The noted checksum of the file that defines a version, after comparing."""
        name = manifest_name(version)
        noted = self.state().files.get(name)
        try:
            same = noted is not None and file_sum(table_folder(self.folder) / name) == noted
        except FileNotFoundError:
            raise Vanished(f"cannot open version {version} of {self.folder}: a file of this version is gone") from None
        except OSError as error:
            raise GeniusError(f"cannot read {name} of {self.folder}: {error.strerror or error}") from None
        if noted is None or not same:
            raise Damaged(f"{self.folder} is damaged: {name} is not as it was written; genius repair {self.folder}")
        return noted

    def continues(self, reader: Reader) -> bool:
        """Whether what is on disk still contains the version that `reader` shows; False if that cannot be known.

        Args:
            reader: Of a version that was acknowledged.
        """
        return reader.noted is not None and reader.noted == self.state().files.get(manifest_name(reader.version))

    def versions(self) -> list[dict[str, Any]]:
        """Those that can be opened. A change may take several steps of the table: only the last is a version."""
        shown = self.state().shown
        with database_errors("list versions"):
            table = self._open.database.open_table(TABLE)
            return [
                {
                    "version": int(v["version"]),
                    "time": v["timestamp"].isoformat(),
                    "items": int(v["metadata"].get("total_rows", -1)),
                }
                for v in table.list_versions()
                if int(v["version"]) in shown
            ]

    # -- writing (the caller holds the write lock) -------------------------------------------

    @contextmanager
    def change(self) -> Iterator[None]:
        """Whatever is written inside counts as a whole, and is on the disk, when the block ends; after an error, none of it."""
        self.recover()
        before = set(commit.table_files(self.folder))
        try:
            yield
            commit.refuse_cut_off(self.folder, before)
            self._acknowledge()
            self._confirmed = self._opened is not None
        except BaseException:
            self._confirmed = False
            with suppress(GeniusError):
                self.recover()
            raise

    def recover(self) -> list[int]:
        """Put away what a writer left that died before its change was acknowledged; versions of it."""
        state = self.state()
        if not (table_folder(self.folder) / manifest_name(state.head)).is_file():
            gone = commit.missing_head(self.folder, state)
            raise Damaged(f"{self.folder} is damaged: {gone}; genius repair {self.folder}")
        stray = commit.set_aside(self.folder, state.head)
        if stray or not self._confirmed or (self._opened is not None and self._opened.view is not None):
            self._connect()  # it may have been opened at a version of a killed writer that another process has put away since
        if state.cleaning:
            commit.forget_cleaned(self.folder, self.ledger)
        return stray

    @contextmanager
    def _newest_table(self, doing: str) -> Iterator[Any]:
        """LanceDB's table at its newest version; what goes wrong with it inside is one line."""
        with database_errors(doing):
            self._table.checkout_latest()
            yield self._table

    def _acknowledge(self) -> None:
        version = self.newest()
        state = self.state()
        if version != state.head:
            with database_errors("count"):
                items = int(self._table.count_rows())
            fresh = [name for name in commit.table_files(self.folder) if name not in state.files]
            self.ledger.acknowledge(version, items, commit.record(self.folder, fresh))

    def begin_ledger(self, about: Mapping[str, Any]) -> LedgerState:
        """A new ledger for what is on the disk, at its newest version: of a new index, a copy, or a repaired one.

        Args:
            about: What `genius.json` says, too.
        """
        self._connect()
        sums = commit.record(self.folder, commit.table_files(self.folder))
        with database_errors("count"):
            head = self.newest()
            shown = frozenset(commit.versions_on_disk(self.folder))  # what was one before there were ledgers still is
            state = LedgerState(about, head, int(self._table.count_rows()), shown, sums)
        self.ledger.rewrite(state)
        return state

    def newest(self) -> int:
        """The newest version on the disk, acknowledged or not."""
        with database_errors("read the index"):
            self._table.checkout_latest()
            return int(self._table.version)

    def next_seq(self, long: bool = False) -> int:
        """First `_seq` of a commit on top of the newest version; `long`: of more rows than a batch has."""
        nonce = secrets.randbits(SEQ_SHIFT - POSITION_BITS - long)
        return ((self.newest() + 1) << SEQ_SHIFT) | (nonce << POSITION_BITS)

    def add_columns(self, columns: Mapping[str, FieldType]) -> None:
        with self._newest_table("add metadata columns") as table:
            table.add_columns(metadata_schema(columns))

    def drop_columns(self, names: Sequence[str]) -> None:
        with self._newest_table("drop metadata columns") as table:
            table.drop_columns(list(names))

    def table(self, columns: Mapping[str, Any]) -> pa.Table:
        """Columns of values -> an arrow table of this table's schema; absent columns are null."""
        return arrow_rows(self._table.schema, columns)

    def append(self, rows: pa.Table) -> None:
        """Add rows: all or none.

        Args:
            rows: Of the table's schema, with their checksums.
        """
        with self._newest_table("add items") as table:
            table.add(rows)

    def replace(self, rows: pa.Table) -> None:
        """Insert rows, each in place of the one with its id if there is one. One commit: all or none.

        Args:
            rows: Of the table's schema, with their checksums.
        """
        with self._newest_table("write items") as table:
            table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def overwrite(self, schema: Any, rows: Iterator[pa.RecordBatch]) -> int:
        """These rows, which have their checksums, in place of all that are there, and their columns in place of the table's;
        how many.

        Every row was read back when this returns. After an error the newest version of the table is not to be acknowledged.
        """
        import pyarrow as pa

        before = set(commit.table_files(self.folder))
        tally = Tally()
        with self._newest_table("write items") as table:
            table.add(pa.RecordBatchReader.from_batches(schema, tally.counting(rows)), mode="overwrite")
        commit.refuse_cut_off(self.folder, before)
        self.verify_rows(tally)
        return tally.rows

    def verify_rows(self, expected: Tally) -> None:
        """Read rows of the newest version back from the disk and compare them with their checksums, and with what was written.

        Args:
            expected: count and checksums of the rows, taken on their way in.

        Raises:
            GeniusError: a row is missing, cannot be read or is not as it was written.
        """
        found = Tally()
        try:
            for batch in found.counting(good_rows(self._reader(self.newest(), None))):
                del batch
        except GeniusError as error:
            raise GeniusError(
                f"what was just written to {self.folder} cannot be read back ({error}); the change is discarded"
            ) from None
        if found != expected:
            raise GeniusError(
                f"{self.folder} holds {found.rows} rows where {expected.rows} were written, or others; the change is discarded"
            )

    def delete(self, seqs: Sequence[int]) -> None:
        """Delete rows.

        Args:
            seqs: Their numbers.
        """
        with self._newest_table("delete items") as table:
            table.delete(f"_seq IN ({', '.join(str(int(seq)) for seq in seqs)})")

    def index_words(self, columns: Sequence[str]) -> None:
        """A full-text index for each of these columns, and for no other; with no columns, nothing is done.

        Args:
            columns: Of texts.
        """
        from lancedb.index import FTS

        if not columns:
            return

        settings = FTS(with_position=False, stem=True, remove_stop_words=False, ascii_folding=True)
        with self._newest_table("index words") as table:
            for index in table.list_indices():
                if index.index_type == "FTS" and index.columns[0] not in columns:
                    table.drop_index(index.name)
            for column in columns:
                table.create_index(column, config=settings)

    def pass_by(self, version: int) -> None:
        """Reach a higher version than this, so that who had it open notices that what is there now is another."""
        import pyarrow as pa

        with database_errors("write to the index"):
            while self.newest() <= version:
                self._table.add_columns(pa.schema([pa.field("_passing", pa.bool_())]))
                self._table.drop_columns(["_passing"])

    def fragments(self) -> int:
        with database_errors("read the index"):
            return int(self._table.stats()["fragment_stats"]["num_fragments"])

    def compact(self, keep: timedelta) -> None:
        """Merge small files, drop versions older than `keep`; give a large table an index by `_seq`, for fetching hits."""
        from lancedb.index import BTree

        with database_errors("optimize the index"):
            self._table.checkout_latest()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # readers of a version that is cleaned away try again
                with self.change():
                    indexed = any("_seq" in index.columns for index in self._table.list_indices())
                    if self._table.count_rows() >= INDEX_FROM and not indexed:
                        self._table.create_index("_seq", config=BTree())
                    for _ in range(5):
                        before = self.newest()
                        self._table.optimize(cleanup_older_than=NEVER)
                        if self.newest() == before:
                            break
                    else:
                        return  # it is never done: then dropping old versions would make a new one, and drop that which counts
                # only now, when the merged version counts, may the files of older ones go
                self.ledger.append({"cleaning": True})
                self._table.optimize(cleanup_older_than=keep)
                commit.forget_cleaned(self.folder, self.ledger)
                commit.clear_aside(self.folder, keep)
