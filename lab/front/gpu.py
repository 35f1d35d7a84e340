"""The front on one CUDA device: the default search at 10M, filters, and a billion items.

    PYTHONPATH=src:. python -m lab.front.gpu --out lab/front/gpu.json [--sections default,filter,scale,billion] [--small]

Extends `lab.speed.engine_gpu` (same clock, same notes) by the decoder that `builtin:default` trains (4 layers of 256, tied to its
codebooks). Codes are random, uniform or Zipf: speed, bytes and build time do not depend on what they mean, recall is measured
elsewhere (`lab.front`). `--small` shrinks everything and works on a CPU, to check the program.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from genius.model.generator import SIZES, Generator, GeneratorConfig
from genius.model.quantizer import QuantizerConfig, ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams
from lab.speed.engine_gpu import DEFAULT, EXACT, Bench, random_vectors, synthetic_codes

CODES_ONLY = SearchParams(reranker="codes")
KINDS = ("uniform", "zipf")


class Front(Bench):
    """The bench of the engine, and an engine with codebooks beside it."""

    def __init__(self, small: bool, limit: float, out: Path) -> None:
        super().__init__(small, limit)
        self.out = out
        sizes = (3, *([64] * 4)) if small else (3, *([4096] * 8))
        tiny: dict[str, Any] = SIZES["nano"]
        if small:
            self.config = GeneratorConfig(width=64, level_sizes=sizes, dropout=0.0, **tiny)
            self.generator = Generator(self.config).eval()
        self.quantizer = ResidualQuantizer(QuantizerConfig(width=self.config.width, level_sizes=sizes, own_books_from=1))
        shape: dict[str, Any] = tiny if small else dict(SIZES["mini"])
        own = GeneratorConfig(
            width=self.config.width,
            level_sizes=sizes,
            prefix_tokens=8,
            dropout=0.0,
            normalizer="level",
            head="codebooks",
            **shape,
        )
        self.small_decoder = Generator(own, self.quantizer).eval()

    def own_engine(self, items: int, kind: str = "uniform") -> SearchEngine:
        """Our decoder, its codebooks, and vectors on the device."""
        rows = random_vectors(items, self.config.width, self.device)
        return SearchEngine(
            self.small_decoder, self.quantizer, self.trie(items, kind), rows, device=self.device, precision="fast"
        )

    def note(self, section: str, key: str, value: Any) -> None:
        """Kept at once: a device may be gone before the program ends."""
        super().note(section, key, value)
        self.out.write_text(json.dumps(self.results, indent=1, default=str) + "\n", encoding="utf-8")

    def free(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def batch(self) -> int:
        return 8 if self.small else 512


def default(bench: Front) -> None:
    """The default search in batches and alone, by size of the collection."""
    for items in (4_000,) if bench.small else (1_000_000, 10_000_000):
        for kind in KINDS:
            engine = bench.own_engine(items, kind)
            row = {
                "batches": bench.rate(engine, DEFAULT, bench.batch, 12),
                "one": bench.rate(engine, DEFAULT, 1, 30),
                "half the effort, batches": bench.rate(engine, SearchParams(rerank=1000), bench.batch, 12),
                "codes only, batches": bench.rate(engine, CODES_ONLY, bench.batch, 12),
            }
            bench.note("default", f"{items} {kind}", row)
            del engine
            bench.free()


def filter(bench: Front) -> None:
    """A filter that a tenth passes, deletions of a tenth, additions that were not folded in, against none of them."""
    items = 4_000 if bench.small else 10_000_000
    engine = bench.own_engine(items)
    random = torch.rand(items, generator=torch.Generator(bench.device).manual_seed(3), device=bench.device)
    z = bench.queries(bench.batch)
    tenth = random < 0.1

    def rate(engine: SearchEngine, mask: torch.Tensor | None) -> dict[str, float]:
        out = bench.time(lambda: engine.search(z, k=10, params=DEFAULT, allowed=mask), 10)
        return {**out, "qps": 1e3 * bench.batch / out["p50_ms"]}

    row: dict[str, Any] = {"unfiltered": rate(engine, None), "a tenth passes": rate(engine, tenth)}
    row["a tenth passes, another filter every time"] = bench.time(
        lambda: engine.search(z, k=10, params=DEFAULT, allowed=tenth.clone()), 10
    )
    row["a hundredth passes"] = rate(engine, random < 0.01)
    found = engine.search(z, k=10, params=DEFAULT, allowed=tenth)
    row["all found pass"] = bool(tenth[found.rows.clamp(min=0)].all())
    new = items // 1000
    codes = synthetic_codes(new, bench.config.level_sizes, "uniform", bench.device).cpu().numpy()
    width = bench.config.width
    more = engine.changed(items, codes, torch.randn(new, width, device=bench.device).half(), None)
    row["a thousandth added"] = rate(more, None)
    alive = (torch.cat([random, torch.ones(new, device=bench.device)]) >= 0.1).cpu().numpy()
    row["a thousandth added, a tenth deleted"] = rate(engine.changed(items, codes, torch.randn(new, width).half(), alive), None)
    bench.note("filter", str(items), row)


def scale(bench: Front) -> None:
    """Codes only, no vectors: 100M."""
    items = 8_000 if bench.small else 100_000_000
    for kind in KINDS:
        engine = SearchEngine(
            bench.small_decoder, bench.quantizer, bench.trie(items, kind), None, device=bench.device, precision="fast"
        )
        bench.note("scale", f"{items} {kind}, codes only, batches", bench.rate(engine, CODES_ONLY, bench.batch, 8))
        bench.note("scale", f"{items} {kind}, codes only, one", bench.rate(engine, CODES_ONLY, 1, 20))
        bench.note("scale", f"{items} {kind}, full depth, batches", bench.rate(engine, EXACT, bench.batch, 5))
        del engine
        bench.tries.clear()
        bench.free()


def billion(bench: Front) -> None:
    """Build, bytes and latency of a billion items against 100,000 of the same sort, uniform and clustered, with the paper's
    full-size decoder and with ours. Codes are made on the device, sorted there, and the trie is laid back on it."""
    for kind in KINDS:
        small = bench.engine(1_000 if bench.small else 100_000, "fast", kind=kind)
        reference = {"exact, one": bench.rate(small, EXACT, 1, 40), "exact, batches of 64": bench.rate(small, EXACT, 64, 8)}
        bench.note("billion", f"100,000 {kind}", reference)
        del small
        items = 20_000 if bench.small else 1_000_000_000
        while items > 1:  # a smaller collection where this one does not fit
            try:
                bench.free()
                codes = synthetic_codes(items, bench.config.level_sizes, kind, bench.device)
                bench.sync()
                start = time.time()
                trie = CodeTrie.build(codes, bench.config.level_sizes)
                built = time.time() - start
                break
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                bench.note("billion", f"{items} {kind} failed", f"{type(error).__name__}: {error}"[:200])
                items //= 2
        del codes
        bench.free()
        bench.note(
            "billion", f"{items} {kind}, build", {"seconds": built, "bytes_per_item": trie.nbytes / items, "ids": trie.ids}
        )
        start = time.time()
        for name, decoder, quantizer in (
            ("paper's decoder", bench.generator, None),
            ("ours", bench.small_decoder, bench.quantizer),
        ):
            engine = SearchEngine(decoder, quantizer, trie, None, device=bench.device, precision="fast")
            bench.sync()
            row: dict[str, Any] = {"exact, one": bench.rate(engine, EXACT, 1, 40)}
            row["exact, batches of 64"] = bench.rate(engine, EXACT, 64, 5)
            if name == "paper's decoder":
                row[f"against 100,000 {kind}, one"] = row["exact, one"]["p50_ms"] / reference["exact, one"]["p50_ms"]
            bench.note("billion", f"{items} {kind}, {name}", row)
            del engine
            bench.free()
        del trie


SECTIONS: dict[str, Callable[[Front], None]] = {"default": default, "filter": filter, "scale": scale, "billion": billion}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab/front/gpu.json"))
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--limit", type=float, default=550.0, help="seconds after which no new section starts")
    options = parser.parse_args()
    bench = Front(options.small, options.limit, options.out)
    cuda = bench.device.type == "cuda"
    name = torch.cuda.get_device_name() if cuda else platform.processor()
    bench.results["machine"] = {"device": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    for section in options.sections.split(","):
        if bench.left() < 5:
            bench.note("skipped", section, "no time left")
            continue
        try:
            SECTIONS[section](bench)
        except Exception as error:
            bench.note("failed", section, f"{type(error).__name__}: {error}"[:300])
            traceback.print_exc()
        bench.tries.clear()
        bench.free()


if __name__ == "__main__":
    main()
