"""`python -m lab bench --plots`: queries/s against collection size (the paper's Figure 4), latency against beams.

Repeats `benchmark.run` at other sizes; the point already measured is not measured again. Few rounds a point: a curve wants many
points more than it wants exact ones. Nothing in the product imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from lab.speed.engine import BenchConfig, run

Note = Callable[[str], None]
SHARES = (1000, 100, 10)  # collections of a thousandth, a hundredth and a tenth of the items
SMALLEST = 1000  # items: below this the collection is smaller than the re-ranking budget
BEAMS = (10, 30, 50, 100)
ROUNDS = 2


def curves(
    config: BenchConfig, measured: dict[str, Any], note: Note = lambda _: None, done: Note = lambda _: None
) -> dict[str, Any]:
    """Runs along both axes through `measured`, which is `run(config)`. `note` hears what is going on, `done` of each point."""
    quick = replace(config, rounds=min(config.rounds, ROUNDS), check=False)
    sizes = sorted({items for share in SHARES if SMALLEST <= (items := config.items // share) < config.items})
    by_size = [replace(quick, items=items) for items in sizes]
    # the trie's size hardly matters to a step and a small one is built at once; dense rivals have no beams
    steady = replace(
        quick, items=sizes[-1] if sizes else config.items, rivals=tuple(r for r in config.rivals if r == "published")
    )
    by_beams = [replace(steady, beams=beams) for beams in sorted({*BEAMS, config.beams})]
    points = []
    for number, point in enumerate([*by_size, *by_beams], 1):
        at = f"point {number} of {len(by_size) + len(by_beams)} ({point.items:,} items, {point.beams} beams)"
        points.append(run(point, lambda line, at=at: note(f"{at}: {line}")))  # type: ignore[misc]
        ours = points[-1]["ours"]
        done(f"{at}: exact {ours['exact']['p50_ms']:,.0f} ms, default {ours['default']['p50_ms']:,.0f} ms a call")
    return {"items": [*points[: len(by_size)], measured], "beams": points[len(by_size) :]}


def plot(measured: dict[str, Any], folder: Path) -> list[str]:
    """Two pictures in `folder`; returns their paths."""
    try:
        import matplotlib
    except ImportError:
        raise GeniusError("plots need matplotlib: pip install 'genius-search[eval]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for key, label, name in (
        ("items", "queries / s", "queries-against-items.png"),
        ("beams", "ms a query", "latency-against-beams.png"),
    ):
        runs = measured[key]
        here = runs[-1]
        lone = here["device"] == "cpu" and here["threads"] == 1
        figure, axes = plt.subplots(figsize=(6, 4))
        lines = {"ours, exact": [r["ours"]["exact"] for r in runs], "ours, default": [r["ours"]["default"] for r in runs]}
        lines |= {rival: [r["rivals"][rival] for r in runs] for rival in here["rivals"]}
        for line, rows in lines.items():
            ms = [_milliseconds(row, lone) for row in rows]
            axes.plot([r[key] for r in runs], [1e3 / m for m in ms] if key == "items" else ms, marker="o", label=line)
        axes.set(xlabel=key, ylabel=label, yscale="log", xscale="log" if key == "items" else "linear")
        other = f"{here['beams']} beams" if key == "items" else f"{here['items']:,} items"
        clock = ", processor time" if lone else ""
        axes.set_title(f"{other}, batch {here['batch']}, {here['device']}, {here['threads']} thread(s){clock}", fontsize=9)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
        figure.savefig(folder / name, dpi=100, bbox_inches="tight")
        plt.close(figure)
        paths.append(str(folder / name))
    return paths


def _milliseconds(row: dict[str, float], lone: bool) -> float:
    """A query by the wall clock; on one CPU thread by processor time: the same on an idle machine, and true on a busy one."""
    return row["cpu_ms_per_query"] if lone else 1e3 / row["qps"]
