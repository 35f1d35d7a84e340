"""How many rows exact beams could save by best-first pruning: log p never rises, so a beam below the k-th finished score is idle.

    python -m lab.front.pruning COLLECTION --out lab/front/pruning.json [--questions 48]

An upper bound, not an algorithm: the k-th finished score is taken from the finished search itself, which no search knows while it
runs. Rows that even this keeps, every exact search must decode. `narrow` is what a real one could know: the k-th score of a beam
only k wide, run first (its own rows not counted).
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.model.generator import Generator
from genius.search import CodeTrie, beam
from genius.search.decoder import decoder_of
from genius.search.forest import Forest, TrieView
from lab.front.data import Collection

K, BEAMS = 10, 50
Level = tuple[int, Tensor, Tensor]


def run(forest: Forest, writer: Any, z: Tensor, beams: int) -> tuple[Tensor, list[Level]]:
    """Finished k-th scores (Q,), and after each step its level, the queries still going and their beams' scores."""
    levels: list[Level] = []
    step = beam._step

    def noted(*args: Any) -> Any:
        out = step(*args)
        levels.append((out[0].level, out[0].queries.clone(), out[0].scores.clone()))
        return out

    beam._step = noted  # type: ignore[assignment]
    try:
        kth = torch.full((len(z),), -torch.inf)
        for found in beam.decode(writer, forest, z, beams):
            best = found.scores.sort(descending=True).values
            kth[found.queries] = best[:, min(K, best.shape[1]) - 1]
    finally:
        beam._step = step
    return kth, levels


@torch.inference_mode()
def measure(collection: Collection, questions: int, generator: Generator | None = None) -> dict[str, Any]:
    """`generator`: another than the collection's model has."""
    model, cpu = collection.model, torch.device("cpu")
    trie = CodeTrie.build(collection.codes.astype(np.int32), model.config.quantizer.level_sizes)
    forest, writer = Forest([TrieView(trie, cpu)], trie.level_sizes), decoder_of(generator or model.generator, cpu)
    picks = np.random.default_rng(0).choice(len(collection.questions), questions, replace=False)
    z = torch.from_numpy(collection.questions[picks])
    kth, levels = run(forest, writer, z, BEAMS)
    narrow, _ = run(forest, writer, z, K)
    rows = {"all": 0.0, "kept by the true k-th score": 0.0, "kept by a narrow beam's": 0.0}
    by_level = {}
    for level, queries, scores in levels:
        kept = [float((scores >= bound[queries, None] - 1e-6).sum()) for bound in (kth, narrow)]
        here = float(torch.isfinite(scores).sum())
        for name, value in zip(rows, (here, *kept), strict=True):
            rows[name] += value / questions
        by_level[str(level)] = {
            "beams": round(here / len(queries), 1),
            "above the true k-th score": round(kept[0] / len(queries), 1),
        }
    return {"items": trie.items, "rows_a_question": {name: round(value, 1) for name, value in rows.items()}, "by_level": by_level}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=48)
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = {"date": datetime.date.today().isoformat(), "beams": BEAMS, "k": K, "questions": args.questions, "seed": 0}
    found = {folder.name: measure(Collection.open(folder), args.questions) for folder in args.collections}
    args.out.write_text(json.dumps({**about, "collections": found}, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
