"""What `lab.paper.published` found, as tables and a plot: part of docs/results/paper.md, from committed JSON.

    python -m lab.paper.published_report OUT.json [OUT.json ...]   (into lab/paper/published.json; draws the plot)

Knows the JSON's fields; nothing of training.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from lab.paper.watched import content

Line = dict[str, Any]
FOLDER = Path(__file__).parent
RESULTS = FOLDER / "published.json"
IMAGES = FOLDER.parents[1] / "docs" / "images"
PLOT = IMAGES / "paper-size.png"
CURVES = IMAGES / "paper-identifiers.png"
FEWEST_STEPS = 50  # of stage 3: rows with fewer are left out, since their figures would be those of an untrained decoder
UNTIL_FLAT = ("modality", "size", "baselines")  # parts whose rows are trained until their curves are flat
KEPT_LOOKS = 20  # points of a curve in the committed file
MODALITIES = ("image", "text", "image-text pair")
SAMPLES = ("training queries", "items", "unseen queries")


def lines_of(part: str, measured: bool = True) -> list[Line]:
    """Rows of a part; with `measured` those alone that were searched with, not only trained."""
    if not RESULTS.is_file():
        return []
    body = json.loads(RESULTS.read_text(encoding="utf-8"))
    return [line for line in body["lines"] if line["part"] == part and ("last" in line or not measured)]


def groups(lines: list[Line]) -> dict[tuple[str, str], list[Line]]:
    """(data, row) -> its seeds, in the order of the file."""
    out: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        out.setdefault((line["data"], line["row"]), []).append(line)
    return out


def table(header: list[str], rows: list[list[str]]) -> str:
    marks = ["---" if i == 0 else "---:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, marks, *rows])


def spread(values: list[float], digits: int = 2) -> str:
    """The mean, and the range over seeds."""
    mean, low, high = (f"{value:,.{digits}f}" for value in (float(np.mean(values)), min(values), max(values)))
    if low == high:
        return mean
    return f"{mean} ({low} - {high})"


def method_of(line: Line, name: str, beams: int, where: str = "last") -> Line:
    """A method's figures; with one number of beams its name has none."""
    found: Line = line[where]
    return dict(found.get(f"{name}@{beams}") or found[name])


def hit(figures: Line) -> float:
    return 100 * float(np.mean(list(figures["hit@5"].values())))


def figures(data: str) -> dict[str, float]:
    """What the text says of `builtin:published` on one data set: means over tasks and seeds, hit@5 in %."""
    lines = [line for line in lines_of("published") if line["data"] == data]
    fused = [line["last"]["fused"] for line in lines if "fused" in line["last"]]
    levels = np.mean([line["survival"]["levels"] for line in lines], axis=0)
    out = {
        "dense": np.mean([hit(line["last"]["dense"]) for line in lines]),
        "codes": np.mean([hit(line["last"]["codes"]) for line in lines]),
        "least steps": min(line["steps"] for line in lines),
        "most steps": max(line["steps"] for line in lines),
        "second code": 100 * np.mean([line["curve"][-1]["unseen queries"]["right"][1] for line in lines]),
        "lost": 100 * (1 - levels[2]),
        "lost later": 100 * (levels[2] - levels[-1]),
        "pool": lines[0]["test"]["pool"],
        "purity": 100 * lines[0]["quantizer"]["purity"],
    }
    for count in (30, 50):
        for name in ("genius", "genius-r"):
            share = np.mean([hit(method_of(line, name, count)) / hit(line["last"]["dense"]) for line in lines])
            out[f"{name}@{count}"] = share
    if fused:
        out["dense z"] = np.mean([hit(found["dense"]) for found in fused])
        out["genius-r z"] = np.mean([hit(found["genius-r"]) for found in fused])
    return {name: float(value) for name, value in out.items()}


def recipes() -> str:
    """GENIUS and GENIUS^R at the paper's code sizes."""
    rows = []
    for (data, name), lines in groups(lines_of("published") + lines_of("paper")).items():
        for count in (30, 50):
            reranked = [method_of(line, "genius-r", count) for line in lines]
            dense = [hit(line["last"]["dense"]) for line in lines]
            rows.append(
                [
                    f"{data}, {name}, {count} beams",
                    spread([line["steps"] for line in lines], 0),
                    spread(dense, 1),
                    spread([hit(method_of(line, "genius", count)) for line in lines], 1),
                    spread([hit(one) for one in reranked], 1),
                    spread([hit(one) / max(ceiling, 1e-9) for one, ceiling in zip(reranked, dense, strict=True)]),
                    spread([one["mean"] for one in reranked]),
                    spread([one["worst"] for one in reranked]),
                ]
            )
    header = ["mean over tasks, hit@5 in %", "steps", "dense", "GENIUS", "GENIUS^R"]
    return table([*header, "GENIUS^R / dense", "mean of the tasks' shares", "worst task"], rows)


def tasks() -> str:
    """Every task with every ceiling, 30 beams, the mean over seeds."""
    rows = []
    for (data, _), lines in groups(lines_of("published")).items():
        fused = [line["last"]["fused"] for line in lines if "fused" in line["last"]]
        columns: list[list[Line]] = [
            [line["last"]["dense"] for line in lines],
            [found["dense"] for found in fused],
            [line["last"]["codes"] for line in lines],
            [method_of(line, "genius", 30) for line in lines],
            [method_of(line, "genius-r", 30) for line in lines],
            [found["genius-r"] for found in fused],
        ]
        for task in lines[0]["last"]["dense"]["hit@5"]:
            cells = [f"{100 * np.mean([found['hit@5'][task] for found in column]):.1f}" if column else "-" for column in columns]
            rows.append([f"{data}, {task}", *cells])
        cells = [f"{np.mean([hit(found) for found in column]):.1f}" if column else "-" for column in columns]
        rows.append([f"**{data}, mean**", *cells])
    header = ["hit@5 in %, published 4096 x 9", "dense, score fusion", "dense, z", "codes, exhaustive", "GENIUS"]
    return table([*header, "GENIUS^R", "GENIUS^R by z"], rows)


def beams() -> str:
    rows = []
    counts = (1, 5, 10, 30, 50)
    for (data, name), lines in groups(lines_of("published") + lines_of("paper")).items():
        cells = []
        for count in counts:
            plain = np.mean([hit(method_of(line, "genius", count)) for line in lines])
            reranked = np.mean([hit(method_of(line, "genius-r", count)) for line in lines])
            cells.append(f"{plain:.1f} / {reranked:.1f}")
        rows.append([f"{data}, {name}", *cells])
    return table(["GENIUS / GENIUS^R, hit@5", *(f"{count} beams" for count in counts)], rows)


def survival() -> str:
    rows = []
    for (data, name), lines in groups(lines_of("published") + lines_of("paper")).items():
        levels = np.mean([line["survival"]["levels"] for line in lines], axis=0)
        rows.append([f"{data}, {name}", *(f"{100 * value:.0f}" for value in levels)])
    count = max((len(row) for row in rows), default=1) - 1
    return table(["positive among 50 beams after code, %", *map(str, range(1, count + 1))], rows)


def curves() -> str:
    """Accuracy of every code at the end, and the mean of the content codes while training."""
    rows = []
    for (data, name), lines in groups(lines_of("published") + lines_of("paper")).items():
        for sample in SAMPLES:
            ends = np.mean([line["curve"][-1][sample]["right"] for line in lines], axis=0)
            rows.append([f"{data}, {name}: {sample}", *(f"{100 * value:.0f}" for value in ends)])
    count = max((len(row) for row in rows), default=1) - 1
    return table(["last weights: codes that are right, given those before, %", *map(str, range(1, count + 1))], rows)


def flattening() -> str:
    """The mean accuracy of content codes over the training, seed 0."""
    rows = []
    for (data, name), lines in groups(lines_of("published") + lines_of("paper")).items():
        line = min(lines, key=lambda line: int(line["seed"]))
        for sample in (SAMPLES[0], SAMPLES[2]):
            cells = [
                f"{100 * float(np.mean(point[sample]['right'][1:])):.1f} ({step:,})"
                for point, step in zip(line["curve"], line["curve steps"], strict=True)
            ]
            rows.append([f"{data}, {name}: {sample}", *cells])
    longest = max((len(row) for row in rows), default=1)
    rows = [row + ["-"] * (longest - len(row)) for row in rows]
    return table(["content codes that are right, %, mean of eight (at step)", *("" for _ in range(longest - 1))], rows)


def last_and_best() -> str:
    rows = []
    for (data, name), lines in groups(lines_of("published") + lines_of("paper")).items():
        for line in lines:
            last = method_of(line, "genius-r", 30)
            cells = [f"{data}, {name}, seed {line['seed']}", f"{last['mean']:.2f}"]
            if "best" in line:
                cells += [f"{method_of(line, 'genius-r', 30, 'best')['mean']:.2f}", f"{line['best step']:,}"]
            elif line.get("best step") == line["steps"]:
                cells += ["the same", f"{line['steps']:,}"]
            else:
                cells += ["not searched with", f"{line['best step']:,}"] if "best step" in line else ["-", "-"]
            rows.append(cells)
    return table(["GENIUS^R / dense, 30 beams", "last weights", "best weights", "at step"], rows)


ENCODINGS = tuple(f"{code} + {count}" for count in (4, 3) for code in ("nearest", "given", "classifier", "none"))


def modality_rows() -> dict[str, list[Line]]:
    """The first code learned, given, predicted or left out: row -> its seeds."""
    found = {name: lines for (_, name), lines in groups(lines_of("modality")).items()}
    return {name: found[name] for name in ENCODINGS if name in found}


def modality() -> str:
    rows = []
    for name, lines in modality_rows().items():
        purity = [line["quantizer"]["purity"] for line in lines if "purity" in line["quantizer"]]
        rows.append(
            [
                name,
                str(len(lines)),
                spread([line["steps"] for line in lines], 0),
                f"{np.mean(purity):.3f}" if purity else "-",
                spread([hit(line["last"]["codes"]) for line in lines], 1),
                spread([hit(method_of(line, "genius", 30)) for line in lines], 1),
                spread([hit(method_of(line, "genius-r", 30)) for line in lines], 1),
            ]
        )
    return table(
        ["first code + content codes of 256, hit@5 in %", "seeds", "steps", "purity", "codes", "GENIUS", "GENIUS^R"],
        rows,
    )


def confusion(lines: list[Line]) -> str:
    """Items of each modality by their first code, in percent, for each stage 2."""
    rows = []
    seen: set[str] = set()
    for line in lines:
        mark = f"{line['data']} {line['row']} {line['quantizer']['confusion']}"
        if mark in seen:
            continue  # another stage 3 on the same stage 2
        seen.add(mark)
        counts = np.array(line["quantizer"]["confusion"], float)
        shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
        for modality, values in zip(MODALITIES, shares, strict=True):
            seed = f", seed {line['seed']}" if line["part"] == "purity" else ""
            name = f"{line['data']}, {line['row']}{seed}: {modality}"
            rows.append([name, *(f"{value:.1f}" for value in values), f"{line['quantizer']['purity']:.3f}"])
    return table(["items of a modality by first code, %", "1", "2", "3", "purity"], rows)


def learned_first_codes() -> str:
    """Confusion of the quantizers at the paper's sizes."""
    return confusion(lines_of("published", False))


def purities() -> str:
    """Purity of the quantizers whose first code is learned, by data and content codes, beside the largest modalities' share."""
    lines = [
        line for part in ("published", "modality", "size", "baselines", "purity", "little") for line in lines_of(part, False)
    ]
    lines = [line for line in lines if line.get("config", {}).get("model", {}).get("modality_code") == "nearest"]
    kinds: dict[tuple[str, str], dict[str, Line]] = {}
    for line in lines:
        sizes = line["config"]["model"]["level_sizes"]
        name = f"{line['data']}, {len(sizes) - 1} x {sizes[-1]:,}, {line['config']['quantizer']['steps']} steps"
        kinds.setdefault((line["data"], name), {})[str(line["quantizer"]["confusion"])] = line
    rows = []
    for (_, name), found in sorted(kinds.items()):
        values = [line["quantizer"]["purity"] for line in found.values()]
        merged = [two_largest(line["quantizer"]["confusion"]) for line in found.values()]
        rows.append([name, str(len(found)), spread(values, 4), spread(merged, 4)])
    return table(["learned first code", "quantizers", "purity", "two codes alone, at best"], rows)


def two_largest(confusion: list[list[int]]) -> float:
    """The purity of codes that tell the two largest modalities apart and nothing else."""
    counts = sorted((sum(row) for row in confusion), reverse=True)
    return sum(counts[:2]) / sum(counts)


def picture() -> str:
    """The plot, where there is one."""
    if not PLOT.is_file() or not size_points():
        return ""
    return "![Share of dense against training pairs per code](../images/paper-size.png)\n\n"


def size_points() -> list[tuple[int, int, float, float, float]]:
    """(products, codes per level, training pairs per code, share of dense of GENIUS, of GENIUS^R), of the means."""
    out = []
    rows = groups(lines_of("size"))
    rows |= {(data, name): lines for (data, name), lines in groups(lines_of("modality")).items() if name == "nearest + 4"}
    for lines in rows.values():
        line = lines[0]
        products = line["test"]["pool"] // 3  # a photo, a title and a pair each
        codes = line["config"]["model"]["level_sizes"][-1]
        dense = max(sum(hit(line["last"]["dense"]) for line in lines), 1e-9)
        plain, reranked = (sum(hit(method_of(line, name, 30)) for line in lines) / dense for name in ("genius", "genius-r"))
        out.append((products, codes, line["train"]["pairs"] / codes, plain, reranked))
    return sorted(out)


def sizes() -> str:
    points = size_points()
    products = sorted({point[0] for point in points})
    codes = sorted({point[1] for point in points})
    rows = []
    for count in products:
        cells = []
        for size in codes:
            found = [point for point in points if point[:2] == (count, size)]
            cells.append(f"{found[0][3]:.2f} / {found[0][4]:.2f} ({found[0][2]:,.0f})" if found else "-")
        rows.append([f"{count:,} products", *cells])
    return table(["GENIUS / GENIUS^R, share of dense (pairs per code)", *(f"4 x {size:,}" for size in codes)], rows)


NAMES = {
    "nearest + 4": "GENIUS",
    "irgen": "IRGen, residual",
    "grace-structured": "GRACE, structured",
    "grace-semantic": "GRACE, semantic",
    "grace-atomic": "GRACE, atomic",
    "grace-numeric": "GRACE, numeric",
    "grace-string": "GRACE, string",
}
MEMORISED = 0.5  # share of the codes of items below which a decoder has not learned a collection's identifiers


def identifier_lines() -> list[Line]:
    """Rows of the small set with different identifiers under one decoder, in the order of `NAMES`."""
    known = {line["row"]: line for line in lines_of("little") if not line["seed"]}
    return [known[name] for name in NAMES if name in known]


def right(point: Line) -> str:
    """Content codes that are right on training queries, items and unseen queries, in percent."""
    return " / ".join(f"{100 * content(point[sample]['right']):.0f}" for sample in SAMPLES)


def plain_and_reranked(line: Line) -> tuple[Line, Line]:
    """Figures by log-probability and re-ranked, with the largest number of beams."""
    plain, reranked = names_of(line)
    return method_of(line, plain, 50), method_of(line, reranked, 50)


def baseline_lines() -> list[Line]:
    """Rows of other identifiers on a GPU, by data, in the order of `NAMES`."""
    order = list(NAMES)
    return sorted(lines_of("baselines"), key=lambda line: (line["data"], order.index(line["row"])))


def memorised(line: Line) -> bool:
    """Whether the decoder has learned the identifiers of most items."""
    return content(line["curve"][-1]["items"]["right"]) >= MEMORISED


def risen(line: Line) -> str:
    """How far the accuracy of codes rose in the second half of the training, in points, in the order of `SAMPLES`."""
    half = min(range(len(line["curve"])), key=lambda i: abs(line["curve steps"][i] - line["steps"] / 2))
    ends = [line["curve"][half], line["curve"][-1]]
    before, after = ([content(point[sample]["right"]) for sample in SAMPLES] for point in ends)
    return " / ".join(f"{100 * (new - old):+.0f}" for old, new in zip(before, after, strict=True))


def baselines() -> str:
    """The comparison of Table 3: every method on one set, hit@5 with last and best weights."""
    rows = []
    data = ""
    for line in baseline_lines():
        if line["data"] != data:
            data = line["data"]
            rows.append([f"**{data}**, dense", "-", "-", "-", with_interval(line["last"]["dense"]), "-"])
        plain, reranked = plain_and_reranked(line)
        cells = [with_interval(plain), with_interval(reranked)]
        if not memorised(line):
            cells = [f"{hit(plain):.1f}, not learned", f"{hit(reranked):.1f}, not learned"]
        elif "best" in line:
            best = [method_of(line, name, 50, "best") for name in names_of(line)]
            cells = [f"{cell}, best {hit(one):.1f}" for cell, one in zip(cells, best, strict=True)]
        rows.append([f"{data}, {NAMES[line['row']]}", f"{line['steps']:,}", right(line["curve"][-1]), risen(line), *cells])
    header = ["50 beams, hit@5 in %", "steps", "codes right at the end, %", "risen since half way", "by log-probability"]
    return table([*header, "re-ranked"], rows)


def names_of(line: Line) -> tuple[str, str]:
    """A row's searches: by log-probability, and re-ranked."""
    name = line["row"]
    if name in BY_OWN_NAME:
        return name, f"{name}-r"
    return "genius", "genius-r"


BY_OWN_NAME = tuple(NAMES)[1:]


def with_interval(figures: Line) -> str:
    low, high = figures["interval"]
    return f"{hit(figures):.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def trained_until(line: Line) -> str:
    if line["flat at"] is None:
        return f"{line['steps']:,} (not flat)"
    return f"{line['steps']:,} (flat at {line['flat at']:,})"


def identifiers() -> str:
    """GRACE's and IRGen's identifiers beside GENIUS' own, trained until their curves are flat."""
    rows = []
    for line in identifier_lines():
        sizes = line["config"].get("level_sizes") or line["config"]["model"]["level_sizes"]
        plain, reranked = plain_and_reranked(line)
        rows.append(
            [
                NAMES[line["row"]],
                " x ".join(f"{size:,}" for size in sizes),
                trained_until(line),
                right(line["curve"][-1]),
                with_interval(plain),
                with_interval(reranked),
                f"{line['queries per second of one thread']:,.0f}",
            ]
        )
    if rows:
        dense = identifier_lines()[0]["last"]["dense"]
        rows.insert(0, ["dense, score fusion", "-", "-", "-", with_interval(dense), "-", "-"])
    header = ["identifiers, 50 beams, hit@5 in %", "codes", "steps", "codes right at the end, %", "by log-probability"]
    return table([*header, "re-ranked", "queries/s"], rows)


def flat_curves() -> str:
    """Three points of each curve: half way to where it is flat, there, and at the end."""
    rows = []
    for line in identifier_lines():
        last = line["steps"]
        flat = line["flat at"] or last
        steps = line["curve steps"]
        cells = []
        for wanted in (flat / 2, flat, last):
            nearest = min(range(len(steps)), key=lambda i: abs(steps[i] - wanted))
            cells.append(f"{right(line['curve'][nearest])} ({steps[nearest]:,})")
        rows.append([NAMES[line["row"]], *cells])
    return table(["codes right: training queries / items / unseen queries, % (step)", "half way", "flat", "end"], rows)


def little(names: tuple[str, ...], title: str) -> str:
    """Rows of the small set, each with its seeds."""
    rows = []
    found = {name: lines for (_, name), lines in groups(lines_of("little")).items()}
    for name in names:
        lines = found.get(name, [])
        if not lines:
            continue
        purity = [line["quantizer"]["purity"] for line in lines if "purity" in line["quantizer"]]
        model = lines[0]["config"]["model"]
        rows.append(
            [
                name,
                " x ".join(map(str, model["level_sizes"])) + (", shared" if model["shared"] else ""),
                str(len(lines)),
                f"{sum(line['flat at'] is not None for line in lines)}",
                spread(purity, 3) if purity else "-",
                spread([hit(line["last"]["codes"]) for line in lines], 1),
                spread([hit(method_of(line, "genius", 30)) for line in lines], 1),
                spread([hit(method_of(line, "genius-r", 30)) for line in lines], 1),
            ]
        )
    return table([title, "codes", "seeds", "flat", "purity", "codes alone", "GENIUS", "GENIUS^R"], rows)


FIRST_CODES = tuple(f"{code} + {count}" for count in (3, 4) for code in ("nearest", "given", "none"))
CODEBOOKS = ("nearest + 4", "nearest + 4, shared", "nearest + 8 of 64")


def first_codes() -> str:
    return little(FIRST_CODES, "first code + content codes of 32, hit@5 in %")


def codebooks() -> str:
    return little(CODEBOOKS, "codebooks, hit@5 in %")


def curves_picture() -> str:
    """The plot of the curves, where there is one."""
    if not CURVES.is_file() or not identifier_lines():
        return ""
    return "![Content codes that are right, by step](../images/paper-identifiers.png)\n\n"


def draw_curves() -> bytes:
    """Accuracy on training queries, items and unseen queries by step, one line for each kind of identifier."""
    from lab.paper.table import plots, png

    figure, axes = plots(12, 3.6, 3)
    for place, sample in zip(axes[0], SAMPLES, strict=True):
        for line in identifier_lines():
            values = [100 * content(point[sample]["right"]) for point in line["curve"]]
            place.plot(line["curve steps"], values, marker=".", label=NAMES[line["row"]])
        place.set_ylim(0, 102)
        place.set_xlabel("step")
        place.set_title(sample)
    axes[0][0].set_ylabel("codes that are right, %")
    axes[0][-1].legend(fontsize=8, frameon=False)
    return png(figure)


def draw() -> bytes:
    """Share of dense against training pairs per code."""
    from lab.paper.table import plots, png

    figure, axes = plots(9, 4, 2)
    points = size_points()
    for place, (title, column) in zip(axes[0], (("GENIUS", 3), ("GENIUS^R", 4)), strict=True):
        for size in sorted({point[1] for point in points}):
            mine = [point for point in points if point[1] == size]
            place.plot([point[2] for point in mine], [point[column] for point in mine], marker="o", label=f"4 x {size:,}")
        place.axvline(1_100_000 / 4096, color="grey", linestyle=":", label="M-BEIR, 4,096")
        place.set_xscale("log")
        place.set_ylim(0, 1.1)
        place.set_xlabel("training pairs per code")
        place.set_ylabel("share of dense hit@5")
        place.set_title(title)
    axes[0][-1].legend(fontsize=8, frameon=False)
    return png(figure)


def joined(paths: list[Path]) -> Line:
    """Results of several calls as one, each row once, the first that has it."""
    out: Line = {"about": [], "lines": []}
    known: set[tuple[str, str, str, int]] = set()
    for path in paths:
        body = json.loads(path.read_text(encoding="utf-8"))
        about = body["about"]
        out["about"] += about if isinstance(about, list) else [about]
        for line in body["lines"]:
            key = (line["part"], line["row"], line["data"], line["seed"])
            cut = line.get("steps", FEWEST_STEPS) < FEWEST_STEPS and "last" in line  # the time was up before it was trained
            former = line["part"] in UNTIL_FLAT and "flat at" not in line  # of a program that knew no flat curves
            if key not in known and not cut and not former:
                known.add(key)
                out["lines"].append(shortened(line))
                if isinstance(about, dict):
                    out["lines"][-1]["commit"] = about["commit"]
    order = list(dict.fromkeys(line["part"] for line in out["lines"]))
    out["lines"].sort(key=lambda line: (order.index(line["part"]), line["data"], line["row"], line["seed"]))
    return out


def shortened(line: Line) -> Line:
    """A line with at most `KEPT_LOOKS` points of its curve and no intervals of shares."""
    out = json.loads(json.dumps(line))
    if out.get("looks"):
        kept = sorted(set(np.linspace(0, len(out["curve"]) - 1, KEPT_LOOKS).round().astype(int).tolist()))
        out["curve steps"] = [out["looks"][i] for i in kept]
        out["curve"] = [out["curve"][i] for i in kept]
        out["training"] = [{"step": one["step"], "nats": one["nats"], "codes": one["codes"]} for one in out["training"]]
        del out["looks"]
    for found in (out.get("last", {}), out.get("best", {})):
        for figures in (*found.values(), *found.get("local", {}).values(), *found.get("fused", {}).values()):
            for name in ("share", "touched", "bytes"):
                figures.pop(name, None)
    return dict(out)


def pretty(body: Line) -> str:
    """JSON with one line for every list of numbers and every short table."""
    text = json.dumps(body, indent=1)
    flat = re.compile(r"[\[{]\s*[^\[\]{}]*?\s*[\]}]")
    return flat.sub(lambda match: re.sub(r"\s*\n\s*", " ", match.group()) if len(match.group()) < 1500 else match.group(), text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="*")
    args = parser.parse_args()
    if args.results:
        RESULTS.write_text(pretty(joined(args.results)) + "\n", encoding="utf-8")
    if size_points():
        PLOT.write_bytes(draw())
    if identifier_lines():
        CURVES.write_bytes(draw_curves())


if __name__ == "__main__":
    main()
