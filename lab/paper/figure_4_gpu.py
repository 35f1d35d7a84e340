"""Figure 4 on a GPU: queries per second of trained beam search and of flat dense search, by the number of candidates.

    python -m lab.paper.figure_4_gpu OUT.json --fashion FEATURES [--work FOLDER] [--sizes 10000,100000,1000000,10000000]

`builtin:published` at modality + 8 x 4096 is trained on fashion, with every item in the pool, or read from `--work`. Larger pools
are filled with points between z of two items of one modality; the trained quantizer gives them codes, the trie holds their IDs.
Dense search multiplies all vectors in half precision and takes the 50 best. Both are timed in one process, turn and turn about,
with queries given as vectors. The JSON is written after every size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.config import from_dict, to_dict
from genius.evaluate.report import markdown_table
from genius.model.config import GeniusConfig
from genius.model.genius import Genius
from genius.search import CodeTrie
from genius.search.beam import beam_search, scorer_of
from genius.train.handover import assemble
from genius.train.loop import training_device
from lab import provenance
from lab.paper.parts import trained_once
from lab.paper.published import Row, Settings, called, prepared, train_genius

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
BEAMS = (30, 50)
BATCHES = (1, 256)  # queries searched together
DEPTH = 50  # candidates of dense search
WIDTHS = (256, 768)  # of dense vectors: those of this model, and CLIP's, whose values here are those of this model repeated
BLOCK = 1 << 20  # vectors that dense search compares at once
ENCODED = 1 << 16  # vectors that are given codes at once
SECONDS = 3.0  # that every search is timed for, at least
ROUNDS = 3  # turns of every search; the median counts
PARTS = ("fusion", "quantizer", "generator")  # of a model
TRAINED: dict[str, Any] = {"generator.steps": 4000}


@dataclass(frozen=True)
class Pool:
    """z of some items and of test queries, on the device."""

    z: Tensor  # (N, D)
    modality: Tensor  # (N,)
    queries: Tensor  # (Q, D)


def trained_model(settings: Settings, limit: float, device: torch.device) -> tuple[Genius, Pool, dict[str, Any]]:
    """The published recipe on fashion, trained or read back, with the pool's z."""
    row = Row("figure-4", "published 4096 x 9", "fashion", changes=TRAINED, limit=limit)
    parts = prepared(settings, row, device)
    path = settings.work / "figure-4.pt"
    fresh: dict[str, Any] = {}
    if not path.exists():
        trained = train_genius(settings, row, parts, device, {})
        fresh = {"model": assemble(trained.config, trained.second, trained.third), "about": trained.about}

    def make() -> dict[str, Any]:
        weights = {name: getattr(fresh["model"], name).state_dict() for name in PARTS}
        return {"config": to_dict(fresh["model"].config), "weights": weights, "about": fresh["about"]}

    stored: Any = trained_once(path, make)
    model = Genius(from_dict(GeniusConfig, stored["config"]))
    for name in PARTS:
        getattr(model, name).load_state_dict(stored["weights"][name])
    model.to(device)
    z = model.fusion.embed(parts.test.pool).to(device)
    queries = model.fusion.embed(parts.test.queries).to(device)
    about = {name: stored["about"][name] for name in ("steps", "flat at", "late at")}
    return model, Pool(z, parts.test.pool.modality.to(device), queries), about


def filled(pool: Pool, size: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """z (n, D) and modality (n,) of `size` items in parts: those of the pool, then points between two of one modality."""
    random = torch.Generator(pool.z.device).manual_seed(seed)
    start = min(size, len(pool.z))
    if start < len(pool.z):
        rows = torch.randperm(len(pool.z), generator=random, device=pool.z.device)[:start]
        yield pool.z[rows], pool.modality[rows]
        return
    yield pool.z, pool.modality
    by_modality = [(pool.modality == value).nonzero()[:, 0] for value in range(3)]
    while start < size:
        count = min(ENCODED, size - start)
        first = torch.randint(len(pool.z), (count,), generator=random, device=pool.z.device)
        modality = pool.modality[first]
        second = torch.empty_like(first)
        for value, rows in enumerate(by_modality):
            places = (modality == value).nonzero()[:, 0]
            second[places] = rows[torch.randint(max(len(rows), 1), places.shape, generator=random, device=rows.device)]
        part = torch.rand(count, 1, generator=random, device=pool.z.device)
        yield F.normalize(torch.lerp(pool.z[first], pool.z[second], part), dim=1), modality
        start += count


@torch.no_grad()
def measure(model: Genius, pool: Pool, size: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Queries per second of every search over `size` items."""
    device = pool.z.device
    start = time.monotonic()
    vectors = torch.empty(size, pool.z.shape[1], dtype=torch.half if device.type == "cuda" else torch.float, device=device)
    codes = []
    done = 0
    for z, modality in filled(pool, size):
        vectors[done : done + len(z)] = z.to(vectors.dtype)
        codes.append(torch.cat([model.quantizer.encode(*part) for part in zip(z.split(8192), modality.split(8192), strict=True)]))
        done += len(z)
    table = torch.cat(codes).cpu().numpy()
    encoded = time.monotonic()
    trie = CodeTrie.build(table, model.config.quantizer.level_sizes)
    built = time.monotonic()
    scorer = scorer_of(model.generator)
    out: dict[str, Any] = {
        "candidates": size,
        "distinct IDs": trie.ids,
        "seconds": {"codes": round(encoded - start, 1), "trie": round(built - encoded, 1)},
        "rates": [],
    }

    def genius(beams: int) -> Callable[[Tensor], Any]:
        return lambda z: beam_search(scorer, trie, z, beams)

    def dense(table: Tensor) -> Callable[[Tensor], Any]:
        def run(z: Tensor) -> Tensor:
            wide = z.repeat(1, -(-table.shape[1] // z.shape[1]))[:, : table.shape[1]]
            return nearest(wide.to(table.dtype), table)

        return run

    searches: dict[str, Callable[[Tensor], Any]] = {f"GENIUS, {beams} beams": genius(beams) for beams in BEAMS}
    for width in WIDTHS:
        wide = vectors.repeat(1, -(-width // vectors.shape[1]))[:, :width].contiguous()
        searches[f"dense, {width} wide"] = dense(wide)
    for batch in BATCHES:
        found: dict[str, list[float]] = {name: [] for name in searches}
        for _ in range(ROUNDS):
            for name, search in searches.items():
                found[name].append(rate(search, pool.queries, batch, seconds / ROUNDS))
        out["rates"] += [
            {"search": name, "batch": batch, "queries/s": round(sorted(values)[len(values) // 2], 1)}
            for name, values in found.items()
        ]
    return out


def nearest(queries: Tensor, table: Tensor) -> Tensor:
    """(Q, DEPTH) rows of `table` (N, D) with the largest inner products, a block of rows at a time."""
    scores = []
    rows = []
    for number, block in enumerate(table.split(BLOCK)):
        best = (queries @ block.T).topk(min(DEPTH, len(block)), sorted=False)
        scores.append(best.values)
        rows.append(best.indices + number * BLOCK)
    best = torch.cat(scores, 1).topk(min(DEPTH, len(table)))
    return torch.cat(rows, 1).gather(1, best.indices)


def rate(search: Callable[[Tensor], Any], queries: Tensor, batch: int, seconds: float) -> float:
    """Queries per second, for so many seconds at least, after one batch that does not count."""
    search(queries[:batch])
    wait(queries.device)
    count = 0
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        first = count % max(len(queries) - batch, 1)
        search(queries[first : first + batch])
        wait(queries.device)
        count += batch
    return count / (time.monotonic() - start)


def wait(device: torch.device) -> None:
    """Until the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def tables(body: dict[str, Any]) -> str:
    """A table for each batch size: searches by the number of candidates."""
    out = []
    for batch in sorted({one["batch"] for size in body["sizes"] for one in size["rates"]}):
        rates = {
            (one["search"], size["candidates"]): one["queries/s"]
            for size in body["sizes"]
            for one in size["rates"]
            if one["batch"] == batch
        }
        sizes = [size["candidates"] for size in body["sizes"]]
        names = list(dict.fromkeys(name for name, _ in rates))
        rows = [[name, *(f"{rates[name, size]:,.0f}" for size in sizes)] for name in names]
        out.append(markdown_table([f"queries/s, {batch} at once", *(f"{size:,} candidates" for size in sizes)], rows))
    return "\n\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--fashion", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where the trained model is kept")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of stage 3 before its rate comes down")
    parser.add_argument("--train-only", action="store_true", help="train the model into --work and measure nothing")
    parser.add_argument("--note", default="", help="what else ran on the GPU")
    parser.add_argument("--commit", default="", help="that is run, where there is no git")
    parser.add_argument("--scale", type=float, default=1.0, help="divide all steps, for a trial")
    parser.add_argument("--decoder", default="", help="another size of the decoder, for a trial")
    parser.add_argument("--codes", type=int, default=0, help="at most so many codes per level, for a trial")
    parser.add_argument("--set", action="append", default=[], help="one field of the config, name=JSON, for a trial")
    args = parser.parse_args()
    fields = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    device = training_device()
    with tempfile.TemporaryDirectory() as folder:
        work = args.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        settings = Settings({"fashion": args.fashion}, work, args.scale, args.decoder, args.codes, fields)
        model, pool, about = trained_model(settings, args.limit, device)
    if args.train_only:
        return
    body: dict[str, Any] = {
        "about": {**provenance(), "training": about, "queries": len(pool.queries), "rounds": ROUNDS, "depth": DEPTH}
    }
    body["about"] |= {"note": args.note, "command": called(sys.argv[1:], "lab.paper.figure_4_gpu")}
    body["about"]["commit"] = args.commit or body["about"]["commit"]
    body["sizes"] = []
    for size in map(int, args.sizes.split(",")):
        body["sizes"].append(measure(model, pool, size))
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(body["sizes"][-1]), flush=True)
    print(tables(body), flush=True)


if __name__ == "__main__":
    main()
