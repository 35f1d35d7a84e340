"""What the on-ramp costs: peak memory and processor time of `genius index PHOTOS --encoder URI`, 48 Mpx pictures among them.

    python -m lab.onramp_memory OUT.json                                       10,000 photos, the bundled encoder
    python -m lab.onramp_memory OUT.json --photos 300 --large 10 --clip-base   an encoder as large as CLIP B/32 (random weights)

The photos are drawn here (light, grain, shapes). The command runs as a process of its own; its peak is what the system counted,
its time is processor time, since the machine is shared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from lab.clip_shape import LAYERS, write_clip_base

LARGE = (8000, 6000)
USUAL = (640, 480)


def draw(number: int, size: tuple[int, int], seed: int) -> Image.Image:
    """Something like a photo: light that falls off, grain, a few shapes."""
    rng = np.random.default_rng([seed, number])
    small = (size[0] // 8, size[1] // 8)
    light = np.linspace(0, 1, small[0])[None, :, None] * rng.uniform(40, 250, 3) + rng.normal(0, 12, (small[1], small[0], 3))
    picture = Image.fromarray(light.clip(0, 255).astype(np.uint8)).resize(size, Image.Resampling.BILINEAR)
    pen = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(1, 6))):
        x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
        r = rng.uniform(0.05, 0.3) * size[1]
        red, green, blue = (int(value) for value in rng.integers(0, 256, 3))
        (pen.ellipse if rng.random() < 0.5 else pen.rectangle)((x - r, y - r, x + r, y + r), fill=(red, green, blue))
    return picture


def draw_all(folder: Path, photos: int, large: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    every = max(1, photos // large) if large else photos + 1
    for number in range(photos):
        path = folder / f"IMG_{number:05}.jpg"
        if not path.exists():
            draw(number, LARGE if number % every == every // 2 else USUAL, seed).save(path, quality=88)


def measured(command: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON that a command printed, and what it cost."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    cost = {"peak_memory_mb": used.ru_maxrss // 1024, "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}
    return json.loads(said), {**cost, "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--photos", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=40, help="of them with 48 megapixels")
    parser.add_argument("--clip-base", action="store_true", help="an encoder as large as CLIP B/32 in place of the bundled one")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of that encoder's towers: fewer take less time")
    parser.add_argument("--folder", type=Path, help="draw the photos here, and take those that are here")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        photos, encoder = args.folder or Path(scratch) / "photos", "bundled:mini"
        draw_all(photos, args.photos, args.large, args.seed)
        if args.clip_base:
            encoder = f"{scratch}/clip"
            write_clip_base(Path(encoder), args.layers)
        weights = sum(path.stat().st_size for path in (Path(scratch) / "clip").glob("*.safetensors"))
        index = Path(scratch) / "my.genius"
        command = [sys.executable, "-m", "genius", "index", str(photos), "-o", str(index), "--encoder", encoder, "--json"]
        report, cost = measured(command)
        again = measured([*command[:4], str(photos), "-o", str(index), "--json"])[1]
        size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    body = {
        "what": "genius index PHOTOS --encoder URI as a process; photos drawn by the program, large ones 8000 x 6000",
        "date": datetime.date.today().isoformat(),
        "seed": args.seed,
        "photos": args.photos,
        "large": args.large,
        "encoder": f"shape of CLIP B/32, {args.layers} of {LAYERS} layers, random weights" if args.clip_base else encoder,
        "weights_mb": round(weights / 1e6),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "cpus": os.cpu_count(),
        "index": cost,
        "the same command again, nothing changed": again,
        "fit": report["fit"],
        "items": report["items"],
        "index_mb": round(size / 1e6, 1),
        "drawing_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    args.output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=2))


if __name__ == "__main__":
    main()
