"""TREC runs, read back."""

from __future__ import annotations

from pathlib import Path


def read_run(path: Path) -> dict[str, list[tuple[str, float]]]:
    """query id -> (document id, score), best first."""
    out: dict[str, list[tuple[str, float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query, _, document, _, score, _ = line.split()
        out.setdefault(query, []).append((document, float(score)))
    return {query: sorted(hits, key=lambda hit: -hit[1]) for query, hits in out.items()}
