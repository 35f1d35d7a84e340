"""Our searches and their rivals on one collection, in one run: recall, speed, bytes, building and adding.

    python -m lab.front.run COLLECTION --out lab/front/icons_1m.json [--rivals flat,hnsw,...] [--questions 300]

Questions are of one task (text->image: another kind than the items), the wanted kind is told to everyone: ours looks among all
items, a rival has an index of that kind alone. One thread each; times are processor time (of all threads a library starts), since
the machine is shared; the fastest of three rounds counts for everyone. recall@10 is against exhaustive search among the wanted
kind, hit@5 against the labels. Building counts training and adding; ours counts quantizing the vectors (timed on a sample) and
building the trie and the scan.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.search import CodeTrie, SearchEngine, SearchParams
from lab.front.data import Collection
from lab.front.rivals import RIVALS

K, HIT, BATCH, ROUNDS = 10, 5, 32, 3
ADDED = 10_000
QUANTIZED = 100_000  # items that are quantized for the time of it, so that what is computed once for all counts little
OURS: list[tuple[str, SearchParams]] = [
    (f"ours, {name}", SearchParams(rerank=rerank, reranker=reranker))  # type: ignore[arg-type]
    for reranker, name in (("embeddings", "vectors on disk"), ("codes", "codes only"))
    for rerank in (100, 150, 250, 350, 500, 750, 1000, 1250, 1500, 2000, 2100, 2500, 3000, 3500, 4000, 8000)
]


@dataclass
class Asked:
    """Questions, and what exhaustive search answers."""

    z: NDArray[np.float32]
    truth: NDArray[np.int64]  # (Q, K) item rows
    answers: list[set[int]]  # labels

    def judged(self, rows: NDArray[np.int64]) -> dict[str, float]:
        recall = np.mean([len(set(a.tolist()) & set(b.tolist())) / K for a, b in zip(rows, self.truth, strict=True)])
        hit = np.mean([bool(self.answers[q] & set(own[:HIT].tolist())) for q, own in enumerate(rows)])
        return {"recall@10": round(float(recall), 4), "hit@5": round(float(hit), 4)}


@dataclass
class Front:
    collection: Collection
    asked: Asked
    wanted: int
    own: NDArray[np.int64]  # rows of the wanted kind
    lines: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, task: str, count: int) -> Front:
        collection = Collection.open(folder)
        of_task = np.flatnonzero(collection.tasks == task)
        picks = np.random.default_rng(0).choice(of_task, min(count, len(of_task)), replace=False)
        wanted = int(collection.wanted[picks[0]])
        own = np.flatnonzero(collection.kind == wanted)
        z = np.ascontiguousarray(collection.questions[picks])
        labels: dict[int, set[int]] = {}
        for question, answer in collection.pairs.tolist():
            labels.setdefault(question, set()).add(answer)
        truth = exhaustive(collection.z, own, z)
        return cls(collection, Asked(z, truth, [labels[int(p)] for p in picks]), wanted, own)

    def measure(
        self, name: str, setting: str, search: Callable[[NDArray[np.float32]], NDArray[np.int64]], about: dict[str, Any]
    ) -> None:
        z = self.asked.z
        rows = np.concatenate([search(z[i : i + BATCH]) for i in range(0, len(z), BATCH)])
        single = best_of(lambda: [search(z[i : i + 1]) for i in range(min(len(z), 60))]) / min(len(z), 60)
        batch = best_of(lambda: search(z[:BATCH])) / BATCH
        line = {"name": name, "setting": setting, **self.asked.judged(rows), "single_ms": round(1e3 * single, 3)}
        line |= {"batch_ms": round(1e3 * batch, 3), "single_qps": round(1 / single, 1), "batch_qps": round(1 / batch, 1), **about}
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def ours(self) -> None:
        model, items = self.collection.model, len(self.collection.z)
        some = np.linspace(0, items - 1, min(QUANTIZED, items)).astype(int)
        start = time.process_time()
        sample = torch.from_numpy(np.asarray(self.collection.z[some], np.float32))
        with torch.inference_mode():
            model.quantizer.encode(sample, torch.from_numpy(self.collection.kind[some].astype(np.int64)))
        quantize = (time.process_time() - start) / len(some) * items
        codes = self.collection.codes.astype(np.int32)
        start = time.process_time()
        trie = CodeTrie.build(codes, model.config.quantizer.level_sizes)
        engine = SearchEngine(model.generator, model.quantizer, trie, self.collection.z)
        target = torch.tensor([self.wanted])
        held = engine.scan.prepare().nbytes
        build = time.process_time() - start
        width = self.collection.z.shape[1]
        about = {
            "bytes_per_item": round((trie.nbytes + held) / items, 2),
            "build_s": round(build + quantize, 1),
            "of_which_quantizing_s": round(quantize, 1),
        }
        for name, params in OURS:

            def search(z: NDArray[np.float32], params: SearchParams = params) -> NDArray[np.int64]:
                wanted = target.expand(len(z))
                return engine.search(torch.from_numpy(z), k=K, params=params, target=wanted).rows.numpy()

            disk = 2 * width if params.reranker == "embeddings" else 0
            self.measure(name, f"effort {params.rerank}", search, about | {"disk_bytes_per_item": disk})
        start = time.process_time()
        more = torch.from_numpy(np.asarray(self.collection.z[:ADDED], np.float32))
        kinds = torch.from_numpy(self.collection.kind[:ADDED].astype(np.int64))
        with torch.inference_mode():
            CodeTrie.build(model.quantizer.encode(more, kinds), model.config.quantizer.level_sizes)
        for line in self.lines:
            line["add_10000_s"] = round(time.process_time() - start, 2)

    def rival(self, key: str) -> None:
        rival = RIVALS[key]()
        vectors = np.ascontiguousarray(self.collection.z[self.own]).astype(np.float32)
        start = time.process_time()
        rival.build(vectors)
        about: dict[str, Any] = {"build_s": round(time.process_time() - start, 1)}
        about["bytes_per_item"] = round(rival.nbytes / len(vectors), 1)
        first = len(self.lines)
        for setting in rival.settings:

            def search(z: NDArray[np.float32], setting: Any = setting) -> NDArray[np.int64]:
                found: NDArray[np.int64] = rival.search(z, K, setting)
                return np.where(found >= 0, self.own[found.clip(0)], -1)

            extra = {"disk_bytes_per_item": 4 * vectors.shape[1] if setting.get("refine") else 0}
            self.measure(rival.name, json.dumps(setting), search, about | extra)
        try:
            start = time.process_time()
            rival.add(vectors[:ADDED])
            for line in self.lines[first:]:
                line["add_10000_s"] = round(time.process_time() - start, 2)
        except NotImplementedError:
            pass
        if hasattr(rival, "close"):
            rival.close()


def exhaustive(z: NDArray[np.float16], own: NDArray[np.int64], asked: NDArray[np.float32]) -> NDArray[np.int64]:
    """(Q, K) rows of the best by the vectors as they are stored."""
    queries = torch.from_numpy(asked)
    scores, rows = torch.full((len(asked), K), -torch.inf), torch.zeros(len(asked), K, dtype=torch.long)
    for i in range(0, len(own), 65_536):
        part = own[i : i + 65_536]
        found = (queries @ torch.from_numpy(np.asarray(z[part], np.float32)).T).topk(min(K, len(part)))
        scores, at = torch.cat([scores, found.values], 1).topk(K)
        rows = torch.cat([rows, torch.from_numpy(part)[found.indices]], 1).gather(1, at)
    return rows.numpy()


def best_of(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--task", default="text->image")
    args = parser.parse_args()
    torch.set_num_threads(1)
    front = Front.of(args.collection, args.task, args.questions)
    about = {
        "date": datetime.date.today().isoformat(),
        "collection": args.collection.name,
        "items": len(front.collection.z),
        "of_the_wanted_kind": len(front.own),
        "width": int(front.collection.z.shape[1]),
        "task": args.task,
        "questions": len(front.asked.z),
        "threads": 1,
        "seed": 0,
    }
    for key in ("ours", *(key for key in args.rivals.split(",") if key)):
        try:
            front.ours() if key == "ours" else front.rival(key)
        except Exception as error:  # a rival that is not installed or refuses these vectors is named, not hidden
            front.lines.append({"name": key, "failed": f"{type(error).__name__}: {error}"[:200]})
            print(front.lines[-1], flush=True)
        args.out.write_text(json.dumps({**about, "lines": front.lines}, indent=1) + "\n")
        gc.collect()


if __name__ == "__main__":
    main()
