"""results.json of the fashion benchmark -> the Markdown page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TASKS = ("text->image", "image->text", "text->pair", "image->pair", "image+text->image")
# hit@5 of the paper's Table 4 (COCO T->I, COCO I->T, WebQA T->T, WebQA T->(I,T), CIRR (I,T)->I; 30 beams)
PAPER = {
    "paper recipe": (55.4, 82.7, 28.3, 47.1, 20.5),
    "paper: w/o modality-decoupled": (20.2, 73.2, 25.9, 34.3, 18.3),
    "paper: w/o query augmentation": (47.8, 67.7, 19.6, 38.8, 11.7),
    "paper: w/o L_cl": (0.0, 0.1, 0.0, 0.0, 0.0),
    "paper: w/o L_mse": (45.5, 83.1, 27.1, 35.2, 21.6),
    "paper: classifier modality code": (48.9, 79.2, 25.7, 37.5, 20.3),
}


def hits(line: dict[str, Any], k: int) -> str:
    return " ".join(f"{line['tasks'][t][f'hit@{k}']:.1f}" for t in TASKS if t in line["tasks"])


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def search_table(lines: list[dict[str, Any]], name: str) -> list[str]:
    rows = [
        "| search | beams | hit@1 | hit@5 | hit@10 | share of dense hit@5 (mean) | worst task [95 %] | re-ranked | queries/s |",
        "|" + "---|" * 9,
    ]
    for line in lines:
        if line["name"] != name:
            continue
        worst = min(line["tasks"].values(), key=lambda t: t["share"])
        low, high = worst["interval"]
        beams = line["beams"] or ""
        rows.append(
            f"| {line['mode']} | {beams} | {hits(line, 1)} | {hits(line, 5)} | {hits(line, 10)} | {line['share']:.3f} "
            f"| {worst['share']:.3f} [{low:.2f}, {high:.2f}] | {number(line['touched'])} | {number(line['queries_per_second'])} |"
        )
    return rows


def ablation_table(lines: list[dict[str, Any]]) -> list[str]:
    plain = {line["name"]: line for line in lines if line["mode"] == "GENIUS" and line["name"].startswith("paper")}
    ranked = {line["name"]: line for line in lines if line["mode"] == "GENIUS^R" and line["name"].startswith("paper")}
    dense = {line["name"]: line for line in lines if line["mode"] == "dense"}
    if "paper recipe" not in plain:
        return []

    def mean(line: dict[str, Any]) -> float:
        values = [t["hit@5"] for t in line["tasks"].values()]
        return sum(values) / len(values)

    base, paper_base = mean(plain["paper recipe"]), sum(PAPER["paper recipe"]) / 5
    rows = [
        "| variant | dense hit@5 | GENIUS hit@5 | GENIUS^R hit@5 | ours, mean (change) | paper, mean (change) |",
        "|" + "---|" * 6,
    ]
    for name, line in plain.items():
        said = PAPER.get(name)
        theirs = "" if said is None else f"{sum(said) / 5:.1f} ({sum(said) / 5 - paper_base:+.1f})"
        rows.append(
            f"| {name.removeprefix('paper: ')} | {hits(dense[name], 5)} | {hits(line, 5)} | {hits(ranked[name], 5)} "
            f"| {mean(line):.1f} ({mean(line) - base:+.1f}) | {theirs} |"
        )
    return rows


def report(results: Path, output: Path) -> None:
    body = json.loads((results / "results.json").read_text(encoding="utf-8"))
    lines = body["lines"]
    names = list(dict.fromkeys(line["name"] for line in lines))
    order = ", ".join(TASKS)
    text = [f"{body['device']}, torch {body['torch']}, {body['seconds']:.0f} s in all. Tasks, in order: {order}.", ""]
    for name in names:
        if name.startswith(("paper", "sweep", "ours")) or name == "encoder alone":
            continue
        text += [f"### {name}", "", *search_table(lines, name), ""]
    table = ablation_table(lines)
    if table:
        text += ["### The paper's ablations (paper's recipe, 30 beams)", "", *table, ""]
    mine = [line for line in lines if line["name"].startswith("ours") and line["mode"] in ("GENIUS", "GENIUS^R")]
    if mine:
        text += [
            "### Ours, one change each (50 beams)",
            "",
            "| variant | search | hit@5 | share | worst |",
            "|---|---|---|---|---|",
        ]
        text += [f"| {x['name'][6:]} | {x['mode']} | {hits(x, 5)} | {x['share']:.3f} | {x['worst']:.3f} |" for x in mine]
        text.append("")
    sweep = [line for line in lines if line["name"].startswith("sweep")]
    if sweep:
        text += [
            "### Codebook shapes on one z: exhaustive search over the codes alone",
            "",
            "| codes | hit@5 | share | worst |",
            "|---|---|---|---|",
        ]
        text += [f"| {x['name'][6:]} | {hits(x, 5)} | {x['share']:.3f} | {x['worst']:.3f} |" for x in sweep]
        text.append("")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(text), encoding="utf-8")
