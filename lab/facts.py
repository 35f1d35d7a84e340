"""The table of measured facts in README.md and docs/index.md, from committed JSON.

    python -m lab.facts        replaces the text between `<!-- facts -->` and `<!-- /facts -->` in both files

A row of the default search appears only if its file names the commit it was measured with.
"""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

from lab import ROOT

PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
MARKS = re.compile(r"(<!-- facts -->\n).*?(<!-- /facts -->)", re.DOTALL)
OURS = {
    "dense": "dense, exhaustive",
    "dense-given": "dense, exhaustive, target modality given",
    "default": "**default** (`Flat` or `Scan`, re-ranked by embeddings)",
    "default-codes": "default, codes only: no vectors stored",
    "genius": "GENIUS: `Beam`, 50 beams, ranked by log-probability",
    "genius-r": "GENIUS^R: the same beams, re-ranked by embeddings",
    "genius-r@200": "GENIUS^R with 200 beams, 60 items re-ranked",
    "no-decoder": "no decoder: 50 beams ranked by similarity",
}
DEFAULT = ("default", "default-codes")
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


ABOVE_DENSE = {
    "default, no bias": "default search, item bias off",
    "default, with bias": "**default search** (item bias from a bank of queries)",
    "default, with bias, 10% of items added later": "the same, for items added later (a tenth)",
    "codes, no bias": "codes only, item bias off",
    "codes, with bias": "codes only",
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
    """One cell of the table; empty if the method was not measured, or with a default search of another commit."""
    if method in DEFAULT and "commit" not in body:
        return ""
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


def table() -> str:
    fashion = read("lab/results/accuracy_fashion.json")
    icons = read("lab/results/accuracy_icons.json")
    bundled = read("lab/results/bundled.json")
    fair = read("lab/paper/fair_fashion.json")
    at_paper_sizes = read("lab/paper/published.json")
    sizes = [f"{body['lines'][0]['pool']:,}" for body in (fashion, icons)]
    rows = [
        f"| search | fashion photos, titles, pairs ({sizes[0]}) | icons, texts, pairs ({sizes[1]}) |",
        "|---|---|---|",
    ]
    for method, name in OURS.items():
        cells = [measured(body, method) for body in (fashion, icons)]
        if any(cells):
            rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
    rows += [f"| {name} | {paper(fair, method)} | |" for method, name in PAPER.items()]
    for method, name in PUBLISHED.items():
        cells = [published(at_paper_sizes, data, method) for data in ("fashion", "icons")]
        rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
    rows += [f"| {name} | | {measured(bundled, method)} |" for method, name in BUNDLED.items()]
    return "\n".join(rows)


def above_dense() -> str:
    """The default search with and without its item bias, as shares of dense search that is given the target modality."""
    bodies = [read("lab/results/above_dense_fashion.json"), read("lab/results/above_dense_icons.json")]
    heads = [f"fashion ({_trained(bodies[0])})", f"icons ({_trained(bodies[1])})"]
    rows = [f"| our search, relative to dense with the target given | {heads[0]} | {heads[1]} |", "|---|---|---|"]
    for search, name in ABOVE_DENSE.items():
        cells = []
        for body in bodies:
            found = [line for line in body["summary"] if _is(line, search)]
            cells.append("".join(f"{line['mean']:.3f} / {line['worst']:.3f}{_fewer(line, body)}" for line in found))
        rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def _fewer(line: dict[str, Any], body: dict[str, Any]) -> str:
    """Where a row has fewer trainings than its column."""
    if line["seeds"] == len(body["runs"]):
        return ""
    return f" ({COUNTS[line['seeds']]})"


def _trained(body: dict[str, Any]) -> str:
    """How many candidates, and what embeds them."""
    model = body["runs"][0].get("training", {}).get("model")
    trained = f"`{model}`"
    if model is None:
        trained = f"{COUNTS[len(body['runs'])]}"
    return f"{_unseen_items(body):,}, {trained}"


def _unseen_items(body: dict[str, Any]) -> int:
    return next(int(line["items"]) for line in body["runs"][0]["lines"] if line["candidates"] == "unseen")


def _is(line: dict[str, Any], search: str) -> bool:
    return (line["search"], line["target"], line["candidates"]) == (search, "unknown", "unseen")


def filled(text: str) -> str:
    """The page with the present table between its marks."""
    return MARKS.sub(lambda marks: f"{marks[1]}{table()}\n\n{above_dense()}\n{marks[2]}", text)


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
