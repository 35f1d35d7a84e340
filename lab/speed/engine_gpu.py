"""Measure the search engine on one CUDA device: exactness against the CPU, throughput, latency, size, rivals.

    python -m lab.speed.engine_gpu --out results.json [--sections a,b] [--small]

Each section stands alone: a failure is recorded and the next one runs. `--small` shrinks everything (works on a CPU, to
check the program). Random weights of the paper's full size, uniform random codes unless a section says otherwise.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from genius.model.generator import Generator, GeneratorConfig
from genius.search import CodeTrie, Int8Rows, SearchEngine, SearchParams, beam_search

EXACT = SearchParams(beams=50, rerank=0, reranker="none")
DEFAULT = SearchParams()
Precision = Literal["auto", "exact", "fast"]
PRECISIONS: tuple[Precision, ...] = ("exact", "fast")


class Bench:
    def __init__(self, small: bool, limit: float) -> None:
        self.small, self.limit, self.begin = small, limit, time.time()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        shape: dict[str, Any] = {"d_model": 64, "layers": 2, "heads": 2, "d_kv": 32, "d_ff": 128} if small else {}
        self.config = GeneratorConfig(width=64 if small else 768, dropout=0.0, **shape)
        torch.manual_seed(0)
        self.generator = Generator(self.config).eval()
        self.results: dict[str, Any] = {}
        self.tries: dict[tuple[int, str], CodeTrie] = {}

    def left(self) -> float:
        return self.limit - (time.time() - self.begin)

    def queries(self, count: int, seed: int = 1) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.nn.functional.normalize(torch.randn(count, self.config.width, generator=generator), dim=1).to(self.device)

    def trie(self, items: int, kind: str = "uniform") -> CodeTrie:
        if (items, kind) not in self.tries:
            start = time.time()
            codes = synthetic_codes(items, self.config.level_sizes, kind, self.device)
            trie = CodeTrie.build(codes, self.config.level_sizes)
            self.note(
                "tries",
                f"{items} {kind}",
                {"build_s": time.time() - start, "bytes_per_item": trie.nbytes / items, "explicit": trie.top, "ids": trie.ids},
            )
            self.tries[items, kind] = trie
            del codes
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return self.tries[items, kind]

    def engine(self, items: int, precision: Precision, vectors: bool = False, kind: str = "uniform") -> SearchEngine:
        rows = random_vectors(items, self.config.width, self.device) if vectors else None
        return SearchEngine(self.generator, None, self.trie(items, kind), rows, device=self.device, precision=precision)

    def note(self, section: str, key: str, value: Any) -> None:
        self.results.setdefault(section, {})[key] = value
        print(f"[{time.time() - self.begin:6.1f}s] {section} | {key}: {json.dumps(value, default=str)}", flush=True)

    def time(self, call: Callable[[], Any], repeats: int) -> dict[str, float]:
        """Milliseconds of one call, device work included."""
        for _ in range(3):
            call()
        times = []
        for _ in range(repeats):
            self.sync()
            start = time.perf_counter()
            call()
            self.sync()
            times.append(time.perf_counter() - start)
        return {"p50_ms": 1e3 * float(np.median(times)), "p95_ms": 1e3 * float(np.quantile(times, 0.95))}

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def rate(self, engine: SearchEngine, params: SearchParams, batch: int, repeats: int, k: int = 10) -> dict[str, float]:
        z = self.queries(batch)
        out = self.time(lambda: engine.search(z, k=k, params=params), repeats)
        return {**out, "qps": 1e3 * batch / out["p50_ms"]}


def synthetic_codes(items: int, sizes: tuple[int, ...], kind: str, device: torch.device) -> torch.Tensor:
    """Uniform, or Zipf: code c of every level has weight 1 / (c + 1)."""
    generator = torch.Generator(device).manual_seed(0)
    columns = []
    for size in sizes:
        if kind == "zipf" and size > 8:
            cumulative = (1.0 / torch.arange(1, size + 1, device=device)).cumsum(0)
            draw = torch.rand(items, generator=generator, device=device) * cumulative[-1]
            columns.append(torch.searchsorted(cumulative, draw).clamp(max=size - 1).to(torch.int16))
        else:
            columns.append(torch.randint(0, size, (items,), generator=generator, device=device, dtype=torch.int16))
    return torch.stack(columns, 1)


def random_vectors(items: int, width: int, device: torch.device) -> torch.Tensor | Int8Rows:
    """fp16 rows; int8 where fp16 would not fit the device."""
    generator = torch.Generator(device).manual_seed(2)
    if items * width * 2 > 60e9:
        values = torch.empty(items, width, dtype=torch.int8, device=device)
        for part in values.split(1 << 22):
            part.random_(-127, 128, generator=generator)
        return Int8Rows(values, torch.full((items,), 1e-3, device=device))
    rows = torch.empty(items, width, dtype=torch.float16, device=device)
    for part in rows.split(1 << 20):
        part.normal_(generator=generator)
    return rows


def kernels(bench: Bench) -> None:
    """Each Triton kernel against its torch twin at full-size shapes."""
    from static_ops import TorchOps

    from genius.search.cuda_kernels import TritonOps

    ours, truth, device = TritonOps(), TorchOps(), bench.device
    for dtype in (torch.float32, torch.float16):
        r = torch.randn
        h, head = r(3000, 512, device=device).to(dtype), (r(32774, 512, device=device) * 0.044).to(dtype)
        cache, ancestors = (
            r(5000, 1536, device=device).to(dtype),
            torch.randint(0, 2000, (400, 4), device=device, dtype=torch.int32),
        )
        q, kv, bias = r(8 * 250, 512, device=device).to(dtype), r(8 * 30, 1024, device=device).to(dtype), r(8, 9, device=device)
        cases: dict[str, Callable[[Any], torch.Tensor]] = {
            "add_norm": lambda o, h=h, dtype=dtype: o.add_norm(h.float() * 3, h, 1e-6, dtype),  # type: ignore[misc]
            "self_attention": lambda o, c=cache, a=ancestors, b=bias: o.self_attention(c * 0.1, a, b, 2000, 5, 8),  # type: ignore[misc]
            "cross_attention": lambda o, q=q, kv=kv: o.cross_attention(q * 0.1, kv, 8, 8),  # type: ignore[misc]
            "log_normalizer": lambda o, h=h, head=head: o.log_normalizer(h, head.contiguous()),  # type: ignore[misc]
            "log_normalizer_small": lambda o, h=h, head=head: o.log_normalizer(h[:50], head),  # type: ignore[misc]
            "logits": lambda o, h=h, head=head: o.logits(h, head[:4096]),  # type: ignore[misc]
        }
        for name, case in cases.items():
            a, b = case(ours).float(), case(truth).float()
            bench.note("kernels", f"{name} {dtype}", {"max_error": (a - b).abs().max().item(), "scale": b.abs().mean().item()})


def tune(bench: Bench) -> None:
    """Tiles of the normaliser; the fastest is used for the sections that follow."""
    from genius.search.cuda_kernels import TritonOps

    head = (torch.randn(32774, 512, device=bench.device) * 0.044).half()
    tiles: dict[str, tuple[int, list[tuple[int, ...]]]] = {
        "large_tile": (
            64_000,
            [
                (128, 256, 64, 8, 3),
                (128, 128, 64, 4, 4),
                (128, 128, 64, 8, 4),
                (128, 256, 64, 8, 4),
                (256, 128, 64, 8, 3),
                (128, 128, 128, 8, 3),
            ],
        ),
        "small_tile": (50, [(64, 128, 64, 4, 4), (64, 64, 128, 4, 3), (64, 128, 128, 4, 3), (64, 64, 64, 4, 5)]),
    }
    for name, (rows, candidates) in tiles.items():
        h = torch.randn(rows, 512, device=bench.device).half()
        times = {}
        for tile in candidates:
            ops = TritonOps()
            setattr(ops, name, tile)
            try:
                times[tile] = bench.time(lambda ops=ops, h=h: ops.log_normalizer(h, head), 10)["p50_ms"]  # type: ignore[misc]
            except Exception as error:
                bench.note("tune", f"{name} {tile}", str(error)[:80])
        best = min(times, key=lambda t: times[t])
        setattr(TritonOps, name, best)
        bench.note(
            "tune",
            name,
            {"best": best, "tflops": 2 * rows * 32774 * 512 / times[best] / 1e9, "all_ms": {str(k): v for k, v in times.items()}},
        )


def exactness(bench: Bench) -> None:
    """The same 32 queries: CPU, CUDA step by step, CUDA graph in float32 and in float16."""
    items = 2_000 if bench.small else 200_000
    trie, z = bench.trie(items), bench.queries(8 if bench.small else 32)
    start = time.time()
    cpu = SearchEngine(bench.generator, None, trie)
    truth = cpu.search(z.cpu(), k=50, params=EXACT)
    bench.note("exactness", "cpu_s", time.time() - start)
    step = beam_search(bench.generator.to(bench.device), trie, z, 50)
    bench.generator.cpu()
    rows = torch.from_numpy(np.stack([[trie.rows_below(c)[0] for c in q] for q in step.codes.cpu().tolist()]))
    same = (rows == truth.rows).float().mean().item()
    bench.note(
        "exactness",
        "cuda step by step, float32",
        {"same_rows": same, "score_error": (step.scores.cpu() - truth.scores).abs().max().item()},
    )
    for precision in PRECISIONS:
        engine = bench.engine(items, precision)
        found = engine.search(z, k=50, params=EXACT)
        rows, scores = found.rows.cpu(), found.scores.cpu()
        top = [len(set(a[:10].tolist()) & set(b[:10].tolist())) / 10 for a, b in zip(rows, truth.rows, strict=True)]
        bench.note(
            "exactness",
            f"graph {precision}",
            {
                "same_rows": (rows == truth.rows).float().mean().item(),
                "same_top1": (rows[:, 0] == truth.rows[:, 0]).float().mean().item(),
                "same_set": float(
                    np.mean([len(set(a.tolist()) & set(b.tolist())) / 50 for a, b in zip(rows, truth.rows, strict=True)])
                ),
                "same_top10": float(np.mean(top)),
                "score_error_where_rows_agree": (scores - truth.scores)[rows == truth.rows].abs().max().item(),
            },
        )
    vectors = random_vectors(items, bench.config.width, bench.device)
    assert isinstance(vectors, torch.Tensor)
    default = SearchEngine(bench.generator, None, trie, vectors.cpu(), precision="exact").search(z.cpu(), k=10)
    for precision in PRECISIONS:
        engine = SearchEngine(bench.generator, None, trie, vectors, device=bench.device, precision=precision)
        found = engine.search(z, k=10)
        bench.note(
            "exactness",
            f"default search, {precision}",
            {
                "same_rows": (found.rows.cpu() == default.rows).float().mean().item(),
                "score_error": (found.scores.cpu() - default.scores).abs().max().item(),
                "touched": [int(found.touched.min()), int(found.touched.max())],
                "touched_cpu": [int(default.touched.min()), int(default.touched.max())],
            },
        )
    target = torch.arange(len(z)) % 4 - 1
    a = cpu.search(z.cpu()[:8], k=10, params=EXACT, target=target[:8])
    b = bench.engine(items, "exact").search(z[:8], k=10, params=EXACT, target=target[:8].to(bench.device))
    bench.note("exactness", "known targets", {"same_rows": (a.rows == b.rows.cpu()).float().mean().item()})


def profile(bench: Bench) -> None:
    """Where the time of one batch goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    items = 2_000 if bench.small else 1_000_000
    engine = bench.engine(items, "fast")
    z = bench.queries(256 if not bench.small else 4)
    for name, batch in (("256", z), ("1", z[:1])):
        for _ in range(3):
            engine.search(batch, k=10, params=EXACT)
        with torch_profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as prof:
            for _ in range(3):
                engine.search(batch, k=10, params=EXACT)
            bench.sync()
        events = sorted(prof.key_averages(), key=lambda e: -e.self_device_time_total)[:22]
        table = {e.key[:70]: [round(e.self_device_time_total / 3), e.count // 3] for e in events if e.self_device_time_total}
        bench.note("profile", f"batch {name}: microseconds, calls", table)


def sizes(bench: Bench) -> None:
    """Latency and throughput against the collection, exact and default."""
    counts = [1_000, 4_000] if bench.small else [100_000, 1_000_000, 10_000_000, 100_000_000]
    for items in counts:
        if bench.left() < 25:
            return
        engine = bench.engine(items, "fast", vectors=True)
        repeats = 3 if bench.small else 12
        row: dict[str, Any] = {
            "exact_batch_1": bench.rate(engine, EXACT, 1, 40),
            "exact_batch_512": bench.rate(engine, EXACT, 8 if bench.small else 512, repeats),
            "default_batch_1": bench.rate(engine, DEFAULT, 1, 40),
            "default_batch_512": bench.rate(engine, DEFAULT, 8 if bench.small else 512, repeats),
        }
        found = engine.search(bench.queries(64, 5), k=10, params=DEFAULT)
        row["touched_mean"] = found.touched.float().mean().item()
        graphs = engine._graphs.get(True)
        row["levels one by one"] = None if graphs is None else {str(k): v for k, v in graphs.steps.items()}
        bench.note("sizes", str(items), row)
        del engine, graphs, found
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def exact_float32(bench: Bench) -> None:
    """The same in float32 throughout."""
    items = 4_000 if bench.small else 10_000_000
    engine = bench.engine(items, "exact")
    for batch, repeats in ((1, 30), (8 if bench.small else 256, 5)):
        bench.note("exact_float32", f"{items} batch {batch}", bench.rate(engine, EXACT, batch, repeats))


def batches_and_beams(bench: Bench) -> None:
    """Throughput against the batch, latency against the beams (10M items)."""
    items = 4_000 if bench.small else 10_000_000
    engine = bench.engine(items, "fast")
    for batch in (8,) if bench.small else (8, 32, 128, 256):
        bench.note("batches", str(batch), bench.rate(engine, EXACT, batch, 10))
    for beams in (10,) if bench.small else (10, 30, 100, 200):
        params = SearchParams(beams=beams, rerank=0, reranker="none")
        bench.note(
            "beams",
            str(beams),
            {"batch_1": bench.rate(engine, params, 1, 20), "batch_256": bench.rate(engine, params, 8 if bench.small else 256, 5)},
        )


def zipf(bench: Bench) -> None:
    """Skewed codes."""
    items = 4_000 if bench.small else 10_000_000
    engine = bench.engine(items, "fast", vectors=True, kind="zipf")
    bench.note("zipf", f"exact batch 1, {items}", bench.rate(engine, EXACT, 1, 20))
    bench.note("zipf", f"exact batch 256, {items}", bench.rate(engine, EXACT, 8 if bench.small else 256, 5))
    bench.note("zipf", f"default batch 256, {items}", bench.rate(engine, DEFAULT, 8 if bench.small else 256, 5))


def flat(bench: Bench) -> None:
    """The dense rival: a flat fp16 matrix product and top-k over every row."""
    for items in (4_000,) if bench.small else (1_000_000, 10_000_000, 40_000_000):
        rows = torch.empty(items, bench.config.width, dtype=torch.float16, device=bench.device)
        for part in rows.split(1 << 20):
            part.normal_()
        for batch in (1, 8) if bench.small else (1, 64):
            z = bench.queries(batch).half()

            def search(z: torch.Tensor = z, rows: torch.Tensor = rows) -> torch.Tensor:
                values, _ = zip(*((part @ z.T).topk(10, dim=0) for part in rows.split(1 << 24)), strict=True)
                return torch.cat(values).topk(10, dim=0).indices

            out = bench.time(search, 5)
            bench.note("flat", f"{items} batch {batch}", {**out, "qps": 1e3 * batch / out["p50_ms"]})
        del rows
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def published(bench: Bench) -> None:
    """The published way on this device, and whether results are equal."""
    from lab.speed.rivals import published_search

    items = 2_000 if bench.small else 200_000
    codes = synthetic_codes(items, bench.config.level_sizes, "uniform", bench.device).cpu().numpy().astype(np.int64)
    rival = published_search(bench.generator.to(bench.device), codes)
    z = bench.queries(8)
    theirs, scores = rival.search(z, 50)
    ours = beam_search(bench.generator, bench.trie(items), z, 50)
    bench.note(
        "published",
        "equal",
        {
            "same_codes": (ours.codes.cpu() == theirs).all(2).float().mean().item(),
            "score_error": (ours.scores.cpu() - scores).abs().max().item(),
        },
    )
    for batch in (1, 8):
        out = bench.time(lambda batch=batch: rival.search(z[:batch], 50), 2)  # type: ignore[misc]
        bench.note("published", f"batch {batch}", {**out, "qps": 1e3 * batch / out["p50_ms"]})
    bench.generator.cpu()


def ceilings(bench: Bench) -> None:
    """What the device can do: a copy and a large product."""
    n = 512 if bench.small else 8192
    a = torch.randn(n, n, device=bench.device).half()
    out = bench.time(lambda: a @ a, 10)
    bench.note("ceilings", "fp16_tflops", 2 * n**3 / out["p50_ms"] / 1e9)
    big = torch.empty((1 << 20) if bench.small else (1 << 32), dtype=torch.uint8, device=bench.device)
    other = torch.empty_like(big)
    out = bench.time(lambda: other.copy_(big), 5)
    bench.note("ceilings", "copy_tb_s", 2 * big.numel() / out["p50_ms"] / 1e9)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "tune": tune, "kernels": kernels, "exactness": exactness, "profile": profile, "sizes": sizes, "exact_float32": exact_float32,
    "batches_and_beams": batches_and_beams, "zipf": zipf, "flat": flat, "published": published, "ceilings": ceilings,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("engine_gpu.json"))
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds after which no new section starts")
    options = parser.parse_args()
    bench = Bench(options.small, options.limit)
    cuda = bench.device.type == "cuda"
    bench.results["machine"] = {
        "device": torch.cuda.get_device_name() if cuda else platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": time.strftime("%Y-%m-%d"),
    }
    for name in options.sections.split(","):
        if bench.left() < 5:
            bench.note("skipped", name, "no time left")
            continue
        try:
            SECTIONS[name](bench)
        except Exception as error:
            bench.note("failed", name, f"{type(error).__name__}: {error}"[:300])
            traceback.print_exc()
        options.out.write_text(json.dumps(bench.results, indent=1, default=str) + "\n")
        if cuda:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
