"""`python -m lab check-mbeir DIR`: read a download of M-BEIR; what is there, missing and broken, and how large it is.

Every line of every file is read once, and reading goes on after what is broken: one complaint per file and kind of
problem, with a count and examples. The counts are the paper's supplement Table 1. Images are looked for, and decoded if
asked. `genius data check` stops at the first broken file of a split; this program lists everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.common import command, console, emit
from genius.data.collection import ProblemCounter
from genius.data.mbeir import (
    INSTRUCTIONS,
    ROWS,
    UNION_QUERIES,
    MBeir,
    candidate,
    local_pools,
    order_of,
    query_files,
    read_instructions,
    read_qrels,
    refuse_pointer,
    task_of,
    union_pool,
)
from genius.data.readers import Row, read_jsonl_rows
from genius.errors import GeniusError, counted
from genius.types import Item

POOL_SIZES: dict[str, int] = {
    # of the published test pools: what a whole download has
    "visualnews_task0": 542_246, "mscoco_task0": 5_000, "fashion200k_task0": 201_824, "webqa_task1": 544_457,
    "edis_task2": 1_047_067, "webqa_task2": 403_196, "visualnews_task3": 537_568, "mscoco_task3": 24_809,
    "fashion200k_task3": 61_707, "nights_task4": 40_038, "oven_task6": 676_667, "infoseek_task6": 611_651,
    "fashioniq_task7": 74_381, "cirr_task7": 21_551, "oven_task8": 335_135, "infoseek_task8": 481_782,
}  # fmt: skip

Look = Callable[[Path], str | None]
"""What is wrong with a picture's file; None: nothing."""


@dataclass
class Count:
    """Queries of one task in one split."""

    queries: int = 0  # each counted once
    occurrences: int = 0  # with repeats: the up-sampled file has some
    positives: int = 0
    elsewhere: int = 0  # positives outside the task's own pool (OVEN and InfoSeek name each other's)


@dataclass
class Report:
    """What a walk found. `sound` is False where training or evaluating would fail."""

    root: Path
    queries: dict[str, dict[str, Count]] = field(default_factory=dict)  # split -> task -> count
    pools: dict[str, int] = field(default_factory=dict)  # file below cand_pool/ -> candidates
    sizes: dict[str, int] = field(default_factory=dict)  # file -> bytes
    missing: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: int = 0  # distinct files that are named

    @property
    def sound(self) -> bool:
        return not self.broken and not self.missing

    def as_dict(self) -> dict[str, Any]:
        counts = {s: {t: vars(c) for t, c in tasks.items()} for s, tasks in self.queries.items()}
        body = {"root": str(self.root), "sound": self.sound, "queries": counts, "pools": self.pools, "sizes": self.sizes}
        return body | {"pictures": self.pictures, "missing": self.missing, "broken": self.broken, "notes": self.notes}


def walk(root: str | Path, *, pictures: Look | None = None, say: Callable[[str], None] = lambda _: None) -> Report:
    """Read everything below `root`. `pictures` judges each distinct picture file; None: they are not looked at."""
    report = Report(Path(root))
    if not (report.root / "query").is_dir() and not (report.root / "cand_pool").is_dir():
        raise GeniusError(f"{root} is no download of M-BEIR: it has neither query/ nor cand_pool/")
    walker = _Walker(report, pictures, say)
    walker.pools()
    walker.queries()
    walker.rest()
    return report


class _Walker:
    def __init__(self, report: Report, look: Look | None, say: Callable[[str], None]) -> None:
        self.report, self.root, self.look, self.say = report, report.root, look, say
        self.ids: dict[str, set[str]] = {}  # pool file's name -> its candidates
        self.seen_pictures: set[str] = set()

    # -- lines -------------------------------------------------------------------------------------------------

    def lines(self, path: Path) -> Iterator[Row]:
        """The readable lines of a file; the others are counted and named."""
        problems = ProblemCounter()
        name = self._name(path)
        try:
            self.report.sizes[name] = path.stat().st_size
            refuse_pointer(path)
            self.say(name)
            for number, row in read_jsonl_rows(path):
                if isinstance(row, str):
                    problems.add(f"lines are {row.partition(':')[0]}", f"line {number}")
                else:
                    yield row
        except GeniusError as error:
            self.report.broken.append(str(error))
        except OSError as error:
            self.report.broken.append(f"{name}: cannot be read ({error.strerror or error})")
        self.complain(name, problems)

    def complain(self, where: str, problems: ProblemCounter) -> None:
        try:
            problems.raise_if_any(where)
        except GeniusError as error:
            self.report.broken.append(str(error))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def picture(self, image: str | None, owner: str, problems: ProblemCounter) -> None:
        if image is None or image in self.seen_pictures:
            return
        self.seen_pictures.add(image)
        self.report.pictures += 1
        wrong = self.look(self.root / image) if self.look is not None else None
        if wrong is not None:
            problems.add(wrong, f"{owner}: {image}")

    # -- candidates --------------------------------------------------------------------------------------------

    def pools(self) -> None:
        folder = self.root / "cand_pool"
        for path in sorted(
            [*folder.glob("local/*.jsonl"), *folder.glob("global/*.jsonl")], key=lambda p: (p.parent.name, p.name)
        ):
            problems, known = ProblemCounter(), set[str]()
            for row in self.lines(path):
                item = self._candidate(row, path, problems)
                if item is None:
                    continue
                problems.once(item.id, known, "candidate ids")
                self.picture(row.get("img_path") if item.image is not None else None, item.id, problems)
            self.ids[path.name] = known
            self.report.pools[self._name(path)] = len(known)
            self.complain(self._name(path), problems)

    def _candidate(self, row: Row, path: Path, problems: ProblemCounter) -> Item | None:
        try:
            return candidate(row, self.root, path)
        except GeniusError as error:
            problems.add("candidates cannot be used", str(error).removeprefix(f"{path}: "))
            return None

    # -- queries ---------------------------------------------------------------------------------------------

    def queries(self) -> None:
        for split in ("train", "union_train", "val", "union_val", "test"):
            try:
                files = query_files(self.root, split)
            except GeniusError:
                self.report.missing.append(f"query/{split}/{UNION_QUERIES.get(split, '')}: no queries")
                continue
            counts = self.report.queries.setdefault(split, {})
            for file in files:
                self._queries(split, file, counts)
            expected = ROWS if any(key in ROWS for key in counts) else ()  # other data in this layout has its own tasks
            self.report.missing += [f"query/{split}: no queries of {key}" for key in expected if key not in counts]

    def _queries(self, split: str, file: Any, counts: dict[str, Count]) -> None:
        name, problems, seen = self._name(file.path), ProblemCounter(), dict[str, int]()
        judged = self._judgements(split, file)
        for row in self.lines(file.path):
            query = str(row.get("qid") or "")
            try:
                key = file.task or MBeir.key(file, query, int(row.get("task_id", -1)))
                task = task_of(key)
            except (GeniusError, ValueError, TypeError):
                problems.add("queries have no known task", query or "one without a qid")
                continue
            count = counts.setdefault(key, Count())
            count.occurrences += 1
            mark = hash((row.get("query_txt"), row.get("query_img_path")))
            if query in seen:
                if split not in UNION_QUERIES:
                    problems.add("query ids occur twice", query)
                elif seen[query] != mark:
                    problems.add("query ids stand for different queries", query)
                continue
            seen[query] = mark
            count.queries += 1
            image, text = row.get("query_img_path"), row.get("query_txt")
            if (task.query.label != "text" and not image) or (task.query.label != "image" and not text):
                problems.add(f"queries lack the {task.query.label} that their task wants", query)
            self.picture(image, query, problems)
            positives = [str(did) for did in row.get("pos_cand_list") or []] if judged is None else judged.get(query, [])
            self._answers(split, key, query, positives, count, problems)
        self.complain(name, problems)

    def _judgements(self, split: str, file: Any) -> dict[str, list[str]] | None:
        if file.qrels is None:
            if split not in UNION_QUERIES:
                self.report.missing.append(f"qrels/{split}/{file.path.stem}_qrels.txt (the queries' own lists stand in)")
            return None
        self.report.sizes[self._name(file.qrels)] = file.qrels.stat().st_size
        try:
            refuse_pointer(file.qrels)
            return read_qrels(file.qrels)
        except GeniusError as error:
            self.report.broken.append(str(error))
            return None

    def _answers(self, split: str, key: str, query: str, positives: list[str], count: Count, problems: ProblemCounter) -> None:
        count.positives += len(positives)
        if not positives:
            problems.add("queries have no positive", query)
            return
        own = self._own_pool(split, key)
        if own is None:
            return  # the pool's absence is said once
        inside = sum(did in own for did in positives)
        count.elsewhere += len(positives) - inside
        if not inside:
            everywhere = any(did in pool for pool in self.ids.values() for did in positives)
            where = "their task's own pool" if everywhere else "any pool"
            problems.add(f"queries have no positive in {where}", f"{query} -> {positives[0]}")

    def _own_pool(self, split: str, key: str) -> set[str] | None:
        union = union_pool(self.root, split)
        places = (
            [*local_pools(self.root, key, split)] if split in ("val", "test") else [union, *local_pools(self.root, key, split)]
        )
        for path in places:
            if path.name in self.ids:
                return self.ids[path.name]
        absent = places[0] if split not in ("val", "test") or key.startswith("mscoco_") else places[1]
        line = f"{self._name(absent)}: needed by the {split} queries of {key}"
        if line not in self.report.missing:
            self.report.missing.append(line)
        return None

    # -- the rest ----------------------------------------------------------------------------------------------

    def rest(self) -> None:
        report, tests = self.report, set(self.report.queries.get("test", {}))
        for part in ("train", "val", "test"):
            path = union_pool(self.root, part)
            if path.name not in self.ids and not any(path.name in line for line in report.missing):
                report.missing.append(f"{self._name(path)} (for test, the local pools together stand in)")
        local = [self._own_pool("test", key) for key in sorted(tests, key=order_of)]
        union = self.ids.get(union_pool(self.root, "test").name)
        if union is not None and all(pool is not None for pool in local):
            together: set[str] = set().union(*(pool for pool in local if pool is not None))
            if together != union:
                problems = ProblemCounter()
                _each(problems, "candidates of local pools are not in the union test pool", together - union)
                _each(problems, "candidates of the union test pool are in no local pool", union - together)
                self.complain(self._name(union_pool(self.root, "test")), problems)
        self._instructions()
        self._published_sizes()

    def _instructions(self) -> None:
        path = self.root / INSTRUCTIONS
        if not path.is_file():
            self.report.missing.append(f"{INSTRUCTIONS} (our own wordings stand in)")
            return
        try:
            refuse_pointer(path)
            read_instructions(path)
        except GeniusError as error:
            self.report.broken.append(str(error))

    def _published_sizes(self) -> None:
        """Sizes of the real thing: a set that has some of them exactly is the real thing, and should have them all."""
        found = {key: len(pool) for key in ROWS if (pool := self._size_of(key)) is not None}
        right = [key for key in found if found[key] == POOL_SIZES[key]]
        if right:
            self.report.broken += [
                f"the test pool of {key} has {found[key]:,} candidates, the published one {POOL_SIZES[key]:,}: a part is lost"
                for key in found
                if key not in right
            ]
        elif found:
            self.report.notes.append("no pool has the published number of candidates: this is another set in M-BEIR's layout")

    def _size_of(self, key: str) -> set[str] | None:
        return next((self.ids[p.name] for p in local_pools(self.root, key, "test") if p.name in self.ids), None)


def _each(problems: ProblemCounter, kind: str, names: Iterable[str]) -> None:
    for name in sorted(names):
        problems.add(kind, name)


# -- pictures ------------------------------------------------------------------------------------------------------


def is_there(path: Path) -> str | None:
    return None if path.is_file() else "images are missing"


def can_be_read(path: Path) -> str | None:
    """Decode the picture, as the encoder would."""
    from genius.pictures import loaded

    if not path.is_file():
        return "images are missing"
    try:
        with loaded(path):
            return None
    except GeniusError:
        return "images cannot be read"


# -- supplement Table 1 --------------------------------------------------------------------------------------------

ARROWS = {"image": "q_i", "text": "q_t", "pair": "(q_i, q_t)"}


def statistics(report: Report) -> str:
    """The paper's supplement Table 1 as Markdown, from what the walk counted."""
    keys = sorted({key for tasks in report.queries.values() for key in tasks}, key=order_of)
    lines = [
        "| task | dataset | queries: train | val | test | positives per query: train | val | test | candidates |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for key in keys:
        task = task_of(key)
        arrow = f"{ARROWS[task.query.label]} -> {ARROWS[task.target.label].replace('q', 'c')}"
        lines.append(_row([arrow, task.dataset], [report.queries.get(s, {}).get(key) for s in _SHOWN], _pool_size(report, key)))
    totals = [_sum(report.queries.get(s, {}).values()) for s in _SHOWN]
    lines.append(_row(["all", ""], totals, sum(_pool_size(report, key) or 0 for key in keys)))
    return "\n".join(lines) + "\n"


_SHOWN = ("train", "val", "test")


def _row(names: list[str], counts: Sequence[Count | None], candidates: int | None) -> str:
    queries = [f"{c.queries:,}" if c is not None else "-" for c in counts]
    answers = [f"{c.positives / c.queries:.1f}" if c is not None and c.queries else "-" for c in counts]
    return f"| {' | '.join([*names, *queries, *answers, f'{candidates:,}' if candidates is not None else '-'])} |"


def _sum(counts: Iterable[Count]) -> Count:
    every = list(counts)
    return Count(sum(c.queries for c in every), sum(c.occurrences for c in every), sum(c.positives for c in every))


def _pool_size(report: Report, key: str) -> int | None:
    names = [f"cand_pool/local/{path.name}" for path in local_pools(report.root, key, "test")]
    return next((report.pools[name] for name in names if name in report.pools), None)


SHOWN = 40  # problems of each kind on the screen; --json has all


@command
def check_mbeir(
    folder: Annotated[Path, typer.Argument(help="The download.")],
    pictures: Annotated[
        str, typer.Option(help="none: not looked at. there: every file must exist. read: every file is decoded (hours).")
    ] = "there",
    table: Annotated[Path | None, typer.Option(help="Also write the counts: supplement Table 1 as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Say what of a download of M-BEIR is there, missing and broken. Exit status 2 where something is.

    Example: python -m lab check-mbeir M-BEIR --table supplement-1.md
    """
    looks = {"none": None, "there": is_there, "read": can_be_read}
    if pictures not in looks:
        raise GeniusError("--pictures is none, there or read")

    def say(name: str) -> None:
        if console.is_terminal:
            console.print(f"reading {name}", highlight=False)

    report = walk(folder, pictures=looks[pictures], say=say)
    if table is not None:
        table.write_text(statistics(report), encoding="utf-8")
    if as_json:
        emit(report.as_dict())
    else:
        _show(report)
    if not report.sound:
        raise GeniusError(f"{folder}: {counted(len(report.missing), 'thing')} missing, {len(report.broken)} broken")
    if not as_json:
        print(f"{folder} is whole")


def _show(report: Report) -> None:
    print(statistics(report))
    repeated = sum(count.occurrences - count.queries for count in report.queries.get("union_train", {}).values())
    size = sum(report.sizes.values()) / 1e9
    print(f"{counted(len(report.sizes), 'file')}, {size:.3f} GB of text; {counted(report.pictures, 'image')} named")
    print(f"up-sampled training file: {repeated:,} of its lines are repeats")
    for title, lines in (("missing", report.missing), ("broken", report.broken), ("note", report.notes)):
        for line in lines[:SHOWN]:
            print(f"{title}: {line}")
        if len(lines) > SHOWN:
            print(f"{title}: and {len(lines) - SHOWN} more")
