"""A collection in a browser tab: how large the folder is, how soon it answers, and whether it answers as Python does.

    python -m lab.tab demo.genius      exports the index (with and without vectors), asks 200 questions in Chromium on one thread,
                                       and writes lab/results/tab.json

Questions are names of items, drawn with a seed, and ask for every kind in turn. The tab's own default is compared with Python's
`default-codes` or (with vectors) `default`, its other search with plain `genius`. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gzip
import http.server
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from genius.export.web import export_web
from genius.index import Index
from genius.search import SearchParams
from genius.types import Query

OUT = Path(__file__).parent / "results" / "tab.json"
KINDS = (None, "image", "text", "pair")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
NOTE = (
    "one thread of Chromium beside whatever else the machine did: `load` says how many processes wanted its two cores. "
    "`first_answer_s` is from Enter to the answers, `first_answer_cpu_s` what the browser's processes worked in that time"
)
PLAIN = 50  # of the questions are asked of plain GENIUS too: its beams are by far the slowest here
TIE = 2e-6  # scores that differ by less are equal in single precision: their order is nobody's promise


def questions(index: Index, count: int, seed: int) -> list[dict[str, Any]]:
    names = sorted({str(item.metadata.get("name", item.text or item.id)) for item in index.items()})
    picked = random.Random(seed).sample(names, min(count, len(names)))
    return [{"text": name, "target": KINDS[i % len(KINDS)], "k": 10} for i, name in enumerate(picked)]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news."""


ASK = """async ([question]) => {
    const worker = window.asking ??= await (async () => {
        const { Engine } = await import("./engine.js");
        const unpack = async (name) => {
            const body = (await fetch(`data/${name}.gz`)).body.pipeThrough(new DecompressionStream("gzip"));
            return new Uint8Array(await new Response(body).arrayBuffer());
        };
        return Engine.open(unpack);
    })();
    const began = performance.now(), { hits, answerable, looked } = worker.ask(question);
    const items = hits.map((hit) => ({ id: worker.items[hit.item].id, score: hit.score }));
    return { items, answerable, looked, ms: performance.now() - began };
}"""


def in_chromium(folder: Path, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """What a person waits for, and the answers of the tab."""
    from playwright.sync_api import sync_playwright

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        while not page.evaluate("window.tab !== undefined && tab.ready !== null"):
            time.sleep(0.01)
        loaded = time.perf_counter() - began
        page.wait_for_load_state("networkidle")  # small pictures come after the model
        page.fill("#text", asked[0]["text"])
        began, before = time.perf_counter(), _cpu_seconds()
        page.press("#text", "Enter")
        while not page.evaluate("tab.done !== null"):
            time.sleep(0.01)
        first, worked = time.perf_counter() - began, _cpu_seconds() - before
        answers = [page.evaluate(ASK, [question]) for question in asked]
        browser.close()
    server.shutdown()
    return {"loaded_s": loaded, "first_answer_s": first, "first_answer_cpu_s": worked, "answers": answers}


def _cpu_seconds() -> float:
    """Of all processes that this one has started, the browser's among them: what a quiet machine would take at most."""
    import psutil

    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return float(sum(one.user + one.system for one in times))


def same(answer: list[dict[str, Any]], hits: list[tuple[str, float]]) -> bool:
    """The same items in the same order, but for ties."""
    if len(answer) != len(hits) or any(abs(a["score"] - score) > 2e-5 for a, (_, score) in zip(answer, hits, strict=True)):
        return False
    last = hits[-1][1] if hits else 0.0
    for mine, (item, score) in zip(answer, hits, strict=True):
        tied = {other for other, s in hits if abs(s - score) < TIE}
        if mine["id"] != item and mine["id"] not in tied and abs(score - last) >= TIE:
            return False
    return True


def agree(index: Index, search: str, asked: list[dict[str, Any]], answers: list[dict[str, Any]]) -> dict[str, Any]:
    """How many answers of the tab are those of a search of Python, by its name."""
    params = SearchParams.of_model(index.model).named(search)
    equal = exact = 0
    for question, answer in zip(asked, answers, strict=True):
        found = index.search(question["text"], target=question["target"], k=question["k"], params=params)
        hits = [(hit.id, hit.score) for hit in found]
        equal += same(answer["items"], hits)
        exact += [item["id"] for item in answer["items"]] == [item for item, _ in hits]
    times = [answer["ms"] for answer in answers]
    return {
        "search": search,
        "questions": len(asked),
        "equal_to_python": equal,
        "equal_without_allowing_for_ties": exact,
        "search_ms_median": round(statistics.median(times)),
        "search_ms_slowest": round(max(times)),
    }


def measure(index: Index, vectors: bool, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """The folder with or without vectors: its own default, and (the same in both, so once) plain GENIUS."""
    with tempfile.TemporaryDirectory() as place:
        export_web(index, Path(place) / "site", vectors=vectors)
        return look_at(index, Path(place) / "site", vectors, asked)


def look_at(index: Index, folder: Path, vectors: bool, asked: list[dict[str, Any]]) -> dict[str, Any]:
    few = asked[:: max(len(asked) // PLAIN, 1)]
    ways = [("default", "default", asked)] if vectors else [("default", "default-codes", asked), ("genius", "genius", few)]
    seen = in_chromium(folder, [{**question, "search": way} for way, _, part in ways for question in part])
    answers, searches = iter(seen["answers"]), []
    for _, name, part in ways:
        searches.append(agree(index, name, part, list(islice(answers, len(part)))))
    sizes: dict[str, int] = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = path.name
        kind = "pictures" if "sheet" in name else "model" if ".onnx" in name else "vectors" if "vectors" in name else "rest"
        sizes[kind] = sizes.get(kind, 0) + path.stat().st_size
    return {
        "vectors": vectors,
        "megabytes": round(sum(sizes.values()) / 1e6, 2),
        "megabytes_by_part": {kind: round(size / 1e6, 2) for kind, size in sizes.items()},
        "loaded_s": round(seen["loaded_s"], 2),
        "first_answer_s": round(seen["first_answer_s"], 2),
        "first_answer_cpu_s": round(seen["first_answer_cpu_s"], 2),
        "searches": searches,
    }


def whole_numbers(index: Index, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """What vectors as int8 (a scale a row) would weigh, and how often the ten best of all would stay as they are."""
    rows = np.concatenate([part.astype(np.float32) for _, part in index._state.reader().embeddings()])
    scale = np.abs(rows).max(1, keepdims=True) / 127
    small = np.round(rows / scale).astype(np.int8)
    size = len(gzip.compress(small.tobytes() + scale.astype("<f2").tobytes(), 9))
    z = index.model.embed_queries([Query(text=question["text"]) for question in asked]).dense.cpu().numpy()
    before, after = (np.argsort(-(z @ kept.T), 1, kind="stable")[:, :10] for kept in (rows, small * scale))
    return {"megabytes": round(size / 1e6, 2), "questions": len(asked), "same_ten_in_order": int((before == after).all(1).sum())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.tab", description=__doc__)
    parser.add_argument("index", type=Path)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with Index.open(given.index) as index:
        asked = questions(index, given.questions, given.seed)
        body: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "items": index.count(),
            "model": index.model.fingerprint(),
            "seed": given.seed,
            "load": round(os.getloadavg()[0], 1),
            "note": NOTE,
            "vectors_as_int8": whole_numbers(index, asked),
            "folders": [],
        }
        for vectors in (False, True):  # what is there is kept, should the rest be cut off
            body["folders"].append(measure(index, vectors, asked))
            OUT.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
