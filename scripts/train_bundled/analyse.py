"""Step 4, optional: why unseen concepts are missed. Numbers for docs/results/icons.md, on one core in about ten minutes.

    python scripts/train_bundled/analyse.py --icons ICONS --features FEATURES --teacher PACKED --out errors.json

ICONS is what `genius data icons` wrote, FEATURES the folder with features-{train,test} that `features.py` wrote, PACKED the
folder of `prepare.py` (its teacher is the strong matcher of texts). It trains nothing and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracles import best_of, closed_vocabulary, first_right, hit_rates, lexical, ranks, words_of
from PIL import Image
from prepare import read_lines
from teacher import teach, tokenise
from torch import Tensor

from genius.data.features import FeatureSet
from genius.data.icons.write import INSTRUCTIONS
from genius.features import Features
from genius.instructions import format_text
from genius.model.genius import Genius

NEIGHBOUR = 0.55  # cosine of the teacher's vectors of two names: the card's measure of "something like it"
NEARNESS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)  # bins of the cosine to the nearest training concept


@dataclass
class World:
    """Concepts and their drawings in the pool."""

    concepts: list[dict[str, Any]]  # names, tags, split and kind of each
    drawn: Tensor  # (N,) pool rows that are drawings alone
    owner: Tensor  # (N,) concept of each
    place: dict[str, int]  # picture -> concept
    meta: dict[str, dict[str, Any]]  # picture -> its line
    pictures: list[str | None]  # of each pool row

    @classmethod
    def read(cls, icons: Path) -> World:
        meta = {row["img_path"]: row for row in read_lines(icons / "meta.jsonl")}
        first: dict[str, dict[str, Any]] = {}
        for row in meta.values():
            first.setdefault(row["concept"], row)
        number = {concept: i for i, concept in enumerate(first)}
        pool = read_lines(icons / "cand_pool/global/mbeir_union_cand_pool.jsonl")
        drawn = [i for i, row in enumerate(pool) if row["img_path"] and not row["txt"]]
        place = {path: number[row["concept"]] for path, row in meta.items()}
        owner = torch.tensor([place[pool[i]["img_path"]] for i in drawn])
        return cls(list(first.values()), torch.tensor(drawn), owner, place, meta, [row["img_path"] for row in pool])

    def same_hand(self, picture: str) -> list[int]:
        """Rows of `drawn`: the same concept by the same family."""
        mine = self.meta[picture]
        some = (self.owner == self.place[picture]).nonzero()[:, 0].tolist()
        return [j for j in some if self.meta[self.pictures[int(self.drawn[j])] or ""]["family"] == mine["family"]]

    def caption(self, concept: int) -> str:
        row = self.concepts[concept]
        return ", ".join([*row["names"], *row["tags"]])


@dataclass
class Asked:
    """Questions of one task with the model's exhaustive answers among drawings and in the whole pool."""

    rows: list[dict[str, Any]]
    kinds: list[str]
    right: list[set[int]]  # rows of `World.drawn`
    found: Tensor  # (Q,) place of the first right candidate in the whole pool
    among: Tensor  # (Q,) place of the first right drawing among drawings
    best: Tensor  # (Q, 5) rows of `World.drawn`: the first five drawings
    concept: Tensor  # (Q,) that is asked for
    z: Tensor  # (Q, D)


def model_answers(
    model: Genius,
    world: World,
    features: FeatureSet,
    pool: Tensor,
    rows: list[dict[str, Any]],
    some: Tensor,
    kinds: dict[str, str],
    own_hand: bool = True,
) -> Asked:
    """Exhaustive search for the questions `some` (rows of `features`), whose lines are `rows`. `own_hand=False` leaves out what
    test questions do not meet either: drawings of the question's concept by the hand that drew the question."""
    place = torch.full((len(pool),), -1, dtype=torch.long)
    place[world.drawn] = torch.arange(len(world.drawn))
    positives = features.positives()
    right = [set(place[positives[i]].tolist()) for i in some.tolist()]
    hidden: list[list[int]] = [[] if own_hand else world.same_hand(row["query_img_path"]) for row in rows]
    z = model.embed(features.queries[some])[0]
    whole, among, best = [], [], []
    for start in range(0, len(z), 200):
        part = slice(start, start + 200)
        scores = z[part] @ pool.T
        for i, rows_out in enumerate(hidden[part]):
            scores[i, world.drawn[rows_out]] = -2.0
        whole += first_right(place[scores.topk(50).indices], right[part])
        top = scores[:, world.drawn].topk(50).indices
        among += first_right(top, right[part])
        best.append(top[:, :5])
    concept = torch.tensor([int(world.owner[min(good)]) for good in right])
    told = [kinds[row["qid"]] for row in rows]
    return Asked(rows, told, right, torch.tensor(whole), torch.tensor(among), torch.cat(best), concept, z)


def by(groups: Iterable[str], found: Tensor) -> dict[str, dict[str, float]]:
    """Hit rates of each group of questions."""
    names = list(groups)
    return {name: hit_rates(found[torch.tensor([n == name for n in names])]) for name in dict.fromkeys(sorted(names))}


def bins(values: Tensor, edges: tuple[float, ...], digits: int = 2) -> list[str]:
    """Each value's bin as words that sort."""
    at = torch.bucketize(values, torch.tensor(edges[1:-1]), right=True)
    return [f"{edges[i]:.{digits}f} to {min(edges[i + 1], 1e9):.{digits}f}" for i in at.tolist()]


def count_bin(n: int) -> str:
    return next(name for limit, name in ((1, "1"), (3, "2-3"), (10, "4-10"), (10**9, "11+")) if n <= limit)


class Words:
    """The teacher's and the model's vectors of texts, each text read once."""

    def __init__(self, folder: Path, model: Genius, texts: Iterable[str]) -> None:
        self.texts = list(dict.fromkeys(texts))
        self.row = {text: i for i, text in enumerate(self.texts)}
        flat, lengths = tokenise(folder, self.texts)
        self.teacher = teach(folder, flat, lengths, torch.device("cpu"), tokens=4096)
        self.ours = embed_texts(model, self.texts)

    def take(self, vectors: Tensor, texts: Iterable[str]) -> Tensor:
        return vectors[torch.tensor([self.row[t] for t in texts])]


def embed_texts(model: Genius, texts: list[str], instruction: str = "") -> Tensor:
    """(n, D) z of texts as items (or as questions, with an instruction)."""
    assert model.encoder is not None
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    read = [format_text(f"{instruction} {texts[i]}".strip()) for i in order]
    vectors = torch.cat([model.encoder.encode_texts(read[i : i + 128]) for i in range(0, len(read), 128)])
    mask = torch.ones(len(read), dtype=torch.bool)
    z = model.embed(Features(torch.zeros_like(vectors), vectors, ~mask, mask))[0]
    return torch.empty_like(z).index_copy_(0, torch.tensor(order), z)


def ceilings(world: World, asked: Asked, words: Words) -> dict[str, Any]:
    """Text -> image by matchers that know the words of every drawing, by kind of question."""
    texts = [row["query_txt"] for row in asked.rows]
    names = [(name, i) for i, row in enumerate(world.concepts) for name in row["names"]]
    both = [*names, *((tag, i) for i, row in enumerate(world.concepts) for tag in row["tags"])]
    main = words.take(words.teacher, (row["names"][0] for row in world.concepts))
    seen = torch.tensor([row["split"] == "train" for row in world.concepts])
    plain = words.take(words.teacher, texts)
    size = len(world.concepts)

    def told(pairs: list[tuple[str, int]], vectors: Tensor, questions: Tensor) -> Callable[[slice], Tensor]:
        return best_of(words.take(vectors, (t for t, _ in pairs)), torch.tensor([i for _, i in pairs]), size, questions)

    captions = [world.caption(i) for i in range(size)]
    matchers = {
        "teacher, names": told(names, words.teacher, plain),
        "teacher, names and tags": told(both, words.teacher, plain),
        "BM25, names": lexical([", ".join(row["names"]) for row in world.concepts], texts),
        "BM25, names and tags": lexical(captions, texts),
        "our text tower, names": told(names, words.ours, words.take(words.ours, texts)),
        "our text tower, names and tags": told(both, words.ours, words.take(words.ours, texts)),
        "teacher, main name": lambda part: plain[part] @ main.T,
        "teacher, main name, nearest training concept": closed_vocabulary(main, seen, plain, 1),
        "teacher, main name, mean of 5 training concepts": closed_vocabulary(main, seen, plain, 5),
    }
    out: dict[str, Any] = {"our model, drawings": {"all": hit_rates(asked.among), **by(asked.kinds, asked.among)}}
    for name, score in matchers.items():
        found = ranks(score, world.owner, asked.right)
        out[name] = {"all": hit_rates(found), **by(asked.kinds, found)}
        print(name, out[name]["all"], flush=True)
    return out


def nearness(world: World, words: Words, concepts: Tensor) -> tuple[Tensor, list[str]]:
    """Cosine of each concept's names to the nearest name of a training concept, and that name."""
    known = sorted({name for row in world.concepts if row["split"] == "train" for name in row["names"]})
    vectors = words.take(words.teacher, known)
    near, who = {}, {}
    for concept in concepts.unique().tolist():
        mine = words.take(words.teacher, world.concepts[concept]["names"])
        value, at = (mine @ vectors.T).max(1)
        near[concept], who[concept] = float(value.max()), known[int(at[value.argmax()])]
    return torch.tensor([near[c] for c in concepts.tolist()]), [who[c] for c in concepts.tolist()]


def outcomes(world: World, words: Words, asked: Asked) -> dict[str, float]:
    """What the first five drawings are: right; of a neighbour by its name; sharing two tags or a word; something else."""
    main = words.take(words.teacher, (row["names"][0] for row in world.concepts))
    found: dict[str, int] = dict.fromkeys(("right", "a neighbour by name", "shares a word or two tags", "something else"), 0)
    for i, concept in enumerate(asked.concept.tolist()):
        mine = world.concepts[concept]
        others = [int(world.owner[j]) for j in asked.best[i].tolist()]
        said = {w for name in mine["names"] for w in words_of(name)}
        if asked.among[i] < 5:
            found["right"] += 1
        elif float((main[others] @ main[concept]).max()) >= NEIGHBOUR:
            found["a neighbour by name"] += 1
        elif any(
            len(set(world.concepts[o]["tags"]) & set(mine["tags"])) >= 2
            or said & {w for name in world.concepts[o]["names"] for w in words_of(name) if len(w) > 2}
            for o in others
        ):
            found["shares a word or two tags"] += 1
        else:
            found["something else"] += 1
    return {name: round(100 * n / len(asked.rows), 1) for name, n in found.items()}


def relaxed(world: World, words: Words, asked: Asked) -> dict[str, float]:
    """hit@5 among drawings if a drawing also counted as right when its concept's main name is near enough to the asked one's."""
    main = words.take(words.teacher, (row["names"][0] for row in world.concepts))
    near = (main[world.owner[asked.best]] * main[asked.concept][:, None]).sum(2).amax(1)  # (Q,)
    return {
        f"{limit:.2f}": round(100 * ((asked.among < 5) | (near >= limit)).float().mean().item(), 1)
        for limit in (0.95, 0.9, 0.8, 0.7)
    }


def recognition(world: World, words: Words, pool: Tensor, split: str, count: int = 2000) -> dict[str, float]:
    """How often a drawing's own concept is among the first of all concepts, named by our text tower."""
    chosen = torch.tensor([world.concepts[c]["split"] == split for c in world.owner.tolist()]).nonzero()[:, 0]
    chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:count]]
    names = [(name, i) for i, row in enumerate(world.concepts) for name in row["names"]]
    vectors, owner = words.take(words.ours, (n for n, _ in names)), torch.tensor([i for _, i in names])
    score = best_of(vectors, owner, len(world.concepts), pool[world.drawn[chosen]])
    found = ranks(score, torch.arange(len(world.concepts)), [{c} for c in world.owner[chosen].tolist()])
    return hit_rates(found)


def grey(icons: Path, path: str) -> np.ndarray:
    """A drawing as 16 x 16 grey, cut to its ink: the same shape at another size is the same."""
    picture = Image.open(icons / path).convert("L")
    ink = picture.point(lambda v: 255 if v < 245 else 0).getbbox()
    return np.asarray(picture.crop(ink).resize((16, 16), Image.Resampling.BOX), dtype=np.float32)


def likeness(icons: Path, world: World, asked: Asked) -> tuple[Tensor, Tensor]:
    """Correlation, pixel by pixel, of each question's drawing with the right answer that looks most like it, and with the most
    alike of the first five drawings."""

    def most(mine: np.ndarray, some: Iterable[int]) -> float:
        paths = [world.pictures[int(world.drawn[j])] for j in some]
        return max(_correlation(mine, grey(icons, path).ravel()) for path in paths if path)

    answer, found = [], []
    for row, good, best in zip(asked.rows, asked.right, asked.best.tolist(), strict=True):
        mine = grey(icons, row["query_img_path"]).ravel()
        answer.append(most(mine, sorted(good)))
        found.append(most(mine, best))
    return torch.tensor(answer), torch.tensor(found)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / max(1e-6, float(np.linalg.norm(a) * np.linalg.norm(b))))


def hand(row: dict[str, Any]) -> str:
    if row["kind"] in ("app", "brand"):
        return {"app": "application themes", "brand": "logos"}[row["kind"]]
    return "emoji vendors" if row["kind"] == "emoji" else "icon sets"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("icons", "features", "teacher", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    started = time.time()
    world, model = World.read(args.icons), Genius.from_pretrained("bundled:mini")
    kinds = {row["qid"]: row["kind"] for row in read_lines(args.icons / "kinds.jsonl")}
    features = FeatureSet.load(args.features / "features-test")
    pool = model.embed(features.pool)[0]
    asked: dict[int, Asked] = {}
    for task in (0, 4):
        rows = read_lines(args.icons / f"query/test/mbeir_icons_task{task}_test.jsonl")
        asked[task] = model_answers(model, world, features, pool, rows, (features.tasks == task).nonzero()[:, 0], kinds)
    print(f"{time.time() - started:4.0f} s  the model's answers", flush=True)
    body: dict[str, Any] = {"seen": seen_concepts(model, world, args, pool, kinds)}
    print(f"{time.time() - started:4.0f} s  training questions {body['seen']}", flush=True)
    texts = [t for row in world.concepts for t in (*row["names"], *row["tags"])]
    words = Words(args.teacher, model, [*texts, *(row["query_txt"] for row in asked[0].rows)])
    print(f"{time.time() - started:4.0f} s  {len(words.texts):,} texts read", flush=True)
    body["recognition"] = {split: recognition(world, words, pool, split) for split in ("train", "test")}
    print(body["recognition"], flush=True)
    body["ceilings"] = ceilings(world, asked[0], words)
    for task, name in ((0, "text -> image"), (4, "image -> image")):
        a = asked[task]
        near, who = nearness(world, words, a.concept)
        table = {
            "all": hit_rates(a.found), "among drawings": hit_rates(a.among), "first five drawings": outcomes(world, words, a),
            "if near names counted": relaxed(world, words, a),
            "by nearest training concept": by(bins(near, NEARNESS), a.found),
            "by right answers": by((count_bin(len(good)) for good in a.right), a.found),
            "by kind": by(a.kinds, a.found),
        }  # fmt: skip
        if task == 4:
            table["by hand of the question"] = by((hand(world.meta[row["query_img_path"]]) for row in a.rows), a.found)
            alike, shown = likeness(args.icons, world, a)
            missed = a.found >= 5
            table["misses with a drawing shown that is more alike than any answer"] = round(
                100 * (shown > alike)[missed].float().mean().item(), 1
            )
            table["by likeness of the most similar answer"] = by(bins(alike, (-1.0, 0.2, 0.4, 0.6, 0.8, 1.01), 1), a.found)
            families = [len({world.meta[world.pictures[int(world.drawn[j])] or ""]["family"] for j in good}) for good in a.right]
            table["by hands that answer"] = by((count_bin(n) for n in families), a.found)
        body[name] = table
        body[f"{name}, misses"] = [
            [row["query_txt"] or row["query_img_path"], world.concepts[int(c)]["names"][0], round(float(n), 2), w,
             [world.concepts[int(world.owner[j])]["names"][0] for j in best.tolist()]]
            for row, c, n, w, best, place in zip(a.rows, a.concept, near, who, a.best, a.among, strict=True) if place >= 5
        ]  # fmt: skip
    args.out.write_text(json.dumps(body, indent=1, ensure_ascii=False))
    print(f"{time.time() - started:4.0f} s  {args.out}", flush=True)


def seen_concepts(model: Genius, world: World, args: argparse.Namespace, pool: Tensor, kinds: dict[str, str]) -> dict[str, Any]:
    """The same search with training questions (names and sentences; drawings): what the towers know by heart."""
    features = FeatureSet.load(args.features / "features-train")
    lines = [row for task in INSTRUCTIONS for row in read_lines(args.icons / f"query/train/mbeir_icons_task{task}_train.jsonl")]
    out = {}
    for task, name in ((0, "text -> image"), (4, "image -> image")):
        some = (features.tasks == task).nonzero()[:, 0]
        rows = [lines[int(features.query_ids[i])] for i in some.tolist()]
        keep = [i for i, row in enumerate(rows) if task == 4 or kinds[row["qid"]] in ("name", "sentence")][:2000]
        asked = model_answers(model, world, features, pool, [rows[i] for i in keep], some[keep], kinds, own_hand=task == 0)
        out[name] = {"whole pool": hit_rates(asked.found), "among drawings": hit_rates(asked.among)}
    return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
