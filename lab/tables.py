"""Tables of docs/tab.md, onramp.md, serving.md, training.md and engine.md, from the JSON that their programs wrote.

    python -m lab.tables

A table is known by its first line; what is below it on the page, up to the first empty line, is written anew. Sentences around
tables belong to the pages. A test compares pages and files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lab import ROOT

RESULTS, DOCS = ROOT / "lab" / "results", ROOT / "docs"
SCREENS = {
    "start": "start",
    "search": "results",
    "why": "explanation",
}
SEARCHES = {"default": "default (compares 2,500)", "genius-r": "GENIUS^R (about 50)", "genius": "GENIUS, log p alone"}
TASKS = ("title->photo", "photo->photo")
Row = tuple[str, ...]


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Write the part of a page between two marks anew.

    Args:
        page: The file.
        begin: The mark before it.
        end: The mark after it.
        text: What stands between them from now on.
    """
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def read(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return body


def source(name: str) -> str:
    return f"[figures](../lab/results/{name}.json)"


def tab() -> list[Row]:
    """What the folder of the tab weighs, how soon it answers, and how many answers are Python's."""
    ids, vectors = read("tab")["folders"]
    of = {found["search"]: found for folder in (ids, vectors) for found in folder["searches"]}
    codes, whole, plain = of["default-codes"], of["default"], of["genius"]
    parts = ", ".join(
        f"{called} {ids['megabytes_by_part'][part]:.1f}"
        for part, called in (("model", "model"), ("pictures", "images"), ("rest", "the remaining files"))
    )
    tied = whole["equal_to_python"] - whole["equal_without_allowing_for_ties"]
    second = [f"{folder['first_answer_s']} s, {folder['loaded_s']:.2f} s after the page was opened" for folder in (ids, vectors)]
    took = {name: f"{found['search_ms_median'] / 1000:.2f} s" for name, found in of.items()}
    return [
        ("", "IDs alone", "with `--vectors`"),
        (
            "the folder",
            f"{ids['megabytes']:.1f} MB: {parts}",
            f"{vectors['megabytes']:.1f} MB",
        ),
        (
            f"{codes['questions']} queries, *Compare all*: the ten hits of Python in its order",
            f"{codes['equal_to_python']} (`default-codes`)",
            f"{whole['equal_to_python']} (`default`; {tied} of them up to equal scores)",
        ),
        (f"{plain['questions']} of them, *Beam search*: those of `genius`", f"{plain['equal_to_python']}", ""),
        ("from Enter to the first hits, on one thread", *second),
        ("a query, *Compare all* / *Beam search*", f"{took['default-codes']} / {took['genius']}", took["default"]),
    ]


def screens() -> list[Row]:
    """What Chromium measured of every screen of the page."""
    measured = read("page")["screens"]
    rows: list[Row] = [("screen", "first paint", "complete", "bytes without images", "with images")]
    for name, called in SCREENS.items():
        found = measured[name]
        paint, shown = f"{found['first_paint_ms'] / 1000:.2f} s", f"{found['shown_s']:.1f} s"
        rows.append((called, paint, shown, *(f"{found[size] / 1000:,.0f} kB" for size in ("bytes_without_pictures", "bytes"))))
    return rows


def attacks() -> list[Row]:
    """A bystander of the service before and during each attack."""
    body = json.loads((ROOT / "lab" / "trust" / "attacks.json").read_text(encoding="utf-8"))
    rows: list[Row] = [("attack", "search p50, p99 before", "during", "`/healthz` p99", "recovery", "within 2 x + 1 s")]
    for name, found in body["results"].items():
        before, during = (
            f"{found[when]['search_p50_s']:.2f}, {found[when]['search_p99_s']:.2f}" for when in ("before", "during")
        )
        within = "yes"
        if not found["passes"]:
            within = f"**no** (limit {found['limit_s']:.2f})"
        rows.append((name, before, during, f"{found['during']['healthz_p99_s']:.2f}", f"{found['recovery_s']:.1f}", within))
    return rows


def kept() -> list[Row]:
    """What a fit without pairs keeps of dense search: the seed on which sizes were chosen, and another."""
    fits = [read("onramp")["results"], read("onramp_seed11")["results"]]
    rows: list[Row] = [("hit@5 as a share of dense", *TASKS, *(f"{task}, other seed" for task in TASKS))]
    hits = [fit["made-up questions"][task]["hit@5"]["dense"] for fit in fits for task in TASKS]
    rows.append(("dense, hit@5", *(f"{100 * hit:.1f} %" for hit in hits)))
    for questions, before in (("made-up questions", ""), ("random directions", "... fitted with random directions only: ")):
        for search, called in SEARCHES.items():
            shares = [fit[questions][task]["share of dense"][search] for fit in fits for task in TASKS]
            name = called if not before else before + called.split(" (")[0].split(",")[0]
            rows.append((name, *(f"{share:.3f}" for share in shares)))
    return rows


def costs() -> list[Row]:
    """Time and memory of `genius index --encoder` by number of photos, encoder by encoder; and of a fit alone."""
    rows: list[Row] = [("cost (one core of a shared machine)", "processor time", "peak memory")]
    runs = [(path.stem, body) for path in RESULTS.glob("onramp_*.json") if "photos" in (body := read(path.stem))]
    for name, body in sorted(runs, key=lambda run: (not run[1]["encoder"].startswith("bundled"), run[1]["photos"])):
        what = (
            f"{body['photos']:,} photos, {body['large']} of 48 megapixels, {body['encoder']}, encoding included ({source(name)})"
        )
        rows.append((what, f"{body['index']['cpu_seconds']:,.0f} s", f"{body['index']['peak_memory_mb']:,} MB"))
    fit = read("onramp_time")
    what = f"a fit to {fit['vectors']:,} synthetic vectors of width {fit['width']}"
    what += f", {fit['threads']} idle cores: {fit['seconds']:.0f} s of wall time"
    return [*rows, (f"{what} ({source('onramp_time')})", f"{fit['cpu_seconds']:.0f} s", f"{fit['peak_memory_mb']:,} MB")]


HALVES = {"A": "half A", "B": "half B"}  # of `lab/wordings/blind.json`


def wordings() -> list[Row]:
    """hit@5 with other wordings of instructions than those of training."""
    rows: list[Row] = [("wordings", "instructions", "hit@5", "points lost", "right modality first")]
    first = [line for line in read("wordings_blind_fashion_first")["lines"] if line.get("instructions") == "read"]
    lines = [line | {"instructions": "read, first run"} for line in first] + read("wordings_blind_fashion")["summary"][1:]
    for line in sorted(lines, key=lambda line: ("usual", "rare").index(line["wording"])):
        name = f"{line['wording']}, {HALVES[line['half']]}"
        numbers = (f"{line['hit@5']:.1f}", f"{line['drop']:.1f}", f"{line['right_modality_first']:.3f}")
        rows.append((name, line["instructions"], *numbers))
    return rows


def wordings_read() -> list[Row]:
    """How many wordings are read as asking for the right modality."""
    found: dict[str, list[str]] = {}
    ways = []
    for line in read("wordings_blind")["lines"]:
        name = f"{line['wording']}, {HALVES[line['half']]}"
        if line["wording"] == "M-BEIR":
            name = "M-BEIR"
        found.setdefault(name, []).append(f"{line['right']} of {line['wordings']}")
        ways.append(line["instructions"])
    return [("wordings", *dict.fromkeys(ways)), *((name, *cells) for name, cells in found.items())]


def decoder(benchmark: str) -> list[Row]:
    """What the decoder contributes: share of dense search that is given the target, its mean and its worst task."""
    found: dict[str, list[str]] = {}
    for line in read(f"decoder_{benchmark}")["summary"]:
        found.setdefault(line["variant"], [str(line["seeds"])]).append(f"{line['mean']:.3f} / {line['worst']:.3f}")
    head = (f"{benchmark}: codes scored by", "seeds", "GENIUS", "with item bias", "GENIUS^R", "with item bias")
    return [head, *((name, *cells) for name, cells in found.items())]


PAGES: dict[str, tuple[Callable[[], list[Row]], ...]] = {
    "tab": (tab,),
    "serving": (screens, attacks),
    "onramp": (kept, costs),
    "training": (wordings, wordings_read),
    "engine": (partial(decoder, "fashion"), partial(decoder, "icons")),
}


def page(name: str) -> str:
    """The page with its tables as the files have them."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for make in PAGES[name]:
        head, *rows = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in make()]
        before, found, rest = text.partition(head + "\n")
        if not found:
            raise SystemExit(f"docs/{name}.md has no table that begins with {head}")
        rule = rest.split("\n", 1)[0]
        text = before + "\n".join([head, rule, *rows]) + "\n\n" + rest.partition("\n\n")[2]
    return text


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / f"{name}.md").write_text(page(name), encoding="utf-8")
