"""Data of the search benchmark: vectors of a model that saw training queries only, and data sets in VIBE's format.

    python -m lab.front.data vectors icons FEATURES OUT       FEATURES: what `lab.icons.vectors` wrote
    python -m lab.front.data vectors fashion FEATURES OUT     FEATURES: what `lab.fashion.data.extract` wrote
    python -m lab.front.data dataset OUT FILE.hdf5 --task "text -> image" [--size 1000000]

`vectors` trains heads (where features need them) and fusion on training queries and their positives alone, then writes z.npy (N, D) float16,
modality.npy (N,) and queries.npz (z, target, tasks, split, positives). `dataset` writes one HDF5 file in the format of the VIBE benchmark: the items
of the target modality (`train`), held-out queries (`test`, `validation`), training queries (`learn`) and the exact nearest items of each.
`--size` fills the items up by a rule that knows nothing of IDs, cells or codes: convex combinations of an item and a random one of its near
neighbours by cosine, plus noise. Knows nothing of the algorithms that are measured.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.data.features import FeatureSet
from genius.train import Trained, read_train_config, through_heads, train

SPLITS = ("learn", "validation", "test")
NEIGHBOURS = 29  # an item is mixed with one of so many of its nearest
NOISE = 0.02  # standard deviation of every dimension, added to a mix before it is normalised
LEARN = 10_000  # training queries of a data set, at most
TRUE = 100  # nearest items stored of every test query, as VIBE stores them
CHANGES: dict[str, Any] = {  # the default recipe; the decoder is of no use here, so it is the smallest and barely trained
    "model.decoder": "nano",
    "quantizer.steps": 400,
    "generator.steps": 20,
}


def fashion(folder: Path) -> tuple[FeatureSet, NDArray[np.str_]]:
    """All queries, and the split of each: products of a query are in one split."""
    from lab.fashion.data import TASKS, load

    photos = load(folder)
    ids = [str(i) for i in range(len(photos.queries))], [str(i) for i in range(len(photos.pool))]
    whole = FeatureSet(photos.queries, photos.pool, photos.pairs, *ids, photos.tasks, TASKS)
    products = len(photos.pool) // 3
    part = np.where(photos.held_out.numpy(), "test", "learn")
    first = np.full(len(part), -1)
    pairs = photos.pairs.numpy()
    first[pairs[::-1, 0]] = pairs[::-1, 1] % products  # the first positive's product
    quarter = np.array([zlib.crc32(str(product).encode()) % 4 == 0 for product in first])
    return whole, np.where((part == "test") & quarter, "validation", part)


def icons(folder: Path) -> tuple[FeatureSet, NDArray[np.str_]]:
    from genius.features import Features
    from lab.icons.vectors import load

    parts = load(folder)
    names = {"train": "learn", "val": "validation", "test": "test"}
    offset = 0
    pairs = []
    for name in names:
        pairs.append(parts[name].pairs + torch.tensor([offset, 0]))
        offset += len(parts[name].queries)
    first = parts["train"]
    queries = Features.cat([parts[name].queries for name in names])
    tasks = torch.cat([parts[name].tasks for name in names])
    whole = FeatureSet(queries, first.pool, torch.cat(pairs), [str(i) for i in range(offset)], first.pool_ids, tasks, first.names)
    split = np.concatenate([np.full(len(parts[name].queries), shown) for name, shown in names.items()])
    return whole, split


def training_part(data: FeatureSet, split: NDArray[np.str_]) -> FeatureSet:
    """Training queries over their positives alone: no other item is ever seen, not even as a negative."""
    mine = data.take_queries(torch.from_numpy((split == "learn").nonzero()[0]))
    rows = torch.unique(mine.pairs[:, 1])
    place = torch.full((len(data.pool),), -1, dtype=torch.long)
    place[rows] = torch.arange(len(rows))
    pairs = torch.stack([mine.pairs[:, 0], place[mine.pairs[:, 1]]], 1)
    ids = [data.pool_ids[row] for row in rows.tolist()]
    return FeatureSet(mine.queries, data.pool[rows], pairs, mine.query_ids, ids, mine.tasks, mine.names)


def fit(data: FeatureSet, seed: int) -> Trained:
    with tempfile.TemporaryDirectory() as folder:
        config = read_train_config("builtin:default", CHANGES | {"seed": seed, "output": folder})
        return train(config, data)


def embed(trained: Trained, data: FeatureSet, step: int = 8192) -> tuple[torch.Tensor, torch.Tensor]:
    """z of all items and of all queries."""
    if trained.heads is not None:
        data = through_heads(trained.heads, data)
    found = []
    with torch.inference_mode():
        for rows in (data.pool, data.queries):
            parts = [trained.model.embed(rows[slice(at, at + step)])[0] for at in range(0, len(rows), step)]
            found.append(torch.nn.functional.normalize(torch.cat(parts), dim=1))
    return found[0], found[1]


def write_vectors(name: str, features: Path, out: Path, seed: int) -> None:
    data, split = icons(features) if name == "icons" else fashion(features)
    trained = fit(training_part(data, split), seed)
    z, asked = embed(trained, data)
    modality = data.pool.modality
    target = torch.full((len(asked),), -1)
    target[data.pairs[:, 0]] = modality[data.pairs[:, 1]].long()
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "z.npy", z.half().numpy())
    np.save(out / "modality.npy", modality.numpy().astype(np.uint8))
    tasks = np.array([data.names[int(task)] for task in data.tasks])
    np.savez(
        out / "queries.npz", z=asked.numpy(), target=target.numpy(), tasks=tasks, split=split, positives=data.pairs.numpy()
    )
    trained.model.save_pretrained(out / "model", encoder=False)


# -- data sets in VIBE's format ----------------------------------------------------------------------------------


@dataclass
class Dataset:
    """One direction: unit vectors, float32. Distance: inner product."""

    name: str
    train: NDArray[np.float32]  # (N, D) items
    learn: NDArray[np.float32]  # (L, D) training queries
    learn_neighbors: NDArray[np.int32]  # (L, 10)
    validation: NDArray[np.float32]  # (V, D) held-out queries that constants are chosen on
    validation_neighbors: NDArray[np.int32]  # (V, 100)
    test: NDArray[np.float32]  # (T, D) held-out queries that are reported
    neighbors: NDArray[np.int32]  # (T, 100)

    @classmethod
    def read(cls, file: Path) -> Dataset:
        import h5py

        with h5py.File(file) as body:
            names = cls.__annotations__.keys() - {"name"}
            return cls(file.stem, **{name: body[name][:] for name in names})

    def write(self, file: Path, about: dict[str, Any]) -> None:
        import h5py

        file.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(file, "w") as body:
            for name in self.__annotations__.keys() - {"name"}:
                body[name] = getattr(self, name)
            for name, value in {"distance": "normalized", "dimension": self.train.shape[1], "point_type": "float", **about}.items():
                body.attrs[name] = value


def nearest(
    items: NDArray[np.float32], queries: NDArray[np.float32], k: int, skip_self: bool = False, step: int = 65_536
) -> NDArray[np.int32]:
    """(Q, k) rows of the items with the largest inner products, exactly."""
    wanted = k + skip_self
    asked = torch.from_numpy(queries)
    best = torch.full((len(asked), wanted), -torch.inf)
    rows = torch.zeros((len(asked), wanted), dtype=torch.long)
    for at in range(0, len(items), step):
        block = torch.from_numpy(items[at : at + step])
        for start in range(0, len(asked), 1024):
            here = slice(start, start + 1024)
            scores, found = (asked[here] @ block.T).topk(min(wanted, len(block)), dim=1)
            both = torch.cat([best[here], scores], 1)
            best[here], chosen = both.topk(wanted, dim=1)
            rows[here] = torch.cat([rows[here], found + at], 1).gather(1, chosen)
    return rows[:, skip_self:].numpy().astype(np.int32)


def filled(items: NDArray[np.float32], size: int, seed: int) -> NDArray[np.float32]:
    """The items and, up to `size`, points between an item and a random one of its near neighbours, plus noise."""
    random = np.random.default_rng(seed)
    near = nearest(items, items, NEIGHBOURS, skip_self=True)
    out = np.empty((size, items.shape[1]), np.float32)
    out[: len(items)] = items
    for at in range(len(items), size, 65_536):
        count = min(65_536, size - at)
        first = random.integers(len(items), size=count)
        second = near[first, random.integers(NEIGHBOURS, size=count)]
        share = random.uniform(0.5, 1, (count, 1)).astype(np.float32)
        mix = share * items[first] + (1 - share) * items[second]
        mix += NOISE * random.standard_normal(mix.shape, np.float32)
        out[at : at + count] = mix / np.linalg.norm(mix, axis=1, keepdims=True)
    return out


def write_dataset(vectors: Path, file: Path, task: str, size: int | None, seed: int) -> None:
    z = np.load(vectors / "z.npy")
    modality = np.load(vectors / "modality.npy")
    with np.load(vectors / "queries.npz") as asked:
        queries, target, tasks, split = (asked[name] for name in ("z", "target", "tasks", "split"))
    mine = tasks == task
    if not mine.any():
        raise SystemExit(f"no task {task!r}; there are {', '.join(sorted(set(tasks.tolist())))}")
    items = z[modality == target[mine][0]].astype(np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    real = len(items)
    if size is not None and size > real:
        items = filled(items, size, seed)
    random = np.random.default_rng(seed)
    parts = {}
    for name in SPLITS:
        rows = random.permutation((mine & (split == name)).nonzero()[0])[:LEARN]
        parts[name] = np.ascontiguousarray(queries[rows], np.float32)
    found = {name: nearest(items, part, 10 if name == "learn" else TRUE) for name, part in parts.items()}
    data = Dataset(
        file.stem,
        items,
        parts["learn"],
        found["learn"],
        parts["validation"],
        found["validation"],
        parts["test"],
        found["test"],
    )
    data.write(file, {"task": task, "real": real, "seed": seed, "noise": NOISE, "near": NEIGHBOURS})
    print(f"{file}: {len(items):,} items ({real:,} real), {', '.join(f'{len(part):,} {name}' for name, part in parts.items())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    vectors = commands.add_parser("vectors")
    vectors.add_argument("name", choices=["icons", "fashion"])
    vectors.add_argument("features", type=Path)
    vectors.add_argument("out", type=Path)
    dataset = commands.add_parser("dataset")
    dataset.add_argument("vectors", type=Path)
    dataset.add_argument("file", type=Path)
    dataset.add_argument("--task", required=True)
    dataset.add_argument("--size", type=int)
    for one in (vectors, dataset):
        one.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "vectors":
        write_vectors(args.name, args.features, args.out, args.seed)
    else:
        write_dataset(args.vectors, args.file, args.task, args.size, args.seed)


if __name__ == "__main__":
    main()
