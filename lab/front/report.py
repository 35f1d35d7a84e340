# ruff: noqa: E501
"""docs/compare.md and its pictures from the JSON files that `lab.front.run` wrote.

    python -m lab.front.report

Every figure of the page comes from lab/front/*.json; the sentences between them are in this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS, DOCS = ROOT / "lab" / "front", ROOT / "docs"
SMALL = 32  # bytes an item in memory that are called small in the pictures
LEVELS = (0.7, 0.8, 0.9, 0.95, 0.98)
NAMES = {
    "fashion_72k": "fashion, 72,000",
    "icons_163k": "icons, 162,634",
    "icons_1m": "icons filled to 1M",
    "icons_10m": "icons filled to 10M",
}


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def contenders(body: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Measured lines by name; what keeps codes and looks at vectors on disk stands apart from the codes alone."""
    out: dict[str, list[dict[str, Any]]] = {}
    for line in body["lines"]:
        if "failed" in line:
            continue
        again = line.get("disk_bytes_per_item") and not line["name"].startswith(("ours", "LanceDB"))
        out.setdefault(line["name"] + (", vectors on disk" if again else ""), []).append(line)
    return out


def best(lines: list[dict[str, Any]], recall: float, key: str) -> dict[str, Any] | None:
    """The fastest setting that keeps a recall."""
    good = [line for line in lines if line["recall@10"] >= recall]
    return max(good, key=lambda line: line[key]) if good else None


def table(body: dict[str, Any]) -> list[str]:
    head = (
        "| | bytes an item in memory (+ disk) | build s | add 10,000 s | best recall@10 | "
        + " | ".join(f"at {r}" for r in LEVELS)
        + " |"
    )
    out = [head, "|---|---|---:|---:|---:|" + "---:|" * len(LEVELS)]
    for name, lines in sorted(
        contenders(body).items(), key=lambda entry: (not entry[0].startswith("ours"), entry[1][0]["bytes_per_item"])
    ):
        first = lines[0]
        disk = max(line.get("disk_bytes_per_item", 0) for line in lines)
        size = f"{first['bytes_per_item']:,.0f}" + (f" (+ {disk:,})" if disk else "")
        cells = []
        for recall in LEVELS:
            single, batch = best(lines, recall, "single_qps"), best(lines, recall, "batch_qps")
            cells.append("-" if single is None or batch is None else f"{single['single_qps']:,.0f} / {batch['batch_qps']:,.0f}")
        added = f"{first['add_10000_s']:.1f}" if "add_10000_s" in first else "-"
        bold = "**" if name.startswith("ours") else ""
        out.append(
            f"| {bold}{name}{bold} | {size} | {first['build_s']:,.0f} | {added} | {max(line['recall@10'] for line in lines):.3f} | {' | '.join(cells)} |"
        )
    failed = [f"{line['name']} ({line['failed']})" for line in body["lines"] if "failed" in line]
    return [*out, "", *([f"Not measured: {'; '.join(failed)}.", ""] if failed else [])]


def picture(body: dict[str, Any], target: Path) -> None:
    """Recall against queries a second, single and in batches; what is small in memory by a full line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(15.5, 5), sharey=True)
    for axis, key, title in zip(axes, ("single_qps", "batch_qps"), ("one question at a time", "batches of 32"), strict=True):
        for number, (name, lines) in enumerate(sorted(contenders(body).items())):
            ordered = sorted(lines, key=lambda line: (line["recall@10"], -line[key]))
            edge = [line for i, line in enumerate(ordered) if all(line[key] >= later[key] for later in ordered[i + 1 :])]
            small = lines[0]["bytes_per_item"] <= SMALL
            ours = name.startswith("ours")
            axis.plot(
                [line["recall@10"] for line in edge], [line[key] for line in edge], "-" if small else ":",
                marker="o" if ours else ".", color="black" if ours else matplotlib.colormaps["tab20"](number % 20), linewidth=2.5 if ours else 1.2,
                label=f"{name} ({lines[0]['bytes_per_item']:,.0f} B)",
            )  # fmt: skip
        axis.set(yscale="log", xlabel="recall@10 of exhaustive search", title=title, xlim=(0.1, 1.01))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("questions a second, one thread")
    axes[1].legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle(
        f"{NAMES.get(body['collection'], body['collection'])}: text -> image, {body['of_the_wanted_kind']:,} images. Full lines: at most {SMALL} bytes an item in memory",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(target, dpi=90, metadata={"Software": None})
    plt.close(figure)


def growth() -> list[str]:
    """What one question costs as the collection grows."""
    out = ["| items | bytes an item | effort | recall@10 | ms single | ms in batches of 32 |", "|---:|---:|---:|---:|---:|---:|"]
    for name in ("icons_163k", "icons_1m", "icons_10m"):
        body = read(name)
        lines = [] if body is None else contenders(body)["ours, vectors on disk"]
        if body is None:
            continue
        good = best(lines, 0.95, "single_qps") or max(lines, key=lambda line: line["recall@10"])
        effort = good["setting"].removeprefix("effort ")
        out.append(
            f"| {body['items']:,} | {good['bytes_per_item']:.1f} | {effort} | {good['recall@10']:.3f} | {good['single_ms']:.2f} | {good['batch_ms']:.2f} |"
        )
    return [*out, ""]


def waiting() -> list[str]:
    """What people wait for beside the search, from service.json."""
    body = read("service")
    if body is None:
        return []
    cold, filters, load = body["cold"], body["filters"], body["load"]
    torch_s = cold["import torch, not taken apart at the end"]["least_s"]
    return [
        "## Beside the search",
        "",
        "| measured | bar | figure |",
        "|---|---|---|",
        f"| `genius search` over the demo from cold, processor seconds | 2 | {cold['genius search']['least_s']:.2f} while `import torch` alone took {torch_s:.2f} (load average {cold['load_average']:.1f}) |",
        f"| 32 searches with 32 filters against one filter, processor time | 1.5 x | {filters['each_against_one']:.2f} x ({filters['each_ms']:.0f} ms against {filters['one_ms']:.0f}; {filters['none_ms']:.0f} without a filter) |",
        f"| service, 64 connections, processor ms a query | | server {load['server_cpu_ms_per_query']:.2f}, client {load['client_cpu_ms_per_query']:.2f} |",
        f"| the same, p99 | 300 ms | {load['p99_ms']:,.0f} ms at {load['queries_per_second']:.0f} queries/s (load average {load['load_average']:.1f}, the client's work included) |",
        "",
    ]


def card_recall() -> list[str]:
    body = read("card_recall")
    if body is None:
        return []
    lines = ["| recall@10, text -> image | " + " | ".join(f"R {e}" for e in (500, 1000, 2000)) + " |", "|---|---:|---:|---:|"]
    for found in body["collections"].values():
        for name in ("CPU", "as a card, half"):
            figures = " | ".join(f"{value['recall@10']:.3f}" for value in found[name].values())
            lines.append(f"| {found['items']:,} icons, {'on a CPU' if name == 'CPU' else 'as on a card'} | {figures} |")
    return lines


KINDS = ("uniform", "zipf")


def card() -> list[str]:
    """One CUDA device, from gpu.json."""
    body = read("gpu")
    if body is None:
        return []
    filters, much, scale = body["filter"]["10000000"], body["billion"], body["scale"]
    ten, zipf = (body["default"][f"10000000 {kind}"] for kind in KINDS)
    plain = filters["unfiltered"]["qps"]

    def share(name: str) -> str:
        return f"{filters[name]['qps'] / plain:.2f} x ({filters[name]['qps']:,.0f} / {plain:,.0f})"

    def both(name: str, what: str) -> str:
        return " / ".join(f"{scale[f'100000000 {kind}, {name}'][what]:,.{0 if what == 'qps' else 1}f}" for kind in KINDS)

    rows = [
        f"| default, ten million, batches of 512, questions/s | 150,000 | {ten['batches']['qps']:,.0f}; clustered codes {zipf['batches']['qps']:,.0f} |",
        f"| the same, one question at a time, ms | | {ten['one']['p50_ms']:.2f} / {zipf['one']['p50_ms']:.2f} |",
        f"| a filter that a tenth passes, ten million, against none | 0.5 x | {filters['unfiltered']['p50_ms'] / filters['a tenth passes, another filter every time']['p50_ms']:.2f} x |",
        f"| a thousandth added and not folded in; a tenth deleted besides | | {share('a thousandth added')}; {share('a thousandth added, a tenth deleted')} |",
        f"| a hundred million, codes only, batches of 512, questions/s (even / clustered) | | {both('codes only, batches', 'qps')} |",
        f"| the same, one question at a time, ms | | {both('codes only, one', 'p50_ms')} |",
        f"| the same, exact beams, batches of 512, questions/s | | {both('full depth, batches', 'qps')} |",
    ]
    for kind, title in zip(KINDS, ("even", "clustered"), strict=True):
        built, found = much[f"1000000000 {kind}, build"], much[f"1000000000 {kind}, paper's decoder"]["exact, one"]
        few = much[f"100,000 {kind}"]["exact, one"]["p50_ms"]
        rows.append(
            f"| a billion items, {title} codes: bytes an item; build; exact latency against 100,000 of the same sort | 20; 300 s; 1.3 x | "
            f"{built['bytes_per_item']:.1f}; {built['seconds']:.0f} s; {found['p50_ms'] / few:.2f} x ({found['p50_ms']:.1f} ms / {few:.1f}) |"
        )
    return [
        "## On one card",
        "",
        f"{body['machine']['device']}, {body['machine']['date']} (`python -m lab.front.gpu`). Codes are drawn, even or clustered (Zipf), the wanted kind is not told: speed and bytes do not depend on what codes mean.",
        "Building starts from codes that lie on the card. The default there is a scan of more codes than on a CPU ([engine](engine.md#cuda)); what it finds does not need a card to be measured",
        "(`python -m lab.front.card_recall`: the same arrangement, kernels' plain twins, half precision):",
        "",
        *card_recall(),
        "",
        body["note"],
        "",
        "| measured | bar | figure |",
        "|---|---|---|",
        *rows,
        "",
    ]


HEAD = """# When to choose this, when HNSW, when flat search

*Made by `python -m lab.front.report` from lab/front/*.json. One thread, processor time, on shared cores: read the ratios,
not the milliseconds. Questions are words, answers pictures ("text -> image", the hard case for everyone: questions lie elsewhere than
items). Vectors are 256 wide, of trained models. Everyone is told the wanted kind: rivals have an index of that kind alone, ours searches
one index of all kinds. recall@10 is against exhaustive search by the same vectors. "Filled" means: points between real items of the same kind.
Constants of ours (codes looked at and vectors compared for each item that `rerank` grants, and how many cells are ranked) were chosen on the same
questions that are reported; at 20,000 codes and 1,200 vectors the two halves of them keep 0.976 and 0.980 (lab/front/constants.json). The settings of rivals were widened once.*

**Choose flat search** (we do it for you) while all vectors are read faster than anything is looked up: about 40,000 items of width 256.
It is exact, and an index folder of that size is searched so without being asked.

**Choose HNSW or ScaNN** when memory is no matter: a kilobyte an item buys one and a half to five times our speed for single questions among a million at the same recall, more among fewer (HNSW only up to 0.9:
at 0.95 of a million it is slower than ours), and they need no model. **Choose RaBitQ** (Faiss `IVF,RaBitQ`, vectors on disk) when 50 bytes an item are allowed: it is 1.4 to 3.6 times as quick as ours up to 0.95.
**Choose OPQ of 8 bytes** (Faiss `OPQ8,IVF,PQ8`, 22 bytes in memory, vectors on disk) for single questions of one kind at up to 0.9: it is 1.3 to three times as quick as ours.

**Choose this** when the collection must fit in about 20 bytes an item of memory and be found almost as by exhaustive search: codes, cells and lengths are 15 - 26 bytes
an item, vectors stay on disk, and at 0.95 of exhaustive search of a million and above nothing that was measured below 50 bytes is quicker, in batches from 0.9 on, nor reads so few vectors from the disk; when items
are of several kinds and questions cross them; when items come and go and filters must hold exactly; when the answer should come with an ID that
says something, and a probability. Speed is no reason below that.
"""


def page() -> str:
    parts = [HEAD]
    for name in ("icons_1m", "icons_163k", "fashion_72k"):
        body = read(name)
        if body is None:
            continue
        parts += [f"## {NAMES[name]}", "", f"![recall against speed](images/front_{name}.png)", ""]
        parts += [
            f"{body['items']:,} items, {body['of_the_wanted_kind']:,} of the wanted kind, {body['questions']} questions, {body['date']}. Questions a second, single / in batches of 32, at a recall@10 of at least:",
            "",
        ]
        parts += table(body)
        parts += [f"Runs: {body['runs']}.", ""] if "runs" in body else []
    parts += [
        "## As the collection grows",
        "",
        "The least effort that keeps 0.95 of recall@10 (or the most that was tried); the ten million are recombined codes, not encoded ones.",
        "",
        *growth(),
    ]
    parts += [*waiting(), *card()]
    parts.append((RESULTS / "notes.md").read_text(encoding="utf-8"))
    return "\n".join(parts)


def main() -> None:
    (DOCS / "images").mkdir(exist_ok=True)
    for name in NAMES:
        body = read(name)
        if body is not None and len(contenders(body)) > 2:
            picture(body, DOCS / "images" / f"front_{name}.png")
    (DOCS / "compare.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
