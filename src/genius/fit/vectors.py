"""Vectors of the user's own, from files to an index: rows of a `.npy` array, or a column of a table.

Codes and a decoder are fitted to a sample of the vectors, if there are too many to compare them all. Vectors of queries, where
there are any, tell the codes and the item bias where queries look. No encoder is involved. `genius index vectors.npy --ids
ids.txt`, `genius index rows.parquet --vector-column embedding`. Knows files of vectors and the order of the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.features import Features
from genius.files import reading
from genius.fit import Fit, FitConfig, Say, fit_collection, sum_fusion, unfitted_model
from genius.fit.synthetic_queries import SyntheticQueries
from genius.index import Index
from genius.index.folder import read_about, save_inside
from genius.index.ingest import Indexed, IngestConfig, IngestReport, find_files, ingest, read_items
from genius.index.vectors import features_of_items, features_of_queries
from genius.model.genius import Genius
from genius.model.quantizer import Fusion
from genius.model.query_bank import QueryBank
from genius.model.unfitted import neutral_queries
from genius.ranking import nearest_rows
from genius.search.scan import compared_whole
from genius.types import Item, Modality, Query

SAMPLE = 20_000  # items that codes are fitted to, at most
BATCH = 4096  # rows of an array per write


def read_array(path: Path, what: str = "vectors") -> NDArray[Any]:
    """(N, D) numbers of a `.npy` file, mapped from the disk.

    Args:
        path: The file.
        what: What it should hold, for errors.

    Raises:
        GeniusError: If it is not such an array.
    """
    with reading(f"{path} as an array", ValueError, EOFError):
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
        raise GeniusError(f"{path} holds {array.dtype} of shape {array.shape}; {what} are numbers of shape (items, width)")
    return array


def read_vector(path: Path) -> NDArray[Any]:
    """(D,) numbers of a `.npy` file with one vector, (D,) or (1, D).

    Args:
        path: The file.

    Raises:
        GeniusError: If it does not hold one vector.
    """
    with reading(f"{path} as a vector", ValueError, EOFError):
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    if array.ndim != 1:
        raise GeniusError(f"{path} holds an array of shape {array.shape}; a query is one vector")
    return array


def read_ids(path: Path, rows: int) -> list[str]:
    """One id per line, as many as rows.

    Raises:
        GeniusError: If the file cannot be read, has another number of lines, or names an id twice.
    """
    try:
        ids = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GeniusError(f"cannot read ids from {path}: {error}") from None
    if len(ids) != rows:
        raise GeniusError(f"{path} has {len(ids):,} lines, but there are {rows:,} vectors")
    if len(set(ids)) < len(ids):
        raise GeniusError(f"{path} names an id twice")
    return ids


def own_queries(vectors: NDArray[Any] | None, fusion: Fusion, z: torch.Tensor, modality: torch.Tensor) -> SyntheticQueries | None:
    """Query vectors in the form that a fit takes; the nearest item is taken for the positive.

    Args:
        vectors: (Q, D); None: there are none.
        fusion: Of the items.
        z: (N, D) of the items.
        modality: (N,) of the items.
    """
    if vectors is None or not len(vectors):
        return None
    features = features_of_queries([Query(vector=row) for row in vectors], z.shape[1]).as_tensors()
    nearest = nearest_rows(fusion.embed(features), z, 1)[:, 0]
    tasks = torch.zeros(len(features), dtype=torch.long)
    return SyntheticQueries(features, nearest, modality[nearest], tasks)


def own_query_bank(queries: SyntheticQueries | None, fusion: Fusion, width: int, seed: int = 0) -> QueryBank:
    """What an index of own vectors knows of queries: their distribution, but not which modality they want."""
    neutral = neutral_queries(width)
    if queries is None:
        return neutral
    vectors = fusion.embed(queries.features)
    bank = QueryBank.of(vectors, queries.features.modality, queries.targets, seed=seed, real=True)
    return replace(bank, probe_weight=neutral.probe_weight, probe_bias=neutral.probe_bias)


def _new_model(
    output: Path, sample: Sequence[Item], queries: Path | None, fitted: bool, config: FitConfig | None, say: Say | None
) -> tuple[Fit | None, Genius]:
    """The model of a new index at `output`, saved inside it, and the fit, if codes are `fitted` to a sample of its items.

    Vectors of queries, where some are known, tell codes and item bias where queries look.
    """
    features = _features_of(sample)
    fusion = sum_fusion(features)
    known = None if queries is None else read_array(queries, "query vectors")
    fit_queries = own_queries(known, fusion, fusion.embed(features), features.modality)
    config = config or FitConfig()
    done = None
    if fitted:
        done = fit_collection(features, fit_queries, config=config, say=say)
        model = done.model
    else:
        model = unfitted_model(features, config=config)
    model.queries = own_query_bank(fit_queries, fusion, features.width, config.seed)
    save_inside(output, model)
    return done, model


def _features_of(items: Sequence[Item]) -> Features:
    """What enters the fusion for items that have vectors."""
    if not items:
        raise GeniusError("there is nothing to fit to: no vector could be read")
    first = items[0].vector
    width = len(first)
    if isinstance(first, dict):
        width = len(next(iter(first.values())))
    return features_of_items(items, width).as_tensors()


def index_vectors(
    path: Path,
    output: Path,
    *,
    ids: Path | None = None,
    modality: Modality = Modality.TEXT,
    queries: Path | None = None,
    fit: bool = False,
    config: FitConfig | None = None,
    say: Say | None = None,
    on_progress: Callable[[int], None] = lambda count: None,
) -> Indexed:
    """Index the rows of a `.npy` array; add to the index if it is there. Rows whose ids are there are replaced.

    Args:
        path: The array (N, D).
        output: The index.
        ids: A file with one id per line; None: row numbers.
        modality: Of all rows.
        queries: A `.npy` array of query vectors.
        fit: Fit codes and decoder also to vectors that are all compared.
        config: How codes are fitted.
        say: Called with one line per step of the fit.
        on_progress: Called with the number of rows that were written.

    Returns:
        What was written, and the fit (None: nothing was fitted, or the index was there).

    Raises:
        GeniusError: If a file cannot be read, or the index has another width.
    """
    array = read_array(path)
    names = None
    if ids is not None:
        names = read_ids(ids, len(array))
    report = IngestReport()
    started = time.monotonic()
    done = None
    model = None
    if read_about(output) is None:
        rows = np.unique(np.linspace(0, len(array) - 1, min(SAMPLE, len(array))).astype(np.int64))
        sample = _usable(np.asarray(array[rows]), modality)
        done, model = _new_model(output, sample, queries, fit or not compared_whole(len(array)), config, say)
    with Index(output, model) as index:
        write_report = index.upsert(
            _each(array, names, modality, report),
            batch_size=BATCH,
            on_error="skip",
            on_progress=lambda part: on_progress(part.added + part.replaced),
        )
        report.added = write_report.added
        report.replaced = write_report.replaced
        report.problems += write_report.problems
        report.seconds = time.monotonic() - started
        return Indexed(report, index.count(), done, fitted=index.model.fitted)


def _usable(rows: NDArray[Any], modality: Modality) -> list[Item]:
    """Items of the rows that are vectors."""
    numbers = np.asarray(rows, np.float32)
    sound = np.isfinite(numbers).all(axis=1) & numbers.any(axis=1)
    return [Item(str(row), vector=numbers[row], modality=modality) for row in np.flatnonzero(sound)]


def _each(array: NDArray[Any], names: Sequence[str] | None, modality: Modality, report: IngestReport) -> Iterator[Item]:
    """Items of all rows; a row that is no vector becomes a line of the report."""
    for row in range(len(array)):
        name = str(row)
        if names is not None:
            name = names[row]
        try:
            yield Item(name, vector=np.asarray(array[row]), modality=modality)
        except GeniusError as error:
            report.problems.append(str(error))


def index_tables(
    paths: Sequence[str | Path],
    output: Path,
    config: IngestConfig,
    *,
    queries: Path | None = None,
    fit: bool = False,
    fit_config: FitConfig | None = None,
    thumbnails: int = 256,
    say: Say | None = None,
    on_progress: Callable[[int], None] = lambda count: None,
) -> Indexed:
    """Index tables with a column of vectors (`config.columns.vector`); add to the index if it is there.

    Args:
        paths: Parquet, JSONL or CSV files, or folders of them.
        output: The index.
        config: How tables are read.
        queries: A `.npy` array of query vectors.
        fit: Fit codes and decoder also to a table of so few rows that all are compared.
        fit_config: How codes are fitted.
        thumbnails: Pixels of the previews of images; 0: none.
        say: Called with one line per step of the fit.
        on_progress: Called with the number of rows that are done.

    Returns:
        What was written, and the fit (None: nothing was fitted, or the index was there).

    Raises:
        GeniusError: If no row has a vector, or the index has another width.
    """
    done = None
    model = None
    if read_about(output) is None:
        nowhere = IngestReport()
        rows: Iterable[tuple[Item, Any]] = read_items(list(find_files(paths, config, nowhere)), config, nowhere, lambda _: None)
        sample = [item for item, _ in islice(rows, SAMPLE)]
        if not sample and nowhere.problems:
            raise GeniusError(f"no vector could be read: {nowhere.problems[0]}")
        more = len(sample) == SAMPLE  # how many is not known
        done, model = _new_model(output, sample, queries, fit or more, fit_config, say)
    with Index(output, model, thumbnails=thumbnails) as index:
        report = ingest(index, paths, config, on_progress)
        return Indexed(report, index.count(), done, fitted=index.model.fitted)
