"""The tables of measured facts in README.md and docs/index.md, from committed JSON.

    python -m lab.facts        replaces the text between `<!-- facts -->` and `<!-- /facts -->` in both files

Rows of our recipe come from `lab.above_dense`; those of other recipes from `lab.paper` and `lab.bundled`.
"""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

from lab import ROOT

PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
MARKS = re.compile(r"(<!-- facts -->\n).*?(<!-- /facts -->)", re.DOTALL)
PAPER = {
    "genius": "GENIUS, the paper's recipe, codes 3 + 3 x 64",
    "genius-r": "GENIUS^R, the paper's recipe, codes 3 + 3 x 64",
}
PUBLISHED = {
    "dense": "the published code's recipe, codes 3 + 8 x 4096: dense (score fusion)",
    "genius@30": "GENIUS, the published code's recipe, 30 beams",
    "genius-r@30": "GENIUS^R, the published code's recipe, 30 beams",
}
BUNDLED = {
    "dense": "`bundled:mini`: dense, exhaustive",
    "genius-r": "`bundled:mini`: GENIUS^R, 50 beams",
    "genius": "`bundled:mini`: GENIUS, 50 beams",
}
OURS = {
    "dense, target given": "dense, exhaustive, target modality given",
    "default, no bias": "default search (`Flat` or `Scan`), item bias off",
    "default, with bias": "**default search** (item bias from a bank of queries)",
    "codes, no bias": "codes only: no vectors stored, item bias off",
    "codes, with bias": "codes only",
    "GENIUS, 50 beams, with bias": "GENIUS: `Beam`, 50 beams, ranked by log-probability (2,000 queries)",
    "GENIUS^R, 50 beams, with bias": "GENIUS^R: the same beams, re-ranked by embeddings (2,000 queries)",
    "default, with bias, 10% of items added later": "default search, items added later (a tenth)",
    "default, with bias, 90% of items added later": "default search, items added later (nine tenths)",
}

COUNTS = {1: "one training", 2: "two trainings", 3: "three trainings"}


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return found


def cell(hits: list[float], means: list[float], worsts: list[float]) -> str:
    """`51.1 % (0.95 / 0.87)`: hit@5, share of dense search as mean over tasks and on the worst task; means over trainings."""
    hit = 100 * statistics.mean(hits)
    return f"{hit:.1f} % ({statistics.mean(means):.2f} / {statistics.mean(worsts):.2f})"


def trainings(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The measured methods of every training over all items, with the target modality unknown."""
    lines = [line for line in body["lines"] if "methods" in line and line.get("target") == "unknown"]
    return [line["methods"] for line in lines if line["name"] in ("all items", "bundled:mini")]


def measured(body: dict[str, Any], method: str) -> str:
    """One cell of the table; empty if the method was not measured."""
    found = [methods[method] for methods in trainings(body) if method in methods]
    if not found:
        return ""
    hits = [statistics.mean(one["hit@5"].values()) for one in found]
    return cell(hits, [one["mean"] for one in found], [one["worst"] for one in found])


def paper(body: dict[str, Any], method: str) -> str:
    """The same for the rows that were trained with the paper's recipe."""
    hits, means, worsts = [], [], []
    for line in body["lines"]:
        if line["row"] != "GENIUS":
            continue
        tasks = line["hit@5"]["universal"]
        shares = [tasks[method][task] / dense for task, dense in tasks["dense"].items()]
        hits.append(statistics.mean(tasks[method].values()))
        means.append(statistics.mean(shares))
        worsts.append(min(shares))
    return cell(hits, means, worsts)


def published(body: dict[str, Any], data: str, method: str) -> str:
    """The same for the rows that were trained with the published code's recipe: last weights, shares of its own dense search."""
    found = [line["last"][method] for line in body["lines"] if (line["part"], line["data"]) == ("published", data)]
    hits = [statistics.mean(one["hit@5"].values()) for one in found]
    return cell(hits, [one["mean"] for one in found], [one["worst"] for one in found])


def ours() -> str:
    """Searches of the recipe: hit@5, and its share of dense search that is given the target modality."""
    bodies = [read("lab/results/above_dense_fashion.json"), read("lab/results/above_dense_icons.json")]
    columns = [(body, candidates) for candidates in ("unseen", "all") for body in bodies]
    heads = [_head(body, candidates) for body, candidates in columns]
    rows = [f"| our recipe, `builtin:default` | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    for search, name in OURS.items():
        cells = []
        for body, candidates in columns:
            found = [line for line in body["summary"] if _is(line, search, candidates)]
            cells.append("".join(f"{_of_line(line)}{_fewer(line, body)}" for line in found))
        row = " | ".join([name, *cells])
        rows.append(f"| {row} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(rows)


def _of_line(line: dict[str, Any]) -> str:
    return f"{100 * statistics.mean(line['hit@5'].values()):.1f} % ({line['mean']:.3f} / {line['worst']:.3f})"


def _fewer(line: dict[str, Any], body: dict[str, Any]) -> str:
    """Where a row has fewer trainings than its column."""
    if line["seeds"] == len(body["runs"]):
        return ""
    return f" ({COUNTS[line['seeds']]})"


def _head(body: dict[str, Any], candidates: str) -> str:
    benchmark = body["runs"][0]["benchmark"]
    return f"{benchmark}, {candidates} ({_items(body, candidates):,}, {COUNTS[len(body['runs'])]})"


def _items(body: dict[str, Any], candidates: str) -> int:
    return next(int(line["items"]) for line in body["runs"][0]["lines"] if line["candidates"] == candidates)


def _is(line: dict[str, Any], search: str, candidates: str) -> bool:
    target = "unknown"
    if search.startswith("dense"):
        target = "given"
    return (line["search"], line["target"], line["candidates"]) == (search, target, candidates)


def others() -> str:
    """Searches of other recipes, as shares of dense search with the same model."""
    bundled = read("lab/results/bundled.json")
    fair = read("lab/paper/fair_fashion.json")
    at_paper_sizes = read("lab/paper/published.json")
    photos = _items(read("lab/results/above_dense_fashion.json"), "all")
    rows = [
        f"| other recipes | fashion photos, titles, pairs ({photos:,}) | icons, texts, pairs ({bundled['lines'][0]['pool']:,}) |",
        "|---|---|---|",
    ]
    rows += [f"| {name} | {paper(fair, method)} | |" for method, name in PAPER.items()]
    for method, name in PUBLISHED.items():
        cells = [published(at_paper_sizes, data, method) for data in ("fashion", "icons")]
        rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
    rows += [f"| {name} | | {measured(bundled, method)} |" for method, name in BUNDLED.items()]
    return "\n".join(rows)


def filled(text: str) -> str:
    """The page with the present table between its marks."""
    return MARKS.sub(lambda marks: f"{marks[1]}{ours()}\n\n{others()}\n{marks[2]}", text)


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
