"""Exact beams against the published way with trained weights: a decoder of the size that is shipped, in the published layout.

    python -m lab.front.exact COLLECTION --out lab/front/exact.json --weights FILE [--steps 800] [--questions 8] [--threads 2]

The shipped decoder's head is tied to the codebooks, which the published loop cannot run, so one with a free output table and a
softmax over all tokens is trained here, on half of the questions and their answers' IDs; the other half asks. The published
way is `transformers`' beam search with a callback over nested dicts. Both search the same items with the same weights, in turns,
one question a call; their IDs and scores are compared. What pruning by the k-th finished score could save is counted beside it.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genius.model.generator import SIZES, Generator, GeneratorConfig
from genius.search import CodeTrie, SearchEngine, SearchParams
from lab.front.data import Collection
from lab.front.pruning import BEAMS, K, measure
from lab.speed.engine import _equal, _summary, _take_turns
from lab.speed.rivals import published_search

BATCH = 128


def trained(collection: Collection, steps: int, weights: Path, size: str = "compact") -> tuple[Generator, list[float]]:
    """A decoder of the published layout and the bundled one's size; the mean log p of a code at the start and at the end."""
    torch.manual_seed(0)
    levels = collection.model.config.quantizer.level_sizes
    width, shape = collection.z.shape[1], SIZES[size]
    config = GeneratorConfig(width=width, level_sizes=levels, prefix_tokens=8, head="table", normalizer="vocabulary", **shape)  # type: ignore[arg-type]
    generator = Generator(config)
    if weights.exists():
        saved = torch.load(weights, weights_only=True)
        generator.load_state_dict(saved["state"])
        return generator.eval(), saved["learned"]
    pairs = collection.pairs[collection.pairs[:, 0] % 2 == 1]
    asked, codes = torch.from_numpy(collection.questions), torch.from_numpy(collection.codes[:].astype(np.int64))
    optimizer = torch.optim.AdamW(generator.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    random, losses = np.random.default_rng(0), []
    for step in range(steps):
        pick = torch.from_numpy(pairs[random.integers(0, len(pairs), BATCH)])
        loss = -generator(asked[pick[:, 0]], codes[pick[:, 1]]).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(-loss.item())
        if step % 50 == 0:
            print(step, round(losses[-1], 3), flush=True)
    learned = [round(losses[0], 3), round(float(np.mean(losses[-20:])), 3)]
    torch.save({"state": generator.state_dict(), "learned": learned}, weights)
    return generator.eval(), learned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    collection = Collection.open(args.collection)
    generator, learned = trained(collection, args.steps, args.weights)
    body: dict[str, Any] = {"date": datetime.date.today().isoformat(), "items": len(collection.z), "seed": 0, "steps": args.steps}
    body |= {"log_p_of_a_code": learned, "beams": BEAMS, "k": K, "questions": args.questions}
    even = np.flatnonzero(np.arange(len(collection.questions)) % 2 == 0)
    z = torch.from_numpy(collection.questions[np.random.default_rng(0).choice(even, args.questions, replace=False)])
    codes = collection.codes[:].astype(np.int64)
    trie = CodeTrie.build(codes, generator.config.level_sizes)
    published = published_search(generator, codes)
    engine = SearchEngine(generator, None, trie, None)
    params = SearchParams(beams=BEAMS, rerank=0, reranker="none")
    torch.set_num_threads(args.threads)
    body["equal"] = _equal(generator, trie, z, BEAMS, published, print)
    body["lines"] = {}
    for threads in sorted({1, args.threads}):
        torch.set_num_threads(threads)
        everyone = {
            "exact": lambda: [engine.search(one[None], k=K, params=params) for one in z],
            "published": lambda: [published.search(one[None], BEAMS) for one in z],
        }
        times = _take_turns(everyone, 3, "cpu", lambda _: None)
        found: dict[str, Any] = {
            name: _summary([wall / len(z) for wall in walls], [each / len(z) for each in processors], 1)
            for name, (walls, processors) in times.items()
        }
        found["ratio_wall"] = round(found["published"]["p50_ms"] / found["exact"]["p50_ms"], 2)
        found["ratio_processor"] = round(found["published"]["cpu_ms_per_query"] / found["exact"]["cpu_ms_per_query"], 2)
        body["lines"][f"{threads} threads"] = found
        print(json.dumps(found), flush=True)
        args.out.write_text(json.dumps(body, indent=1) + "\n")
    body["pruning"] = measure(collection, 24, generator)
    args.out.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(body["pruning"]))


if __name__ == "__main__":
    main()
