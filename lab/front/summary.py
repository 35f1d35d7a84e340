# ruff: noqa: E501 - sentences
"""What the search benchmark says in short: a table of ratios, sentences that say who is best where, and the bars that were set.

Everything is computed from the JSON of `lab/front/results`; what a wall is made of, where a bar is missed, is written here by
hand. Knows result files; nothing of how they were measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OURS = "GENIUS"
HNSW = "Faiss HNSW32"
TARGETS = ("0.9", "0.95", "0.98", "0.995")
SUMMED_UP = ("0.95", "0.98")
SINGLE = "single_ms"
BATCH = "batch_ms"
SHOWN = {SINGLE: "single queries", BATCH: "batches of 32"}
LITTLE = 32  # bytes per item in memory, or as many as GENIUS needs
MORE = 60  # bytes, or twice as many as GENIUS needs
SETS = {  # data set -> heading, and how a sentence names it; one that was not measured is left out
    "fashion_10m": ("Fashion filled to 10,000,000 images", "10,000,000 images filled from fashion"),
    "fashion_1m": ("Fashion filled to 1,000,000 images", "1,000,000 images filled from fashion"),
    "fashion_163k": ("Fashion filled to 163,000 images", "163,000 images filled from fashion"),
    "fashion_24k": ("Fashion, 24,000 real images", "24,000 real images of fashion"),
    "icons_1m": ("Icons filled to 1,000,000 images", "1,000,000 images filled from icons"),
    "icons_real": ("Icons, 114,192 real images", "114,192 real icons"),
}
DIRECTIONS = {  # end of a query set's name -> direction
    "image_text_image": "image + text -> image",
    "text_image": "text -> image",
    "image_image": "image -> image",
}
TEXT = "text -> image"
WITH_IMAGE = ("image + text -> image", "image -> image")
Line = dict[str, Any]


def read(name: str) -> Line | None:
    """The body of a result file; None: not measured."""
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return None
    body: Line = json.loads(file.read_text(encoding="utf-8"))
    return body


def direction(queries: str) -> str:
    return next((shown for end, shown in DIRECTIONS.items() if queries.endswith(end)), queries)


def query_sets(body: Line) -> list[str]:
    """Names of the query sets that were asked, in the order of the runs."""
    names: dict[str, None] = {}
    for line in body["lines"]:
        names |= dict.fromkeys(line.get("test", {}))
    return list(names)


def memory(line: Line) -> float:
    """Bytes per item."""
    return float(line["memory_bytes_per_item"])


@dataclass(frozen=True)
class Race:
    """All algorithms on one query set."""

    name: str  # of the data set
    body: Line
    queries: str

    @property
    def ours(self) -> Line | None:
        return next((line for line in self.body["lines"] if line["name"] == OURS), None)

    @property
    def others(self) -> list[Line]:
        return [line for line in self.body["lines"] if line["name"] != OURS]

    def of(self, line: Line | None, target: str) -> Line | None:
        """What a line reaches a target with."""
        if line is None:
            return None
        found: Line | None = line.get("test", {}).get(self.queries, {}).get(target)
        return found

    def within(self, limit: float) -> list[Line]:
        return [line for line in self.others if memory(line) <= limit]

    def best(self, lines: Sequence[Line], target: str, key: str) -> Line | None:
        """The fastest at a target; None where nobody reaches it."""
        there = [line for line in lines if self.of(line, target) is not None]
        return min(there, key=lambda line: line["test"][self.queries][target][key], default=None)

    def ratio(self, line: Line | None, target: str, key: str) -> float | None:
        """Throughput of GENIUS over that of a line."""
        mine = self.of(self.ours, target)
        other = self.of(line, target)
        if mine is None or other is None:
            return None
        return float(other[key] / mine[key])

    def groups(self) -> dict[str, list[Line]]:
        """Competitors by what they need."""
        own = 0.0 if self.ours is None else memory(self.ours)
        return {
            "little": self.within(max(LITTLE, own)),
            "more": self.within(max(MORE, 2 * own)),
            "hnsw": [line for line in self.others if line["name"] == HNSW],
            "all": self.others,
        }


def races(direction_shown: str = TEXT) -> Iterator[Race]:
    """Data sets on which GENIUS and others ran, with the query set of a direction."""
    for name in SETS:
        body = read(name)
        if body is None:
            continue
        for queries in query_sets(body):
            race = Race(name, body, queries)
            if direction(queries) == direction_shown and race.ours is not None and race.others:
                yield race


# -- the table of ratios -------------------------------------------------------------------------------------------


def ratios() -> list[str]:
    """One line per data set and recall: throughput of GENIUS over that of the best of a group, single / batches."""
    out = [
        "| items | recall | GENIUS per second | over the best of at most 32 bytes | over the best of at most 60 bytes | over HNSW32 | over the best of all |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for race in races():
        for target in SUMMED_UP:
            mine = race.of(race.ours, target)
            if mine is None:
                continue
            cells = [f"{1e3 / mine[SINGLE]:,.0f} / {1e3 / mine[BATCH]:,.0f}"]
            cells += [ratio_cell(race, lines, target, named=label != "hnsw") for label, lines in race.groups().items()]
            out.append(f"| {SETS[race.name][1]} | {target} | {' | '.join(cells)} |")
    return [*out, ""]


def ratio_cell(race: Race, lines: Sequence[Line], target: str, named: bool) -> str:
    """`named`: with the names of the competitors, for single queries and, where it is another, for batches."""
    if not lines:
        return "not run"
    best = [race.best(lines, target, key) for key in SHOWN]
    if best[0] is None or best[1] is None:
        return "not reached"
    shown = " / ".join(f"{race.ratio(line, target, key):.2f}" for line, key in zip(best, SHOWN, strict=True))
    if not named:
        return shown
    names = list(dict.fromkeys(line["name"].removeprefix("Faiss ") for line in best if line is not None))
    return f"{shown} ({' / '.join(names)})"


# -- sentences -----------------------------------------------------------------------------------------------------


def sentences() -> list[str]:
    """Who is best where."""
    out = [who_is_fastest(race, "0.95") for race in races()]
    out += [standing("little", "the best competitor that needs no more memory (or at most 32 bytes per item)")]
    out += [standing("hnsw", "HNSW32 (1,296 bytes per item)")]
    out += [
        standing("little", "the best competitor that needs no more memory", WITH_IMAGE, "With queries that hold an image, at")
    ]
    out += [
        tax_sentence(),
        growth_sentence(),
        build_sentence(),
        filter_sentence(),
        churn_sentence(),
        codes_sentence(),
        gpu_sentence(),
    ]
    return [sentence for sentence in out if sentence]


def who_is_fastest(race: Race, target: str) -> str:
    """The fastest of all on a data set, and GENIUS beside it."""
    by_winner: dict[str, list[str]] = {}
    for key, shown in SHOWN.items():
        best = race.best(race.others, target, key)
        ratio = race.ratio(best, target, key)
        if best is None or ratio is None:
            continue
        if ratio >= 1:
            by_winner.setdefault(OURS, []).append(f"{shown} ({ratio:.2f} times the throughput of {best['name']})")
        else:
            name = f"{best['name']} ({memory(best):,.0f} bytes per item in memory)"
            by_winner.setdefault(name, []).append(f"{shown} (GENIUS has {ratio:.2f} times its throughput)")
    if not by_winner:
        return ""
    assert race.ours is not None
    parts = [f"{winner} is the fastest for {' and for '.join(cases)}" for winner, cases in by_winner.items()]
    return f"Among {SETS[race.name][1]}, at {target}, {'; '.join(parts)}. GENIUS needs {memory(race.ours):,.0f} bytes there."


def standing(group: str, label: str, directions: Sequence[str] = (TEXT,), before: str = "At") -> str:
    """On which data sets GENIUS is ahead of a group of competitors.

    Args:
        group: A key of `Race.groups`.
        label: Names the group.
        directions: Of the queries.
        before: Begins the sentence.
    """
    ahead = []
    behind = []
    for race in (race for shown in directions for race in races(shown)):
        lines = race.groups()[group]
        for target in SUMMED_UP:
            for key, shown in SHOWN.items():
                ratio = race.ratio(race.best(lines, target, key), target, key)
                if ratio is None:
                    continue
                if ratio >= 1:
                    ahead.append(ratio)
                else:
                    behind.append(f"{shown} among {SETS[race.name][1]} at {target} ({ratio:.2f} times)")
    total = len(ahead) + len(behind)
    if not total:
        return ""
    text = f"{before} 0.95 and 0.98 GENIUS is ahead of {label} in {len(ahead)} of {total} comparisons"
    if ahead:
        text += f", by {min(ahead):.2f} to {max(ahead):.2f} times"
    if behind:
        text += f", and behind for {'; '.join(behind)}"
    return text + "."


def taxes(body: Line) -> dict[str, float]:
    """By algorithm: throughput of queries like the items over that of text queries, at .95."""
    names = query_sets(body)
    text = next((name for name in names if direction(name) == TEXT), None)
    other = next((name for name in names if direction(name) != TEXT), None)
    out: dict[str, float] = {}
    if text is None or other is None:
        return out
    for line in body["lines"]:
        both = [line.get("test", {}).get(name, {}).get("0.95") for name in (text, other)]
        if both[0] is not None and both[1] is not None:
            out[line["name"]] = both[0][SINGLE] / both[1][SINGLE]
    return out


def tax_sentence() -> str:
    parts = []
    for name, (_, shown) in SETS.items():
        tax = taxes(read(name) or {"lines": []})
        if OURS in tax and len(tax) > 1:
            others = [value for other, value in tax.items() if other != OURS]
            parts.append(f"{tax[OURS]:.2f} times on {shown}, where the others' are {min(others):.2f} to {max(others):.2f} times")
    if not parts:
        return ""
    return f"Queries that hold an image are faster than text queries: GENIUS's throughput for them is {'; '.join(parts)} (single queries, 0.95)."


def growth() -> float | None:
    """Time of a single query at .95 among ten million over that among 163,000."""
    times = []
    for name in ("fashion_10m", "fashion_163k"):
        body = read(name)
        if body is None:
            return None
        found = next((Race(name, body, queries) for queries in query_sets(body) if direction(queries) == TEXT), None)
        mine = None if found is None else found.of(found.ours, "0.95")
        if mine is None:
            return None
        times.append(float(mine[SINGLE]))
    return times[0] / times[1]


def growth_sentence() -> str:
    grown = growth()
    if grown is None:
        return ""
    body = read("fashion_10m")
    assert body is not None
    (line,) = [line for line in body["lines"] if line["name"] == OURS]
    return (
        f"From 163,000 to 10,000,000 images a single query of GENIUS at 0.95 takes {grown:.2f} times as long; "
        f"the ten million take {line['build_s'] / 60:,.0f} minutes of processor time to build and {memory(line):.0f} bytes each in memory. No competitor ran among them."
    )


def builds() -> tuple[float, float] | None:
    """Processor seconds that GENIUS and HNSW32 take to build a million."""
    body = read("fashion_1m")
    if body is None:
        return None
    seconds = {line["name"]: float(line["build_s"]) for line in body["lines"]}
    if OURS not in seconds or HNSW not in seconds:
        return None
    return seconds[OURS], seconds[HNSW]


def build_sentence() -> str:
    both = builds()
    if both is None:
        return ""
    return f"A million images take GENIUS {both[0]:,.0f} s of processor time to build, and HNSW32 {both[1]:,.0f} s."


def filtered() -> dict[str, dict[float, Line]]:
    """Recall and times under filters, by algorithm and share of the items that pass."""
    body = read("filters_fashion_1m")
    out: dict[str, dict[float, Line]] = {}
    for line in body["lines"] if body else []:
        out.setdefault(line.get("name", OURS), {})[line["share"]] = line
    return out


def filter_sentence() -> str:
    by_name = filtered()
    if OURS not in by_name:
        return ""
    ours = by_name[OURS]
    recall = min(line["recall@10"] for line in ours.values())
    text = (
        f"Under filters that let 10 to 0.01 % of 1,000,000 images through, GENIUS finds at least {recall:.3f} of the ten nearest"
    )
    if len(by_name) == 1:
        return text + "; no competitor ran there."
    fastest = []
    for share in ours:
        good = {name: lines[share] for name, lines in by_name.items() if lines[share]["recall@10"] >= 0.95}
        best = min(good, key=lambda name: good[name][SINGLE])
        fastest.append(f"{best} at {100 * share:g} %")
    return f"{text}; the fastest single queries that find 0.95 are those of {', '.join(fastest)}."


def churn() -> Line | None:
    body = read("churn_fashion_24k")
    return None if body is None else body["lines"][0]


def churn_sentence() -> str:
    line = churn()
    if line is None:
        return ""
    return (
        f"After {line['rounds']} rounds that each replace a tenth of the items, recall@10 is {line['recall@10']:.3f}, "
        f"and {line['fresh_recall@10']:.3f} in a scan that is built anew."
    )


def compact() -> Line | None:
    return read("compact_fashion_1m")


def codes_sentence() -> str:
    body = compact()
    if body is None:
        return ""
    counts = body["recall_by_candidates"]
    alone = next(line for line in body["second"] if line["alone"])
    return (
        f"Codes alone are no strength: the {body['code_bytes']} bytes of 4-bit codes find {counts['10']:.2f} of the ten nearest among 1,000,000, "
        f"and {alone['bytes']} bytes of 8-bit codes {alone['recall@10']:.2f}; {vectors_for(counts, 0.95)} vectors must be compared for 0.95."
    )


def vectors_for(counts: dict[str, float], recall: float) -> int:
    """Fewest of the counted candidates that hold this recall."""
    return min(int(count) for count, value in counts.items() if value >= recall)


def scan_on_gpu() -> Line | None:
    body = read("gpu_h200")
    return None if body is None else body["scan"]["test, recall 0.95"]


def gpu_sentence() -> str:
    line = scan_on_gpu()
    if line is None:
        return ""
    rate = line["batches of 512"]["qps"]
    return f"On one H200 a scan of 10,000,000 items answers {rate:,.0f} queries per second at {line['recall@10']:.3f} in batches of 512; no GPU competitor ran."


# -- bars ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """What was to be shown.

    Args:
        what: Is measured.
        wanted: The bar.
        measured: The number; "not measured" where there is none.
        met: Whether it is; None: it is not a bar, or nothing was measured.
        wall: What keeps it from being met; shown where it is not.
    """

    what: str
    wanted: str
    measured: str
    met: bool | None
    wall: str = ""

    def line(self) -> str:
        verdict = {True: "met", False: f"missed: {self.wall}", None: self.wall}[self.met]
        return f"| {self.what} | {self.wanted} | {self.measured} | {verdict} |"


def bars() -> list[str]:
    """Every bar with what was measured."""
    out = ["| what (one thread, held-out queries) | bar | measured | |", "|---|---|---|---|"]
    return [*out, *(bar.line() for bar in every_bar()), ""]


def every_bar() -> list[Bar]:
    return [*code_bars(), *rival_bars(), *cost_bars(), *change_bars(), gpu_bar()]


def code_bars() -> list[Bar]:
    body = compact()
    if body is None:
        return []
    counts = body["recall_by_candidates"]
    alone = next(line for line in body["second"] if line["alone"])
    in_all = max((line for line in body["second"] if line["bytes_in_all"] <= 100), key=lambda line: line["recall@10"])
    needed = vectors_for(counts, 0.95)
    finer = vectors_for(alone["within"], 0.95)
    return [
        Bar(
            "codes alone, recall@10, 1,000,000, at most 24 bytes",
            ">= 0.50",
            f"{counts['10']:.2f} ({body['code_bytes']} bytes), {alone['recall@10']:.2f} ({alone['bytes']} bytes)",
            max(counts["10"], alone["recall@10"]) >= 0.5,
            "filled items lie so close to each other that codes of this length do not tell them apart",
        ),
        Bar(
            "vectors compared for 0.95, 1,000,000",
            "<= 150",
            f"{needed} ({body['code_bytes']} bytes), {finer} ({alone['bytes']} bytes)",
            min(needed, finer) <= 150,
            "the same; codes of 8 bits would need fewer, and take six times as long to scan",
        ),
        Bar(
            "at most 100 bytes per item in all, disk included, recall 0.95 at 1,000,000",
            "reached",
            f"{in_all['recall@10']:.2f} with {in_all['bytes_in_all']:.0f} bytes",
            in_all["recall@10"] >= 0.95,
            "a second code in place of vectors does not order the candidates well enough, at twice the bytes either",
        ),
    ]


def rival_bars() -> list[Bar]:
    wanted = {  # data set -> least ratio for single queries and batches, of the best competitor of little memory
        "fashion_1m": 1.2,
        "icons_1m": 1.2,
        "icons_real": 1.0,
    }
    hnsw = {"0.95": 0.8, "0.98": 1.0}
    out = []
    for race in races():
        for target in SUMMED_UP:
            if race.name in wanted:
                bar = wanted[race.name] if target == "0.95" or race.name == "icons_real" else 1.5
                out.append(rival_bar(race, "little", "competitors within 32 bytes", target, bar, FIXED_COST))
            if race.name == "fashion_1m":
                out.append(rival_bar(race, "hnsw", "HNSW32", target, hnsw[target], FIXED_COST))
    return out


FIXED_COST = "a query has a fixed cost in Python and in choosing cells, which counts where few codes are scanned"


def rival_bar(race: Race, group: str, label: str, target: str, wanted: float, wall: str) -> Bar:
    lines = race.groups()[group]
    best = [race.best(lines, target, key) for key in SHOWN]
    what = f"throughput against {label} at {target}, {SETS[race.name][1]}, single and batches"
    if not lines:
        return Bar(what, f">= {wanted:g}", "-", None, "no such competitor ran")
    if best[0] is None or best[1] is None:
        reached = race.of(race.ours, target) is not None
        return Bar(what, f">= {wanted:g}", "none of them reaches it; GENIUS does" if reached else "not reached", reached, wall)
    ratios_of = [race.ratio(line, target, key) for line, key in zip(best, SHOWN, strict=True)]
    shown = " and ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios_of)
    names = " / ".join(dict.fromkeys(line["name"] for line in best if line is not None))
    met = all(ratio is not None and ratio >= wanted for ratio in ratios_of)
    return Bar(what, f">= {wanted:g}", shown if group == "hnsw" else f"{shown} ({names})", met, wall)


def cost_bars() -> list[Bar]:
    out = []
    for name, (_, shown) in SETS.items():
        tax = taxes(read(name) or {"lines": []})
        if OURS in tax:
            others = sorted(value for other, value in tax.items() if other != OURS)
            beside = f" (others {others[0]:.2f} - {others[-1]:.2f})" if others else ""
            wall = "text queries lie farther from images, and need more cells and vectors for the same recall"
            out.append(Bar(f"OOD tax at 0.95, {shown}", "<= 1.3", f"{tax[OURS]:.2f}{beside}", tax[OURS] <= 1.3, wall))
    grown = growth()
    wall = "not measured: an index of ten million was not built in the time that two shared cores had"
    if grown is None:
        out.append(Bar("growth from 163,000 to 10,000,000 at 0.95, single", "<= 1.5 times", "-", None, wall))
    else:
        wall = "ranking 12,608 cells reads 13 MB of means in every query; a cell holds eight times as many codes, and no cache keeps them"
        out.append(
            Bar("growth from 163,000 to 10,000,000 at 0.95, single", "<= 1.5 times", f"{grown:.2f} times", grown <= 1.5, wall)
        )
    both = builds()
    if both is not None:
        share = both[0] / both[1]
        out.append(
            Bar("build of 1,000,000 against HNSW32", "<= 0.5 times", f"{share:.2f} times", share <= 0.5, "k-means and codes")
        )
    race = next((race for race in races() if race.name == "fashion_1m"), None)
    if race is not None and race.groups()["hnsw"] and race.ours is not None:
        share = memory(race.groups()["hnsw"][0]) / memory(race.ours)
        wall = "HNSW's memory is that of vectors; rows and centroids are half of ours"
        out.append(Bar("memory against HNSW32, 1,000,000", "<= 1/40", f"1/{share:.0f}", share >= 40, wall))
    return out


def change_bars() -> list[Bar]:
    out = []
    ours = filtered().get(OURS, {})
    if 0.0001 in ours:
        value = ours[0.0001]["recall@10"]
        out.append(Bar("recall@10 where 0.01 % of 1,000,000 pass a filter", ">= 0.98", f"{value:.3f}", value >= 0.98, "-"))
    line = churn()
    if line is not None:
        share = line["recall@10"] / line["fresh_recall@10"]
        out.append(
            Bar("recall@10 after 100 rounds of replacements against fresh", ">= 0.99 times", f"{share:.3f} times", share >= 0.99)
        )
    return out


def gpu_bar() -> Bar:
    line = scan_on_gpu()
    measured = "not measured"
    if line is not None:
        measured = f"{line['batches of 512']['qps']:,.0f} queries per second at {line['recall@10']:.3f}"
    return Bar("one H200, 10,000,000 items, at 0.95", "reported", measured, None, "reported")
