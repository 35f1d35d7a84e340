"""What the front is measured on: vectors, codes and questions of trained models, and the same filled up with points between.

    python -m lab.front.data icons FEATURES OUT              the bundled model's vectors of the icons (`lab.icons.vectors`)
    python -m lab.front.data fashion VECTORS.pt OUT          vectors of a trained fusion; codes and decoder fitted to them here
    python -m lab.front.data fill OUT BIGGER SIZE            + points between items of the same kind that stand near by their IDs
    python -m lab.front.data recombine OUT BIGGER SIZE       + items with the first codes of one and the last codes of another

`fill` quantizes every point as the product does (a minute of one core for a million); `recombine` is for ten million: the first
codes are one item's, the last a neighbour's, and what the codes leave over is the first one's. A collection is a folder: z.npy
(N, D) float16, codes.npy (N, M), kind.npy (N,), questions.npz (z, wanted, task names, pairs of question and answer) and a model.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.fit import FitConfig, fit_vectors
from genius.model.genius import Genius
from genius.model.quantizer import Fusion, FusionConfig
from genius.search import CodeTrie

NEAR = 8  # places in the order of IDs that two mixed items may stand apart


@dataclass(frozen=True)
class Collection:
    """A folder, opened."""

    folder: Path
    z: NDArray[np.float16]  # (N, D)
    codes: NDArray[np.uint16]  # (N, M)
    kind: NDArray[np.uint8]  # (N,)
    questions: NDArray[np.float32]  # (Q, D)
    wanted: NDArray[np.int64]  # (Q,) kind of the answers
    tasks: NDArray[Any]  # (Q,) names
    pairs: NDArray[np.int64]  # (L, 2) question, answer

    @classmethod
    def open(cls, folder: Path) -> Collection:
        z, codes, kind = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("z", "codes", "kind"))
        with np.load(folder / "questions.npz") as asked:
            return cls(folder, z, codes, np.asarray(kind), *(asked[name] for name in ("z", "wanted", "tasks", "pairs")))

    @property
    def model(self) -> Genius:
        return Genius.from_pretrained((self.folder / "model.txt").read_text().strip())

    def save_beside(self, target: Path) -> None:
        """Questions and model of this for a larger collection."""
        for name in ("questions.npz", "model.txt"):
            (target / name).write_bytes((self.folder / name).read_bytes())


def write(folder: Path, z: torch.Tensor, kind: torch.Tensor, codes: torch.Tensor, model: str, asked: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "z.npy", z.half().numpy())
    np.save(folder / "codes.npy", codes.numpy().astype(np.uint16))
    np.save(folder / "kind.npy", kind.numpy().astype(np.uint8))
    np.savez(folder / "questions.npz", **asked)
    (folder / "model.txt").write_text(model + "\n")


def questions(
    z: torch.Tensor, tasks: torch.Tensor, names: dict[int, str], pairs: torch.Tensor, kind: torch.Tensor
) -> dict[str, Any]:
    wanted = torch.full((len(z),), -1)
    wanted[pairs[:, 0]] = kind[pairs[:, 1]].long()
    shown = np.array([names[int(task)] for task in tasks])
    return {"z": z.numpy(), "wanted": wanted.numpy(), "tasks": shown, "pairs": pairs.numpy()}


def icons(features: Path, out: Path) -> None:
    from lab.icons.vectors import load

    test, model = load(features)["test"], Genius.from_pretrained("bundled:mini")
    with torch.inference_mode():
        z, asked, kind = model.embed(test.pool)[0], model.embed(test.queries)[0], test.pool.modality
        codes = model.quantizer.encode(z, kind)
    write(out, z, kind, codes, "bundled:mini", questions(asked, test.tasks, test.names, test.pairs, kind))


def fashion(file: Path, out: Path) -> None:
    """Codes by k-means and a small decoder without pairs, as `genius index --encoder` fits them."""
    body = torch.load(file, weights_only=True)
    z, kind = body["pool"], body["kind"]
    config = FitConfig(sample=30_000, iterations=6, steps=150)
    fit = fit_vectors(Fusion(FusionConfig(z.shape[1], 1, 1)), z, kind, None, None, None, config, say=print)
    fit.model.save_pretrained(out / "model", encoder=False)
    codes = fit.model.quantizer.encode(z, kind)
    write(
        out,
        z,
        kind,
        codes,
        f"local-dir:{out / 'model'}",
        questions(body["test"], body["tasks"], body["names"], body["test_pairs"], kind),
    )
    (out / "fit.json").write_text(json.dumps(fit.to_dict()))


class Filler:
    """Pairs of items of the same kind that stand near by their IDs, drawn with one seed; writes a larger collection."""

    def __init__(self, source: Collection, out: Path, size: int) -> None:
        self.source, self.size, self.count = source, size, len(source.z)
        self.quantizer = source.model.quantizer
        trie = CodeTrie.build(source.codes.astype(np.int64), self.quantizer.config.level_sizes)
        self.order = torch.from_numpy(np.asarray(trie.order, np.int64))
        self.kind = torch.from_numpy(source.kind.astype(np.int64))
        self.random = torch.Generator().manual_seed(0)
        out.mkdir(parents=True, exist_ok=True)
        source.save_beside(out)
        opened: Any = np.lib.format.open_memmap
        self.z = opened(out / "z.npy", "w+", np.float16, (size, source.z.shape[1]))
        self.codes = opened(out / "codes.npy", "w+", np.uint16, (size, source.codes.shape[1]))
        self.kinds = opened(out / "kind.npy", "w+", np.uint8, (size,))
        for made, given in ((self.z, source.z), (self.codes, source.codes), (self.kinds, source.kind)):
            made[: self.count] = given

    def pairs(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.randint(self.count, (count,), generator=self.random).sort().values
        aside = torch.randint(1, NEAR + 1, (count,), generator=self.random)
        sign = 2 * torch.randint(0, 2, (count,), generator=self.random) - 1
        first, second = self.order[places], self.order[(places + aside * sign).clamp(0, self.count - 1)]
        return first, torch.where(self.kind[first] == self.kind[second], second, first)

    def run(self, recombined: bool, step: int = 32_768) -> None:
        for at in range(self.count, self.size, step):
            first, second = self.pairs(min(step, self.size - at))
            z, codes = (self._recombined if recombined else self._between)(first, second)
            here = slice(at, at + len(first))
            self.z[here], self.codes[here], self.kinds[here] = z.half().numpy(), codes.numpy(), self.kind[first].numpy()

    def _vectors(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.source.z[rows.numpy()], np.float32))

    def _between(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mix = torch.rand(len(first), 1, generator=self.random)
        z = torch.nn.functional.normalize(torch.lerp(self._vectors(first), self._vectors(second), mix), dim=1).half().float()
        return z, self.quantizer.encode(z, self.kind[first])

    def _recombined(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old, other = (torch.from_numpy(self.source.codes[rows.numpy()].astype(np.int64)) for rows in (first, second))
        levels = old.shape[1]
        cut = torch.randint(4, levels - 1, (len(first), 1), generator=self.random)
        new, z = torch.where(torch.arange(levels) >= cut, other, old), self._vectors(first)
        for level in range(4, levels):
            kind = self.kind[first]
            z += self.quantizer.vectors(level, new[:, level], kind) - self.quantizer.vectors(level, old[:, level], kind)
        return torch.nn.functional.normalize(z, dim=1), new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["icons", "fashion", "fill", "recombine"])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("size", type=int, nargs="?", default=1_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "icons":
        icons(args.source, args.out)
    elif args.what == "fashion":
        fashion(args.source, args.out)
    else:
        Filler(Collection.open(args.source), args.out, args.size).run(args.what == "recombine")


if __name__ == "__main__":
    main()
