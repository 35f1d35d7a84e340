"""The bundled model without a GPU: smaller towers, three short lessons, about half an hour on two cores.

    PYTHONPATH=src:scripts/train_bundled python scripts/train_bundled/train_small.py teacher|texts|images|features|assemble \
        --data PACKED --icons ICONS --out OUT

Both towers learn one fixed space, the teacher's 256 main directions: texts from the teacher's vector of the same text,
drawings from its vector of their concept's words, against thousands of other concepts. Fusion, codes and generator
then learn the eight tasks from the frozen towers: `features`, `genius train scripts/train_bundled/small.toml`, `assemble`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from learn import Student, pool_features, question_features, start_from_teacher
from PIL import Image
from safetensors.torch import load_file, save_file
from teacher import teach
from torch import Tensor

from data import Questions, TextTable, compose, load_bench
from genius.data.features import FeatureSet
from genius.encoders.mini import MEAN, STD, MiniConfig, MiniEncoder
from genius.encoders.tokens import Tokens
from genius.model.fusion import Fusion, FusionConfig
from genius.model.genius import Genius
from genius.packing import pack, unpack

SIZES = {
    "image_size": 48,
    "image_stem": 48,
    "image_width": 128,
    "image_residuals": 1,
    "image_layers": 1,
    "text_width": 256,
    "text_layers": 2,
}
TEMPERATURE = 0.05
DEMO = ("openmoji", "tabler", "fontawesome")


def tokens_of(data: Path) -> Tokens:
    return Tokens.load(data / "tokenizer.json", MiniConfig().text_length)


def fresh(data: Path) -> MiniEncoder:
    tokens = tokens_of(data)
    config = MiniConfig(text_vocabulary=tokens.tokenizer.get_vocab_size(), storage="int8", **SIZES)
    return MiniEncoder(config, tokens, normed=True)


def rate(done: float, step: int, warm: int = 100) -> float:
    return min((step + 1) / warm, 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


# -- what the teacher says -----------------------------------------------------------------------------------------


def teacher(data: Path, out: Path, texts: int) -> None:
    """Vectors of the vocabulary, of every concept's words, and of a sample of texts, in the shared space."""
    with lzma.open(data / "bench.json.xz", "rt", encoding="utf-8") as file:
        body = json.load(file)
    with lzma.open(data / "corpus.xz", "rt", encoding="utf-8") as file:
        corpus = json.load(file)
    device, chance = torch.device("cpu"), random.Random(0)
    spoken = [(c, w) for c, (names, tags) in enumerate(body["words"]) for w in (*names[:1], *tags[:2])]
    own = [t for t in corpus["own"] if len(t) < 120]
    sample = [*chance.sample(own, min(texts, len(own))), *chance.sample([t for t in corpus["texts"] if len(t) < 90], texts // 2)]
    sample += [w for _, w in chance.sample(spoken, min(texts, len(spoken)))]
    started = time.time()
    said = teach(data, [w for _, w in spoken], device, 256).float()
    print(f"{time.time() - started:.0f} s: {len(spoken):,} words of concepts", flush=True)
    owner = torch.tensor([c for c, _ in spoken])
    concepts = F.normalize(torch.zeros(len(body["words"]), said.shape[1]).index_add_(0, owner, said), dim=1)
    space = torch.linalg.svd((concepts.T @ concepts) / len(concepts)).U[:, : MiniConfig().width].contiguous()
    save_file({"concepts": F.normalize(concepts @ space, dim=1), "space": space}, out / "concepts.safetensors")
    vocabulary = tokens_of(data).tokenizer
    pieces = [vocabulary.id_to_token(i).removeprefix("##") for i in range(vocabulary.get_vocab_size())]
    save_file({"pieces": teach(data, pieces, device, 256).float()}, out / "pieces.safetensors")
    print(f"{time.time() - started:.0f} s: vocabulary", flush=True)
    vectors = teach(data, sample, device, 128).float()
    save_file({"vectors": F.normalize(vectors @ space, dim=1)}, out / "texts.safetensors")
    (out / "texts.json").write_text(json.dumps(sample))
    print(f"{time.time() - started:.0f} s: {len(sample):,} texts", flush=True)


# -- the towers ----------------------------------------------------------------------------------------------------


def learn_texts(data: Path, out: Path, seconds: float) -> None:
    encoder = fresh(data)
    student = Student(encoder, Fusion(FusionConfig(encoder.width, 8, 8)), 384)
    start_from_teacher(student, load_file(out / "pieces.safetensors")["pieces"])
    space = load_file(out / "concepts.safetensors")["space"]
    with torch.no_grad():  # the tower itself speaks in the shared space
        head, say = encoder.text.head, student.say_text
        head.weight.copy_(space.T @ say.weight @ head.weight)
    texts, goals = json.loads((out / "texts.json").read_text()), load_file(out / "texts.safetensors")["vectors"]
    device = torch.device("cpu")
    table = TextTable.make(encoder.tokens.tokenizer, texts, 48, device)
    from genius.instructions import TEMPLATES

    instructions = TextTable.make(encoder.tokens.tokenizer, [s for group in TEMPLATES.values() for s in group], 40, device)
    optimizer = torch.optim.AdamW(encoder.text.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.02)
    started, step = time.time(), 0
    while (elapsed := time.time() - started) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * rate(elapsed / seconds, step)
        rows = torch.randint(len(goals), (192,))
        prefix = torch.where(torch.rand(192) < 0.25, torch.randint(len(instructions.lengths), (192,)), -1)
        own = F.normalize(student.texts(*compose(table, rows, instructions, prefix, 64)), dim=1)
        goal = goals[rows]
        loss = 2 * (1 - (own * goal).sum(1).mean()) + 0.5 * F.cross_entropy(own @ goal.T / TEMPERATURE, torch.arange(192))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.text.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            hit = (own @ goal.T).argmax(1).eq(torch.arange(192)).float().mean()
            print(
                f"{elapsed:.0f} s texts {step}: loss {loss.item():.3f} cos {(own * goal).sum(1).mean():.3f} hit {hit:.3f}",
                flush=True,
            )
            save_file({n: t.contiguous() for n, t in encoder.text.state_dict().items()}, out / "text-tower.safetensors")
        step += 1
    save_file({n: t.contiguous() for n, t in encoder.text.state_dict().items()}, out / "text-tower.safetensors")


def drawings_of(icons: Path, out: Path) -> Tensor:
    """(N, side, side, 3) uint8 in the order of `meta.jsonl`, cached."""
    side = SIZES["image_size"]
    cache = out / "drawings.npy"
    if not cache.is_file():
        paths = [json.loads(line)["img_path"] for line in (icons / "meta.jsonl").open(encoding="utf-8")]
        pixels = np.empty((len(paths), side, side, 3), np.uint8)
        for i, path in enumerate(paths):
            with Image.open(icons / path) as picture:
                pixels[i] = np.asarray(picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2))
        np.save(cache, pixels)
    return torch.from_numpy(np.load(cache))


def moved(pixels: Tensor) -> Tensor:
    """(n, side, side, 3) uint8 -> (n, 3, side, side): a little elsewhere, sometimes grey, recoloured or light on dark."""
    x = F.pad(pixels.permute(0, 3, 1, 2).float() / 255, (4, 4, 4, 4), value=1.0)
    n, side = len(x), pixels.shape[1]
    out = torch.empty(n, 3, side, side)
    for part in torch.arange(n).split(16):  # one shift for sixteen: slices cost nothing
        dy, dx = random.randint(0, 8), random.randint(0, 8)
        out[part] = x[part, :, dy : dy + side, dx : dx + side]
    grey = out.mean(1, keepdim=True)
    out = torch.where(torch.rand(n, 1, 1, 1) < 0.15, grey, out)
    front, back = torch.rand(n, 3, 1, 1) * 0.7, 0.75 + 0.25 * torch.rand(n, 3, 1, 1)
    out = torch.where(torch.rand(n, 1, 1, 1) < 0.15, front + (back - front) * grey, out)
    out = torch.where(torch.rand(n, 1, 1, 1) < 0.08, 1 - out, out)
    return ((out - MEAN[0]) / STD[0]).contiguous(memory_format=torch.channels_last)


def learn_images(data: Path, icons: Path, out: Path, seconds: float, batch: int) -> None:
    encoder = fresh(data)
    tower = encoder.image.to(memory_format=torch.channels_last).train()
    if (out / "image-tower.safetensors").is_file():  # go on from an earlier run
        tower.load_state_dict(load_file(out / "image-tower.safetensors"))
    with lzma.open(data / "bench.xz", "rb") as file:
        arrays = np.load(file)
        concept, split = torch.from_numpy(arrays["image_concept"]).long(), torch.from_numpy(arrays["image_split"]).long()
    pixels = drawings_of(icons, out)
    goals = load_file(out / "concepts.safetensors")["concepts"]
    train = (split == 0).nonzero()[:, 0]
    everyone = torch.unique(concept[train])
    # a concept drawn a hundred times is asked for ten times as often as one drawn once, not a hundred
    weight = torch.bincount(concept[train], minlength=len(goals))[concept[train]].float().rsqrt()
    # ... and the families that pip installs, which the demo shows, more often than the rest
    known = torch.tensor([json.loads(line)["family"] in DEMO for line in (icons / "meta.jsonl").open(encoding="utf-8")])
    weight = weight * (1 + 6 * known[train])
    optimizer = torch.optim.AdamW(tower.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.03)
    started, step = time.time(), 0
    while (elapsed := time.time() - started) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * rate(elapsed / seconds, step)
        if step % 200 == 0:
            order = train[torch.multinomial(weight, 200 * batch, replacement=True)]
        rows = order[(step % 200) * batch : (step % 200 + 1) * batch]
        said = F.normalize(tower(moved(pixels[rows])), dim=1)
        columns = torch.unique(torch.cat([concept[rows], everyone[torch.randint(len(everyone), (3000,))]]))
        own = torch.searchsorted(columns, concept[rows])
        scores = said @ goals[columns].T / TEMPERATURE
        loss = F.cross_entropy(scores, own)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            hit = scores.topk(5, 1).indices.eq(own[:, None]).any(1).float().mean()
            print(f"{elapsed:.0f} s images {step}: loss {loss.item():.3f} hit@5 {hit:.3f}", flush=True)
        if step % 200 == 199:
            save_file({n: t.contiguous() for n, t in tower.state_dict().items()}, out / "image-tower.safetensors")
        step += 1
    save_file({n: t.contiguous() for n, t in tower.state_dict().items()}, out / "image-tower.safetensors")


# -- after the towers ----------------------------------------------------------------------------------------------


def frozen(data: Path, out: Path) -> MiniEncoder:
    """Both trained towers, folded, with the values that the int8 files will hold."""
    encoder = fresh(data)
    encoder.image.load_state_dict(load_file(out / "image-tower.safetensors"))
    encoder.text.load_state_dict(load_file(out / "text-tower.safetensors"))
    encoder.image.fold()
    encoder.load_state_dict(unpack(pack(encoder.state_dict())))
    return encoder.eval()


class _Ready:
    """Drawings that need no rendering."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    def get(self) -> list[Any]:
        return [self.pixels.numpy()]


@torch.no_grad()
def extract(data: Path, icons: Path, out: Path, questions: int, pool: int) -> None:
    """Feature sets for the stages: a sample of training questions over part of the pool, and the test questions."""
    encoder = frozen(data, out)
    encoder.save(out / "encoder")
    device = torch.device("cpu")
    bench = load_bench(data, encoder.tokens.tokenizer, _Ready(drawings_of(icons, out)), device, None)
    student = Student(encoder, Fusion(FusionConfig(encoder.width, 8, 8)), 384).eval()
    items = pool_features(student, bench, chunk=512)
    print("pool done", flush=True)
    names = {0: "text->image", 1: "text->text", 2: "text->pair", 3: "image->text", 4: "image->image"}
    names |= {6: "image+text->text", 7: "image+text->image", 8: "image+text->pair"}
    for split, limit in (("train", questions), ("val", 3000), ("test", 10**9)):
        q = bench.questions[split]
        rows = torch.randperm(len(q.task), generator=torch.Generator().manual_seed(0))[:limit].sort().values
        q = Questions(q.image[rows], q.text[rows], q.task[rows], q.answers[rows])
        pairs = torch.stack(bench.members(q.answers), 1)
        kept, ids = items, torch.arange(len(items))
        if split == "train":  # the rest of the pool is what a user adds after training
            ids = torch.unique(
                torch.cat([pairs[torch.randperm(len(pairs))[: pool * 2], 1], torch.randperm(len(items))[: pool // 3]])
            )
            ids = ids[torch.randperm(len(ids))[:pool]].sort().values
            place = torch.full((len(items),), -1)
            place[ids] = torch.arange(len(ids))
            pairs = torch.stack([pairs[:, 0], place[pairs[:, 1]]], 1)
            pairs = pairs[pairs[:, 1] >= 0]
            asked, first = torch.unique(pairs[:, 0], return_inverse=True)  # questions that still have an answer
            q = Questions(q.image[asked], q.text[asked], q.task[asked], q.answers[asked])
            pairs, kept = torch.stack([first, pairs[:, 1]], 1), items[ids]
        features = question_features(student, bench, q, prompt=None if split == "train" else 0, chunk=512)
        numbers = [str(i) for i in range(len(features))]
        FeatureSet(features, kept, pairs, numbers, [str(i) for i in ids.tolist()], q.task, names).save(
            out / f"features-{split}", torch.float16
        )
        print(f"{split}: {len(features):,} questions, {len(kept):,} candidates, {len(pairs):,} pairs", flush=True)


def assemble(data: Path, out: Path, target: Path) -> None:
    """The trained stages and the towers as one model folder."""
    model = Genius.from_pretrained(out / "stages")
    whole = Genius(model.config, frozen(data, out))
    whole.load_state_dict(model.state_dict())
    whole.save_pretrained(target, dtype=torch.int8)
    print({str(p.relative_to(target)): p.stat().st_size for p in sorted(target.rglob("*")) if p.is_file()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["teacher", "texts", "images", "features", "assemble"])
    for name in ("data", "icons", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--texts", type=int, default=10_000, help="texts of each kind that the teacher reads")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--questions", type=int, default=60_000)
    parser.add_argument("--pool", type=int, default=50_000)
    parser.add_argument("--target", type=Path, default=Path("src/genius/bundled/mini"))
    parser.add_argument("--threads", type=int, default=2)
    args: Any = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.step == "teacher":
        teacher(args.data, args.out, args.texts)
    elif args.step == "texts":
        learn_texts(args.data, args.out, args.seconds)
    elif args.step == "features":
        extract(args.data, args.icons, args.out, args.questions, args.pool)
    elif args.step == "assemble":
        assemble(args.data, args.out, args.target)
    else:
        learn_images(args.data, args.icons, args.out, args.seconds, args.batch)


if __name__ == "__main__":
    main()
