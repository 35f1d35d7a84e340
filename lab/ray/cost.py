"""What an index of many items costs: hours of encoding, bytes, time to build, replicas. From rates that were measured.

python -m lab.ray.cost --measure                          measure this machine's rates with the bundled model (rates.json)
python -m lab.ray.cost                                    the table of docs/scale.md
python -m lab.ray.cost --items 3e8 --rate 900 --width 768 --thumbnail 9000     with your own: items a second of one GPU, ...
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from genius import Genius, Item
from genius.index.prepare import prepare
from lab.ray.compare import WORDS

RATES = Path(__file__).parent / "rates.json"
CODES = 18.6  # bytes an item: codes and trie in memory (docs/engine.md)
ROW = 173  # bytes an item in the table beside vectors and pictures: id, short text, codes, checksums; of 3,060 items
TRIE_CPU = 6.8 / 10e6  # seconds of one processor an item, to build the trie (lab/speed/engine_cpu.json)


def picture(chance: random.Random) -> bytes:
    """640 x 480, with enough in it that JPEG has something to do."""
    small = Image.frombytes("RGB", (80, 60), chance.randbytes(80 * 60 * 3))
    buffer = io.BytesIO()
    small.resize((640, 480), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def measure(texts: int = 2048, pictures: int = 384) -> dict[str, Any]:
    """Items a second of processor time, one thread: read, encoded, quantized, thumbnails made."""
    torch.set_num_threads(1)
    chance, model = random.Random(0), Genius.from_pretrained("bundled:mini")
    worlds = {
        "texts": [Item(f"t{i}", text=" ".join(chance.choices(WORDS, k=8))) for i in range(texts)],
        "pictures": [Item(f"p{i}", image=picture(chance)) for i in range(pictures)],
    }
    rates = {}
    for name, items in worlds.items():
        prepare(model, [(item, None) for item in items[:64]], 256, "raise")  # warm
        started = time.process_time()
        for i in range(0, len(items), 256):
            prepare(model, [(item, None) for item in items[i : i + 256]], 256, "raise")
        rates[name] = round(len(items) / (time.process_time() - started), 1)
    return {
        "what": "items a second of one processor core: bundled:mini, read, encoded, quantized, thumbnail made",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "settings": {"texts": texts, "pictures": pictures, "picture": "640 x 480 JPEG", "threads": 1, "seed": 0},
        "items_per_core_second": rates,
    }


def cost(items: float, rate: float, width: int, thumbnail: float) -> dict[str, float]:
    """`rate`: items a second of one worker (a core or a GPU); `thumbnail`: bytes stored of a picture."""
    return {
        "worker_hours": items / rate / 3600,
        "memory_gb": items * CODES / 1e9,  # of each replica
        "vectors_gb": items * 2 * width / 1e9,  # once on shared storage, and mapped by each replica that re-ranks
        "table_gb": items * (ROW + 2 * width + thumbnail) / 1e9,
        "trie_minutes": items * TRIE_CPU / 60,
    }


def table(rate: float, width: int, thumbnail: float, sizes: tuple[float, ...] = (1e8, 1e9, 1e10)) -> str:
    lines = [
        "| items | worker-hours of encoding | wall time with 1,000 workers | codes and trie, each replica | vectors | table on storage | trie build, one core |",  # noqa: E501
        "|---|---|---|---|---|---|---|",
    ]
    for items in sizes:
        c = cost(items, rate, width, thumbnail)
        lines.append(
            f"| {items:,.0f} | {c['worker_hours']:,.0f} | {c['worker_hours'] / 1000:,.1f} h | {c['memory_gb']:,.1f} GB | "
            f"{c['vectors_gb']:,.0f} GB | {c['table_gb']:,.0f} GB | {c['trie_minutes']:,.0f} min |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--items", type=float, nargs="*", default=[1e8, 1e9, 1e10])
    parser.add_argument("--rate", type=float, default=0.0, help="items a second of one worker; 0: the measured core, pictures")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--thumbnail", type=float, default=0.0, help="bytes stored of each picture")
    options = parser.parse_args()
    if options.measure:
        RATES.write_text(json.dumps(measure(), indent=1) + "\n")
    rates = json.loads(RATES.read_text())["items_per_core_second"]
    print(table(options.rate or rates["pictures"], options.width, options.thumbnail, tuple(options.items)))


if __name__ == "__main__":
    main()
