# ruff: noqa: E501
"""docs/results/accuracy.md from the JSON files that `lab.above_dense`, `lab.accuracy` and `lab.bundled` wrote.

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


def candidates_table(body: dict[str, Any], candidates: str) -> list[str]:
    """Two tables of what all trainings have: shares of dense search that is given the target, and hit@5 by task."""
    lines = [line for line in body["summary"] if line["candidates"] == candidates and shown_above(line["search"])]
    tasks = list(lines[0]["hit@5"])
    out = ["| search | target | trainings | share, mean / worst | of every training |", "|---|---|---:|---|---|"]
    for line in lines:
        each = ", ".join(f"{mean:.3f} / {worst:.3f}" for mean, worst in line["by_seed"])
        name = f"{line['search']}{queries_of(body, line)}"
        out.append(f"| {name} | {line['target']} | {line['seeds']} | {line['mean']:.3f} / {line['worst']:.3f} | {each} |")
    out += ["", *folded("hit@5 in percent, by task"), ""]
    out += ["| search | target | " + " | ".join(tasks) + " |", "|---|---|" + "---:|" * len(tasks)]
    for line in lines:
        hits = " | ".join(f"{100 * line['hit@5'][task]:.1f}" for task in tasks)
        out.append(f"| {line['search']} | {line['target']} | {hits} |")
    return [*out, "", "</details>", ""]


def shown_above(search: str) -> bool:
    """Whether the page has a row of `lab.above_dense`; docs/engine.md has the others."""
    return not any(words in search for words in ("learned", "foreign", "whole bias"))


def queries_of(body: dict[str, Any], line: dict[str, Any]) -> str:
    """Of a row that not all test queries were searched for: how many were."""
    for run in body["runs"]:
        for other in run["lines"]:
            alike = all(other[name] == line[name] for name in ("search", "candidates", "target"))
            if alike and "queries" in other:
                return f" ({other['queries']:,} queries)"
    return ""


def above_dense(name: str) -> list[str]:
    """A benchmark with the search that ships: candidates that no training query shows, and all."""
    body = read(f"above_dense_{name}")
    runs = body["runs"]
    seeds_of = ", ".join(map(str, body["seeds"]))
    out = [
        f"{runs[0]['test_queries']:,} test queries, recipe `builtin:default` (nothing changed), seeds {seeds_of}, {body['device']}, "
        f"{body['date']}, commit {body['commit']}.",
        "",
    ]
    for candidates, title in (("unseen", "Candidates that no training query shows"), ("all", "All candidates")):
        items = sorted({line["items"] for run in runs for line in run["lines"] if line["candidates"] == candidates})
        counts = f"{items[0]:,}"
        if items[-1] > items[0]:
            counts += f" - {items[-1]:,}"
        out += [f"### {title} ({counts})", "", *candidates_table(body, candidates)]
    for run in runs:
        line = {"training": run["metrics"]}
        out += [f"Seed {run['seed']}.", *stages(line)[:1], *sureness(line)]
    return out


COMPARED = ("genius", "genius-r", "genius-r@200", "default", "default-codes", "no-decoder", "codes")


def page() -> str:
    out = [
        "# Accuracy",
        "",
        "*Made by `python -m lab.report` from lab/results; measured by `python -m lab.above_dense`, `python -m lab.accuracy` and",
        "`python -m lab.bundled`.*",
        "",
        "hit@5: a positive is among the first five results, in one pool of images, texts and pairs. The target modality is not given",
        "unless a row says so; the query's instruction names it. A share is hit@5 divided by that of exhaustive dense search over the",
        "vectors of the same model and the same candidates, which is given the target modality and scores one third of the pool; its",
        "mean over tasks and its worst task, of shares averaged over trainings. Items are in a random order, in which equal scores are",
        "listed; [the search engine](../engine.md#item-bias) counts them, and has banks of queries by their size. The recipe is ours",
        "(`builtin:default`); its constants were chosen with seed 0 on part of these test queries.",
        "[The paper's recipe](mbeir.md#tables-4-and-5-ablations) keeps less on this data.",
        "",
        "Not measured with this search: a million items; beams over all candidates and 200 beams, except where items were added later",
        "to fashion; on icons nine tenths of the items added later, and beams where a tenth was.",
        "",
    ]
    for name in ("fashion", "icons"):
        out += [f"## {name.capitalize()}", "", SETS[name], *above_dense(name)]
        if (RESULTS / f"accuracy_{name}.json").exists():
            out += later(read(f"accuracy_{name}"))
    body = read("bundled")
    out += [
        "## The bundled model",
        "",
        "The same recipe with a smaller decoder and smaller codebooks, trained on training queries only. The shipped weights have the",
        "same settings and were trained on the test queries too; their fusion and codes are those of an earlier run. The first share is",
        "of dense search whose target is unknown, too. The date is that of the search, too: rows of the default search of then are left",
        "out.",
        about(body, body["lines"][0]),
        "",
        *table(body["lines"][0], "commit" in body),
        "",
        *stages(body["lines"][0]),
        "## What trials showed",
        "",
        "Trials and trainings up to 2026-11-16, with the search of that day; shares are of dense search whose target is unknown, too.",
        "",
        (RESULTS / "notes.md").read_text(encoding="utf-8").rstrip(),
        "",
    ]
    return wrap_prose("\n".join(out))


def later(body: dict[str, Any]) -> list[str]:
    """Every search where a part of the items came after training."""
    out = []
    for name, title in (
        ("10 % added", "Beams, where 10 % of the items were added after training"),
        ("90 % added", "Beams, where 90 % of the items were added after training"),
    ):
        line = next((line for line in body["lines"] if (line["name"], line["target"]) == (name, "unknown")), None)
        if line is None:
            continue
        out += [
            f"### {title}",
            "",
            "The added items were not seen by fusion, codes and decoder (the heads are the same; they never see test products). Queries",
            "whose positives are all new, at most 400 of a task, over all candidates. Here the first share is of dense search whose target",
            "is unknown, too. Beams have no item bias, and the decoder's first step names their modality. Intervals are over queries. "
            + about(body, line),
            "",
            *table(line, "commit" in body),
            "",
            *stages(line),
            *seeds(body, name),
        ]
    return out


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
