"""The on-ramp on real features: an encoder, a collection of photos, not a single pair.

    python -m lab.onramp FEATURES OUT.json           (FEATURES: lab.fashion.data)
    python -m lab.onramp . OUT.json --vectors 100000     how long a fit takes

The frozen towers know no common space, so heads are trained on the pairs of one half of the products and stand for "some CLIP".
The collection is the photos of the other half, which nothing has seen, and it is fitted without a pair by `genius.fit`: made-up
questions are photos moved a little (in place of cut-outs, which need pixels) and random directions. Asked afterwards: titles ->
photos, and photos -> photos (of every title with several products one photo is kept out of the collection and asked with; the
others are its answers). Figures: hit@5, and its share of exhaustive dense search's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from genius.data.features import FeatureSet
from genius.encoders.towers import Heads
from genius.features import Features
from genius.fit import MEASURED_SEARCHES, Fit, FitConfig, fit_collection
from genius.fit.invent import IMAGE, InventedQueries
from genius.ranking import hit_at, judge, nearest_rows
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.config import EncoderStageConfig, RunConfig
from genius.train.encoder import HeadsStage
from genius.train.journal import Journal
from genius.train.loop import OneProcess, Runtime, run_stage
from lab.fashion.data import load

WIDTH, STEPS = 256, 400


class Task(NamedTuple):
    asked: Features
    answers: list[set[int]]  # rows of the collection


class World(NamedTuple):
    collection: Features
    tasks: dict[str, Task]


def halves(folder: Path, limit: int | None, seed: int) -> tuple[Features, Features, Tensor, Tensor, Tensor]:
    """Photos, titles, title number of each product, and the products of both halves; a title is in one of them."""
    fashion = load(folder, limit)
    count = len(fashion.pool) // 3
    photos, titles = fashion.pool[slice(0, count)], fashion.pool[slice(count, 2 * count)]
    _, group = torch.unique(titles.text, dim=0, return_inverse=True)
    first = torch.rand(int(group.max()) + 1, generator=torch.Generator().manual_seed(seed))[group] < 0.5
    return photos, titles, group, first.nonzero()[:, 0], (~first).nonzero()[:, 0]


def train_heads(photos: Features, titles: Features, rows: Tensor, seed: int) -> Heads:
    """Heads from the pairs of one half: what stands for a published encoder here."""
    names = [str(i) for i in range(len(rows))]
    data = FeatureSet(titles[rows], photos[rows], torch.arange(len(rows))[:, None].repeat(1, 2), names, names)
    config = EncoderStageConfig(steps=STEPS, batch=512, hard_negatives=0, modality_weight=0.0)
    stage = HeadsStage(data, None, WIDTH, config, seed, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(OneProcess(), Journal(Path(folder)), seed, RunConfig(patience=0))
        run_stage(stage, config, runtime, Path(folder) / "heads")
    return stage.heads.eval()


def world(photos: Features, titles: Features, group: Tensor, rows: Tensor) -> World:
    """The second half: what is searched, and what is asked. Features are the encoder's."""
    members: dict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        members[int(group[row])].append(row)
    asked_with = {title: own[0] for title, own in members.items() if len(own) > 1}
    kept = [row for row in rows.tolist() if asked_with.get(int(group[row])) != row]
    place = {row: i for i, row in enumerate(kept)}
    answers = {title: {place[row] for row in own if row in place} for title, own in members.items()}
    named = [own[0] for own in members.values()]
    tasks = {
        "title->photo": Task(titles[torch.tensor(named)], [answers[int(group[row])] for row in named]),
        "photo->photo": Task(photos[torch.tensor(list(asked_with.values()))], [answers[title] for title in asked_with]),
    }
    return World(photos[torch.tensor(kept)], tasks)


def made_up(collection: Features, count: int, seed: int) -> InventedQueries:
    """Photos moved a little: half of them by as much as cut-outs move a picture, half by as much as words stand away."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(collection), generator=random)[:count]
    image = F.normalize(collection.image[rows], dim=1)
    length = torch.where(torch.arange(len(rows)) % 2 == 0, 0.4, 1.0)[:, None]
    moved = image + length * F.normalize(torch.randn(image.shape, generator=random), dim=1)
    moved = F.normalize(moved, dim=1) * collection.image.norm(dim=1).mean()
    yes = torch.ones(len(rows), dtype=torch.bool)
    asked = Features(moved, torch.zeros_like(moved), yes, ~yes)
    return InventedQueries(asked, rows, torch.zeros_like(rows), torch.full_like(rows, IMAGE))


def hit_rate(found: Tensor, task: Task, at: int = 5) -> float:
    return float(hit_at(judge(found.numpy(), [sorted(good) for good in task.answers]), at).mean()) if len(found) else 0.0


@torch.no_grad()
def measure(fit: Fit, there: World, most: int) -> dict[str, Any]:
    model = fit.model
    z, _ = model.embed(there.collection)
    codes = model.encode(there.collection)
    engine = SearchEngine(model.generator, model.quantizer, CodeTrie.build(codes.numpy(), model.config.quantizer.level_sizes), z)
    usual, out = SearchParams.of_model(model), {}
    for name, whole in there.tasks.items():
        some = torch.linspace(0, len(whole.answers) - 1, min(most, len(whole.answers))).long()
        task = Task(whole.asked[some], [whole.answers[i] for i in some.tolist()])
        asked, _ = model.embed(task.asked)
        rates = {"dense": hit_rate(nearest_rows(asked, z, 5), task)}
        for search in MEASURED_SEARCHES:
            rates[search] = hit_rate(torch.from_numpy(engine.search(asked, k=5, params=usual.named(search)).rows), task)
        shares = {search: round(rates[search] / rates["dense"], 4) for search in MEASURED_SEARCHES}
        out[name] = {"questions": len(some), "hit@5": {k: round(v, 4) for k, v in rates.items()}, "share of dense": shares}
    return out


def timing(count: int, width: int, seed: int) -> dict[str, Any]:
    """How long a fit to so many made-up vectors takes: a thousand clusters, pictures only."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(1000, width, generator=random)
    own = torch.randint(1000, (count,), generator=random)
    image = centres[own] + 0.8 * torch.randn(count, width, generator=random)
    yes = torch.ones(count, dtype=torch.bool)
    collection = Features(image, torch.zeros_like(image), yes, ~yes)
    started, used = time.monotonic(), time.process_time()
    fit = fit_collection(collection, made_up(collection, 800, seed), config=FitConfig(seed=seed))
    wall, cpu = time.monotonic() - started, time.process_time() - used
    return {"vectors": count, "width": width, "seconds": round(wall, 1), "cpu_seconds": round(cpu, 1), "fit": fit.to_dict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--questions", type=int, default=1000, help="of each task, at most")
    parser.add_argument("--products", type=int, help="the first so many only")
    parser.add_argument("--heads", type=Path, help="keep the trained heads here, and take them from here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vectors", type=int, help="measure only how long a fit to so many made-up vectors takes")
    args = parser.parse_args()
    if args.vectors:
        body = {"date": datetime.date.today().isoformat(), "seed": args.seed, "threads": torch.get_num_threads()}
        body |= {"settings": asdict(FitConfig(seed=args.seed)), **timing(args.vectors, 512, args.seed)}
        body["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        args.output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        return
    photos, titles, group, first, second = halves(args.features, args.products, args.seed)
    if args.heads is not None and args.heads.exists():
        heads = Heads(photos.image.shape[1], titles.text.shape[1], WIDTH, EncoderStageConfig().hidden).eval()
        heads.load_state_dict(load_file(args.heads))
    else:
        heads = train_heads(photos, titles, first, args.seed)
        if args.heads is not None:
            save_file({k: v.contiguous() for k, v in heads.state_dict().items()}, args.heads)
    there = world(heads.apply_chunked(photos), heads.apply_chunked(titles), group, second)
    results: dict[str, Any] = {}
    for name, questions in (("made-up questions", made_up(there.collection, 800, args.seed)), ("random directions", None)):
        config, started = FitConfig(seed=args.seed), time.process_time()
        fit = fit_collection(there.collection, questions, config=config)
        seconds = time.process_time() - started
        results[name] = {"cpu_seconds": round(seconds, 1), "fit": fit.to_dict(), **measure(fit, there, args.questions)}
        print(json.dumps({name: results[name]}, indent=1), flush=True)
    body = {
        "what": "fashion photos through frozen towers and heads; fitted without pairs; half of the products never seen",
        "date": datetime.date.today().isoformat(),
        "seed": args.seed,
        "settings": asdict(FitConfig(seed=args.seed)),
        "items": len(there.collection),
        "width": WIDTH,
        "threads": torch.get_num_threads(),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "results": results,
    }
    args.output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
