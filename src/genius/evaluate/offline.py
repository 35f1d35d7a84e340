"""Feature files in, arrays out: IDs of a pool, and the best IDs for every query (published formats).

What `genius features encode` and `genius features search` do. Knows nothing of pictures or of an index on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from genius.data.features import CANDIDATES_PER_DATASET, QUERIES_PER_DATASET, read_published
from genius.errors import GeniusError
from genius.files import write_whole
from genius.model.genius import Genius
from genius.search import CodeTrie, beam_search

Codes = npt.NDArray[np.int64]


def encode_file(model: Genius, features: Path, output: Path) -> Codes:
    """Codes of every row of a published feature file, written to `output` (.npy, int64)."""
    rows, _ = read_published(features, CANDIDATES_PER_DATASET)
    if len(rows) == 0:
        raise GeniusError(f"{features} holds no rows")
    codes: Codes = model.encode(rows).cpu().numpy()
    write_whole(output, lambda path: _save(path, lambda file: np.save(file, codes)))
    return codes


def read_codes(path: Path, model: Genius) -> Codes:
    """Codes written by `encode_file` (or the published index), checked against the model."""
    try:
        codes = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise GeniusError(f"no such codes: {path}") from None
    except (OSError, ValueError, EOFError) as error:
        raise GeniusError(f"cannot read {path} as codes: {error}") from None
    if not isinstance(codes, np.ndarray) or not np.issubdtype(codes.dtype, np.integer):
        raise GeniusError(f"{path} does not hold one array of integers")
    if codes.shape[0] == 0:
        raise GeniusError(f"{path} holds no candidates")
    codes = codes.astype(np.int64)
    model.quantizer.check_codes(torch.from_numpy(codes))
    return codes


def search_file(
    model: Genius,
    queries: Path,
    codes: Path,
    output: Path,
    *,
    beams: int = 50,
    batch: int = 64,
    progress: Callable[[Iterable[int]], Iterable[int]] = lambda steps: steps,
) -> int:
    """Exact constrained beam search for every query: `codes` (Q, beams, M) int64, `scores` (Q, beams) float32."""
    rows, _ = read_published(queries, QUERIES_PER_DATASET)
    if len(rows) == 0:
        raise GeniusError(f"{queries} holds no queries")
    trie = CodeTrie.build(read_codes(codes, model), model.config.quantizer.level_sizes)
    out_codes = np.full((len(rows), beams, model.config.quantizer.levels), -1, dtype=np.int64)
    out_scores = np.full((len(rows), beams), -np.inf, dtype=np.float32)
    for start in progress(range(0, len(rows), batch)):
        z, _ = model.embed(rows[start : start + batch])
        found = beam_search(model.generator, trie, z, beams)
        n = found.codes.shape[1]
        out_codes[start : start + batch, :n] = found.codes.cpu().numpy()
        out_scores[start : start + batch, :n] = found.scores.cpu().numpy()
    write_whole(output, lambda path: _save(path, lambda file: np.savez(file, codes=out_codes, scores=out_scores)))
    return len(rows)


def _save(path: Path, write: Callable[[Any], None]) -> None:
    """Through a file object: numpy would add its own ending to a name."""
    with path.open("wb") as file:
        write(file)
