"""What a worker does: reads a part, encodes and quantizes what is new in it, and leaves rows and a record in the staging folder.

Knows nothing of Ray: the same object works in a worker's process and in a test.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.index import metadata as meta
from genius.index.cache import hash_id
from genius.index.commit import table_folder
from genius.index.index import Index
from genius.index.ingest import IngestConfig, IngestReport, changed_items, read_items
from genius.index.prepare import prepare
from genius.index.store import arrow_rows, metadata_schema
from genius.index.writing import batched
from genius.scale.parts import MAX_ROWS, Part
from genius.scale.staging import Record, Staging

if TYPE_CHECKING:
    import pyarrow as pa

HELD = 128 << 20  # bytes of finished rows, after which they go to a file


class PartWriter:
    """Opens the index once, with its model, and does one part after the other."""

    def __init__(self, index: Path, config: IngestConfig, thumbnails: int, device: str) -> None:
        import lance

        self.index = Index.open(index, read_only=True)
        self.index.model.to(device)
        self.config, self.thumbnails = config, thumbnails
        self.staging = Staging(index)
        self.storage_version: str = lance.dataset(str(table_folder(index))).data_storage_version

    def ready(self) -> str:
        """Answers once the model is loaded: where it runs."""
        return str(self.index.model.device)

    def write(self, part: Part, first: int) -> tuple[int, float]:
        """Do a part whose rows have the numbers from `first` on. Items done, and seconds of processor time that it took."""
        started = time.process_time()
        report = IngestReport()
        reader = self.index._state.reader()
        known, schema = reader.columns, reader.schema
        own = [schema.field(name) for name in schema.names if name in meta.BUILT_IN or name.startswith("_")]
        kinds: dict[str, meta.Kind] = {}
        tables: list[pa.Table] = []
        fragments: list[dict[str, Any]] = []
        hashes: list[int] = []
        items = changed_items(self.index, read_items(part.files, self.config, report, _ignore), set(), report, _ignore)
        for batch in batched(items, self.config.batch_size):
            ready = prepare(self.index.model, batch, self.thumbnails, "skip")
            report.problems += ready.problems
            fresh, conflicts = meta.new_columns(
                {**known, **kinds}, ((item.id, row) for item, row in zip(ready.items, ready.metadata, strict=True))
            )
            report.problems += conflicts.values()
            ready = ready.without(conflicts)
            kinds.update(fresh)
            kinds.update({key: known[key] for row in ready.metadata for key in row if key in known})
            if len(hashes) + len(ready.items) > MAX_ROWS:
                report.problems.append(f"{part}: more than {MAX_ROWS:,} rows in one part; split the file")
                break
            columns = ready.columns(first + len(hashes), kinds)
            tables.append(arrow_rows(_with(own, kinds), columns))
            hashes += [hash_id(item.id) for item in ready.items]
            if sum(table.nbytes for table in tables) > HELD:
                fragments += self._flush(tables)
        fragments += self._flush(tables)
        problems = report.problems
        record = Record(
            part.name, first, len(hashes), fragments, kinds, report.unchanged, list(problems), problems.total
        )  # fmt: skip
        self.staging.write_record(record, np.array(hashes, np.uint64))
        return len(hashes) + report.unchanged + problems.total, time.process_time() - started

    def _flush(self, tables: list[pa.Table]) -> list[dict[str, Any]]:
        import pyarrow as pa

        rows = pa.concat_tables(tables, promote_options="default") if tables else None
        tables.clear()
        return [] if rows is None or not rows.num_rows else self.staging.write_rows(rows, self.storage_version)


def _with(own: list[pa.Field], kinds: dict[str, meta.Kind]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([*own, *metadata_schema(kinds)])


def _ignore(_: int) -> None:
    pass
