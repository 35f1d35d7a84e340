"""How many codes to look at and how many vectors to compare: what each pair of the two keeps, for two halves of the questions.

    python -m lab.front.constants COLLECTION --out lab/front/constants.json

For every true answer and budget of codes: whether it is looked at, and how many of those looked at
have better codes. `genius.search.quick.SCANNED` and `COMPARED` are chosen on one half; what is reported elsewhere is of all.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.search import CodeTrie, SearchEngine, SearchParams, lookups
from genius.search.scan import Question
from lab.front.run import Front, K

CODES = (4000, 7500, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 120_000)
VECTORS = (100, 200, 400, 600, 800, 1200, 1600, 2400, 3200, 4800)


def ranks(front: Front) -> NDArray[np.int64]:
    """(Q, K, codes): how many of what is looked at have better codes than a true answer; very many: it is not looked at."""
    collection, model = front.collection, front.collection.model
    trie = CodeTrie.build(collection.codes.astype(np.int32), model.config.quantizer.level_sizes)
    engine = SearchEngine(model.generator, model.quantizer, trie, collection.z)
    lookups._scans = lookups.WARM + 1
    z = front.asked.z
    engine.search(torch.from_numpy(z[:1]), k=K, params=SearchParams(reranker="codes"), target=torch.tensor([front.wanted]))
    assert engine._quick is not None
    quick, scan = engine._quick, engine._quick.scan
    at = np.full(len(collection.z), -1, np.int64)  # of every row, in what is looked at
    out = np.full((len(z), K, len(CODES)), np.iinfo(np.int64).max)
    for q in range(len(z)):
        one = z[q : q + 1]
        tables = scan.tables(one, front.wanted, exact=False)
        liked, middles = quick._liked(one, front.wanted)[0], (one @ scan.means.T)[0]
        own = [None if table is None else table[0] for table in tables]
        for level, codes in enumerate(CODES):
            found = scan.scan(Question(front.wanted, liked, own, middles, None), codes)
            rows, scores = scan.rows_of(found, np.float32(-np.inf)), np.repeat(found.scores, found.items)
            at[:] = -1
            at[rows] = np.arange(len(rows))
            for j, row in enumerate(front.asked.truth[q].tolist()):
                if at[row] >= 0:
                    out[q, j, level] = int((scores > scores[at[row]]).sum())
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    front = Front.of(args.collection, "text->image", args.questions)
    with torch.inference_mode():
        found = ranks(front)
    body: dict[str, Any] = {"date": datetime.date.today().isoformat(), "items": len(front.collection.z), "seed": 0}
    body |= {"questions": len(found), "columns": "vectors compared", "recall@10": {}}
    for name, half in (("chosen on", found[1::2]), ("the other half", found[::2])):
        body["recall@10"][name] = {
            f"{codes:,} codes": {str(vectors): round(float((half[:, :, level] < vectors).mean()), 4) for vectors in VECTORS}
            for level, codes in enumerate(CODES)
        }
    args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
