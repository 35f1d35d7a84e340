"""Search on one CUDA device: flat, the scan of ten million items, beams over millions of IDs, and the first search of a process.

    python -m lab.front.gpu prepare PREFIX_text_image.hdf5 SCAN.npz DATA.npz [--items 20000]
    python -m lab.front.gpu measure DATA.npz --out FOLDER [--limit 390] [--small]

`prepare` needs a CPU: real image vectors, text queries of every split, and the transforms and codebooks of a scan that was built
over them (SCAN.npz: `item_transform`, `query_transform`, `codebooks`). `measure` needs a GPU and no Faiss: vectors are filled by
the rule of `lab.front.data`, cells are k-means of them, and codes are those that `genius.search.cells` would choose. Each
step writes FOLDER/gpu.json. Settings of the scan are chosen on validation queries; test queries are reported. IDs of beams are
drawn: speed does not depend on what they mean. `--small` shrinks everything and works on a CPU, to check the program.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.model.config import SIZES, GeneratorConfig, QuantizerConfig
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, LazyPart, SearchEngine, SearchParams, StoredVectors
from genius.search.scan import UNKNOWN, ScanIndex
from genius.search.tensor_cells import TensorCells
from genius.search.tensors import TensorVectors, tensor_arrays
from genius.search.trie import ALWAYS_EXPLICIT, EXPLICIT_UP_TO
from lab import current_commit

K = 10
LEVELS = (3, 2)
NEIGHBOURS = 29  # these two: the rule of `lab.front.data`
NOISE = 0.02
POINTS = 64  # of a cell that k-means sees
ROUNDS = 8  # of k-means
ROWS = 1 << 16
NEAREST_QUERIES = 16  # these three: as `genius.search.cells` chooses codes
DIRECTION_WEIGHT = 4.0
SWEEPS = 2
EFFORTS = (100, 150, 200, 300, 400, 500, 600, 800, 1000, 1200, 1400, 1700, 2000, 2800, 4000, 5600, 8000)
TARGETS = (0.90, 0.95, 0.98, 0.995)
EXACT = SearchParams(beams=50, rerank=0, reranker="none")
FIRST = """
import time
began = time.time()
import sys
import numpy as np
import torch
from types import SimpleNamespace
from genius.search import CodeTrie, LazyPart, SearchEngine, SearchParams
from genius.search.scan import ScanIndex
from genius.search.tensor_cells import TensorCells
from genius.search.tensors import tensor_arrays
device, plan, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
imported = time.time()
random = np.random.default_rng(0)
vectors = random.standard_normal((count, 256), np.float32)
vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
part = LazyPart(SimpleNamespace(level_sizes=(3, 2), width=256, labelled=True), lambda: None)
made = time.time()
engine = SearchEngine(part, None, CodeTrie.build(np.zeros((count, 2), np.int64), (3, 2)), vectors, device)
if plan == "scan":
    cells = 64
    arrays = {
        "means": vectors[:cells].astype(np.float32), "query_transform": np.eye(256, dtype=np.float32),
        "codebooks": random.standard_normal((32, 16, 8), np.float32) / 16,
        "codes": random.integers(0, 256, (count, 16), np.uint8),
        "rows": np.arange(count), "sizes": np.full(cells, count // cells),
    }
    own = {0: TensorCells(arrays, tensor_arrays(device))}
    engine.scan._index = ScanIndex(own, {0: {-1: 1.0}}, {}, count)
    engine.scan._moved = own
ready = time.time()
times = []
for _ in range(3):
    start = time.time()
    engine.search(vectors[:1].astype(np.float32), k=10, params=SearchParams(plan=plan), target=np.zeros(1, np.int64))
    times.append(time.time() - start)
print(imported - began, ready - made, *times)
"""


# -- prepare ---------------------------------------------------------------------------------------------------------


def prepare(file: Path, scan: Path, out: Path, items: int) -> None:
    """What `measure` reads, small enough to be carried: halves."""
    import h5py

    with h5py.File(file) as body:
        parts: dict[str, Any] = {name: body[name][:] for name in ("learn", "validation", "test")}
        parts["items"] = body["train"][:items]
    halves = {name: array.astype(np.float16) for name, array in parts.items()}
    with np.load(scan) as fitted:
        np.savez(out, **halves, **{name: fitted[name] for name in ("item_transform", "query_transform", "codebooks")})


# -- measure ---------------------------------------------------------------------------------------------------------


class Bench:
    """Notes what is measured at once, and knows how much time is left."""

    def __init__(self, out: Path, limit: float, small: bool) -> None:
        self.begin = time.time()
        self.file = out / "gpu.json"
        self.limit = limit
        self.small = small
        self.device = torch.device("cpu")
        name = "CPU"
        if torch.cuda.is_available():
            self.device = torch.device("cuda")
            name = torch.cuda.get_device_name()
        out.mkdir(parents=True, exist_ok=True)
        self.results: dict[str, Any] = {
            "command": "python -m lab.front.gpu measure",
            "commit": current_commit(),
            "date": datetime.date.today().isoformat(),
            "device": name,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        }
        self.write()

    @property
    def left(self) -> float:
        return self.limit - (time.time() - self.begin)

    def write(self) -> None:
        self.file.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")

    def note(self, section: str, key: str, value: Any) -> None:
        self.results.setdefault(section, {})[key] = value
        self.results["seconds"] = round(time.time() - self.begin, 1)
        self.write()
        print(f"[{time.time() - self.begin:6.1f}s] {section} | {key}: {json.dumps(value)}", flush=True)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def free(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def rate(self, call: Callable[[], Any], queries: int, repeats: int) -> dict[str, float]:
        """Milliseconds of a call, host work and copies included, and queries per second at the median."""
        for _ in range(2):
            call()
        times = []
        for _ in range(repeats):
            self.sync()
            start = time.perf_counter()
            call()
            self.sync()
            times.append(time.perf_counter() - start)
        p50 = float(np.median(times))
        return {
            "p50_ms": round(1e3 * p50, 4),
            "p95_ms": round(1e3 * float(np.quantile(times, 0.95)), 4),
            "qps": round(queries / p50, 1),
        }


def filled(items: Tensor, size: int) -> Iterator[Tensor]:
    """Blocks of halves (n, D): the items, then points between an item and a random one of its near neighbours, plus noise."""
    device = items.device
    generator = torch.Generator(device).manual_seed(0)
    near = torch.cat([(part @ items.T).topk(NEIGHBOURS + 1, dim=1).indices[:, 1:] for part in items.split(4096)])
    yield items.half()
    for start in range(len(items), size, 1 << 18):
        count = min(1 << 18, size - start)
        first = torch.randint(len(items), (count,), generator=generator, device=device)
        second = near[first, torch.randint(NEIGHBOURS, (count,), generator=generator, device=device)]
        share = 0.5 + 0.5 * torch.rand(count, 1, generator=generator, device=device)
        mix = share * items[first] + (1 - share) * items[second]
        mix += NOISE * torch.randn(mix.shape, generator=generator, device=device)
        yield torch.nn.functional.normalize(mix, dim=1).half()


def nearest(vectors: Tensor, queries: Tensor, k: int) -> Tensor:
    """(Q, k) rows of the vectors with the largest inner products, in float32."""
    best = torch.full((len(queries), k), -torch.inf, device=queries.device)
    rows = torch.zeros((len(queries), k), dtype=torch.long, device=queries.device)
    for start in range(0, len(vectors), 1 << 18):
        found = (queries @ vectors[start : start + (1 << 18)].float().T).topk(k, dim=1)
        both = torch.cat([best, found.values], 1).topk(k, dim=1)
        rows = torch.cat([rows, found.indices + start], 1).gather(1, both.indices)
        best = both.values
    return rows


def recall(found: NDArray[Any], truth: NDArray[Any]) -> float:
    return float(np.mean([len({*mine} & {*true}) / K for mine, true in zip(found.tolist(), truth.tolist(), strict=True)]))


class Stored(TensorVectors):
    """Vectors that are on the device already."""

    def __init__(self, moved: Tensor) -> None:
        super().__init__(StoredVectors.of(np.zeros((1, moved.shape[1]), np.float16)), tensor_arrays(moved.device), True)
        self.on_host = False
        self._moved = moved

    def __len__(self) -> int:
        assert self._moved is not None
        return len(self._moved)


def engine_of(vectors: Tensor) -> SearchEngine:
    part = LazyPart(SimpleNamespace(level_sizes=LEVELS, width=vectors.shape[1], labelled=True), lambda: None)
    trie = CodeTrie.build(np.zeros((len(vectors), len(LEVELS)), np.int8), LEVELS)
    return SearchEngine(part, None, trie, Stored(vectors), str(vectors.device))


def search(
    engine: SearchEngine, queries: NDArray[np.float32], params: SearchParams, allowed: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Rows (Q, K); the target is given, except to beams."""
    target = None
    if not params.generates:
        target = np.zeros(len(queries), np.int64)
    return engine.search(queries, k=K, params=params, target=target, allowed=allowed).rows


def rates(
    bench: Bench, engine: SearchEngine, queries: NDArray[np.float32], params: SearchParams, repeats: dict[int, int]
) -> dict[str, Any]:
    """By size of the batch, which is repeated so many times."""
    out = {}
    for batch, times in repeats.items():
        out[f"batches of {batch}"] = bench.rate(partial(search, engine, queries[:batch], params), batch, times)
    return out


def first_search(bench: Bench, data: dict[str, Tensor]) -> None:
    """Seconds of a fresh process: imports, moving the collection, and its first three searches. The first scan of a machine
    compiles its kernel; later processes find it compiled."""
    count = 6_400 if bench.small else 192_000
    for name, plan in (("flat", "flat"), ("scan, fresh machine", "scan"), ("scan", "scan")):
        start = time.time()
        given = [sys.executable, "-c", FIRST, bench.device.type, plan, str(count)]
        done = subprocess.run(given, capture_output=True, text=True, timeout=120, env=os.environ.copy())
        if done.returncode:
            bench.note("first search", name, {"failed": done.stderr[-400:]})
            continue
        imports, moving, *searches = (round(float(number), 4) for number in done.stdout.split())
        line = {"imports_s": imports, "engine_s": moving, "first_three_s": searches, "process_s": round(time.time() - start, 2)}
        bench.note("first search", name, {"items": count, **line})


def flat(bench: Bench, data: dict[str, Tensor], vectors: Tensor) -> None:
    """Exact search by size, with float32 as the truth."""
    params = SearchParams(plan="flat")
    test = data["test"].cpu().numpy()
    for size in (1_000_000, 2_000_000, 10_000_000):
        part = vectors[:size]
        if len(part) < size and not bench.small:
            continue
        engine = engine_of(part)
        batch: NDArray[np.float32] = np.resize(test, (512, test.shape[1]))
        truth = nearest(part, data["test"][:200], K).cpu().numpy()
        line = {
            "recall@10": round(recall(search(engine, test[:200], params), truth), 5),
            **rates(bench, engine, batch, params, {512: 7, 32: 7, 1: 30}),
        }
        bench.note("flat", f"{len(part):,} items", line)
        if bench.small:
            break


def cells_of(bench: Bench, data: dict[str, Tensor], vectors: Tensor) -> TensorCells:
    """Cells by spherical k-means, and directed product codes, with the transforms and codebooks that were carried."""
    start = time.time()
    device = vectors.device
    count = max(64, int(4 * len(vectors) ** 0.5) // 64 * 64)
    generator = torch.Generator(device).manual_seed(1)
    chosen = torch.randperm(len(vectors), generator=generator, device=device)[: POINTS * count]
    sample = vectors[chosen]
    centroids = sample[:count].float()
    for _ in range(ROUNDS):
        cell = assigned(sample, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, cell, sample.float())
        centroids = torch.where(sums.norm(dim=1, keepdim=True) > 0, torch.nn.functional.normalize(sums, dim=1), centroids)
    cell = assigned(vectors, centroids)
    sums = torch.zeros_like(centroids)
    for first in range(0, len(vectors), ROWS):
        sums.index_add_(0, cell[first : first + ROWS], vectors[first : first + ROWS].float())
    sizes = torch.bincount(cell, minlength=count)
    means = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centroids)
    bench.sync()
    clustered = time.time()
    codes = torch.cat(
        [
            codes_of(vectors[first : first + ROWS].float(), means[cell[first : first + ROWS]], data)
            for first in range(0, len(vectors), ROWS)
        ]
    )
    order = cell.argsort(stable=True)
    arrays = {
        "means": means,
        "query_transform": data["query_transform"],
        "codebooks": data["codebooks"],
        "codes": codes[order],
        "rows": order,
        "sizes": sizes,
    }
    made = TensorCells(arrays, tensor_arrays(device))
    bench.sync()
    line = {"cells": count, "k-means_s": round(clustered - start, 2), "codes_s": round(time.time() - clustered, 2)}
    largest = int(sizes.max())
    bench.note("scan", "build", {**line, "largest_cell": largest, "bytes_per_item": round(made.nbytes / len(vectors), 2)})
    return made


def assigned(vectors: Tensor, centroids: Tensor) -> Tensor:
    """(n,) the nearest centroid of each vector."""
    return torch.cat([(part.float() @ centroids.T).argmax(1) for part in vectors.split(ROWS)])


def codes_of(vectors: Tensor, means: Tensor, data: dict[str, Tensor]) -> Tensor:
    """(n, bytes) as `genius.search.cells.ProductEncoder` chooses codes."""
    codebooks = data["codebooks"]
    subspaces, _, part = codebooks.shape
    residuals = (vectors - means) @ data["item_transform"]
    near = (vectors @ data["learn"].T).topk(NEAREST_QUERIES, dim=1).indices
    directions = (data["learn"] @ data["query_transform"])[near].sum(1)
    directions = torch.nn.functional.normalize(directions, dim=1)
    by_part = residuals.view(-1, subspaces, part)
    distances = (codebooks**2).sum(2) - 2 * torch.einsum("nsp,scp->nsc", by_part, codebooks)
    projections = torch.einsum("nsp,scp->nsc", directions.view(-1, subspaces, part), codebooks)
    codes = distances.argmin(2)  # (n, S)
    along = (residuals * directions).sum(1) - projections.gather(2, codes[:, :, None])[:, :, 0].sum(1)
    for _ in range(SWEEPS):
        for place in range(subspaces):
            projection = projections[:, place]
            if_chosen = along[:, None] + projection.gather(1, codes[:, place : place + 1]) - projection
            codes[:, place] = (distances[:, place] + DIRECTION_WEIGHT * if_chosen**2).argmin(1)
            along = if_chosen.gather(1, codes[:, place : place + 1])[:, 0]
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8)


def scan(bench: Bench, data: dict[str, Tensor], vectors: Tensor) -> None:
    """The scan beside exact search over the same items."""
    cells = cells_of(bench, data, vectors)
    engine = engine_of(vectors)
    own = {0: cells}
    engine.scan._index = ScanIndex(own, {0: {UNKNOWN: 1.0}}, {}, len(vectors))  # type: ignore[arg-type]
    engine.scan._moved = own
    parts = {name: data[name].cpu().numpy()[:count] for name, count in (("validation", 300), ("test", 1000))}
    truth = {name: nearest(vectors, data[name][: len(queries)], K).cpu().numpy() for name, queries in parts.items()}
    batch: NDArray[np.float32] = np.resize(parts["test"], (512, parts["test"].shape[1]))
    start = time.time()
    search(engine, batch[:1], SearchParams(plan="scan"))
    bench.note("scan", "first search, with the kernel's compilation, s", round(time.time() - start, 3))
    chosen: dict[float, int] = {}
    for effort in EFFORTS:
        params = SearchParams(plan="scan", rerank=effort)
        found = recall(search(engine, parts["validation"], params), truth["validation"])
        line = rates(bench, engine, batch, params, {512: 5})
        bench.note("scan", f"validation, effort {effort}", {"recall@10": round(found, 4), **line})
        for target in TARGETS:
            if found >= target:
                chosen.setdefault(target, effort)
        if bench.left < 150 or found >= TARGETS[-1]:
            break
    for target, effort in chosen.items():
        params = SearchParams(plan="scan", rerank=effort)
        line = {
            "effort": effort,
            "recall@10": round(recall(search(engine, parts["test"], params), truth["test"]), 4),
            **rates(bench, engine, batch, params, {512: 15, 32: 15, 1: 40}),
        }
        bench.note("scan", f"test, recall {target}", line)
    params = SearchParams(plan="scan", rerank=chosen.get(0.95, 2000))
    count = 10 + int(params.rerank / 2000 * 200 * K**0.5)
    probes = min(cells.count, max(1, int(180 * params.rerank / 2000)))
    parted = bench.rate(partial(cells.search, batch, count, probes), 512, 10)
    bench.note("scan", "codes alone, without vectors", {"probes": probes, "candidates": count, **parted})
    every = np.arange(len(vectors)) % 10 == 0
    passed = bench.rate(partial(search, engine, batch, params, every), 512, 5)
    bench.note("scan", "a tenth passes a filter", passed)


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """How matrix products are computed: "float32", "tf32" or "float16"."""
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        if name == "float16":
            with torch.autocast("cuda", torch.float16):
                yield
        else:
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def decoders(bench: Bench) -> dict[str, Generator]:
    """The paper's decoder at full size, and the one that the package trains, tied to its codebooks; random weights."""
    torch.manual_seed(0)
    sizes = (3, *([4096] * 8))
    paper = GeneratorConfig(width=768, level_sizes=sizes, dropout=0.0)
    if bench.small:
        sizes = (3, *([64] * 8))
        paper = GeneratorConfig(width=768, level_sizes=sizes, dropout=0.0, **SIZES["nano"])  # type: ignore[arg-type]
    quantizer = ResidualQuantizer(QuantizerConfig(width=768, level_sizes=sizes, modality_codebooks_from=1))
    for name, buffer in quantizer.named_buffers():
        if name.startswith("codes"):
            buffer.copy_(torch.randn_like(buffer) * 0.05)
    shape: dict[str, Any] = SIZES["mini"]
    tied = GeneratorConfig(
        width=768, level_sizes=sizes, prefix_tokens=8, dropout=0.0, normalizer="level", head="codebooks", **shape
    )
    return {
        "paper's decoder": Generator(paper).eval().to(bench.device),
        "tied decoder": Generator(tied, quantizer.to(bench.device)).eval().to(bench.device),
    }


def drawn_trie(count: int, sizes: tuple[int, ...], device: torch.device) -> CodeTrie:
    """The trie of random IDs, the first item having the first ID: what `CodeTrie.build` makes, sorted and built on the device."""
    generator = torch.Generator(device).manual_seed(0)
    bits = [max(1, (size - 1).bit_length()) for size in sizes]
    packed = sum(sum(bits[: level + 1]) < 63 for level in range(len(sizes)))  # levels that fit a word
    word = torch.zeros(count, dtype=torch.long, device=device)
    for level in range(packed):
        word = (word << bits[level]) | torch.randint(sizes[level], (count,), generator=generator, device=device)
    word = word.sort().values
    shifts = [sum(bits[level + 1 : packed]) for level in range(packed)]
    firsts: list[Tensor] = []
    for level in range(packed):
        prefix = word >> shifts[level]
        begins = torch.cat([torch.zeros(1, dtype=torch.long, device=device), (prefix[1:] != prefix[:-1]).nonzero()[:, 0] + 1])
        if level >= ALWAYS_EXPLICIT and len(begins) > EXPLICIT_UP_TO * count:
            break
        firsts.append(begins)
    top = len(firsts)

    def column(level: int, at: Tensor | None = None) -> NDArray[np.uint16]:
        if level < packed:
            chosen = word if at is None else word[at]
            codes = (chosen >> shifts[level]) & ((1 << bits[level]) - 1)
        else:
            codes = torch.randint(sizes[level], (count,), generator=generator, device=device)
        return codes.to(torch.int16).cpu().numpy().view(np.uint16)

    arrays: dict[str, NDArray[Any]] = {}
    for level, first in enumerate(firsts):
        arrays[f"codes_{level}"] = column(level, first).astype(np.uint8 if sizes[level] <= 256 else np.uint16)
        child = first
        end = count
        if level + 1 < top:
            child = torch.searchsorted(firsts[level + 1], first)
            end = len(firsts[level + 1])
        arrays[f"child_{level}"] = np.append(child.to(torch.int32).cpu().numpy(), np.int32(end))
    tails = np.empty((count, len(sizes) - top), np.uint8 if max(sizes[top:]) <= 256 else np.uint16)
    for level in range(top, len(sizes)):
        tails[:, level - top] = column(level)
    arrays["tails"] = tails
    arrays["order"] = np.arange(count, dtype=np.int32)
    return CodeTrie(sizes, arrays, top)


def beams(bench: Bench, data: dict[str, Tensor]) -> None:
    """Exact beam search, 50 beams, over ten million IDs, and over as many more as memory and time allow."""
    models = decoders(bench)
    sizes = tuple(models["paper's decoder"].config.level_sizes)
    queries = torch.nn.functional.normalize(torch.randn(512, 768, generator=torch.Generator().manual_seed(1)), dim=1).numpy()
    counts = [5_000, 20_000] if bench.small else [10_000_000, 100_000_000, 1_000_000_000]
    for count in counts:
        if count > 100_000_000 and bench.left < 90:
            bench.note("beams", f"{count:,} IDs", "no time left")
            return
        start = time.time()
        trie = drawn_trie(count, sizes, bench.device)
        bench.free()
        line: dict[str, Any] = {"s": round(time.time() - start, 1), "bytes_per_id": round(trie.nbytes / count, 2)}
        bench.note("beams", f"{count:,} IDs, trie", {**line, "explicit": trie.top})
        for name, model in models.items():
            engine = SearchEngine(model, None, trie, None, str(bench.device))
            truth = engine.search(queries[:32], k=K, params=EXACT)
            for kind in ("float32", "tf32", "float16"):
                if kind == "float16" and bench.device.type == "cpu":
                    continue
                if kind == "tf32" and count > 10_000_000:
                    continue
                with precision(kind):
                    found = engine.search(queries[:32], k=K, params=EXACT)
                    line = {"same_rows_as_float32": round(float((found.rows == truth.rows).mean()), 4)}
                    repeats = {1: 6, 64: 2}
                    if count <= 10_000_000 or kind == "float16":
                        repeats[512] = 2
                    line.update(rates(bench, engine, queries, EXACT, repeats))
                bench.note("beams", f"{count:,} IDs, {name}, {kind}", line)
                if bench.left < 15:
                    return
        del engine, trie
        bench.free()


def measure(file: Path, out: Path, limit: float, small: bool, only: str) -> None:
    bench = Bench(out, limit, small)
    with np.load(file) as arrays:
        data = {name: torch.from_numpy(arrays[name]).to(bench.device, torch.float32) for name in arrays.files}
    for name in ("items", "learn", "validation", "test"):
        data[name] = torch.nn.functional.normalize(data[name], dim=1)
    size = 10_000_000
    if small:
        size = 30_000
        data["items"] = data["items"][:3_000]
        data["validation"] = data["validation"][:40]
        data["test"] = data["test"][:60]
    vectors = torch.empty(0, data["items"].shape[1], dtype=torch.float16, device=bench.device)
    steps: dict[str, Callable[[], None]] = {
        "first search": lambda: first_search(bench, data),
        "flat": lambda: flat(bench, data, vectors),
        "scan": lambda: scan(bench, data, vectors),
        "beams": lambda: beams(bench, data),
    }
    for name, step in steps.items():
        if only and name not in only.split(","):
            continue
        if name == "flat":
            start = time.time()
            vectors = torch.cat(list(filled(data["items"], size)))
            bench.note("data", "filling", {"items": len(vectors), "real": len(data["items"]), "s": round(time.time() - start, 2)})
        if name == "beams":
            vectors = vectors[:0].clone()
            bench.free()
        try:
            step()
        except Exception as error:  # the next step may still work
            traceback.print_exc()
            bench.note("failed", name, f"{type(error).__name__}: {error}"[:400])
        bench.free()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare")
    first.add_argument("file", type=Path)
    first.add_argument("scan", type=Path)
    first.add_argument("data", type=Path)
    first.add_argument("--items", type=int, default=20_000)
    second = commands.add_parser("measure")
    second.add_argument("data", type=Path)
    second.add_argument("--out", type=Path, required=True)
    second.add_argument("--limit", type=float, default=390.0, help="seconds after which nothing new is begun")
    second.add_argument("--small", action="store_true")
    second.add_argument("--only", default="", help="steps, with commas between: first search,flat,scan,beams (scan needs flat)")
    args = parser.parse_args()
    if args.command == "prepare":
        prepare(args.file, args.scan, args.data, args.items)
    else:
        measure(args.data, args.out, args.limit, args.small, args.only)


if __name__ == "__main__":
    main()
