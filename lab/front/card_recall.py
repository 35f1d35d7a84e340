"""What the scan of a card finds beside the CPU's, on trained models: recall does not need a card, only its arrangement.

    python -m lab.front.card_recall COLLECTION ... --out lab/front/card_recall.json [--questions 300]

Runs `BatchScan` on the CPU with the kernels' plain twins, in float32 and in half precision as a card does, beside the engine's
own search there, with the same questions and the same exhaustive truth as `lab.front.run`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.search.batch_scan import BatchScan
from genius.search.decoder import Decoder
from lab.front.run import Front, K

sys.path.append(str(Path(__file__).parents[2] / "tests" / "helpers"))  # the twins live beside the tests of the kernels
from static_ops import TorchOps

EFFORTS = (500, 1000, 2000)


def measure(folder: Path, questions: int) -> dict[str, Any]:
    front = Front.of(folder, "text->image", questions)
    model, codes = front.collection.model, front.collection.codes.astype(np.int32)
    trie = CodeTrie.build(codes, model.config.quantizer.level_sizes)
    engine = SearchEngine(model.generator, model.quantizer, trie, front.collection.z)
    z, target = torch.from_numpy(front.asked.z), torch.full((len(front.asked.z),), front.wanted)
    searches: dict[str, Any] = {"CPU": engine}
    for name, dtype in (("as a card, float32", torch.float32), ("as a card, half", torch.float16)):
        decoder = Decoder(model.generator, torch.device("cpu"), dtype)
        searches[name] = BatchScan(decoder, TorchOps(), model.quantizer, engine._views, engine.vectors)
    out: dict[str, Any] = {"items": len(codes), "questions": len(z)}
    for effort in EFFORTS:
        params = SearchParams(rerank=effort)
        for name, search in searches.items():
            with torch.inference_mode():
                asked = (z, z, K, params, target, None)
                found = search.search(*asked) if name != "CPU" else engine.search(z, k=K, params=params, target=target)
            out.setdefault(name, {})[f"effort {effort}"] = front.asked.judged(found.rows.numpy())
            print(folder.name, effort, name, out[name][f"effort {effort}"], flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = {"date": datetime.date.today().isoformat(), "task": "text->image", "seed": 0}
    found = {folder.name: measure(folder, args.questions) for folder in args.collections}
    args.out.write_text(json.dumps({**about, "collections": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
