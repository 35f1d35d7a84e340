"""Figure 4: queries a second against the size of the collection, with the encoder's own time in it, and a GRACE row.

Every search is measured with its queries given as features; what the encoder takes for a query, of words and of a picture,
is measured beside it and added. A GRACE row has GRACE's kind of identifier under this model's own decoder, not Flamingo-3B.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from genius.data.features import FeatureSet
from genius.encoders.base import encode_queries
from genius.evaluate import EvalConfig, Evaluation, evaluate
from genius.evaluate.generative import BeamMethod
from genius.evaluate.report import markdown_table, method_title
from genius.model.genius import Genius
from genius.types import Query
from lab.paper import printed as paper
from lab.paper.table import Table, plots, png

TIMED, BATCH = 256, 64  # queries that the encoder is timed on, and how many at once


def encoder_seconds(model: Genius) -> dict[str, float]:
    """Of one query of twelve words, and of one picture of 256 pixels; empty where the model has no encoder."""
    if model.encoder is None:
        return {}
    words = [Query(text=" ".join(f"word{(7 * i + j) % 97}" for j in range(12))) for i in range(TIMED)]
    noise = np.random.default_rng(0)
    drawn = [Query(image=Image.fromarray(noise.integers(0, 256, (256, 256, 3), dtype=np.uint8))) for _ in range(TIMED // 4)]
    out = {}
    for name, asked in (("text", words), ("image", drawn)):
        encode_queries(model.encoder, asked[:BATCH], batch_size=BATCH)  # the first products are slow
        start = time.perf_counter()
        encode_queries(model.encoder, asked, batch_size=BATCH)
        out[name] = (time.perf_counter() - start) / len(asked)
    return out


def shrink(data: FeatureSet, size: int, queries: int) -> FeatureSet:
    """A smaller problem of the same kind: some queries, their positives, and others up to `size` candidates."""
    return _shrunk(data, size, queries)[0]


def _shrunk(data: FeatureSet, size: int, queries: int) -> tuple[FeatureSet, np.ndarray, np.ndarray]:
    """The same, and which queries and which candidates it has."""
    spread = np.linspace(0, len(data.queries) - 1, min(queries or len(data.queries), len(data.queries))).astype(np.int64)
    rows = np.unique(spread)
    asked = data.take_queries(torch.from_numpy(rows))
    if size >= len(data.pool):
        return asked, rows, np.arange(len(data.pool))
    needed = torch.unique(asked.pairs[:, 1])
    others = torch.from_numpy(np.random.default_rng(0).permutation(len(data.pool)))
    keep = torch.cat([needed, others[~torch.isin(others, needed)]])[: max(size, len(needed))].sort().values
    return replace(asked.take_pool(keep), pools={}), rows, keep.numpy()


def _over(method: BeamMethod, queries: np.ndarray, rows: np.ndarray) -> BeamMethod:
    """A baseline that knows the whole pool, over a part of it."""
    source = method.source
    asked = source.queries[torch.from_numpy(queries).to(source.queries.device)]
    part = dataclasses.replace(source, codes=source.codes[rows], queries=asked, kept={})
    return dataclasses.replace(method, source=part)


def speed(
    name: str,
    experiment: Any,
    queries: int,
    model: Genius,
    data: FeatureSet,
    baselines: list[BeamMethod],
    say: Callable[[str], None],
) -> Table:
    """Queries per second on growing parts of the pool."""
    found: dict[int, Evaluation] = {}
    for wanted in [*(size for size in experiment.sizes if size < len(data.pool)), len(data.pool)]:
        part, asked, rows = _shrunk(data, wanted, queries or experiment.queries)
        size = len(part.pool)  # more than wanted where the queries have more answers: the column must say so
        say(f"{size:,} candidates")
        config = EvalConfig(methods=experiment.methods, beams=experiment.beams, pools=("universal",), bootstrap=0)
        found[size] = evaluate(model, part, config, extra=[_over(method, asked, rows) for method in baselines], progress=say)
    encoder = encoder_seconds(model)
    results = [
        {
            "method": result.method,
            "candidates": size,
            "queries_per_second": result.queries_per_second,
            **{f"with_encoder_{kind}": 1 / (1 / result.queries_per_second + own) for kind, own in encoder.items()},
        }
        for size, evaluation in found.items()
        for result in {result.method: result for result in evaluation.results}.values()
    ]
    results += [{"encoder": kind, "seconds": own} for kind, own in encoder.items()]
    body = "\n\n".join(_tables(list(found), results, encoder))
    return Table(name, experiment.title, body, found[max(found)].about, results, {f"{name}.png": _drawn(results, encoder)})


def _tables(sizes: list[int], results: list[dict[str, Any]], encoder: dict[str, float]) -> list[str]:
    blocks = []
    columns = {"queries/s at": "queries_per_second", "the same with the encoder, asked in words": "with_encoder_text"}
    methods = list(dict.fromkeys(r["method"] for r in results if "method" in r))
    for title, key in columns.items():
        if key == "with_encoder_text" and not encoder:
            blocks.append("The model has no encoder, so its time is not in these figures.")
            continue
        rows = []
        for method in methods:
            rates = {r["candidates"]: r[key] for r in results if r.get("method") == method}
            printed = paper.FIGURE_4.get(method)
            cells = [f"{rates[size]:,.1f}" for size in sizes]
            rows.append([method_title(method), *cells, f"{printed:g}" if printed else "–"])
        blocks.append(markdown_table([title, *(f"{size:,}" for size in sizes), "paper, RTX 3090"], rows))
    if encoder:
        each = ", ".join(f"{1000 * own:.1f} ms for {kind}" for kind, own in encoder.items())
        blocks.append(f"The encoder takes {each} a question, {BATCH} at once.")
    return blocks


def _drawn(results: list[dict[str, Any]], encoder: dict[str, float]) -> bytes:
    keys = {"features given": "queries_per_second"} | ({"with the encoder (words)": "with_encoder_text"} if encoder else {})
    figure, axes = plots(5 * len(keys) + 2, 4, len(keys))
    shown = [r[key] for r in results for key in keys.values() if key in r]
    for place, (title, key) in zip(axes[0], keys.items(), strict=True):
        for method in dict.fromkeys(r["method"] for r in results if "method" in r):
            points = [(r["candidates"], r[key]) for r in results if r.get("method") == method]
            place.plot(*zip(*points, strict=True), marker="o", label=method_title(method))
        for scale, axis in ((place.set_xscale, place.xaxis), (place.set_yscale, place.yaxis)):
            scale("log", subs=(2, 5))
            axis.set_major_formatter("{x:,.0f}")
            axis.set_minor_formatter("{x:,.0f}")
        place.set_ylim(0.8 * min(shown), 1.25 * max(shown))  # the same on both: what the encoder costs is seen
        place.set_xlabel("candidates")
        place.set_ylabel("questions a second")
        place.set_title(title)
    axes[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return png(figure)
