# ruff: noqa: E501 - sentences
"""docs/compare.md from the JSON files that programs of `lab.front` wrote: `python -m lab.front.report`.

Every figure of the page comes from lab/front/results/*.json (what came before on a GPU: lab/results), and so does every sentence that says who is faster.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.front import summary
from lab.front.summary import BATCH, OURS, SETS, SINGLE, TARGETS, Race, direction, memory
from lab.pages import wrap_prose

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compare.md"
CODES = {"codes_fashion_24k": "Fashion, 24,000 real images"}


def in_short() -> list[str]:
    """Sentences, ratios and bars."""
    return [
        "## In short",
        "",
        *(f"- {sentence}" for sentence in summary.sentences()),
        "",
        "Throughput of GENIUS, and over that of the best competitor of a group, single queries / batches of 32; above 1 GENIUS is faster. Every algorithm has the fastest of its settings that reaches the recall "
        'on validation queries; text -> image, one thread. "At most 32 bytes" per item in memory: or as many as GENIUS needs; "at most 60": or twice as many. Small collections spend most of them on centroids.',
        "",
        *summary.ratios(),
        "What was to be shown, and what was:",
        "",
        *summary.bars(),
    ]


def cell(race: Race, line: dict[str, Any], target: str) -> str:
    """Queries per second; the most of all in bold."""
    found = race.of(line, target)
    if found is None:
        return "-"
    rates = []
    for key in (SINGLE, BATCH):
        rate = f"{1e3 / found[key]:,.0f}"
        rates.append(f"**{rate}**" if race.best(race.body["lines"], target, key) is line else rate)
    return f"{' / '.join(rates)} ({found['recall@10']:.3f})"


def table(race: Race) -> list[str]:
    head = (
        "| | bytes per item in memory (+ disk) | build s | add 10,000 s | "
        + " | ".join(f"at {target}" for target in TARGETS)
        + " |"
    )
    out = [head, "|---|---:|---:|---:|" + "---:|" * len(TARGETS)]
    for line in sorted(race.body["lines"], key=lambda line: (line["name"] != OURS, memory(line))):
        disk = f" (+ {line['disk_bytes_per_item']:,})" if line["disk_bytes_per_item"] else ""
        built = f"{line['build_s']:,.0f}" if line.get("build_s") is not None else "-"
        added = f"{line['add_10000_s']:.1f}" if "add_10000_s" in line else "-"
        cells = " | ".join(cell(race, line, target) for target in TARGETS)
        out.append(f"| {line['name']} | {memory(line):,.0f}{disk} | {built} | {added} | {cells} |")
    return [*out, ""]


def tax(body: dict[str, Any]) -> list[str]:
    """Throughput of queries like the items over that of text queries, at .95."""
    taxes = summary.taxes(body)
    if not taxes:
        return []
    out = [
        "OOD tax: queries per second of queries that hold an image over those of text -> image, single queries, settings of each chosen for 0.95.",
        "",
        "| | OOD tax at 0.95 |",
        "|---|---:|",
    ]
    return [*out, *(f"| {name} | {value:.2f} |" for name, value in taxes.items()), ""]


def section(name: str, heading: str) -> list[str]:
    body = summary.read(name)
    if body is None:
        return []
    load = f", load average {body['load_average']:.0f}" if "load_average" in body else ""
    out = [f"## {heading}", ""]
    for queries in summary.query_sets(body):
        out += [
            f"### {direction(queries)}",
            "",
            f"{body['items']:,} items of width {body['width']}, {body['validation_queries']:,} validation and {body['test_queries']:,} test queries at most, {body['date']}, commit {body['commit']}, {body['device']}{load}. "
            "Queries per second, single / in batches of 32 (recall@10 on test queries), with settings chosen for a recall on validation queries; the fastest in bold:",
            "",
            *table(Race(name, body, queries)),
        ]
    out += tax(body)
    if body["failed"]:
        out += ["Not measured: " + "; ".join(f"{name} ({why})" for name, why in body["failed"].items()) + ".", ""]
    return out


OF_SIZES = {
    "fashion": "Fashion, 24,000 products. Up to 50,000 items: vectors of a small trained fusion (6,000 products in training). 160,000: those of "
    "the recipe as it is (18,027 items that no training query shows or that answer held-out queries, and filling).",
    "icons": "Icons, vectors of the recipe as it is (46,893 items that no training query shows or that answer held-out queries, and filling).",
}


def sizes() -> list[str]:
    """hit@5 by the size of the collection, from what `lab.front.sizes` wrote."""
    lines: dict[str, list[Any]] = {}
    for file in summary.RESULTS.glob("sizes_*.json"):
        body = json.loads(file.read_text(encoding="utf-8"))
        lines.setdefault(body.get("benchmark", "fashion"), []).extend(body["lines"])
    if not lines:
        return []
    out = [
        "## hit@5 by the size of the collection",
        "",
        "The default search without a given target modality, relative to dense search with it: share of its hit@5. Three seeds of items, test "
        "queries and bank, of one training; least to most. With the item bias (the default), and in brackets without it.",
        "",
    ]
    for benchmark in sorted(lines):
        out += [OF_SIZES[benchmark], "", *_sizes_table(lines[benchmark]), ""]
    return out


def _sizes_table(lines: list[Any]) -> list[str]:
    tasks = sorted(lines[0]["share"]["default"])
    out = ["| items | plan | " + " | ".join(tasks) + " |", "|---:|---|" + "---:|" * len(tasks)]
    for items in sorted({line["items"] for line in lines}):
        own = [line for line in lines if line["items"] == items]
        cells = []
        for task in tasks:
            spans = []
            for search in ("default", "default, no item bias"):
                shares = [line["share"][search][task] for line in own]
                spans.append(f"{min(shares):.3f} - {max(shares):.3f}")
            cells.append(f"{spans[0]} ({spans[1]})")
        out.append(f"| {items:,} | {', '.join(own[0]['plan'])} | {' | '.join(cells)} |")
    return out


def compact() -> list[str]:
    """What codes find without vectors, from what `lab.front.compact` wrote."""
    out: list[str] = []
    for file in sorted(summary.RESULTS.glob("compact_*.json")):
        body = json.loads(file.read_text(encoding="utf-8"))
        counts = body["recall_by_candidates"]
        out += [
            f"{body['items']:,} items, {body['probed']} of {body['cells']:,} cells, {body['test_queries']} test queries, text -> image: share of the ten nearest among "
            f"the best N by the {body['code_bytes']} bytes of codes of the scan ({body['memory_bytes_per_item']:.0f} bytes per item in memory with rows and cells).",
            "",
            "| N | " + " | ".join(counts) + " |",
            "|---|" + "---:|" * len(counts),
            "| recall@10 | " + " | ".join(f"{value:.3f}" for value in counts.values()) + " |",
            "",
            "Codes of 8 bits, directed to the same queries, rank these candidates in place of vectors; nothing else is stored. The first line has them in place of the "
            "first code, the others have them beside it, of what it leaves (experiments, no part of the package):",
            "",
            "| bytes of these codes | bytes of all codes | bytes per item in all | candidates | test queries | recall@10 |",
            "|---:|---:|---:|---:|---:|---:|",
            *(
                f"| {line['bytes']} | {line['bytes'] + (not line['alone']) * body['code_bytes']} | {line['bytes_in_all']:.0f} | {line['candidates']} | {line['queries']} | {line['recall@10']:.3f} |"
                for line in body["second"]
            ),
            "",
        ]
    return ["## Without vectors", "", *out] if out else []


def codes() -> list[str]:
    """Recall by codes, from what `lab.front.codes` wrote."""
    out: list[str] = []
    for name, heading in CODES.items():
        bodies = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(summary.RESULTS.glob(f"{name}*.json"))]
        if not bodies:
            continue
        lines = {line["name"]: line for body in bodies for line in body["lines"]}
        first = bodies[0]
        out += [
            f"### {heading}",
            "",
            f"{first['nprobe']} of {first['cells']} cells scanned; share of the ten nearest among the best N by codes, text -> image queries (in brackets: queries of another direction, "
            "for which the metric was not fitted). Two codes in one line: the second ranks the best N of the first.",
            "",
            "| codes | N = 10 | 50 | 100 | 300 |",
            "|---|---:|---:|---:|---:|",
        ]
        for line in lines.values():
            cells = []
            for best in ("10", "50", "100", "300"):
                own = line["text"].get(best)
                other = line.get("other", {}).get(best)
                cells.append("-" if own is None else f"{own:.3f}" + ("" if other is None else f" ({other:.3f})"))
            out.append(f"| {line['name']} | {' | '.join(cells)} |")
        out.append("")
    return ["## Codes: metrics and types", "", *out] if out else []


def changes() -> list[str]:
    """Recall under filters and after replacements, from what `lab.front.changes` wrote."""
    out: list[str] = []
    body = summary.read("filters_fashion_1m")
    if body is not None:
        out += [
            f"Random filters over {body['items']:,} items (fashion, filled), {body['test_queries']} test queries. All have the fastest setting that reaches 0.98 on validation queries under this filter; GENIUS "
            "is listed with its default effort, too. GENIUS is given the mask with every call, Faiss has its selector prepared. Milliseconds of a single query / of one in a batch of 32 (recall@10):",
            "",
            *filter_table(body),
        ]
    for file in sorted(summary.RESULTS.glob("churn_*.json")):
        for line in json.loads(file.read_text(encoding="utf-8"))["lines"]:
            out += [
                f"{line['rounds']} rounds that each replace {line['replaced_per_round']:,} of {line['items']:,} items: recall@10 {line['recall@10']:.3f}, "
                f"of a scan built from what is left {line['fresh_recall@10']:.3f}; {line['seconds_per_round']:.2f} s of processor time per round.",
                "",
            ]
    return ["## Filters and replacements", "", *out] if out else []


def filter_table(body: dict[str, Any]) -> list[str]:
    by_name = summary.filtered()
    shares = sorted({line["share"] for line in body["lines"]}, reverse=True)
    out = ["| | " + " | ".join(f"{100 * share:g} % pass" for share in shares) + " |", "|---|" + "---:|" * len(shares)]
    for name, lines in by_name.items():
        cells = []
        for share in shares:
            line = lines[share]
            batch = f" / {line['batch_ms']:.2f}" if "batch_ms" in line else ""
            cells.append(f"{line['single_ms']:.2f}{batch} ({line['recall@10']:.3f})")
        out.append(f"| {name} | {' | '.join(cells)} |")
    return [*out, ""]


def gpu() -> list[str]:
    """What `lab.front.gpu` wrote: the searches of a later file take the place of the same ones of an earlier one."""
    files = sorted(summary.RESULTS.glob("gpu_*.json"))
    if not files:
        return []
    bodies = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    measured: dict[str, dict[str, Any]] = {}
    for body in bodies:
        for part in ("flat", "scan", "beams", "first search"):
            measured.setdefault(part, {}).update(body.get(part, {}))
    former = json.loads((ROOT / "lab" / "results" / "former_search" / "gpu.json").read_text(encoding="utf-8"))
    kernels = json.loads((ROOT / "lab" / "results" / "speed" / "engine_gpu.json").read_text(encoding="utf-8"))
    commits = ", ".join(dict.fromkeys(body["commit"] for body in bodies))
    notes = "".join(f" ({body['note']})" for body in bodies if "note" in body)
    head = "queries per second, batches of 512 | of 32 | of 64 | ms, single query |"
    out = [
        "## On a GPU",
        "",
        f"No GPU competitor ran. One {bodies[0]['device']}, torch {bodies[0]['torch']}, {bodies[0]['date']}, commit {commits}{notes}; host work and copies are included. "
        "Vectors are real ones of fashion and filling by the same rule, cells and codes are chosen as on a CPU; text queries ask for images, settings are chosen on validation queries, test queries are shown.",
        "",
        f"| plan | items | recall@10 | {head}",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for items, line in measured["flat"].items():
        out.append(f"| flat | {items.removesuffix(' items')} | {line['recall@10']:.3f} | {gpu_rates(line)} |")
    for name, line in measured["scan"].items():
        if name.startswith("test, recall "):
            out.append(
                f"| scan, chosen for {name.removeprefix('test, recall ')} | 10,000,000 | {line['recall@10']:.3f} | {gpu_rates(line)} |"
            )
    first = measured["first search"]
    out += [
        "",
        *exact_or_scan(measured),
        f"The former search answered {former['default']['10000000 uniform']['batches']['qps']:,.0f} queries per second over ten million random codes in batches of 512; at that setting its recall@10 on meaningful codes was 0.928 (lab/results/former_search).",
        f"The first search of a fresh process takes {first['flat']['first_three_s'][0]:.1f} s (flat, whose kernels are compiled then) and {first['scan']['first_three_s'][0]:.1f} s (scan; {first['scan, fresh machine']['first_three_s'][0]:.1f} s where its kernel has to be compiled), after {first['flat']['imports_s']:.1f} to {first['scan']['imports_s']:.1f} s of imports; the second and third take milliseconds.",
        "",
        "Exact beam search, 50 beams, drawn IDs, random weights:",
        "",
        f"| IDs | decoder | products | {head}",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    for name, line in measured["beams"].items():
        if name.count(", ") == 2:
            ids, decoder, precision = name.rsplit(", ", 2)
            out.append(f"| {ids.removesuffix(' IDs')} | {decoder} | {precision} | {gpu_rates(line)} |")
    before = kernels["sizes"]["10000000"]
    now = measured["beams"]["10,000,000 IDs, paper's decoder, float16"]
    batches = before["exact_batch_512"]["qps"] / now["batches of 512"]["qps"]
    single = now["batches of 1"]["p50_ms"] / before["exact_batch_1"]["p50_ms"]
    tries = [
        f"{name.removesuffix(' IDs, trie')} IDs {line['bytes_per_id']:.1f} bytes each"
        for name, line in measured["beams"].items()
        if name.endswith("trie")
    ]
    out += [
        "",
        f"The trie: {'; '.join(tries)}. A search runs as one captured CUDA graph per batch size. The former engine with a second decoder in Triton kernels, which is no part of the package any more, had {before['exact_batch_512']['qps']:,.0f} queries per second and "
        f"{before['exact_batch_1']['p50_ms']:.2f} ms at ten million (fp16, lab/results/speed): {batches:.1f} times the throughput of the one decoder, and a single query {single:.1f} times as fast. With float16 the tied decoder still multiplies its codebooks in float32. A billion IDs were not reached in the time.",
        "",
    ]
    return out


def exact_or_scan(measured: dict[str, dict[str, Any]]) -> list[str]:
    """From which recall on exact search has the higher throughput."""
    exact = measured["flat"].get("10,000,000 items")
    if exact is None:
        return []
    slower = [
        name.removeprefix("test, recall ")
        for name, line in measured["scan"].items()
        if name.startswith("test, recall ") and line["batches of 512"]["qps"] < exact["batches of 512"]["qps"]
    ]
    if not slower:
        return []
    return [f"In batches of 512 flat search of all 10,000,000 is faster than scans chosen for {' and '.join(slower)}."]


def gpu_rates(line: dict[str, Any]) -> str:
    """Queries per second of two sizes of batches, and milliseconds of a single query."""
    cells = []
    for batch in ("512", "32", "64"):
        found = line.get(f"batches of {batch}")
        cells.append("-" if found is None else f"{found['qps']:,.0f}")
    return f"{' | '.join(cells)} | {line['batches of 1']['p50_ms']:.2f}"


def page() -> str:
    notes = (ROOT / "lab" / "front" / "notes.md").read_text(encoding="utf-8").splitlines()
    out = [*notes, "", *in_short()]
    for name, (heading, _) in SETS.items():
        out += section(name, heading)
        if name == "fashion_1m":
            out += section("groups_fashion_1m", "The same again, with cells ranked in groups, on quiet cores")
    out += sizes()
    out += changes()
    out += compact()
    out += codes()
    out += gpu()
    return wrap_prose("\n".join(out).rstrip() + "\n")


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
