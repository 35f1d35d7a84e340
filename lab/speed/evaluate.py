"""How long does a full evaluation take? 10,000 queries against 100,000 candidates, every method, features given.

    python -m lab.speed.evaluate                       # the shape of the bundled model
    python -m lab.speed.evaluate --size paper --queries 100
    OMP_WAIT_POLICY=passive python -m lab.speed.evaluate     # beside other work: threads that wait sleep

The features are random but structured and the model is untrained: the numbers are about time and memory, never about
quality. Writes lab/speed/evaluate.json and the page lab/speed/evaluate.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import torch

from genius.data.synthetic import synthetic_features
from genius.evaluate import EvalConfig, evaluate
from genius.model.config import GeniusConfig
from genius.model.generator import SIZES, GeneratorConfig
from genius.model.genius import Genius
from genius.model.quantizer import FusionConfig, QuantizerConfig
from genius.types import Modality

HERE = Path(__file__).parent
SHAPES: dict[str, dict[str, Any]] = {
    "bundled": {"width": 256, "levels": (3,) + (512,) * 6, "decoder": "mini", "prefix": 16, "fusion": (512, 1024)},
    "paper": {"width": 768, "levels": (3,) + (4096,) * 8, "decoder": "small", "prefix": 30, "fusion": (2560, 5120)},
}
DIRECTIONS = (
    (Modality.TEXT, Modality.IMAGE),
    (Modality.IMAGE, Modality.TEXT),
    (Modality.TEXT, Modality.PAIR),
    (Modality.PAIR, Modality.IMAGE),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SHAPES, default="bundled")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--pool", type=int, default=100_000)
    parser.add_argument("--methods", default="dense,genius,genius-r,default,no-decoder,codes")
    parser.add_argument("--beams", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "evaluate.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = SHAPES[options.size]
    begin = time.perf_counter()
    data = synthetic_features(
        options.queries, options.pool, shape["width"], directions=DIRECTIONS, clusters=500, dtype=torch.float16
    )
    model = build(shape)
    sample = torch.arange(0, options.pool, max(1, options.pool // 20_000))
    z, _ = model.embed(data.pool[sample])
    model.quantizer.initialise(z, data.pool.modality[sample], iterations=3)
    prepared, used = time.perf_counter(), time.process_time()
    marks: list[tuple[str, float, float]] = []  # what begins, when, processor seconds so far

    def say(line: str) -> None:
        marks.append((line, time.perf_counter(), time.process_time()))
        print(f"{time.perf_counter() - prepared:7.1f} s  {peak_gb():.2f} GB  {line}", flush=True)

    config = EvalConfig(methods=tuple(options.methods.split(",")), beams=(options.beams,), pools=("universal",))
    found = evaluate(model, data, config, progress=say)
    total, processor = time.perf_counter() - prepared, time.process_time() - used
    marks.append(("end", time.perf_counter(), time.process_time()))
    per_method = {}
    for result in found.results:
        per_method[result.method] = {
            "queries_per_second": result.queries_per_second,
            "search_seconds": options.queries / result.queries_per_second,
            "touched": result.touched,
            "bytes_per_item": result.bytes_per_item,
        }
    report = {
        "size": options.size,
        "queries": options.queries,
        "candidates": options.pool,
        "beams": options.beams,
        "threads": options.threads,
        "seconds": total,
        "processor_seconds": processor,  # of all threads: divided by the threads, what an idle machine would need at least
        "peak_gb": peak_gb(),
        "setup_seconds": prepared - begin,
        "steps": {
            one[0]: {"seconds": other[1] - one[1], "processor_seconds": other[2] - one[2]}
            for one, other in itertools.pairwise(marks)
        },
        "methods": per_method,
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}",
        "load": max(0.0, os.getloadavg()[2] - options.threads),  # 15-minute average without our own threads
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    options.output.with_suffix(".md").write_text(page(report), encoding="utf-8")
    print(f"{total:.0f} s ({processor:.0f} processor seconds), peak {peak_gb():.2f} GB; {options.output}")


def page(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# How long an evaluation takes",
        "",
        f"{report['queries']:,} queries against {report['candidates']:,} candidates, features given, universal pool, "
        f"{report['beams']} beams, a model of the {report['size']} shape (untrained: this is about time, not quality).",
        "",
        f"**{report['seconds']:.0f} s, {report['processor_seconds']:.0f} processor seconds on {report['threads']} threads, "
        f"peak memory {report['peak_gb']:.2f} GB.**",
        "",
        *goal(report),
        "| method | queries/s | search, s | items compared/query | bytes/item |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, own in report["methods"].items():
        lines.append(
            f"| {name} | {own['queries_per_second']:,.1f} | {own['search_seconds']:,.1f} | {own['touched']:,.0f} "
            f"| {own['bytes_per_item']:,.1f} |"
        )
    lines += ["", "| step | seconds | processor seconds |", "|---|---:|---:|"]
    lines += [f"| {name} | {own['seconds']:,.1f} | {own['processor_seconds']:,.1f} |" for name, own in report["steps"].items()]
    lines += [
        "",
        "GENIUS and GENIUS^R share one decoding; both rows count it. The total also holds embedding, quantizing, the trie,",
        "prefix survival on a sample, metrics, 1,000 bootstrap samples and the significance tests.",
        "",
        f"`python -m lab.speed.evaluate --size {report['size']} --queries {report['queries']} --pool {report['candidates']} "
        f"--threads {report['threads']}`; {report['date']}; {report['machine']}; "
        f"load of other work on the machine: {report['load']:.1f}.",
    ]
    return "\n".join(lines) + "\n"


def goal(report: dict[str, Any]) -> list[str]:
    """Whether the goal is met, where this run is the one it speaks of."""
    if (report["queries"], report["candidates"], report["threads"]) != (10_000, 100_000, 2):
        return []
    met = report["seconds"] < 15 * 60 and report["peak_gb"] < 4
    return [f"The goal, 15 minutes and 4 GB on two cores, is {'met' if met else 'missed'}.", ""]


def build(shape: dict[str, Any]) -> Genius:
    projection, hidden = shape["fusion"]
    generator = GeneratorConfig(
        width=shape["width"],
        level_sizes=shape["levels"],
        prefix_tokens=shape["prefix"],
        normalizer="level",
        **SIZES[shape["decoder"]],  # type: ignore[arg-type]
    )
    quantizer = QuantizerConfig(width=shape["width"], level_sizes=shape["levels"])
    return Genius(GeniusConfig(FusionConfig(shape["width"], projection, hidden), quantizer, generator))


def peak_gb() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
