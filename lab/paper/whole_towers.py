"""Eq. 2 on whole towers: small towers trained from scratch on fashion photos and titles, beside frozen towers with heads.

    python -m lab.paper.whole_towers --pack FASHION OUT      (FASHION: folder of products-*.parquet and meta.json; OUT: photos)
    python -m lab.paper.whole_towers OUT.json --photos OUT [--fashion FEATURES] [--seconds 150]

Rows, all on the same products, with the same held-out products and the same test queries over all candidates:
whole      both towers trained by Eq. 2 from random weights
third      the same towers after a third of the steps, with a schedule of their own, as they are
heads      those of `third`, frozen, with heads trained until the validation no longer rises
random     towers that were never trained, frozen, with heads
pretrained towers that were trained elsewhere on far more data, frozen, with heads (`--fashion`: their features)

The number of steps follows from `--seconds`: a few steps are timed first, with and without gradient checkpointing. The JSON is
written after every row.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import math
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.config import to_dict
from genius.data.collection import JudgedQuery, Task
from genius.data.features import FeatureSet
from genius.encoders.inputs import Pixels
from genius.encoders.transformers_dual import ClipEncoder
from genius.features import Features
from genius.model.quantizer import score_fusion
from genius.ranking import hit_at, judge, nearest_rows
from genius.train.config import TrainConfig, read_train_config
from genius.train.encoder import HeadsStage, TowersStage, contents_of
from genius.train.handover import through_heads
from genius.train.journal import METRICS, Journal
from genius.train.loop import Runtime, run_stage, training_device
from genius.types import Item, Modality, Query
from lab import provenance
from lab.fashion.data import TASKS
from lab.paper.published import called

RECIPE = Path(__file__).parent / "whole_towers.toml"
SIDE = 64  # pixels of a packed photo's longer side
QUALITY = 50  # of its WebP
VALIDATION = 40  # one title in so many is held out for validation
VALIDATION_OTHERS = 1000  # further products among the candidates of validation
TEST_QUERIES = 800  # of each task, evenly spread
PILOT = (10, 30)  # steps before the clock, and steps that are timed
CHUNK = 128  # of the pilot that shows what gradient checkpointing saves
FEWEST_STEPS, MOST_STEPS = 60, 4000
HEADS_STEPS = 2000
RESAMPLES = 1000
MODALITIES = ((Modality.TEXT, Modality.IMAGE), (Modality.IMAGE, Modality.TEXT), (Modality.TEXT, Modality.PAIR),
              (Modality.IMAGE, Modality.PAIR), (Modality.PAIR, Modality.IMAGE))  # fmt: skip
TARGET_BLOCK = {0: 0, 1: 1, 2: 2, 3: 2, 4: 0}  # task -> photos, titles or pairs
SHAPES: dict[str, dict[str, int]] = {
    "small": {"width": 256, "hidden": 256, "image_layers": 6, "text_layers": 4, "heads": 4, "side": 64, "patch": 8},
    "tiny": {"width": 16, "hidden": 16, "image_layers": 1, "text_layers": 1, "heads": 2, "side": 16, "patch": 8},
}


# -- photos that travel ----------------------------------------------------------------------------------------------


def pack(source: Path, output: Path) -> None:
    """Photos as small WebP files in one array, and `meta.json` without what is not needed."""
    import pyarrow.parquet as pq
    from PIL import Image

    output.mkdir(parents=True, exist_ok=True)
    photos = []
    for path in sorted(source.glob("products-*.parquet")):
        for body in pq.read_table(path, columns=["image"]).column("image").to_pylist():
            picture = Image.open(io.BytesIO(body)).convert("RGB")
            picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            out = io.BytesIO()
            picture.save(out, "WEBP", quality=QUALITY)
            photos.append(out.getvalue())
    ends = np.cumsum([len(photo) for photo in photos])
    np.savez(output / "photos.npz", bytes=np.frombuffer(b"".join(photos), np.uint8), ends=ends)
    meta = json.loads((source / "meta.json").read_text(encoding="utf-8"))
    meta.pop("products", None)
    with gzip.open(output / "meta.json.gz", "wt", encoding="utf-8") as file:
        json.dump(meta, file)


@dataclass(frozen=True)
class Shop:
    """Products with photos and titles. Items: photo p, title N + p, pair 2N + p."""

    photos: list[bytes]
    texts: list[str]
    titles: list[int]  # of each product, rows of `texts`
    queries: list[tuple[int, int, int, list[int], int]]  # task, photo or -1, text, positives (products), whether of the test
    test: set[int]  # products

    @property
    def count(self) -> int:
        return len(self.titles)

    def validation(self) -> set[int]:
        """Products of some titles, none of which is of the test."""
        return {p for p in range(self.count) if zlib.crc32(self.title(p).encode()) % VALIDATION == 0} - self.test

    def title(self, product: int) -> str:
        return self.texts[self.titles[product]]

    def item(self, row: int) -> Item:
        block, product = divmod(row, self.count)
        image = None if block == 1 else self.photos[product]
        text = None if block == 0 else self.title(product)
        return Item(str(row), text=text, image=image)


def read_shop(folder: Path, products: int | None = None) -> Shop:
    """What `pack` wrote.

    Args:
        folder: Of the photos.
        products: The first so many; None: all.
    """
    with np.load(folder / "photos.npz") as arrays:
        body = arrays["bytes"].tobytes()
        ends = arrays["ends"].tolist()
    photos = [body[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)][:products]
    with gzip.open(folder / "meta.json.gz", "rt", encoding="utf-8") as file:
        meta = json.load(file)
    count = len(photos)
    kept = [(task, photo, text, [p for p in good if p < count], held) for task, photo, text, good, held in meta["queries"]]
    queries = [query for query in kept if query[3] and query[1] < count]
    return Shop(photos, meta["texts"], meta["titles"][:count], queries, {p for p in meta["test"] if p < count})


class Part:
    """Some queries and some products of a shop, as a `Collection`."""

    tasks = tuple(Task(TASKS[task], "fashion", *MODALITIES[task]) for task in TASKS)

    def __init__(self, shop: Shop, name: str, products: set[int], queries: Sequence[tuple[int, list[int]]]) -> None:
        """Args:
        shop: All products.
        name: Of this part.
        products: The candidates.
        queries: Numbers of queries with the products that answer them.
        """
        self.shop = shop
        self.name = name
        self.products = sorted(products)
        self.judged = queries
        self.rows = [block * shop.count + product for block in range(3) for product in self.products]

    def queries(self) -> Iterator[JudgedQuery]:
        shop = self.shop
        for number, positives in self.judged:
            task, photo, text, _, _ = shop.queries[number]
            image = shop.photos[photo] if photo >= 0 else None
            ids = tuple(str(TARGET_BLOCK[task] * shop.count + product) for product in positives)
            yield JudgedQuery(str(number), Query(text=shop.texts[text], image=image), ids, task)

    def pool(self) -> Iterator[Item]:
        return (self.shop.item(row) for row in self.rows)

    def local_pool(self, task: int) -> Iterator[str] | None:
        return None

    def fingerprint(self) -> str:
        return f"{self.name}-{len(self.products)}-{len(self.judged)}"

    def features(self, images: Tensor, texts: Tensor) -> FeatureSet:
        """The same part in feature form.

        Args:
            images: (N, D) of the photos.
            texts: (T, E) of the texts.
        """
        shop = self.shop
        rows = torch.tensor(self.rows)
        product = rows % shop.count
        block = rows // shop.count
        titles = torch.tensor(shop.titles)[product]
        pool = joined(images[product], texts[titles], block != 1, block != 0)
        asked = [shop.queries[number] for number, _ in self.judged]
        photo = torch.tensor([query[1] for query in asked])
        words = torch.tensor([query[2] for query in asked])
        queries = joined(images[photo.clamp(min=0)], texts[words], photo >= 0, torch.ones(len(asked), dtype=torch.bool))
        _, _, pairs, _, tasks = contents_of(self)
        ids = [str(number) for number, _ in self.judged], [str(row) for row in self.rows]
        return FeatureSet(queries, pool, pairs, *ids, tasks, TASKS)


def joined(image: Tensor, text: Tensor, image_mask: Tensor, text_mask: Tensor) -> Features:
    """Vectors with zeros where a modality is absent."""
    return Features(image * image_mask[:, None], text * text_mask[:, None], image_mask, text_mask)


@dataclass(frozen=True)
class Split:
    train: Part
    validation: Part
    test: Part


def split_shop(shop: Shop) -> Split:
    """Products of the test and of the validation are in no training pair and in no pool of training."""
    held = shop.validation()
    out = shop.test | held
    everything = set(range(shop.count))
    train, validation, test = [], [], []
    for number, (_, photo, _, positives, of_test) in enumerate(shop.queries):
        if of_test:
            test.append((number, positives))
            continue
        known = [product for product in positives if product not in out]
        if photo not in out and known:
            train.append((number, known))
        asked = [product for product in positives if product in held]
        if asked and (photo < 0 or photo in held):
            validation.append((number, asked))
    random = np.random.default_rng(0)
    others = sorted(everything - out)
    drawn = set(random.permutation(others)[:VALIDATION_OTHERS].tolist())
    by_task: dict[int, list[tuple[int, list[int]]]] = {}
    for one in test:
        by_task.setdefault(shop.queries[one[0]][0], []).append(one)
    spread = [
        ones[i] for ones in by_task.values() for i in np.linspace(0, len(ones) - 1, min(TEST_QUERIES, len(ones))).astype(int)
    ]
    return Split(
        Part(shop, "train", everything - out, train),
        Part(shop, "validation", held | drawn, validation),
        Part(shop, "test", everything, spread),
    )


# -- towers ------------------------------------------------------------------------------------------------------------


def new_encoder(shape: dict[str, int], texts: Sequence[str], seed: int) -> ClipEncoder:
    """CLIP's architecture in a small size, with random weights and a vocabulary of the words in `texts`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=8000, min_frequency=2, special_tokens=special))
    words.post_processor = processors.TemplateProcessing(single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", 3)])
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    shared = {
        "hidden_size": shape["hidden"],
        "intermediate_size": 4 * shape["hidden"],
        "num_attention_heads": shape["heads"],
        "projection_dim": shape["width"],
    }
    text = {
        **shared,
        "num_hidden_layers": shape["text_layers"],
        "vocab_size": words.get_vocab_size(),
        "max_position_embeddings": 48,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    image = {
        **shared,
        "num_hidden_layers": shape["image_layers"],
        "image_size": shape["side"],
        "patch_size": shape["patch"],
    }
    torch.manual_seed(seed)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=shape["width"]))
    pixels = Pixels(size=shape["side"], fit="pad", filter="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
    return ClipEncoder(model, tokenizer, pixels)


def train_towers(
    encoder: ClipEncoder, split: Split, config: TrainConfig, steps: int, device: torch.device
) -> tuple[list[dict[str, Any]], float]:
    """Eq. 2 on both towers; the best weights by validation. Lines of the journal, and seconds."""
    encoder.to(device)
    stage = TowersStage(split.train, encoder, replace(config.encoder, steps=steps), config.seed, device, split.validation)
    start = time.monotonic()
    lines = run(stage, replace(config.encoder, steps=steps), config, device)
    encoder.eval().requires_grad_(False)
    return lines, time.monotonic() - start


def run(stage: Any, part: Any, config: TrainConfig, device: torch.device) -> list[dict[str, Any]]:
    """The product's own loop."""
    stage.validate = dict
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), quiet=True)
        try:
            run_stage(stage, part, Runtime(device, journal, config.seed, config.run), Path(folder) / "checkpoint")
        finally:
            stage.finish()
        metrics = Path(folder) / METRICS
        return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []


def pilot(encoder: ClipEncoder, split: Split, config: TrainConfig, chunk: int, device: torch.device) -> dict[str, float]:
    """Seconds per step and memory of towers that are thrown away afterwards, with activations of `chunk` contents kept."""
    encoder.to(device)
    most = sum(PILOT)
    part = replace(config.encoder, steps=most, chunk=chunk)
    stage = TowersStage(split.train, encoder, part, config.seed, device)
    times: list[float] = []
    stage.before_step = lambda step: times.append(time.monotonic())  # type: ignore[method-assign]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    run(stage, part, replace(config, run=replace(config.run, patience=0)), device)
    first = min(PILOT[0], len(times) - 2)
    out = {"chunk": chunk, "seconds per step": round((times[-1] - times[first]) / (len(times) - 1 - first), 4)}
    if device.type == "cuda":
        out["GiB"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return out


@torch.no_grad()
def vectors_of(encoder: ClipEncoder, shop: Shop, config: TrainConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """(N, D) of all photos and (T, D) of all texts, before fusion."""
    from concurrent.futures import ThreadPoolExecutor

    from genius.pictures import open_all

    size = 512
    with ThreadPoolExecutor(8) as pool:
        parts = [shop.photos[i : i + size] for i in range(0, shop.count, size)]
        images = torch.cat(
            [encoder.encode_images(opened) for opened in pool.map(lambda part: open_all(part, encoder.prepare_image), parts)]
        )
    texts = torch.cat([encoder.encode_texts(shop.texts[i : i + size]) for i in range(0, len(shop.texts), size)])
    return images.float().cpu(), texts.float().cpu()


# -- rows --------------------------------------------------------------------------------------------------------------


def with_heads(split: Split, images: Tensor, texts: Tensor, config: TrainConfig, device: torch.device) -> dict[str, Any]:
    """Heads on frozen vectors, at two temperatures; the better one by validation."""
    sets = {name: getattr(split, name).features(images, texts) for name in ("train", "validation", "test")}
    found = []
    for temperature in (0.01, 0.04):
        part = replace(read_train_config("builtin:default", {"output": "-"}).encoder, train="heads", hard_negatives=0)
        part = replace(part, modality_weight=0.0, temperature=temperature, steps=min(HEADS_STEPS, 20 * config.encoder.steps))
        part = replace(part, batch=min(part.batch, len(sets["train"].queries)))
        width = config.model.width
        stage = HeadsStage(sets["train"], sets["validation"], width, part, config.seed, device)
        start = time.monotonic()
        lines = run(stage, part, config, device)
        heads = stage.heads.to(device).eval()
        best = max(line["validation"] for line in lines if "validation" in line)
        seconds = round(time.monotonic() - start, 1)
        found.append(
            {"temperature": temperature, "validation": best, "seconds": seconds, "curve": validations(lines), "heads": heads}
        )
    chosen = max(found, key=lambda one: one["validation"])
    out = {"heads": [{name: value for name, value in one.items() if name != "heads"} for one in found]}
    return {**out, "temperature": chosen["temperature"], **hits(through_heads(chosen["heads"], sets["test"]), device)}


def validations(lines: Sequence[dict[str, Any]]) -> list[list[float]]:
    """(step, value) of every look."""
    return [[line["step"], round(line["validation"], 4)] for line in lines if "validation" in line]


@torch.no_grad()
def hits(test: FeatureSet, device: torch.device) -> dict[str, Any]:
    """hit@5 of every task over all candidates, by score fusion; the mean with a 95 % interval over queries."""
    vectors = []
    for features in (test.pool, test.queries):
        parts = [features[i : i + 8192].to(device, torch.float32) for i in range(0, len(features), 8192)]
        vectors.append(torch.cat([score_fusion(part) for part in parts]))
    judged = judge(nearest_rows(vectors[1], vectors[0], 5).cpu().numpy(), test.positives())
    values = hit_at(judged, 5)
    tasks = test.tasks.numpy()
    random = np.random.default_rng(0)
    by_task = {TASKS[task]: values[tasks == task] for task in np.unique(tasks).tolist()}
    means = np.mean([one[random.integers(0, len(one), (RESAMPLES, len(one)))].mean(1) for one in by_task.values()], axis=0)
    low, high = np.quantile(means, [0.025, 0.975])
    return {
        "hit@5": {name: round(float(one.mean()), 4) for name, one in by_task.items()},
        "mean": round(float(np.mean([one.mean() for one in by_task.values()])), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "queries": len(values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, nargs=2, metavar=("FASHION", "OUT"))
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--fashion", type=Path, help="features of towers that were trained elsewhere")
    parser.add_argument("--seconds", type=float, default=150.0, help="for the training of whole towers")
    parser.add_argument("--steps", type=int, default=0, help="in place of --seconds")
    parser.add_argument("--shape", default="small", choices=SHAPES)
    parser.add_argument("--products", type=int, help="the first so many, for a trial")
    parser.add_argument("--set", action="append", default=[], help="one field of the recipe, name=JSON")
    parser.add_argument("--commit", default="", help="that is run, where there is no git")
    args = parser.parse_args()
    if args.pack:
        pack(*args.pack)
        return
    fields = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    config = read_train_config(str(RECIPE), {"output": "-", **fields})
    compare(args, config)


def compare(args: argparse.Namespace, config: TrainConfig) -> None:
    """All rows, the result written after each."""
    device = training_device()
    shop = read_shop(args.photos, args.products)
    split = split_shop(shop)
    config = replace(config, model=replace(config.model, width=SHAPES[args.shape]["width"]))
    words = sorted({shop.texts[row] for row in (shop.titles[product] for product in split.train.products)})
    words += [shop.texts[shop.queries[number][2]] for number, _ in split.train.judged]

    def fresh() -> ClipEncoder:
        return new_encoder(SHAPES[args.shape], words, config.seed)

    about = {**provenance(), "command": called(sys.argv[1:], "lab.paper.whole_towers"), "recipe": to_dict(config)["encoder"]}
    about |= {"threads": torch.get_num_threads(), "seed": config.seed, "run": to_dict(config)["run"], "shape": SHAPES[args.shape]}
    about["commit"] = args.commit or about["commit"]
    for name in ("train", "validation", "test"):
        part = getattr(split, name)
        about[name] = {"products": len(part.products), "queries": len(part.judged)}
    body: dict[str, Any] = {"about": about, "rows": {}}

    def add(name: str, row: dict[str, Any]) -> None:
        body["rows"][name] = row
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        print(name, row["mean"], row["hit@5"], flush=True)

    steps = args.steps
    if not steps:
        about["pilot"] = [pilot(fresh(), split, config, chunk, device) for chunk in (config.encoder.chunk, CHUNK)]
        steps = int(min(max(args.seconds / about["pilot"][0]["seconds per step"], FEWEST_STEPS), MOST_STEPS))
    about["steps"] = steps

    def trained(name: str, count: int) -> tuple[ClipEncoder, Tensor, Tensor]:
        encoder = fresh()
        lines, seconds = train_towers(encoder, split, config, count, device)
        images, texts = vectors_of(encoder, shop, config, device)
        losses = [[line["step"], round(line["loss"], 4)] for line in lines if "loss" in line]
        every = max(1, math.ceil(len(losses) / 20))
        told = {"steps": count, "seconds": round(seconds, 1), "curve": validations(lines), "loss": losses[::every]}
        add(name, {**told, **hits(split.test.features(images, texts), device)})
        return encoder, images, texts

    trained("whole", steps)
    _, images, texts = trained("third", max(2, steps // 3))
    add("heads", with_heads(split, images, texts, config, device))
    encoder = fresh().to(device)
    images, texts = vectors_of(encoder, shop, config, device)
    add("random", with_heads(split, images, texts, config, device))
    if args.fashion is not None:
        images, texts = tower_vectors(args.fashion)
        add("pretrained", with_heads(split, images[: shop.count], texts, config, device))


def tower_vectors(folder: Path) -> tuple[Tensor, Tensor]:
    """Photos' and texts' vectors as `lab.fashion.data` wrote or packed them."""
    if not (folder / "towers.npz").exists():
        images = np.concatenate([np.load(path) for path in sorted(folder.glob("images-*.npy"))]).astype(np.float32)
        return torch.from_numpy(images), torch.from_numpy(np.load(folder / "texts.npy").astype(np.float32))
    with np.load(folder / "towers.npz") as packed:
        both = [
            packed[n].astype(np.float32) * packed[f"{n}_scale"].astype(np.float32) + packed[f"{n}_middle"]
            for n in ("images", "texts")
        ]
    return torch.from_numpy(both[0]), torch.from_numpy(both[1])


if __name__ == "__main__":
    main()
