"""Memory under large pictures: the service under one POST and many `like` requests, and `genius index`.

    python -m lab.trust.memory [--out lab/trust/memory.json] [--quick]

Everything is a real process of its own with the bundled model; megabytes are those of the process and its children
together. "after" is a minute after the last answer. `--quick` uses smaller pictures and does not wait.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from PIL import Image

from genius.pictures import COST, NARROW_COST, PROGRESSIVE_COST, USUAL_COST
from lab.trust.service import ROOT, Memory, environment, serve, write_report

DECODE = """
import sys
from genius.pictures import load_image
import numpy
def kb(name): return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
load_image(sys.argv[1] + ".small", least=1600)
open("/proc/self/clear_refs", "w").write("5"); before = kb("VmRSS")
load_image(sys.argv[1], least=1600)
print((kb("VmHWM") - before) * 1024)
"""


def smooth(width: int, height: int) -> Image.Image:
    down, across = np.linspace(0, 255, height, dtype=np.uint8)[:, None], np.linspace(0, 255, width, dtype=np.uint8)[None]
    return Image.fromarray(np.stack([np.broadcast_to(part, (height, width)) for part in (down, across, down // 2)], 2))


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def service(folder: Path, side: int, rest: float) -> dict[str, Any]:
    """One POST of 40 pictures, then 40 `like` requests at once of one of them; twice, to see whether anything piles up."""
    picture = base64.b64encode(encoded(Image.new("RGB", (side, side), (30, 90, 200)), "PNG")).decode()
    small = base64.b64encode(encoded(Image.new("RGB", (300, 200)), "PNG")).decode()
    rounds = []
    with serve(folder, str(folder / "memory.genius"), "--create", "--model", "bundled:mini") as server, server.client() as client:
        for turn in range(5):  # the same with small pictures: what the model and the database keep for good is there before
            post(client, {"items": [{"id": f"small {turn} {i}", "image": small} for i in range(40)]})
            like(client, f"small {turn} 1")
        memory = Memory(server.process.pid)
        for turn in range(2):
            body = {"items": [{"id": f"large {turn} {i}", "image": picture} for i in range(40)]}
            posted = measured(memory, rest, partial(post, client, body))
            liked = measured(memory, rest, partial(like, client, f"large {turn} 7"))
            rounds.append({"post of 40 pictures": posted, "40 like requests": liked})
        memory.close()
    return {"megapixels of a picture": round(side * side / 1e6, 1), "rounds": rounds}


def measured(memory: Memory, rest: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    before, started = memory.settled(2), time.monotonic()
    result, took, peak = work(), time.monotonic() - started, memory.peak
    after = memory.settled(rest)
    memories = {"before_mb": before, "peak_mb": peak, "more_mb": peak - before, "after_mb": after}
    return {**result, "seconds": round(took, 1), **memories}


def post(client: httpx.Client, items: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps(items).encode()
    answer = client.post("/v1/items", content=body, headers={"Content-Type": "application/json"})
    return {"bytes": len(body), "status": answer.status_code}


def like(client: httpx.Client, item: str) -> dict[str, Any]:
    statuses: Counter[int] = Counter()

    def ask() -> None:
        statuses[client.post("/v1/search", json={"like": item}).status_code] += 1

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"statuses": {str(status): count for status, count in sorted(statuses.items())}}


def indexing(folder: Path, kind: str, width: int, height: int, count: int) -> dict[str, Any]:
    """`genius index` over photos."""
    photos = folder / f"photos-{kind}"
    photos.mkdir()
    photo = encoded(smooth(width, height), kind, **({"compress_level": 1} if kind == "PNG" else {}))
    for i in range(count):
        (photos / f"{i}.{kind.lower()}").write_bytes(photo)
    command = [sys.executable, "-m", "genius", "index", str(photos), "-o", str(folder / f"{kind}.genius"), "--json"]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment())
    memory = Memory(process.pid)
    report = json.loads(process.communicate()[0])
    memory.close()
    return {
        "photos": count,
        "megapixels_each": round(width * height / 1e6, 1),
        "added": report["added"],
        "seconds": round(time.monotonic() - started, 1),
        "peak_mb": memory.peak,
    }


def costs(folder: Path, side: int) -> dict[str, dict[str, float]]:
    """Bytes a pixel that decoding takes, measured, and what the budget assumes."""
    rgb = smooth(side, side)
    grey = np.asarray(rgb)[..., 0]
    kinds: dict[str, tuple[bytes, float]] = {
        "PNG": (encoded(rgb, "PNG", compress_level=1), USUAL_COST),
        "PNG, transparent": (encoded(rgb.convert("RGBA"), "PNG", compress_level=1), USUAL_COST),
        "PNG, palette": (encoded(rgb.quantize(16, method=Image.Quantize.FASTOCTREE), "PNG"), NARROW_COST),
        "PNG, 16 bit": (encoded(Image.fromarray(grey.astype(np.uint16) * 257), "PNG"), USUAL_COST),
        "JPEG (decoded at half its size)": (encoded(rgb, "JPEG"), USUAL_COST / 4),
        "JPEG, progressive": (encoded(rgb, "JPEG", progressive=True, subsampling=0), PROGRESSIVE_COST),
        "WebP": (encoded(rgb, "WEBP", quality=50, method=0), COST["WEBP"]),
        "GIF": (encoded(rgb.quantize(16, method=Image.Quantize.FASTOCTREE), "GIF"), NARROW_COST),
        "BMP": (encoded(rgb, "BMP"), USUAL_COST),
        "AVIF": (encoded(rgb, "AVIF", speed=10, quality=40), COST["AVIF"]),
        "TIFF": (encoded(rgb, "TIFF"), USUAL_COST),
        "TIFF, LZW": (encoded(rgb, "TIFF", compression="tiff_lzw"), USUAL_COST),
        "TIFF, float": (encoded(Image.fromarray(grey.astype(np.float32) / 255), "TIFF"), USUAL_COST),
    }
    found = {}
    for name, (data, assumed) in kinds.items():
        path = folder / "picture"
        path.write_bytes(data)
        Path(f"{path}.small").write_bytes(encoded(rgb.resize((200, 200)), name.split(",")[0].split(" ")[0].upper()))
        done = subprocess.run([sys.executable, "-c", DECODE, str(path)], capture_output=True, text=True, env=environment())
        taken = int(done.stdout) if done.returncode == 0 else float("nan")
        found[name] = {"measured": round(taken / side**2, 1), "assumed": assumed}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "trust" / "memory.json")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    side, (width, height), photos, rest = (1500, (2000, 1500), 6, 2.0) if args.quick else (5600, (8000, 6000), 24, 60.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = {
            "service": service(folder, side, rest),
            "genius index, PNG photos": indexing(folder, "PNG", width, height, photos),
            "genius index, JPEG photos": indexing(folder, "JPEG", width, height, photos),
            "bytes a pixel while decoding": costs(folder, side if not args.quick else 3200),
        }
    write_report(args.out, quick=args.quick, machine_mb=psutil.virtual_memory().total // 1_000_000, **report)


if __name__ == "__main__":
    main()
