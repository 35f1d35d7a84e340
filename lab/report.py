# ruff: noqa: E501
"""docs/results/accuracy.md from the JSON files that `lab.accuracy` and `lab.bundled` wrote.

    python -m lab.report

Every figure of the page comes from lab/results/*.json; the sentences between the tables are in this file.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "lab" / "results", ROOT / "docs" / "results" / "accuracy.md"
NAMES = {
    "dense": "dense, exhaustive",
    "dense-told": "dense, exhaustive, told the wanted kind",
    "genius": "**GENIUS**: 50 beams, ranked by log p",
    "genius-r": "**GENIUS^R**: the same beams, re-ranked by vectors",
    "genius@200": "GENIUS with 200 beams",
    "genius-r@200": "GENIUS^R with 200 beams: the 60 likeliest items, re-ranked",
    "default": "**default**: stops early, re-ranks what is below the beams",
    "default-codes": "default, re-ranked by codes: no vector stored",
    "no-decoder": "no decoder: 50 beams by nearness",
    "no-decoder-r": "no decoder, re-ranked by vectors",
    "no-decoder-default": "no decoder, stops early, re-ranked by vectors",
    "codes": "codes alone, exhaustive",
}
SETS = {
    "fashion": "**Fashion**: 24,000 product photographs, their titles, and both together, through frozen towers "
    "(EfficientNet-Lite0, MiniLM) with trained heads; test questions are of products that no training question shows.",
    "icons": "**Icons**: drawings, texts and pairs through the frozen encoder of `bundled:mini`; test questions are of concepts that "
    "no training question shows.",
}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(line: dict[str, Any]) -> list[str]:
    """One measured line: shares of dense, absolute hit@5, bytes, items compared."""
    methods = line["methods"]
    tasks = list(methods["dense"]["hit@5"])
    out = [
        "| search | share of dense, mean / worst (95 %) | of dense told the kind | items | bytes/item | "
        + " | ".join(tasks)
        + " |",
        "|---|---|---|---:|---:|" + "---:|" * len(tasks),
    ]
    for name, found in methods.items():
        worst = min(found["share"].items(), key=lambda entry: entry[1][0])
        interval = f"{worst[1][1]:.2f} - {worst[1][2]:.2f}"
        share = "1" if name == "dense" else f"{found['mean']:.3f} / {found['worst']:.3f} ({interval})"
        told = f"{found['mean_of_told']:.3f} / {found['worst_of_told']:.3f}"
        hits = " | ".join(f"{100 * found['hit@5'][task]:.1f}" for task in tasks)
        out.append(f"| {NAMES[name]} | {share} | {told} | {found['touched']:,.0f} | {found['bytes']:,.0f} | {hits} |")
    return out


def about(body: dict[str, Any], line: dict[str, Any]) -> str:
    changed = ", ".join(f"{name} = {value}" for name, value in body["changes"].items()) or "nothing changed"
    where = body.get("device", "NVIDIA H200")
    return (
        f"{line['pool']:,} candidates, {line['questions']:,} questions, `builtin:default` ({changed}), seed {line['seed']}, "
        f"{where}, {body['date']}."
    )


def stages(line: dict[str, Any]) -> list[str]:
    """How well the stages learned, on honest questions."""
    found = line["training"]["generator"]
    levels = sum(name.endswith("_nats") for name in found)
    nats = " ".join(f"{found[f'code{i}_nats']:.2f}" for i in range(levels))
    right = " ".join(f"{100 * found[f'code{i}_right']:.0f}" for i in range(levels))
    return [f"Honest questions, code by code: nats {nats}; right {right} %.", ""]


def mix(line: dict[str, Any]) -> list[str]:
    weights = line["weights"]
    out = [
        f"Weights of standardised scores: dense {weights['dense']:.2f}, log p {weights['log p']:.2f}, learned on "
        f"{line['learned_on']:,} held-out questions.",
        "",
        "| task | dense | log p | mix | gain (95 %) |",
        "|---|---:|---:|---:|---|",
    ]
    for task, found in line.items():
        if isinstance(found, dict) and "gain" in found:
            gain, low, high = (100 * value for value in found["gain"])
            hits = " | ".join(f"{100 * found[name]:.1f}" for name in ("dense", "log p", "mix"))
            out.append(f"| {task} | {hits} | {gain:+.1f} ({low:+.1f} to {high:+.1f}) |")
    return [*out, ""]


def confidence(body: dict[str, Any]) -> list[str]:
    figures = body["figures"]
    out = [
        "## Probabilities",
        "",
        f"`{body['model']}`, {body['questions']:,} questions ({body['data']}) over {body['candidates']:,} candidates, half fitted on, half judged; {body['date']}.",
        "",
        "| scores | a hit is right: AUROC | calibration error | there is an answer at all: AUROC |",
        "|---|---:|---:|---:|",
    ]
    for name in ("embeddings", "codes"):
        row = (figures[f"{name}_{key}"] for key in ("hit_auroc", "hit_calibration_error", "answerable_auroc"))
        out.append(f"| {name} | " + " | ".join(f"{value:.3f}" for value in row) + " |")
    return [
        *out,
        "",
        "The probability of a hit can be relied on. Whether there is an answer at all can hardly be told here: most questions do not find their answer first",
        "when it is there, and thousands of drawings of neighbouring things are just as near. `doubtful` is therefore rarely said.",
        "",
    ]


def trials(bodies: list[dict[str, Any]]) -> list[str]:
    out = ["## What was tried for the decoder", ""]
    for body in bodies:
        out += [f"**{body['title']}.** {body['settings']} {body['device']}, {body['date']}.", ""]
        out += ["| decoder | " + " | ".join(body["columns"]) + " |", "|---|" + "---|" * len(body["columns"])]
        for row in body["rows"]:
            cells = ("" if pair is None else f"{pair[0]:.3f} / {pair[1]:.3f}" for pair in row["shares"])
            out.append(f"| {row['decoder']} | " + " | ".join(cells) + " |")
        out.append("")
    return out


def seeds(body: dict[str, Any], name: str) -> list[str]:
    """Share of dense of every training, mean / worst task, and the 95 % interval of the mean over trainings (Student's t)."""
    lines = [line for line in body["lines"] if line["name"] == name and line["target"] == "unknown"]
    if len(lines) < 2:
        return ["One training: the intervals are over questions.", ""]
    out = [
        "Every training:",
        "",
        "| search | " + " | ".join(f"seed {line['seed']}" for line in lines) + " | mean over trainings (95 %) |",
        "|---|" + "---|" * (len(lines) + 1),
    ]
    student = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}[len(lines)]
    for method in (one for one in NAMES if one in SHORT | {"codes": ""} and one in lines[0]["methods"]):
        found = [line["methods"][method] for line in lines]
        each = " | ".join(f"{one['mean']:.3f} / {one['worst']:.3f}" for one in found)
        shown = []
        for key in ("mean", "worst"):
            values = [one[key] for one in found]
            half = student * statistics.stdev(values) / len(values) ** 0.5
            shown.append(f"{statistics.mean(values):.3f} ± {half:.3f}")
        out.append(f"| {NAMES[method]} | {each} | {' / '.join(shown)} |")
    return [*out, ""]


def sureness(line: dict[str, Any]) -> list[str]:
    """How well probabilities hold on honest questions of this training."""
    found = line["training"].get("confidence", {})
    if "embeddings_hit_auroc" not in found:
        return []
    right, error, answer = (found[f"embeddings_{key}"] for key in ("hit_auroc", "hit_calibration_error", "answerable_auroc"))
    words = f"a hit is right: AUROC {right:.2f}, calibration error {error:.2f}; there is an answer at all: AUROC {answer:.2f}"
    return [f"Probabilities on honest questions: {words}.", ""]


SHORT = {
    "genius": "GENIUS: 50 beams by log p",
    "genius-r": "GENIUS^R: the same beams, re-ranked by vectors",
    "genius-r@200": "GENIUS^R with 200 beams, the 60 likeliest items",
    "default": "default: stops early, re-ranks by vectors",
    "default-codes": "default, nothing but codes stored",
    "no-decoder": "no decoder: 50 beams by nearness",
}


def readme_table() -> str:
    """The README's figures: share of dense, mean / worst task, the mean of all trainings."""

    def pair(body: dict[str, Any], name: str, method: str) -> str:
        found = [line["methods"][method] for line in body["lines"] if (line["name"], line["target"]) == (name, "unknown")]
        return " / ".join(f"{statistics.mean(one[key] for one in found):.2f}" for key in ("mean", "worst"))

    def row(title: str, name: str, method: str) -> str:
        first = next(line for line in bodies[0]["lines"] if line["name"] == name)["methods"][method]
        cells = " | ".join(pair(body, name, method) for body in bodies)
        return f"| {title} | {first['touched']:,.0f} | {first['bytes']:,.0f} | {cells} |"

    bodies = [read(f"accuracy_{name}") for name in ("fashion", "icons")]
    sizes = [f"{body['lines'][0]['pool']:,}" for body in bodies]
    return "\n".join(
        [
            f"| search | items compared | bytes an item | photographs of products ({sizes[0]}) | icons and texts ({sizes[1]}) |",
            "|---|---:|---:|---|---|",
            *(row(title, "all items", method) for method, title in SHORT.items()),
            row("default, a tenth of the items added after training", "10 % added", "default"),
        ]
    )


def page() -> str:
    out = [
        "# How much of dense search is kept",
        "",
        "*Made by `python -m lab.report` from lab/results/; measured by `python -m lab.accuracy` and `python -m lab.bundled`.*",
        "",
        "hit@5 in one pool of pictures, texts and pairs. The wanted kind is not told, except where a row says so: the question's",
        "instruction says it. A share is GENIUS' hit@5 divided by that of exhaustive dense search over the same model's vectors. Search",
        "ranks by log p and by nothing else; no weight is chosen afterwards. The intervals of a table are over questions, those over",
        "trainings stand where there was more than one. Dense search that is *told* the kind looks at a third of the pool; much of a lead over",
        "plain dense is the choice of the kind.",
        "All rows were searched on a GPU, the default by beams that stop early, as it was there then. Since, a re-ranked search is one decoder row and a",
        "scan of codes, on a GPU, too ([the engine](../engine.md)); what that keeps is [measured apart](../compare.md), with the shipped model.",
        "",
    ]
    for name in ("fashion", "icons"):
        body = read(f"accuracy_{name}")
        by: dict[tuple[str, str | None], dict[str, Any]] = {}
        for line in body["lines"]:
            by.setdefault((line["name"], line.get("target")), line)  # the first training; the others stand below it
        line = by["all items", "unknown"]
        out += [f"## {name.capitalize()}", "", SETS[name], about(body, line), "", *table(line), ""]
        out += [*stages(line), *sureness(line), *seeds(body, "all items")]
        for key, title in (("10 % added", "A tenth of the items added later"), ("90 % added", "Nine tenths added later")):
            if (key, "unknown") in by:
                out += [
                    f"### {title}",
                    "",
                    "Unseen by fusion, codes and decoder (the heads are the same; they never see test products). Questions whose answers",
                    "are all new. " + about(body, by[key, "unknown"]),
                    "",
                    *table(by[key, "unknown"]),
                    "",
                    *stages(by[key, "unknown"]),
                    *seeds(body, key),
                ]
        if ("filled", "unknown") in by:
            out += [
                "### A million items",
                "",
                "The pool is filled with points between neighbouring items of the same kind. They crowd around the answers, so absolute",
                "figures fall for every search. " + about(body, by["filled", "unknown"]),
                "",
                *table(by["filled", "unknown"]),
                "",
            ]
        if ("all items", "given") in by:
            told = by["all items", "given"]
            out += ["### The kind is told to both", "", about(body, told), "", *table(told), ""]
        if ("learned mix", "given") in by:
            out += [
                "Does log p add anything to dense then? Among dense's 50 nearest of the kind:",
                "",
                *mix(by["learned mix", "given"]),
            ]
    body = read("bundled")
    out += [
        "## The bundled model",
        "",
        "The same recipe with a smaller decoder and smaller codebooks, trained on training questions alone. What ships has the same",
        "settings and has learned from the test questions too, since it serves people; its fusion and codes are those of an earlier training.",
        about(body, body["lines"][0]),
        "",
        *table(body["lines"][0]),
        "",
        *stages(body["lines"][0]),
        *confidence(read("confidence")),
        *trials(json.loads((RESULTS / "decoder_trials.json").read_text(encoding="utf-8"))),
        (RESULTS / "notes.md").read_text(encoding="utf-8").rstrip(),
        "",
    ]
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
