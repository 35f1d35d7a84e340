"""What `python -m lab bench` measures: our search and its rivals on the same weights, codes and queries, in one run.

Contenders take turns round by round, so that a busy machine is busy for all of them. Random weights at full-size shapes:
speed does not depend on what the weights know. Nothing in the product imports this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.generator import Generator, GeneratorConfig
from genius.ranking import nearest_rows
from genius.search.beam import beam_search
from genius.search.engine import SearchEngine
from genius.search.params import SearchParams
from genius.search.trie import CodeTrie
from lab.speed.rivals import RIVALS, faiss_index, published_search

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """One run."""

    items: int = 100_000  # size of the collection
    beams: int = 50
    batch: int = 1  # queries a call
    rerank: int = 2000  # R of the default search
    k: int = 10  # results a query
    device: str = "cpu"
    codes: str = "uniform"  # how codes are drawn: uniform, or zipf (code c has weight 1 / (c + 1))
    rivals: tuple[str, ...] = ("published",)
    rounds: int = 3  # turns of every contender
    threads: int = 0  # CPU threads of everyone; 0: as torch has it
    check: bool = True  # compare our results with the published way's, where that is among the rivals
    generator: GeneratorConfig = field(default_factory=lambda: GeneratorConfig(dropout=0.0))

    def __post_init__(self) -> None:
        for name in ("items", "beams", "batch", "k", "rounds"):
            if getattr(self, name) < 1:
                raise GeniusError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.rerank < 1:
            raise GeniusError(f"rerank must be at least 1 (the exact search is measured anyway), got {self.rerank}")
        if self.codes not in ("uniform", "zipf"):
            raise GeniusError(f"codes must be 'uniform' or 'zipf', got {self.codes!r}")
        unknown = sorted(set(self.rivals) - set(RIVALS))
        if unknown:
            raise GeniusError(f"unknown rival {unknown[0]!r}; known: {', '.join(RIVALS)}")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise GeniusError("no CUDA device here: use --device cpu")


def synthetic_codes(items: int, sizes: Sequence[int], kind: str, seed: int = 0) -> NDArray[np.int64]:
    """(items, M) codes: uniform, or Zipf at every level but the first."""
    rng = np.random.default_rng(seed)
    columns = []
    for level, size in enumerate(sizes):
        if kind == "zipf" and level:
            weights = 1.0 / np.arange(1, size + 1)
            columns.append(np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(items)).clip(max=size - 1))
        else:
            columns.append(rng.integers(0, size, items))
    return np.stack(columns, axis=1).astype(np.int64)


def random_rows(items: int, width: int, seed: int = 2) -> Tensor:
    """(items, width) fp16 unit vectors."""
    rows = torch.empty(items, width, dtype=torch.float16)
    generator = torch.Generator().manual_seed(seed)
    for part in rows.split(1 << 16):
        part.copy_(torch.nn.functional.normalize(torch.randn(part.shape, generator=generator), dim=1))
    return rows


def run(config: BenchConfig, note: Note = lambda _: None) -> dict[str, Any]:
    """Measure; the result is ready for JSON."""
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(0)
    generator = Generator(config.generator).eval()
    sizes, width = config.generator.level_sizes, config.generator.width
    note(f"{config.items:,} {config.codes} codes")
    codes = synthetic_codes(config.items, sizes, config.codes)
    start = time.perf_counter()
    trie = CodeTrie.build(codes, sizes)
    build_s = time.perf_counter() - start
    vectors = random_rows(config.items, width)
    z = torch.nn.functional.normalize(torch.randn(config.batch, width), dim=1)
    contenders, published = _rivals(config, generator, codes, vectors, z, note)
    equal = None if published is None or not config.check else _equal(generator, trie, z, config.beams, published, note)
    engine = SearchEngine(generator, None, trie, vectors, device=config.device)
    exact = SearchParams(beams=config.beams, rerank=0, reranker="none")
    default = SearchParams(beams=config.beams, rerank=config.rerank)
    placed = z.to(config.device)
    everyone: dict[str, Callable[[], Any]] = {
        "exact": lambda: engine.search(placed, k=config.k, params=exact),
        "default": lambda: engine.search(placed, k=config.k, params=default),
        **contenders,
    }
    times = _take_turns(everyone, config.rounds, config.device, note)
    out = {name: _summary(walls, processors, config.batch) for name, (walls, processors) in times.items()}
    touched = engine.search(placed, k=config.k, params=default).considered.mean()
    return {
        "ours": {"exact": out.pop("exact"), "default": {**out.pop("default"), "items_touched": touched}},
        "rivals": out,
        "equal_to_published": equal,
        "bytes_per_item": round(trie.nbytes / config.items, 3),
        "build_s": round(build_s, 3),
        "items": config.items,
        "beams": config.beams,
        "batch": config.batch,
        "rerank": config.rerank,
        "codes": config.codes,
        "device": config.device,
        "threads": torch.get_num_threads(),
    }


def _rivals(
    config: BenchConfig, generator: Generator, codes: NDArray[np.int64], vectors: Tensor, z: Tensor, note: Note
) -> tuple[dict[str, Callable[[], Any]], Any]:
    """What each asked-for rival runs, and the published search if it is among them."""
    contenders: dict[str, Callable[[], Any]] = {}
    published = None
    for name in config.rivals:
        note(f"preparing {name}")
        if name == "published":
            rival = published_search(generator.to(config.device), codes)
            published = rival
            placed = z.to(config.device)
            contenders[name] = partial(rival.search, placed, config.beams)
        elif name == "gpu-flat":
            if not config.device.startswith("cuda"):
                raise GeniusError("the rival gpu-flat needs --device cuda")
            rows, queries = vectors.to(config.device), z.to(config.device).half()
            contenders[name] = partial(_flat, queries, rows, config.k)
        else:
            search = faiss_index(name.removeprefix("faiss-"), vectors.float().numpy(), torch.get_num_threads())
            contenders[name] = partial(search, z.numpy(), config.k)
    return contenders, published


def _flat(queries: Tensor, rows: Tensor, k: int) -> Tensor:
    return nearest_rows(queries, rows, k)


def _equal(generator: Generator, trie: CodeTrie, z: Tensor, beams: int, published: Any, note: Note) -> bool:
    """Same IDs in the same order (a tie may swap two), scores within 1e-4."""
    note("comparing with the published way")
    device = generator.tokens.weight.device
    theirs, scores = published.search(z.to(device), beams)
    ours = beam_search(generator, trie, z.to(device), beams)
    mine, my_scores = ours.codes.cpu(), ours.scores.cpu()
    real = torch.isfinite(my_scores)  # beyond the existing IDs the published way repeats itself at -1e9
    close = bool(((my_scores - scores).abs()[real] < 1e-4).all())
    differs = ~(mine == theirs).all(2) & real
    gap = torch.full_like(my_scores, torch.inf)
    gap[:, 1:] = (my_scores[:, 1:] - my_scores[:, :-1]).abs()
    gap[:, :-1] = torch.minimum(gap[:, :-1], gap[:, 1:])
    return close and bool((gap[differs] < 1e-5).all())


def _take_turns(
    everyone: dict[str, Callable[[], Any]], rounds: int, device: str, note: Note
) -> dict[str, tuple[list[float], list[float]]]:
    """Wall and processor seconds of every call; a first, uncounted turn warms up."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in everyone}
    for turn in range(rounds + 1):
        for name, call in everyone.items():
            note(f"round {turn} of {rounds}: {name}")
            for _ in range(1 if name in RIVALS or turn == 0 else 3):
                _wait(device)
                wall, processor = time.perf_counter(), time.process_time()
                call()
                _wait(device)
                if turn:
                    times[name][0].append(time.perf_counter() - wall)
                    times[name][1].append(time.process_time() - processor)
    return times


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _summary(walls: list[float], processors: list[float], batch: int) -> dict[str, float]:
    """Of calls: queries a second and milliseconds by the wall clock, processor milliseconds a query."""
    middle = float(np.median(walls))
    return {
        "qps": round(batch / middle, 3),
        "p50_ms": round(1e3 * middle, 3),
        "p95_ms": round(1e3 * float(np.quantile(walls, 0.95)), 3),
        "cpu_ms_per_query": round(1e3 * float(np.median(processors)) / batch, 3),
    }
