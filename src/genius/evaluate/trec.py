"""TREC run and qrels files, so that any other tool can check our numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from genius.errors import GeniusError


def write_run(
    path: str | Path,
    query_ids: Sequence[str],
    pool_ids: Sequence[str],
    rows: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    tag: str,
) -> None:
    """`qid Q0 did rank score tag`. Scores strictly decrease: other tools sort by score and break ties their own way."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for query, ranked, values in zip(query_ids, rows, np.asarray(scores, np.float64), strict=True):
            last = np.inf
            for rank, (row, score) in enumerate(zip(ranked, values, strict=True), 1):
                if row < 0:
                    break
                last = min(float(score), float(np.nextafter(last, -np.inf))) if np.isfinite(last) else float(score)
                out.write(f"{query} Q0 {pool_ids[row]} {rank} {last!r} {tag}\n")


def read_run(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    """query id -> (document id, score), best first."""
    out: dict[str, list[tuple[str, float]]] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        parts = line.split()
        if len(parts) != 6:
            raise GeniusError(f"{path}:{number} is not a line of a TREC run")
        out.setdefault(parts[0], []).append((parts[2], float(parts[4])))
    for hits in out.values():
        hits.sort(key=lambda hit: -hit[1])
    return out


def write_qrels(path: str | Path, query_ids: Sequence[str], pool_ids: Sequence[str], positives: Sequence[Sequence[int]]) -> None:
    """`qid 0 did 1` for every positive."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for query, rows in zip(query_ids, positives, strict=True):
            out.writelines(f"{query} 0 {pool_ids[row]} 1\n" for row in rows)
