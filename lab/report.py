# ruff: noqa: E501
"""docs/results/accuracy.md from the JSON files that `lab.accuracy` and `lab.bundled` wrote.

    python -m lab.report

Every figure of the page comes from lab/results/*.json; the sentences between the tables are in this file.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

from lab import ROOT
from lab.pages import wrap_prose

RESULTS, PAGE = ROOT / "lab" / "results", ROOT / "docs" / "results" / "accuracy.md"
NAMES = {
    "dense": "dense, exhaustive",
    "dense-given": "dense, exhaustive, target modality given",
    "genius": "**GENIUS**: 50 beams, ranked by log-probability",
    "genius-r": "**GENIUS^R**: the same beams, re-ranked by embeddings",
    "genius@200": "GENIUS with 200 beams",
    "genius-r@200": "GENIUS^R with 200 beams, the 60 most likely items re-ranked",
    "default": "**default**: Flat or Scan, re-ranked by embeddings",
    "default-codes": "default, re-ranked by codes: no vectors stored",
    "no-decoder": "no decoder: 50 beams by similarity",
    "no-decoder-r": "no decoder, re-ranked by embeddings",
    "codes": "codes, exhaustive",
}
DEFAULT = ("default", "default-codes")  # shown only if the file names the commit that was measured
SETS = {
    "fashion": "24,000 product photographs, their titles, and pairs of both, encoded by frozen towers "
    "(EfficientNet-Lite0, MiniLM) with trained heads. Test queries ask for products that no training query shows.",
    "icons": "Drawings, texts and pairs, encoded by the frozen encoder of `bundled:mini`. Test queries ask for concepts that "
    "no training query shows.",
}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def shown(line: dict[str, Any], current: bool) -> dict[str, dict[str, Any]]:
    """The methods of a line that the page shows. `current`: the default search is the present one."""
    return {name: found for name, found in line["methods"].items() if name in NAMES and (current or name not in DEFAULT)}


def table(line: dict[str, Any], current: bool) -> list[str]:
    """Two tables of one measured line: shares of dense search with cost, and hit@5 by task."""
    methods = shown(line, current)
    tasks = list(methods["dense"]["hit@5"])
    out = [
        "| search | share of dense, mean / worst (95 %) | share of dense with target given | items compared | bytes per item |",
        "|---|---|---|---:|---:|",
    ]
    for name, found in methods.items():
        worst = min(found["share"].items(), key=lambda entry: entry[1][0])
        interval = f"{worst[1][1]:.2f} - {worst[1][2]:.2f}"
        share = "1" if name == "dense" else f"{found['mean']:.3f} / {found['worst']:.3f} ({interval})"
        given = f"{found['mean_of_dense_given']:.3f} / {found['worst_of_dense_given']:.3f}"
        out.append(f"| {NAMES[name]} | {share} | {given} | {found['touched']:,.0f} | {found['bytes']:,.0f} |")
    out += ["", *folded("hit@5 in percent, by task"), ""]
    out += ["| search | " + " | ".join(tasks) + " |", "|---|" + "---:|" * len(tasks)]
    for name, found in methods.items():
        hits = " | ".join(f"{100 * found['hit@5'][task]:.1f}" for task in tasks)
        out.append(f"| {NAMES[name]} | {hits} |")
    return [*out, "", "</details>"]


def folded(title: str) -> list[str]:
    """The head of a section that is folded away until a reader opens it."""
    return ["<details markdown>", f"<summary>{title}</summary>"]


def about(body: dict[str, Any], line: dict[str, Any]) -> str:
    changed = ", ".join(f"{name} = {value}" for name, value in body["changes"].items()) or "nothing changed"
    where = body.get("device", "NVIDIA H200")
    alike = [other for other in body["lines"] if (other.get("name"), other.get("target")) == (line["name"], line["target"])]
    trainings = "one training"
    if len(alike) > 1:
        trainings = f"the first of {len(alike)} trainings"
    return (
        f"{line['pool']:,} candidates, {line['questions']:,} queries, recipe `builtin:default` ({changed}), seed {line['seed']} "
        f"({trainings}), {where}, {body['date']}."
    )


def stages(line: dict[str, Any]) -> list[str]:
    """Cross-entropy and accuracy of every code, on held-out queries."""
    found = line["training"]["generator"]
    levels = sum(name.endswith("_nats") for name in found)
    nats = " ".join(f"{found[f'code{i}_nats']:.2f}" for i in range(levels))
    right = " ".join(f"{100 * found[f'code{i}_right']:.0f}" for i in range(levels))
    return [f"Decoder on held-out queries, code by code: cross-entropy {nats} nats; accuracy {right} %.", ""]


def seeds(body: dict[str, Any], name: str) -> list[str]:
    """Share of dense search of every training, mean / worst task, and the 95 % interval of the mean (Student's t)."""
    lines = [line for line in body["lines"] if line["name"] == name and line["target"] == "unknown"]
    if len(lines) < 2:
        return ["One training: the intervals are over queries.", ""]
    out = [
        "Every training:",
        "",
        "| search | " + " | ".join(f"seed {line['seed']}" for line in lines) + " | mean over trainings (95 %) |",
        "|---|" + "---|" * (len(lines) + 1),
    ]
    student = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}[len(lines)]
    for method in shown(lines[0], "commit" in body):
        if method not in COMPARED or any(method not in line["methods"] for line in lines):
            continue
        found = [line["methods"][method] for line in lines]
        each = " | ".join(f"{one['mean']:.3f} / {one['worst']:.3f}" for one in found)
        intervals = []
        for key in ("mean", "worst"):
            values = [one[key] for one in found]
            half = student * statistics.stdev(values) / len(values) ** 0.5
            intervals.append(f"{statistics.mean(values):.3f} ± {half:.3f}")
        out.append(f"| {NAMES[method]} | {each} | {' / '.join(intervals)} |")
    return [*out, ""]


def sureness(line: dict[str, Any]) -> list[str]:
    """How well probabilities hold on held-out queries of this training."""
    found = line["training"].get("confidence", {})
    if "embeddings_hit_auroc" not in found:
        return []
    right, error, answer = (found[f"embeddings_{key}"] for key in ("hit_auroc", "hit_calibration_error", "answerable_auroc"))
    words = f"first hit is a positive: AUROC {right:.2f}, calibration error {error:.2f}; a positive exists: AUROC {answer:.2f}"
    return [f"Probabilities on held-out queries: {words}.", ""]


COMPARED = ("genius", "genius-r", "genius-r@200", "default", "default-codes", "no-decoder", "codes")


def page() -> str:
    out = [
        "# Accuracy",
        "",
        "*Made by `python -m lab.report` from lab/results; measured by `python -m lab.accuracy` and `python -m lab.bundled`.*",
        "",
        "hit@5: a positive is among the first five results, in one pool of images, texts and pairs. The target modality is not given",
        "unless a row says so; the query's instruction names it. A share is hit@5 divided by that of exhaustive dense search over the",
        "vectors of the same model. Dense search with the target given scores one third of the pool; much of a gain over dense search",
        "is the choice of the modality. Beams are ranked by log-probability alone. Intervals in a table are over queries; intervals over",
        "trainings are given where there is more than one training. The recipe is ours (`builtin:default`); its constants were chosen",
        "with seed 0 on part of these test queries. [The paper's recipe](mbeir.md#tables-4-and-5-ablations) keeps less on this data.",
        "",
        "Rows of the default search appear when it has been measured in its present form; with and without its item bias it stands in",
        "[the search engine](../engine.md#item-bias), with the seeds of every row. Items that share an ID are listed in the order of the",
        "pool, which knows nothing of queries. `bytes per item`: codes, trie and, where they are needed, vectors of 256 float32 numbers.",
        "",
    ]
    for name in ("fashion", "icons"):
        body = read(f"accuracy_{name}")
        current = "commit" in body
        by: dict[tuple[str, str | None], dict[str, Any]] = {}
        for line in body["lines"]:
            by.setdefault((line["name"], line.get("target")), line)  # the first training; the others stand below it
        line = by["all items", "unknown"]
        out += [f"## {name.capitalize()}", "", SETS[name], about(body, line), "", *table(line, current), ""]
        out += [*stages(line), *sureness(line), *seeds(body, "all items")]
        for key, title in (
            ("10 % added", "10 % of the items added after training"),
            ("90 % added", "90 % of the items added after training"),
        ):
            if (key, "unknown") in by:
                out += [
                    f"### {title}",
                    "",
                    "The added items were not seen by fusion, codes and decoder (the heads are the same; they never see test products). Queries",
                    "whose positives are all new. " + about(body, by[key, "unknown"]),
                    "",
                    *table(by[key, "unknown"], current),
                    "",
                    *stages(by[key, "unknown"]),
                    *seeds(body, key),
                ]
        if ("filled", "unknown") in by:
            out += [
                "### A million items",
                "",
                "The pool is filled with points between neighbouring items of the same modality. They crowd around the positives, so hit@5",
                "falls for every search. " + about(body, by["filled", "unknown"]),
                "",
                *table(by["filled", "unknown"], current),
                "",
            ]
        if ("all items", "given") in by:
            given = by["all items", "given"]
            out += ["### Target modality given to both", "", about(body, given), "", *table(given, current), ""]
    body = read("bundled")
    out += [
        "## The bundled model",
        "",
        "The same recipe with a smaller decoder and smaller codebooks, trained on training queries only. The shipped weights have the",
        "same settings and were trained on the test queries too; their fusion and codes are those of an earlier run.",
        about(body, body["lines"][0]),
        "",
        *table(body["lines"][0], "commit" in body),
        "",
        *stages(body["lines"][0]),
        "## What trials showed",
        "",
        (RESULTS / "notes.md").read_text(encoding="utf-8").rstrip(),
        "",
    ]
    return wrap_prose("\n".join(out))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
