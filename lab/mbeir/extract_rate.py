"""How fast CLIP-L/14's features are extracted on this machine, next to what its GPU could do at most.

    python -m lab.mbeir.extract_rate --output OUT.json

Weights are random, in the shapes of openai/clip-vit-large-patch14, so that nothing is downloaded: a product takes as long. The
pictures are drawn here (JPEG, 256 pixels high, as M-BEIR's) and go the whole way of `genius features extract`: files, worker
processes that decode and shrink, the tower, half-precision rows on the disk. Beside that, the towers alone on tensors that lie on
the card already. Operations are counted from the shapes; the limit is the card's data sheet, and one large product measured here.
The tokenizer is a table of words, which is quicker than CLIP's own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from genius.data.collection import JudgedQuery, Task
from genius.data.extract import ExtractConfig, extract
from genius.encoders.base import precision
from genius.encoders.inputs import Pixels
from genius.encoders.transformers_dual import ClipEncoder
from genius.types import Item, Modality, Query, format_text

SHEET = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "4090": 165e12, "3090": 71e12}  # bf16 operations a second, dense
LARGE: dict[str, Any] = {
    "text": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    "vision": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    "words": 49_408, "side": 224, "patch": 14, "width": 768,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "text": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "vision": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "words": 500, "side": 32, "patch": 8, "width": 16,
}  # fmt: skip
LENGTH = 77  # of CLIP's texts at most
WORDS = 20  # of a caption here
WHOLE_WAY = "pictures/s, whole way"


def clip(shape: dict[str, Any], device: torch.device) -> ClipEncoder:
    """Random weights in these shapes, on the device."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    last = shape["words"] - 1
    config = transformers.CLIPConfig(
        text_config={**shape["text"], "vocab_size": shape["words"], "max_position_embeddings": LENGTH, "eos_token_id": last,
                     "bos_token_id": last - 1, "pad_token_id": last, "projection_dim": shape["width"]},
        vision_config={**shape["vision"], "image_size": shape["side"], "patch_size": shape["patch"],
                       "projection_dim": shape["width"]},
        projection_dim=shape["width"],
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.CLIPModel(config)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(last)} | {"<|end|>": last}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|end|>", pad_token="<|end|>")
    return ClipEncoder(model, tokenizer, Pixels(size=shape["side"]))


def tower_operations(layer: dict[str, int], tokens: int) -> float:
    """Multiplications and additions of one input through a tower's layers: products alone, as limits are stated."""
    wide, inner = layer["hidden_size"], layer["intermediate_size"]
    products = 4 * wide * wide + 2 * wide * inner  # q, k, v, o and both layers of the MLP, for each token
    return float(layer["num_hidden_layers"] * (2 * tokens * products + 2 * 2 * tokens * tokens * wide))


def picture_operations(shape: dict[str, Any]) -> float:
    """Of one picture."""
    tokens = (shape["side"] // shape["patch"]) ** 2 + 1
    patches = 2 * (tokens - 1) * 3 * shape["patch"] ** 2 * shape["vision"]["hidden_size"]
    return tower_operations(shape["vision"], tokens) + float(patches + 2 * shape["vision"]["hidden_size"] * shape["width"])


def text_operations(shape: dict[str, Any], tokens: int) -> float:
    return tower_operations(shape["text"], tokens) + float(2 * shape["text"]["hidden_size"] * shape["width"])


@dataclass
class Made:
    """A collection of so many items, pictures or texts, and one query."""

    count: int
    pictures: Sequence[str]
    words: int
    name: str = "made up"
    tasks: Sequence[Task] = (Task("all", "made up", Modality.TEXT, Modality.IMAGE),)

    def queries(self) -> Iterator[JudgedQuery]:
        yield JudgedQuery("q", Query(text="w1 w2"), ("0",), 0)

    def pool(self) -> Iterator[Item]:
        for i in range(self.count):
            if self.pictures:
                yield Item(str(i), image=self.pictures[i % len(self.pictures)])
            else:
                yield Item(str(i), text=caption(i, self.words))

    def local_pool(self, task: int) -> Iterator[str] | None:
        return None

    def fingerprint(self) -> str:
        return f"{self.count}-{len(self.pictures)}"


def caption(number: int, words: int) -> str:
    draw = random.Random(number)
    return " ".join(f"w{draw.randrange(words - 1)}" for _ in range(WORDS))


def draw(job: tuple[int, str]) -> str:
    """A picture with large areas and some grain, as photographs have."""
    number, path = job
    noise = np.random.default_rng(number)
    coarse = Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((340, 256), Image.Resampling.BICUBIC)
    grain = noise.normal(0, 8, (256, 340, 3))
    Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path


class Clock:
    """When rows were done: the rate without the start, in which workers begin."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def __call__(self, name: str, done: int, total: int) -> None:
        if name == "pool" and done:
            self.seen.append((time.perf_counter(), done))

    def rate(self) -> float:
        settled = self.seen[len(self.seen) // 4 :]  # the first quarter warms up
        return (settled[-1][1] - settled[0][1]) / max(settled[-1][0] - settled[0][0], 1e-9)


def whole_way(encoder: ClipEncoder, made: Made, batch: int, workers: int, half: bool) -> float:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = ExtractConfig(
            batch_size=batch, shard_rows=16 * batch, check=False, precision="bf16" if half else "fp32", workers=workers
        )
        extract(encoder, made, folder, config, clock)
    return clock.rate()


def repeated(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds of one call, after a few to warm up."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        work()
    wait()
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(4):
            work()
        wait()
        calls += 4
    return (time.perf_counter() - start) / calls


@torch.no_grad()
def towers_alone(encoder: ClipEncoder, shape: dict[str, Any], batch: int, tokens: int, seconds: float) -> dict[str, float]:
    device = encoder.device
    pixels = torch.randn(batch, 3, shape["side"], shape["side"], device=device)
    ids = torch.randint(1, shape["words"] - 2, (4 * batch, tokens), device=device)
    ids[:, -1] = shape["words"] - 1
    mask = torch.ones_like(ids)
    with precision(encoder, "bf16" if device.type == "cuda" else "fp32"):
        pictures = repeated(lambda: encoder._pool_images(pixels), device, seconds)
        texts = repeated(lambda: encoder._pool_texts(ids, mask), device, seconds)
    return {"pictures/s": batch / pictures, "texts/s": 4 * batch / texts}


def measured_limit(device: torch.device, size: int, seconds: float) -> float:
    """bf16 operations a second of one large product."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    return 2 * size**3 / repeated(lambda: left @ right, device, seconds)


class Sheet:
    """What is known so far, written and said after every line."""

    def __init__(self, output: Path, about: dict[str, Any]) -> None:
        self.output, self.about = output, about
        self.lines: list[dict[str, Any]] = []

    def add(self, what: str, rate: float) -> None:
        used = rate * self.about["operations"][what.split("/")[0]]
        shares = {
            "share_of_sheet": used / self.about["sheet"],
            "share_of_measured_product": used / self.about["measured_product"],
        }
        self.lines.append({"what": what, "rate": round(rate, 1)} | {name: round(share, 4) for name, share in shares.items()})
        if what == WHOLE_WAY:
            self.about["hours_for_mbeir"] = round(5_600_000 / rate / 3600, 2)  # as if every candidate were a picture
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(json.dumps({**self.about, "lines": self.lines}, indent=1) + "\n", encoding="utf-8")
        said = " ".join(f"{100 * share:5.1f} % {name.replace('_', ' ')}" for name, share in shares.items())
        print(f"{what:28} {rate:10,.0f}  {said}", flush=True)


def measure(
    output: Path, shape: dict[str, Any], pictures: int, texts: int, batch: int, workers: int, seconds: float
) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    encoder = clip(shape, device)
    tokens = len(encoder.tokenizer(format_text(caption(0, shape["words"])))["input_ids"])
    limit = measured_limit(device, 8192 if cuda else 256, seconds)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    sheet = Sheet(output, {
        "date": datetime.date.today().isoformat(), "device": name, "cores": os.cpu_count(), "workers": workers,
        "batch": batch, "pictures": pictures, "texts": texts, "tokens": tokens, "shape": shape,
        "precision": "bf16" if cuda else "fp32",
        "operations": {"pictures": picture_operations(shape), "texts": text_operations(shape, tokens)},
        "sheet": next((value for card, value in SHEET.items() if card in name), limit), "measured_product": limit,
    })  # fmt: skip
    print(f"{name}: a product {limit / 1e12:.1f} T/s", flush=True)
    for what, rate in towers_alone(encoder, shape, batch, tokens, seconds).items():
        sheet.add(f"{what}, tower alone", rate)
    sheet.add("texts/s, whole way", whole_way(encoder, Made(texts, (), shape["words"]), 4 * batch, 0, cuda))
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(i, f"{folder}/{i}.jpg") for i in range(min(pictures, 1024))]
        if workers:
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                files = list(pool.map(draw, jobs, chunksize=16))
        else:
            files = [draw(job) for job in jobs]
        sheet.add(WHOLE_WAY, whole_way(encoder, Made(pictures, files, shape["words"]), batch, workers, cuda))
    return {**sheet.about, "lines": sheet.lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=16_384)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=2.0, help="of every measurement that is repeated")
    parser.add_argument("--small", action="store_true", help="a tiny CLIP, to try the program")
    args = parser.parse_args()
    shape = SMALL if args.small else LARGE
    found = measure(args.output, shape, args.pictures, args.texts, args.batch, args.workers, args.seconds)
    print(f"5.6 million pictures: {found['hours_for_mbeir']} h")


if __name__ == "__main__":
    main()
