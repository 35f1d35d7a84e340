"""`python -m lab bench`: the search engine against its rivals, on synthetic codes at full-size shapes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from genius.cli.common import command, console, emit


@command
def bench(
    items: Annotated[int, typer.Option(help="Items in the collection.")] = 100_000,
    beams: Annotated[int, typer.Option(help="Beams of every search.")] = 50,
    batch: Annotated[int, typer.Option(help="Queries a call.")] = 1,
    rerank: Annotated[int, typer.Option(help="Re-ranking budget of the default search.")] = 2000,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    codes: Annotated[str, typer.Option(help="How codes are drawn: uniform or zipf.")] = "uniform",
    rivals: Annotated[
        str, typer.Option(help="Comma-separated: published, faiss-flat, faiss-hnsw, faiss-ivfpq, gpu-flat; or none.")
    ] = "published",
    rounds: Annotated[int, typer.Option(help="Turns of every contender; medians are reported.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads for everyone; 0: all.")] = 0,
    size: Annotated[str, typer.Option(help="Decoder: small (the paper's), mini or tiny.")] = "small",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure queries/s, latency, bytes per item and build time; the rivals run in the same run, on the same weights.

    "published" is `transformers` generate with a callback over a nested-dict trie; its results are checked to be equal.

    Example: python -m lab bench --items 1000000 --beams 50 --batch 8 --rivals published,faiss-flat
    """
    from genius.errors import GeniusError
    from genius.model.generator import SIZES, GeneratorConfig
    from lab.speed import engine

    if size not in SIZES:
        raise GeniusError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    config = engine.BenchConfig(
        items=items,
        beams=beams,
        batch=batch,
        rerank=rerank,
        device=device,
        codes=codes,
        rivals=tuple(name.strip() for name in rivals.split(",") if name.strip() and name.strip() != "none"),
        rounds=rounds,
        threads=threads,
        generator=GeneratorConfig(dropout=0.0, **SIZES[size]),  # type: ignore[arg-type]
    )
    with console.status("starting") as status:
        note = status.update
        result = engine.run(config, note)
    if json:
        emit(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{result['items']:,} items, {result['beams']} beams, batch {result['batch']}, {result['device']}"
    table = Table("search", "queries/s", "p50 ms", "p95 ms", "times published", title=title)
    published = result["rivals"].get("published")
    rows = {"ours, exact": result["ours"]["exact"], "ours, default": result["ours"]["default"], **result["rivals"]}
    for name, row in rows.items():
        times = f"{row['qps'] / published['qps']:.1f}" if published else ""
        table.add_row(name, f"{row['qps']:,.1f}", f"{row['p50_ms']:,.1f}", f"{row['p95_ms']:,.1f}", times)
    out = Console()
    out.print(table)
    out.print(f"codes + trie: {result['bytes_per_item']:.1f} bytes an item, built in {result['build_s']:.2f} s")
    if result["equal_to_published"] is not None:
        out.print(
            "results equal to the published way" if result["equal_to_published"] else "[red]results differ from the published way"
        )
