"""Files and folders -> an index. Finds what can be indexed, skips what has not changed, says what it skipped and why.

Pictures and text files become one item each; a picture and a text of the same name next to it become one pair.
Tables give an item a row.

The id of a file is its path relative to the root of the index: the folder that holds everything that was indexed first. A file
elsewhere has its whole path. The root is read from the items themselves: each remembers the file it came from. So a file is the
same item however it is reached, and files of two folders never share an id. Links are resolved.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from genius.data.readers import TABLE_SUFFIXES, Row, is_csv, parquet_lists, read_rows
from genius.errors import GeniusError, Problems, printable
from genius.index import Index, searching, writing
from genius.index.folder import deleted_ids, keep_deleted
from genius.index.metadata import (
    Columns,
    ColumnTypes,
    FieldType,
    TableColumns,
    check_types,
    item_of_table_row,
    key_of,
    spelled,
)
from genius.index.prepare import MAX_HELD, MAX_TEXT, Stamp, Stamped, held_bytes
from genius.index.results import AddReport
from genius.pictures import exif_of
from genius.types import IMAGE_SUFFIXES, Item

TEXT_SUFFIXES = frozenset({".txt", ".md", ".rst"})
MAX_TEXT_FILE = 1_000_000
WINDOW = 256  # files or rows of a source, counted from its start, out of which items are encoded together
LOOK_UP = 1024  # items compared with the index at a time
MAX_BAD = 10_000  # rows in a row that cannot be used, after which a table is given up
BAD_ROW = (GeniusError, OSError, ValueError, TypeError, ArithmeticError, RecursionError)  # costs one row of a table
NAMED_ROWS = 500  # bad rows of one table that get a line each: they must not crowd out what is said of other files


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """How files become items."""

    columns: TableColumns = field(default_factory=TableColumns)  # of tables
    captions: bool = True  # a.jpg with a.txt next to it is one pair
    by_content: bool = False  # notice changes by content rather than by size and time
    prune: bool = False  # delete items whose file, or row, is gone
    outside: bool = False  # follow links, ../ and absolute paths that leave the given folder: it may be untrusted
    batch_size: int = 256  # items a commit
    undelete: bool = False  # bring back items that were deleted by hand
    as_text: tuple[str, ...] = ()  # metadata keys of tables that are text, whatever their cells look like
    exif: bool = False  # when, where and with what a photo was taken becomes metadata


@dataclass(slots=True)
class IngestReport:
    """What a run did."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    deleted: int = 0
    gone: int = 0  # items whose file or row is not there any more, and that were not pruned
    left_deleted: int = 0  # items that were deleted by hand, and stay so
    problems: Problems = field(default_factory=Problems)  # a line for each item that was skipped: the first; `total` counts
    ignored: Counter[str] = field(default_factory=Counter)  # files that cannot be indexed, by suffix
    doubtful: set[str] = field(default_factory=set)  # files that could not be read in full: nothing of them is pruned
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        rate = 0.0
        if self.seconds:
            rate = (self.added + self.replaced) / self.seconds
        return {
            "added": self.added,
            "replaced": self.replaced,
            "unchanged": self.unchanged,
            "deleted": self.deleted,
            "gone": self.gone,
            "left_deleted": self.left_deleted,
            "skipped": self.problems.total,
            "problems": list(self.problems),
            "problems_left_out": self.problems.left_out,
            "ignored": {printable(suffix): count for suffix, count in self.ignored.items()},
            "seconds": round(self.seconds, 3),
            "items_per_second": round(rate, 1),
        }


@dataclass
class Indexed:
    """What a run that made an index, or added to one, did."""

    report: IngestReport
    items: int = 0  # in the index now
    fit: Any = None  # the `genius.fit.Fit` of this run; None: nothing was fitted
    hint: str | None = None  # what people should know of the model
    fitted: bool = True  # whether the model's codes and decoder were ever fitted

    def to_dict(self) -> dict[str, Any]:
        body = {"items": self.items, "advice": self.hint, **self.report.to_dict()}
        if self.fit is not None:
            body["fit"] = self.fit.to_dict()
        return body


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to index: `name` is its id, `caption` the text file that belongs to a picture."""

    path: Path
    name: str
    root: Path  # what it must not lead out of
    caption: Path | None = None

    @property
    def source(self) -> str:
        """The file as the index remembers it: without links in its path."""
        return str(real_path(self.path))


def ingest(
    index: Index,
    paths: Sequence[str | Path],
    config: IngestConfig | None = None,
    on_progress: Callable[[int], None] | None = None,
    write: Callable[[Iterator[Stamped]], AddReport] | None = None,
) -> IngestReport:
    """Index files and folders.

    Args:
        index: The index.
        paths: Files and folders.
        config: How files become items.
        on_progress: Called with the number of items that are done, whether written, unchanged or skipped.
        write: Writes new and changed items; None: `genius.index.writing.write`.
    """
    config = config or IngestConfig()
    report = IngestReport()
    started = time.monotonic()
    tell = on_progress or (lambda _: None)
    seen: set[str] = set()
    files = list(find_files(paths, config, report, root_of(index, paths)))
    columns = index.consistent(lambda: index.reader().columns)
    items = read_items(files, config, report, tell, columns)
    changed = changed_items(index, items, seen, report, tell, config.undelete)
    if write is None:
        total = writing.write(
            index,
            changed,
            replace=True,
            batch_size=config.batch_size,
            on_error="skip",
            on_progress=lambda part: tell(part.added + part.replaced + part.problems.total),
        )
    else:
        total = write(changed)
    report.added = total.added
    report.replaced = total.replaced
    report.problems += total.problems
    deleted_items = _gone(index, [Path(path).resolve() for path in paths], seen, report.doubtful)
    if config.prune:
        for start in range(0, len(deleted_items), 1000):
            writing.delete(index, deleted_items[start : start + 1000], "skip")
        report.deleted = len(deleted_items)
    else:
        report.gone = len(deleted_items)
    if config.undelete:
        kept = deleted_ids(index.path) - seen
        with index.write_lock.hold():
            keep_deleted(index.path, kept)
    report.seconds = time.monotonic() - started
    return report


# -- finding ---------------------------------------------------------------------------------------------------


def find_files(
    paths: Sequence[str | Path], config: IngestConfig, report: IngestReport, root: Path | None = None
) -> Iterator[SourceFile]:
    """What can be indexed under `paths`, in a stable order; hidden files are passed over, links that lead out are listed.

    Args:
        paths: Files and folders.
        config: How files become items.
        report: Takes what is not indexed.
        root: Folder that ids are relative to; None: that of a new index.
    """
    if not paths:
        raise GeniusError("name at least one file or folder to index")
    seen_paths: set[str] = set()
    for file in _find(paths, config, report, root or common_root(paths)):
        if file.source not in seen_paths:  # the same file may be below two of the paths
            seen_paths.add(file.source)
            yield file


def _find(paths: Sequence[str | Path], config: IngestConfig, report: IngestReport, top: Path) -> Iterator[SourceFile]:
    for given in map(Path, paths):
        root = given.absolute()
        if root.is_file():
            if file_type(root) is None:
                raise GeniusError(f"{given}: cannot index {root.suffix or 'such'} files")
            files = [root]
            if config.captions and file_type(root) == "image":  # the same item as if its folder had been named
                files += [text for text in (root.with_suffix(suffix) for suffix in sorted(TEXT_SUFFIXES)) if text.is_file()]
            yield from _pair_up(root.parent.resolve(), files, config.captions, report.ignored, top)
        elif root.is_dir():
            seen = [p for p in sorted(root.rglob("*")) if not _hidden(p.relative_to(root))]
            if not config.outside:
                seen = [p for p in seen if not _leads_out(p, root, report)]
            files = [p for p in seen if p.is_file()]
            yield from _pair_up(root.resolve(), files, config.captions, report.ignored, top)
        else:
            raise GeniusError(f"no such file or folder: {given}")


def _leads_out(path: Path, root: Path, report: IngestReport) -> bool:
    """Whether a link leads to something outside of the folder."""
    if not path.is_symlink() or not path.exists() or path.resolve().is_relative_to(root.resolve()):
        return False
    follow = "links to folders are not followed" if path.is_dir() else "--outside follows it"
    report.problems.append(f"{path.relative_to(root)}: a link that leads out of {root}; {follow}")
    report.doubtful.add(str(real_path(path)))
    return True


def _pair_up(folder: Path, files: list[Path], captions: bool, ignored: Counter[str], top: Path) -> Iterator[SourceFile]:
    with_image: set[Path] = set()
    caption_of: dict[Path, Path] = {}
    if captions:
        with_image = {path.with_suffix("") for path in files if file_type(path) == "image"}
        caption_of = {path.with_suffix(""): path for path in reversed(files) if file_type(path) == "text"}
    for path in files:
        type_ = file_type(path)
        stem = path.with_suffix("")
        if type_ is None:
            ignored[path.suffix.lower() or path.name] += 1
            continue
        name = file_id(real_path(path), top)
        if type_ == "image":
            yield SourceFile(path, name, folder, caption_of.get(stem))
        elif type_ == "table" or stem not in with_image:
            yield SourceFile(path, name, folder)


def file_type(path: Path) -> str | None:
    """image, text or table; None for what cannot be indexed.

    Args:
        path: Of a file; its suffix decides.
    """
    suffix = path.suffix.lower()
    for type_, suffixes in (("image", IMAGE_SUFFIXES), ("text", TEXT_SUFFIXES), ("table", TABLE_SUFFIXES)):
        if suffix in suffixes:
            return type_
    return None


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part.endswith(".genius") for part in path.parts)


# -- ids -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def real_path(path: str | Path) -> Path:
    """A file's path without links in its folders, whether it is there or not."""
    absolute = Path(path).absolute()
    return Path(_real_folder(str(absolute.parent))) / absolute.name


def file_id(path: Path, root: Path) -> str:
    """The id of a file.

    Args:
        path: Without links (`real_path`).
        root: Folder that ids are relative to.
    """
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.as_posix()


def common_root(paths: Sequence[str | Path]) -> Path:
    """The root of an index that holds no files yet: the folder that holds all of `paths`.

    Args:
        paths: Files and folders, at least one.
    """
    if not paths:
        raise GeniusError("name at least one file or folder to index")
    parents = []
    for path in map(Path, paths):
        parents.append(path.resolve().parent if path.is_dir() else real_path(path).parent)
    return Path(os.path.commonpath(parents))


def root_of(index: Index, paths: Sequence[str | Path]) -> Path:
    """The root of an index, as its items tell it.

    Args:
        index: The index.
        paths: What is indexed now: decides if the index holds no files, or its files have moved away.
    """
    _real_folder.cache_clear()  # links may have changed since
    tables = tuple(TABLE_SUFFIXES)  # their rows have ids of their own
    for row in searching.stream(index, ["id", "_source"]):
        source = row["_source"]
        if source is None or source.lower().endswith(tables):
            continue
        path = real_path(source).as_posix()
        root = Path(path.removesuffix(f"/{row['id']}") or "/")
        if path.endswith(f"/{row['id']}") and root.is_dir():
            return root
    return common_root(paths)


# -- reading ---------------------------------------------------------------------------------------------------


def read_items(
    files: Iterable[SourceFile],
    config: IngestConfig,
    report: IngestReport,
    tell: Callable[[int], None],
    columns: Columns | None = None,
) -> Iterator[tuple[Item, Stamp]]:
    """Items of files, one at a time.

    Args:
        files: The files.
        config: How files become items.
        report: Takes what cannot be used.
        tell: Called with the number of items that cannot be used.
        columns: Metadata columns that the index has already.

    Yields:
        An item, and what it was read from.
    """
    known = dict(columns or {})
    begun = 0  # where the files began that come since the last table
    for number, file in enumerate(files):
        try:
            if file_type(file.path) == "table":
                begun = number + 1
                for row, item, mark in _table(file, config, report, tell, known):
                    yield item, Stamp(file.source, mark, (number, (row - 1) // WINDOW))
            else:
                item, mark = _single(file, config)
                yield item, Stamp(file.source, mark, (begun, (number - begun) // WINDOW))
        except (GeniusError, OSError) as error:
            report.problems.append(f"{file.name}: {error}")
            report.doubtful.add(file.source)
            tell(1)


def _single(file: SourceFile, config: IngestConfig) -> tuple[Item, str]:
    mark = file_mark(file.path, config.by_content)
    if file_type(file.path) == "text":
        text = _read_text(file.path)
        if not text:
            raise GeniusError("empty")
        return Item(file.name, text=text), mark
    caption = None
    if file.caption is not None:  # one that is empty says nothing of its picture, which is an item all the same
        caption = _read_text(file.caption)
        mark = f"{mark}+{file_mark(file.caption, config.by_content)}"
    metadata = {}
    if config.exif:
        metadata = exif_of(file.path)
    return Item(file.name, image=file.path, text=caption, metadata=metadata), mark


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_TEXT_FILE:
        raise GeniusError(f"{path.name} is larger than {MAX_TEXT_FILE:,} bytes")
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        raise GeniusError(f"{path.name} is not UTF-8 text") from None


def _column_types(
    file: SourceFile, config: IngestConfig, known: dict[str, FieldType]
) -> tuple[dict[str, str] | None, dict[str, FieldType]]:
    """A first pass over a table: the types of its columns. Rows that cannot be used have no say. Parquet names its types."""
    if file.path.suffix.lower() == ".parquet":
        return None, _parquet_types(file.path) | known
    csv = is_csv(file.path)
    types = ColumnTypes(config.columns, csv, known, config.as_text)
    try:
        for number, row in read_rows(file.path, {}):
            try:
                _row_item(file, number, row, config, {})
                if isinstance(row, dict):
                    types.add(row)
            except BAD_ROW:
                continue
    except (GeniusError, OSError):
        pass  # reported by the second pass, which ends at the same place
    return types.decide()


def _parquet_types(path: Path) -> dict[str, FieldType]:
    """The types of lists: an empty one does not say what it is a list of."""
    try:
        lists = parquet_lists(path)
    except (GeniusError, OSError):
        return {}  # reported when its rows are read
    types: dict[str, FieldType] = {}
    for name, strings in lists.items():
        if strings:
            types[key_of(name)] = "texts"
        else:
            types[key_of(name)] = "text"
    return types


def _table(
    file: SourceFile, config: IngestConfig, report: IngestReport, tell: Callable[[int], None], known: dict[str, FieldType]
) -> Iterator[tuple[int, Item, str]]:
    """Row number, item and mark."""
    bad = in_a_row = 0
    by_column, by_key = _column_types(file, config, known)
    try:
        for number, row in read_rows(file.path, by_column):
            try:
                item, mark = _row_item(file, number, row, config, by_key)
            except BAD_ROW as error:
                bad += 1
                in_a_row += 1
                if bad <= NAMED_ROWS:
                    report.problems.append(f"{file.name}, row {number}: {error}")
                report.doubtful.add(file.source)
                tell(1)
                if in_a_row >= MAX_BAD:
                    raise GeniusError(f"{in_a_row:,} rows in a row cannot be used: all further rows are left out") from None
                continue
            in_a_row = 0
            yield number, item, mark
    finally:
        if bad > NAMED_ROWS:
            report.problems.append(f"{file.name}: {bad - NAMED_ROWS:,} more rows cannot be used", bad - NAMED_ROWS)


def _row_item(
    file: SourceFile, number: int, row: Row | str, config: IngestConfig, types: Mapping[str, FieldType]
) -> tuple[Item, str]:
    if isinstance(row, str):
        raise GeniusError(row)
    item = item_of_table_row(row, config.columns, file.path.parent, f"{file.name}#{number}")
    texts = {
        key: spelled(value)
        for key, value in item.metadata.items()
        if key in config.as_text or (isinstance(value, list) and types.get(key) == "text")
    }
    item = replace(item, metadata={**item.metadata, **texts})
    check_types(item.metadata, types)
    if item.text is not None and len(item.text) > MAX_TEXT:  # refused by the index too; here, so that it is not held
        raise GeniusError(f"the text has {len(item.text):,} characters, more than {MAX_TEXT:,}")
    mark = _row_mark(row)
    if isinstance(item.image, Path):
        if not config.outside and not item.image.resolve().is_relative_to(file.root):
            raise GeniusError(f"the image {item.image} is outside of {file.root}; --outside reads it")
        if not item.image.is_file():
            raise GeniusError(f"no such image: {item.image}")
        mark = f"{mark}+{file_mark(item.image, config.by_content)}"
    return item, mark


def file_mark(path: Path, by_content: bool) -> str:
    """What changes when a file does: its size and time, or a digest of its bytes.

    Args:
        path: Of the file.
        by_content: Take the digest.
    """
    if by_content:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    about = path.stat()
    return f"{about.st_size}-{about.st_mtime_ns}"


def _row_mark(row: dict[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(row, sort_keys=True, default=_for_digest).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _for_digest(value: Any) -> str:
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=16).hexdigest()
    return str(value)


# -- comparing with the index ----------------------------------------------------------------------------------


def changed_items(
    index: Index,
    items: Iterator[tuple[Item, Stamp]],
    seen: set[str],
    report: IngestReport,
    tell: Callable[[int], None],
    undelete: bool = False,
) -> Iterator[Stamped]:
    """Those that are new or whose file changed; an id that comes a second time in one run is skipped.

    Args:
        index: The index.
        items: Items, and what each was read from.
        seen: Takes the ids of all items.
        report: Takes what is skipped.
        tell: Called with the number of items that are skipped or unchanged.
        undelete: Bring back items that were deleted by hand.
    """
    chunk: list[tuple[Item, Stamp]] = []
    held = 0
    for item, stamp in items:
        if item.id in seen:
            report.problems.append(f"{item.id}: this id came before, from another file or row")
            tell(1)
            continue
        seen.add(item.id)
        chunk.append((item, stamp))
        held += held_bytes(item)
        if len(chunk) == LOOK_UP or held > MAX_HELD:
            yield from compare(index, chunk, report, tell, undelete)
            chunk = []
            held = 0
    yield from compare(index, chunk, report, tell, undelete)


def compare(
    index: Index,
    chunk: list[tuple[Item, Stamp]],
    report: IngestReport,
    tell: Callable[[int], None],
    undelete: bool = False,
) -> Iterator[Stamped]:
    """Items of a chunk that are new or changed; one whose id belongs to an item from elsewhere is refused."""
    stored_rows = index._columns([item.id for item, _ in chunk], ["_stamp", "_source"], "skip")
    deleted = deleted_ids(index.path)
    for item, stamp in chunk:
        if item.id not in stored_rows:
            if item.id in deleted and not undelete:
                report.left_deleted += 1
                tell(1)
            else:
                yield item, stamp
            continue
        stored = stored_rows[item.id]
        same_file = stored["_source"] is not None and real_path(stored["_source"]) == Path(stamp.source)
        is_row = stamp.source.lower().endswith(tuple(TABLE_SUFFIXES))  # the id of a row is the table's own choice
        moved = stored["_source"] is not None and stored["_stamp"] == stamp.mark and not Path(stored["_source"]).exists()
        if (same_file and stored["_stamp"] == stamp.mark) or (is_row and stored["_stamp"] == stamp.mark):
            report.unchanged += 1
            tell(1)
        elif same_file or is_row or moved or item.id in deleted:
            yield item, stamp
        else:
            owner = stored["_source"] or "no file: it was added by a program"
            report.problems.append(f"{stamp.source}: its id {item.id} belongs to another item, of {owner}")
            report.doubtful.add(stamp.source)
            tell(1)


def _gone(index: Index, roots: Sequence[Path], seen: set[str], doubtful: set[str]) -> list[str]:
    """Ids of items that an earlier run read from under `roots` and this one did not find."""
    missing_items = []
    for row in searching.stream(index, ["id", "_source"]):
        if row["_source"] is None:
            continue
        source = real_path(row["_source"])
        if row["id"] in seen or str(source) in doubtful:
            continue
        if any(source == root or root in source.parents for root in roots):
            missing_items.append(row["id"])
    return missing_items
