"""What was measured for the paper on a GPU, as one page: extraction, memory and time at M-BEIR's size, two ranks, fair tables.

    python -m lab.paper.measured --take FOLDER        results of the programs (their JSONs) -> lab/mbeir, lab/paper
    python -m lab.paper.measured --out docs/results/mbeir.md

Analyses on small sets (`lab.paper.sets`) are in `lab/paper/little`, as `python -m lab reproduce` wrote them. Knows the JSONs of
these programs; measures nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from genius.evaluate.report import table
from lab.mbeir.memory import FOUR_CARDS
from lab.paper import printed
from lab.paper.alike import flat
from lab.paper.analyses import B2
from lab.paper.experiment import read_experiment
from lab.paper.fair import BEAMS
from lab.paper.fair_results import FEWEST
from lab.paper.fair_rows import BASE, SUMS

LAB = Path(__file__).parents[1]
FILES = {
    "extract_rate": LAB / "mbeir" / "extract_rate.json",
    "memory": LAB / "mbeir" / "memory.json",
    "two_ranks": LAB / "mbeir" / "two_ranks.json",
    "two_ranks_cpu_large": LAB / "mbeir" / "two_ranks_cpu_large.json",
    "two_ranks_cpu": LAB / "mbeir" / "two_ranks_cpu.json",
    "fair": LAB / "paper" / "fair_fashion.json",
    "fair_4096": LAB / "paper" / "fair_4096.json",
    "fair_small": LAB / "paper" / "fair_small.json",
    "fair_kind": LAB / "paper" / "fair_kind.json",
    "decoders_t5": LAB / "paper" / "decoders_t5.json",
    "decoders": LAB / "paper" / "decoders.json",
}
TRAINED = ("fair", "fair_4096", "fair_small", "fair_kind", "decoders_t5", "decoders")  # what `lab.paper.fair` wrote
DECODERS = ("supplement-5", "lab/paper/decoders.toml")
# rows of which the paper's tables 4 and 5 say nothing; the last three have larger books or more of them than the first row
UNCLAIMED = (BASE, SUMS, "64 x 4", "256 x 4", "the kind and four codes")
STAGES = {"stage 2, fusion and codebooks": "quantizer", "stage 3, decoder": "generator"}


# -- taking results over -------------------------------------------------------------------------------------------


def take(folder: Path) -> None:
    """The JSONs of a run of the programs, put where the page reads them."""
    for name, path in FILES.items():
        source = folder / f"{name}.json"
        if source.exists():
            body = json.loads(source.read_text(encoding="utf-8"))
            path.write_text(
                json.dumps(compact(body) if name in TRAINED else body, indent=1) + "\n",
                encoding="utf-8",
            )


def compact(body: dict[str, Any]) -> dict[str, Any]:
    """The first row's whole config once (another's, where it is not there yet), of the others what differs."""
    if "config" in body["about"]:
        return body
    base = next((line["config"] for line in body["lines"] if line["row"] == BASE), body["lines"][-1]["config"])
    lines = []
    for line in body["lines"]:
        own, first = flat(line["config"]), flat(base)
        other = {name: value for name, value in own.items() if first.get(name) != value and name != "seed"}
        lines.append({**{name: value for name, value in line.items() if name != "config"}, "other": other})
    return {"about": {**body["about"], "config": base}, "differences": body["differences"], "lines": lines}


# -- the page ------------------------------------------------------------------------------------------------------


def page() -> str:
    """`docs/results/mbeir.md`."""
    bodies = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in FILES.items() if path.exists()}
    blocks = [
        "# M-BEIR's size on one card, and the paper's findings",
        "Made by `python -m lab.paper.measured` from JSON in `lab/mbeir` and `lab/paper`, which the programs named below "
        "wrote. The real M-BEIR was not at hand: sizes and shapes are its own, vectors and pictures are made up, and the fair "
        "tables are of fashion photos.",
    ]
    parts: dict[Callable[..., Iterator[str]], tuple[str, ...]] = {
        extraction: ("extract_rate",), memory: ("memory",), two_ranks: ("two_ranks", "two_ranks_cpu_large", "two_ranks_cpu"),
        fair: ("fair", "fair_4096", "fair_kind", "fair_small"), decoders: ("decoders_t5", "fair", "decoders"),
    }  # fmt: skip
    for write, names in parts.items():
        known = [bodies[name] for name in names if name in bodies]
        blocks += list(write(*known)) if known else []
    return "\n\n".join([*blocks, *analyses()]) + "\n"


def analyses() -> Iterator[str]:
    """The paper's analyses on small sets, with their pictures where they are ours to show."""
    files = sorted((LAB / "paper" / "little").glob("*/*.json"))
    if files:
        yield "## The paper's analyses on small sets"
        yield (
            "`python -m lab.paper.sets` makes the sets, `lab/paper/little.toml` is `builtin:paper` at a size for two cores, "
            "and each of these is one command. Cards of codes show other people's pictures, so only their counts are here. "
            "Times were taken while other programs shared the two cores. A model for a single task has as many epochs as the "
            "one for all, so fewer steps."
        )
        yield (
            "What the cards show, looked at one by one; which codes get a card follows from counts alone (those that every kind "
            "has most evenly). Fashion is as the paper says: the first code is the kind, the second the sort of thing (handbags, "
            "checked shirts, make-up, women's tops), the third mostly a colour, whatever the thing (black trousers, bags, shoes, "
            "eyeliner under one code; grey, white, beige and gold under others), in pictures, words and pairs alike; under the "
            "fourth little is plain. Icons are less so: under second codes are coloured signs of programs, tools, boxes and "
            "charts, and one that holds anything; of the third codes one is medicine (plasters, ambulances, a hospital) and of "
            "the fourth one is arrows, while the eye finds nothing in the others."
        )
    for path in files:
        body = json.loads(path.read_text(encoding="utf-8"))
        yield f"### {body['title']} ({path.parent.name})"
        facts = {key: value for key, value in body["about"].items() if key in ("date", "device", "queries", "candidates")}
        yield ", ".join(f"{key} {value}" for key, value in facts.items()) + f". `{body['about']['command']}`"
        yield body["body"]
        if note := body["about"].get("note"):
            yield note
        picture = f"{path.parent.name}-{path.stem}.png"
        if (LAB.parent / "docs" / "images" / picture).exists():
            yield f"![{body['title']}](../images/{picture})"


def extraction(body: dict[str, Any]) -> Iterator[str]:
    yield "## Extraction"
    yield (
        f"`python -m lab.mbeir.extract_rate`, {body['date']}, {body['device']}, {body['cores']} cores, "
        f"{body['workers']} worker "
        f"processes, {body['precision']}. CLIP ViT-L/14 with random weights in its real shapes, {body['batch']} "
        f"pictures (224 pixels) or "
        f"{4 * body['batch']} texts ({body['tokens']} tokens) at once. One picture takes "
        f"{body['operations']['pictures'] / 1e9:.0f} billion "
        f"operations. Shares are of the data sheet ({body['sheet'] / 1e12:.0f} T/s) and of one large product measured here "
        f"({body['measured_product'] / 1e12:.0f} T/s)."
    )
    rows = [
        [
            line["what"],
            f"{line['rate']:,.0f}",
            *(f"{100 * line[key]:.1f} %" for key in ("share_of_sheet", "share_of_measured_product")),
        ]
        for line in body["lines"]
    ]
    yield table(["", "a second", "of the sheet", "of a product"], rows)
    alone, whole = (
        next(x["rate"] for x in body["lines"] if x["what"] == f"pictures/s, {how}") for how in ("tower alone", "whole way")
    )
    yield (
        f"The whole way (file, decoding and shrinking in worker processes, tower, rows on the disk) keeps "
        f"{100 * whole / alone:.0f} % "
        f"of the tower's own rate: {1000 * body['batch'] * (1 / whole - 1 / alone):.0f} ms more a batch, in which one "
        f"process takes "
        "pictures from the workers and hands them to the card. If all 5.6 million candidates were pictures, they would take "
        f"{body['hours_for_mbeir']} hours on this machine; the tower alone {5.6e6 / alone / 3600:.1f}, and on four cards "
        f"of 24 GB, "
        f"estimated as below, {5.6e6 / alone / 3600 / FOUR_CARDS:.1f}."
    )


def memory(body: dict[str, Any]) -> Iterator[str]:
    yield "## Memory and time at the real sizes"
    yield (
        f"`python -m lab.mbeir.memory`, {body['date']}, {body['device']}: {body['candidates']:,} candidates, "
        f"{body['queries']:,} questions, "
        f"{body['width']} wide, half precision, made up and mapped from the disk. `builtin:paper`; the card may use "
        f"{body['cap_of_the_card_gib']:g} GiB, as a card of 24 GB has. Host memory is the process's own; mapped files "
        f"do not count. "
        "Stages run a few steps, everything else is done whole."
    )
    rows = []
    for part in body["parts"]:
        stage = [f"{part['ms_a_step']:.1f}", f"{part['steps_in_all']:,}"] if "ms_a_step" in part else ["", ""]
        rows.append([part["part"], f"{part['seconds']:.1f}", f"{part['host_gib']:.1f}", f"{part['gpu_gib']:.1f}", *stage])
    yield table(["", "seconds", "host GiB", "card GiB", "ms a step", "steps of the recipe"], rows)
    most = {key: max(part[key] for part in body["parts"]) for key in ("host_gib", "gpu_gib")}
    yield f"At most {most['host_gib']:.1f} GiB of the host and {most['gpu_gib']:.1f} GiB of the card."
    for part in body["parts"]:
        if rates := part.get("questions_a_second"):
            each = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
            yield f"Questions a second over all candidates: {each} (dense brings every vector to the card for these few)."
    hours = {part["part"]: part["ms_a_step"] * part["steps_in_all"] / 3.6e6 for part in body["parts"] if part["part"] in STAGES}
    if not hours:
        return
    rows = [
        [name, f"{own:.1f}", f"{own / FOUR_CARDS:.1f}", f"{B2[STAGES[name]]:g}"]
        for name, own in hours.items()
    ]  # fmt: skip
    rows.append(
        ["both", *(f"{sum(hours.values()) / by:.1f}" for by in (1, FOUR_CARDS)), f"{B2['quantizer'] + B2['generator']:g}"]
    )
    yield table(["hours of training", "this card", "four cards of 24 GB, estimated", "paper, 4 x RTX 3090"], rows)
    yield (
        f"The estimate divides by {FOUR_CARDS:.2f}, what four RTX 3090 do of an H200 by their data sheets in bf16 products "
        f"(by the bandwidth of their memory it would be {4 * 0.936 / 4.8:.2f}), with nothing lost between them: it was not "
        "run. Both are for the batches of 256 of the paper's text; with which its own hours were taken it does not say, and "
        "its public code has 8,000 and 1,024."
    )


def two_ranks(*bodies: dict[str, Any]) -> Iterator[str]:
    yield "## Two processes train as one"
    yield (
        "`python -m lab.mbeir.two_ranks`: all three stages alone, and as two ranks of `torchrun` (gloo, float32, no dropout). "
        "Largest difference of a weight, as a share of its tensor's largest; of a loss, as a share of it; and IDs of the "
        "pool that "
        'differ. "Nudged" is one process beside itself on features that differ by one part in ten million or a million, every '
        'time in another direction: what rounding does. Losses "differ from" the first step at which they do by more than one '
        "part in a hundred thousand."
    )
    parts, rows = ("heads", "fusion", "quantizer", "generator"), []
    for body in bodies:
        for line in body["lines"]:
            for what in ("two_processes_to_one", "one_to_itself_nudged"):
                known = {"two ranks": line[what]} if what.startswith("two") else line[what]
                for name, found in known.items():
                    called = name if what.startswith("two") else f"nudged by {name.split(':')[0]}"
                    weights = [f"{found['weights'][part]:.1e}" for part in parts]
                    losses = f"{max(found['losses'].values()):.1e}"
                    from_step = found.get("losses_differ_from", "not noted") or "never"
                    ids = f"{100 * found['ids']:.1f} %"
                    rows.append([f"{body['device']}, {line['kind']}: {called}", *weights, losses, from_step, ids])
    yield table(["", *parts, "losses", "which differ from", "IDs"], rows)
    equal = all(line["ranks_equal_to_the_bit"] for body in bodies for line in body["lines"])
    yield f"The two ranks' weights were {'equal to the bit in all of them' if equal else 'NOT equal in all of them'}."
    yield from (body["note"] for body in bodies if "note" in body)


# -- fair tables ---------------------------------------------------------------------------------------------------


def fair(*bodies: dict[str, Any]) -> Iterator[str]:
    yield "## Tables 4 and 5, rows trained alike"
    yield (
        f"`python -m lab.paper.fair`: every row is `builtin:paper` (no hard negatives, no modality loss, in the heads "
        f"neither) with {BEAMS} "
        "beams and all test questions; no item that answers one is in the pool while anything is trained. Hits at five, "
        f"mean of the tasks that have at least {FEWEST} questions, in percent; intervals (95 %) of the difference to the first "
        "row, over questions and seeds. The paper has "
        "every row below the first: that holds where the interval and every seed say so, it does not where they say the "
        "opposite, and otherwise it cannot be told."
    )
    for body in bodies:
        yield from _run(body, of_decoders=False)


def decoders(*bodies: dict[str, Any]) -> Iterator[str]:
    yield "## Decoder sizes (supplement, Table 5)"
    theirs = [f"{name} {np.mean(list(values.values())):.1f}" for name, values in printed.SUPPLEMENT_5.items()]
    yield (
        f"`python -m lab.paper.fair --tables {DECODERS[0]}` (T5's three sizes: 6, 12 and 24 layers, 512 to 1,024 wide) and "
        f"`--tables {DECODERS[1]}` (1, 2 and 3 layers, 64 to 192 wide, for two cores): the same stages 1 and 2, then decoders "
        f"that differ in size alone. The paper's own three, on average over its five tasks: {', '.join(theirs)}; larger ones "
        "gain a little on COCO and WebQA and lose on CIRR."
    )
    for body in bodies:
        yield from _run(body, of_decoders=True)


def _run(body: dict[str, Any], of_decoders: bool) -> Iterator[str]:
    told = [entry for entry in body["differences"] if (entry["table"] in DECODERS) == of_decoders]
    if not told:
        return
    about, settings, model = body["about"], body["about"]["settings"], body["about"]["config"]["model"]
    lines = [line for line in body["lines"] if any(line["row"] == entry["row"] for entry in told)]
    seeds = sorted({line["seed"] for line in lines})
    codes = " x ".join(map(str, model["level_sizes"]))
    size = f" of {settings['products']} products" if settings.get("products") else ""
    epochs = settings["same"].get("generator.epochs")
    what = f"decoders of several sizes, {epochs} epochs" if of_decoders else f"decoder {model['decoder']}"
    yield f"### {settings['data'].capitalize()}{size}, codes {codes}, {what} ({about['device']})"
    same = ", ".join(f"`{name}` {value}" for name, value in settings["same"].items())
    yield f"{about['date']}, seeds {', '.join(map(str, seeds))}. In all rows alike: {same}."
    for name in dict.fromkeys(entry["table"] for entry in told):
        experiment = read_experiment(name)
        where = "the whole pool" if experiment.pools[0] == "universal" else "each task's own pool"
        header = ["", "seeds", "plain", "difference", "the paper's finding", "re-ranked", "difference ", "paper, plain"]
        yield f"{experiment.title}, {where}:"
        yield table([*header, "paper's difference"], list(_fair_rows(name, told)))
    yield from _findings(told)
    yield _dense(told)
    yield _stopped(lines)
    if note := about.get("note of decoders" if of_decoders and "note of decoders" in about else "note"):
        yield note


def _fair_rows(name: str, told: list[dict[str, Any]]) -> Iterator[list[str]]:
    by = {(entry["method"], entry["row"]): entry for entry in told if entry["table"] == name}
    theirs = {row: float(np.mean(list(values.values()))) for row, values in printed.TABLES.get(name, {}).items()}
    first = next(iter(theirs.values()), 0.0)
    for (method, row), plain in by.items():
        if method != "genius":
            continue
        other = by["genius-r", row]
        paper = theirs.get(row, first if row == BASE and theirs else None)
        finding = "" if row in UNCLAIMED or name in DECODERS else plain["finding"]
        gaps = ["", ""] if row == BASE else [_gap(plain), _gap(other)]
        first_row = read_experiment(name).rows[0].name
        called = f"{row}, {first_row}" if row == BASE != first_row else row
        yield [
            called, str(len(plain["by_seed"])), f"{100 * plain['mine']:.1f}", gaps[0], finding,
            f"{100 * other['mine']:.1f}", gaps[1],
            "–" if paper is None else f"{paper:.1f}", "" if paper is None or row == BASE else f"{paper - first:+.1f}",
        ]  # fmt: skip


def _findings(told: list[dict[str, Any]]) -> Iterator[str]:
    """What the tables say of the paper's findings, plain and re-ranked."""
    for method, name in (("genius", "plain"), ("genius-r", "re-ranked")):
        by: dict[str, list[str]] = {}
        for entry in told:
            if entry["method"] == method and entry["row"] not in UNCLAIMED and entry["table"] not in DECODERS:
                by.setdefault(entry["finding"], []).append(entry["row"])
        if by:
            yield f"The paper's findings, {name}: " + "; ".join(f"{what}: {', '.join(rows)}" for what, rows in by.items()) + "."


def _gap(entry: dict[str, Any]) -> str:
    low, high = 100 * entry["low"], 100 * entry["high"]
    return f"{100 * (entry['mine'] - entry['first_row']):+.1f} [{low:+.1f}, {high:+.1f}]"


def _dense(told: list[dict[str, Any]]) -> str:
    first = {(e["table"], e["method"]): 100 * e["mine"] for e in told if e["row"] == BASE}
    words = []
    for name in dict.fromkeys(name for name, _ in first):
        dense, plain, again = (first[name, method] for method in ("dense", "genius", "genius-r"))
        pool = f"{read_experiment(name).pools[0]} pool"
        words.append(f"{dense:.1f} ({pool}; plain keeps {plain / dense:.2f} of it, re-ranked {again / dense:.2f})")
    known = "In the paper's Table 2 they keep 0.59 and 0.78 of CLIP-SF (28.8 and 38.3 of 48.9)."
    return f"The first row's own z, compared with every item, hits {' and '.join(words)}. {known}"


def _stopped(lines: list[dict[str, Any]]) -> str:
    """Whether the decoders' validation had stopped rising, and when."""
    curves = [[value for _, value in line["looks"]] for line in lines if line["looks"]]
    learned = [curve for curve in curves if max(curve) > min(curve)]
    best = sorted(curve.index(max(curve)) + 1 for curve in learned)
    rising = sum(curve[-1] >= max(curve) for curve in learned)
    steps = [line["looks"][-1][0] for line in lines if line["looks"]]
    last = f", in {rising} the last look was the best" if rising else ""
    flat = f", and {len(curves) - len(learned)} learned nothing" if len(learned) < len(curves) else ""
    return (
        f"{len(learned) - rising} of {len(curves)} decoders had passed their best value on the validation questions when "
        f"training ended, after {_span(steps)} steps{last}{flat}. The best was at look {_span(best)} of {len(curves[0])}, for "
        f"half of them by look {best[(len(best) - 1) // 2]}. The JSON has every curve."
    )


def _span(values: list[int]) -> str:
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, help=f"a folder with some of {', '.join(f'{name}.json' for name in FILES)}")
    parser.add_argument("--out", type=Path, help="where the page is written")
    args = parser.parse_args()
    if args.take:
        take(args.take)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
