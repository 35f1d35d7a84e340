"""Data of the search benchmark: vectors that owe nothing to held-out queries, and data sets in VIBE's format.

    python -m lab.front.data vectors icons FEATURES OUT       FEATURES: what `lab.icons.vectors` wrote
    python -m lab.front.data vectors fashion FEATURES OUT     FEATURES: what `lab.fashion.data.extract` wrote
    python -m lab.front.data dataset OUT PREFIX --task "text->image" [--task "image->image"] [--size 1000000]

`vectors` writes z.npy (N, D) float16, modality.npy (N,) and queries.npz (z, target, tasks, split, positives). Icons: z is the
normalised sum of a frozen encoder's image and text vectors; that encoder was trained on training queries alone. Fashion: frozen
towers of different widths, brought together by a canonical correlation analysis of training products. No model, codebook or
constant has seen a test query or its positives. `dataset` writes one HDF5 file in the format of the VIBE benchmark: the items of
the target modality (`train`), held-out queries (`test`, `validation`), training queries (`learn`) and the exact nearest items of
each. `--size` fills the items up by a rule that knows nothing of IDs, cells or codes: convex combinations of an item and a random
one of its near neighbours by cosine, plus noise. `--half` stores them as float16, block by block, and reads them memory-mapped:
ten million of them take 5 GB on disk, and no more memory than the system has left. Knows nothing of the algorithms that are
measured.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.data.features import FeatureSet
from genius.features import Features

SPLITS = ("learn", "validation", "test")
NEIGHBOURS = 29  # an item is mixed with one of so many of its nearest
NOISE = 0.02  # standard deviation of every dimension, added to a mix before it is normalised
LEARN = 4_096  # training queries of a data set, at most: what a model folder keeps
MIXED = 40_000  # items that points are mixed from, at most
TRUE = 100  # nearest items stored of every test query, as VIBE stores them
WIDTH = 256  # of the vectors of fashion
BLOCK = 65_536  # items that are made or compared together
RIDGE = 0.03  # of the mean variance, added to both covariances of the canonical correlation analysis


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


def correlated(image: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps (D_image, WIDTH) and (D_text, WIDTH) that make centred rows of pairs agree: regularised CCA."""
    roots = []
    for rows in (image, text):
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
        values = values + RIDGE * values.mean()
        roots.append((vectors / values.sqrt()) @ vectors.T)
    left, strength, right = torch.linalg.svd(roots[0] @ (image.T @ text / len(image)) @ roots[1], full_matrices=False)
    scale = strength[:WIDTH].sqrt()
    return roots[0] @ left[:, :WIDTH] * scale, roots[1] @ right[:WIDTH].T * scale


class Towers:
    """Features of two towers -> unit vectors of one space. Fitted on pairs; where widths agree, nothing is fitted."""

    def __init__(self, pairs: Features) -> None:
        self.maps: tuple[torch.Tensor, torch.Tensor] | None = None
        if pairs.image.shape[1] != pairs.text.shape[1]:
            self.means = pairs.image.mean(0), pairs.text.mean(0)
            self.maps = correlated(pairs.image - self.means[0], pairs.text - self.means[1])

    def __call__(self, rows: Features) -> torch.Tensor:
        """(n, D) unit vectors: the normalised sum of what is there."""
        parts = [rows.image, rows.text]
        if self.maps is not None:
            parts = [(part - mean) @ own for part, mean, own in zip(parts, self.means, self.maps, strict=True)]
        parts = [torch.nn.functional.normalize(part, dim=1) for part in parts]
        both = parts[0] * rows.image_mask[:, None] + parts[1] * rows.text_mask[:, None]
        return torch.nn.functional.normalize(both, dim=1)


def write_vectors(name: str, features: Path, out: Path) -> None:
    data, split = icons(features) if name == "icons" else fashion(features)
    modality = data.pool.modality
    mine = torch.from_numpy(split == "learn")
    learned = torch.unique(data.pairs[mine[data.pairs[:, 0]], 1])  # positives of training queries
    towers = Towers(data.pool[learned[modality[learned] == 2]])  # those that have both an image and a text
    target = torch.full((len(data.queries),), -1)
    target[data.pairs[:, 0]] = modality[data.pairs[:, 1]].long()
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "z.npy", towers(data.pool).half().numpy())
    np.save(out / "modality.npy", modality.numpy().astype(np.uint8))
    tasks = np.array([data.names[int(task)] for task in data.tasks])
    asked = towers(data.queries).numpy()
    positives = data.pairs.numpy()
    np.savez(out / "queries.npz", z=asked, target=target.numpy(), tasks=tasks, split=split, positives=positives)


# -- data sets in VIBE's format ----------------------------------------------------------------------------------


Items = NDArray[np.floating[Any]]  # float32 in memory, or float16 memory-mapped


@dataclass
class Dataset:
    """One direction: unit vectors. Distance: inner product."""

    name: str
    train: Items  # (N, D) items
    learn: NDArray[np.float32]  # (L, D) training queries
    learn_neighbors: NDArray[np.int32]  # (n, 10) of the first n training queries
    validation: NDArray[np.float32]  # (V, D) held-out queries that constants are chosen on
    validation_neighbors: NDArray[np.int32]  # (V, 100)
    test: NDArray[np.float32]  # (T, D) held-out queries that are reported
    neighbors: NDArray[np.int32]  # (T, 100)

    @classmethod
    def read(cls, file: Path, items: Items | None = None) -> Dataset:
        """`items`: in place of the file's own, where they are the same; a few are compared."""
        import h5py

        with h5py.File(file) as body:
            found = {name: body[name][:] for name in cls.__annotations__.keys() - {"name", "train"}}
            train = body["train"]
            if items is None and train.dtype == np.float16:
                items = np.memmap(file, np.float16, "r", train.id.get_offset(), train.shape)
            elif items is None:
                items = train[:]
            elif train.shape != items.shape or not np.array_equal(train[-9:], items[-9:]):
                raise SystemExit(f"{file.name} has other items")
            return cls(file.stem, items, **found)

    def write(self, file: Path, about: dict[str, Any]) -> None:
        import h5py

        file.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(file, "w") as body:
            for name in self.__annotations__.keys() - {"name"}:
                body[name] = getattr(self, name)
            for name, value in {
                "distance": "normalized",
                "dimension": self.train.shape[1],
                "point_type": "float",
                **about,
            }.items():
                body.attrs[name] = value


def nearest(items: Items, queries: NDArray[np.float32], k: int, skip_self: bool = False, step: int = BLOCK) -> NDArray[np.int32]:
    """(Q, k) rows of the items with the largest inner products, exactly."""
    wanted = k + skip_self
    asked = torch.from_numpy(queries)
    best = torch.full((len(asked), wanted), -torch.inf)
    rows = torch.zeros((len(asked), wanted), dtype=torch.long)
    for at in range(0, len(items), step):
        block = torch.from_numpy(np.asarray(items[at : at + step], np.float32))
        for start in range(0, len(asked), 1024):
            here = slice(start, start + 1024)
            scores, found = (asked[here] @ block.T).topk(min(wanted, len(block)), dim=1)
            both = torch.cat([best[here], scores], 1)
            best[here], chosen = both.topk(wanted, dim=1)
            rows[here] = torch.cat([rows[here], found + at], 1).gather(1, chosen)
    return rows[:, skip_self:].numpy().astype(np.int32)


def filling(items: NDArray[np.float32], size: int, seed: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """First row and (n, D) of blocks that fill the items up to `size`: points between an item and a random one of its near
    neighbours, plus noise."""
    random = np.random.default_rng(seed)
    starts = random.permutation(len(items))[:MIXED]
    near = nearest(items, items[starts], NEIGHBOURS, skip_self=True)
    for at in range(len(items), size, BLOCK):
        count = min(BLOCK, size - at)
        place = random.integers(len(starts), size=count)
        first = starts[place]
        second = near[place, random.integers(NEIGHBOURS, size=count)]
        share = random.uniform(0.5, 1, (count, 1)).astype(np.float32)
        mix = share * items[first] + (1 - share) * items[second]
        mix += NOISE * random.standard_normal(mix.shape, np.float32)
        yield at, mix / np.linalg.norm(mix, axis=1, keepdims=True)


def filled(items: NDArray[np.float32], size: int, seed: int, half: Path | None = None) -> Items:
    """The items and what fills them up to `size`. `half`: a file that holds them as float16, in place of memory."""
    out: Items
    if half is None:
        out = np.empty((size, items.shape[1]), np.float32)
    else:
        out = np.lib.format.open_memmap(half, "w+", np.float16, (size, items.shape[1]))
    out[: len(items)] = items
    for at, block in filling(items, size, seed):
        out[at : at + len(block)] = block
    return out


def write_datasets(
    vectors: Path,
    prefix: Path,
    names: list[str],
    size: int | None,
    queries: int,
    learn_true: int,
    seed: int,
    half: bool = False,
) -> None:
    """One file per task over the same items; all tasks must ask for the same modality."""
    z = np.load(vectors / "z.npy")
    modality = np.load(vectors / "modality.npy")
    with np.load(vectors / "queries.npz") as asked:
        rows, target, tasks, split = (asked[name] for name in ("z", "target", "tasks", "split"))
    unknown = [name for name in names if name not in tasks]
    if unknown:
        raise SystemExit(f"no task {unknown[0]!r}; there are {', '.join(sorted(set(tasks.tolist())))}")
    (wanted,) = {int(target[tasks == name][0]) for name in names}
    items = z[modality == wanted].astype(np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    real = len(items)
    if size is not None and size > real:
        block_file = prefix.with_suffix(".items.npy")
        items = filled(items, size, seed, block_file if half else None)
    for task in names:
        random = np.random.default_rng(seed)
        parts = {}
        for name in SPLITS:
            own = random.permutation(((tasks == task) & (split == name)).nonzero()[0])
            parts[name] = np.ascontiguousarray(rows[own[: LEARN if name == "learn" else queries]], np.float32)
        file = prefix.with_name(prefix.name + "_" + task.replace("->", "_").replace("+", "_") + ".hdf5")
        true = nearest(items, np.concatenate([parts["validation"], parts["test"]]), TRUE)
        cut = len(parts["validation"])
        learned = nearest(items, parts["learn"][:learn_true], 10)
        data = Dataset(file.stem, items, parts["learn"], learned, parts["validation"], true[:cut], parts["test"], true[cut:])
        data.write(file, {"task": task, "real": real, "seed": seed, "noise": NOISE, "near": NEIGHBOURS})
        counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
        print(f"{file.name}: {len(items):,} items ({real:,} real), {counts}", flush=True)
    if half:
        prefix.with_suffix(".items.npy").unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    vectors = commands.add_parser("vectors")
    vectors.add_argument("name", choices=["icons", "fashion"])
    vectors.add_argument("features", type=Path)
    vectors.add_argument("out", type=Path)
    dataset = commands.add_parser("dataset")
    dataset.add_argument("vectors", type=Path)
    dataset.add_argument("prefix", type=Path, help="of the files: PREFIX_text_image.hdf5 ...")
    dataset.add_argument("--task", action="append", required=True)
    dataset.add_argument("--size", type=int)
    dataset.add_argument("--queries", type=int, default=1000, help="validation and test queries, at most")
    dataset.add_argument(
        "--learn-neighbors", type=int, default=LEARN, help="training queries whose neighbours are stored, at most"
    )
    dataset.add_argument("--half", action="store_true", help="items as float16, never all of them in memory")
    dataset.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "vectors":
        write_vectors(args.name, args.features, args.out)
    else:
        write_datasets(args.vectors, args.prefix, args.task, args.size, args.queries, args.learn_neighbors, args.seed, args.half)


if __name__ == "__main__":
    main()
