"""Sixty everyday queries over the demo, through Python, the command line, HTTP, and HTTP as the page calls it.

    python -m lab.everyday demo.genius -o lab/results/everyday.json

For each query the words were written down, before the first search, of which one must stand in the name of an item among the
first five for the query to count as answered. The four interfaces must find equal first tens. The command line and the server
run in this process, through the same functions as the programs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from fastapi.testclient import TestClient

from genius.cli import app
from genius.index import Hit, Index
from genius.serve.app import create_app
from genius.serve.settings import ServeConfig
from lab import current_commit

K = 10
WAYS = ("http", "page", "command line")
WITHIN = 5  # an answer must be among the first so many
QUERIES = {
    "a cat": "cat",
    "a dog": "dog",
    "a cup of coffee": "coffee|cup|mug|hot beverage",
    "something to drink": "drink|cup|glass|bottle|beverage|juice|beer|wine|milk|water",
    "pizza": "pizza",
    "birthday cake": "cake",
    "a slice of bread": "bread|toast|baguette",
    "fruit": "fruit|apple|banana|orange|cherry|cherries|grape|lemon|pear|peach|melon|strawberr|kiwi|mango|pineapple|blueberr",
    "an airplane": "airplane|plane|aircraft",
    "a sailing boat": "sail|boat|ship",
    "bicycle": "bicycle|bike|cycling|biking",
    "a fast car": "car|automobile|racing",
    "a train": "train|locomotive|railway|metro|tram",
    "heavy rain": "rain|storm",
    "snow": "snow",
    "sunny weather": "sun",
    "the moon at night": "moon|night",
    "a tree": "tree",
    "a red rose": "rose|flower",
    "a house with a garden": "house|home|garden",
    "a happy face": "smil|grin|happy|joy|laugh|beam",
    "an angry face": "angry|pout|anger|steam|rage|mad",
    "a crying face": "cry|tear|sob",
    "love": "heart|love|kiss",
    "thumbs up": "thumbs? up|like",
    "shaking hands": "handshake|hand",
    "a doctor": "health worker|doctor|nurse|stethoscope|medic",
    "a teacher": "teacher|school|chalkboard",
    "a baby": "baby|child",
    "two people dancing": "danc|couple|people",
    "playing football": "soccer|football|ball",
    "a basketball player": "basketball|ball",
    "swimming": "swim|pool",
    "a guitar": "guitar|music|violin|banjo",
    "listen to music": "music|headphone|note|listen",
    "take a photo": "camera|photo|picture",
    "a phone call": "phone|call",
    "send an email": "mail|envelope|send|inbox",
    "delete a file": "delete|trash|bin|file|x",
    "save": "save|floppy|disk|device|bookmark|download",
    "print a document": "print|document|file",
    "search": "search|magnif|zoom",
    "settings": "setting|gear|cog|adjust|slider|tool|prefer",
    "lock the door": "lock|door|key",
    "a secret password": "password|key|lock|secret|finger",
    "wifi": "wifi|wireless|signal|antenna",
    "low battery": "battery",
    "charge the car": "charg|car|plug|battery",
    "money": "money|dollar|euro|coin|cash|pound|yen|bank|currency|bill",
    "pay by card": "card|pay|credit",
    "shopping": "shop|cart|bag|basket",
    "a gift": "gift|present|wrapped",
    "a clock": "clock|time|watch|hour|o'clock",
    "be quick": "fast|run|hurry|speed|rocket|rabbit|forward|bolt|quick|time",
    "danger": "danger|warning|alert|skull|caution|radioactive|biohazard|hazard|triangle|exclamation",
    "no smoking": "smok|cigarette",
    "flag of Japan": "japan",
    "the number seven": "7|seven",
    "an arrow to the left": "arrow|left|chevron|caret",
    "a key": "key",
}


def name_of(hit: Any) -> str:
    """The name of what was found: of its metadata, else its text."""
    metadata = hit.item.metadata if isinstance(hit, Hit) else hit["metadata"]
    text = hit.item.text if isinstance(hit, Hit) else hit["text"]
    return str(metadata.get("name") or text or "")


def answered(pattern: str, names: list[str]) -> bool:
    """Whether a name begins a word with one of the expected beginnings."""
    return any(re.search(rf"\b(?:{pattern})", name.lower()) for name in names[:WITHIN])


def by_command_line(path: Path, text: str) -> list[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        app(["search", str(path), text, "-k", str(K), "--json"], standalone_mode=False)
    return [hit["id"] for hit in json.loads(out.getvalue().strip().splitlines()[-1])["hits"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("index", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("lab/results/everyday.json"))
    parser.add_argument("--every", type=int, default=1, help="Only every so many queries through the command line.")
    given = parser.parse_args()
    began = time.process_time()
    web = create_app(Index.open(given.index, read_only=True), ServeConfig())
    rows: list[dict[str, Any]] = []
    with Index.open(given.index, read_only=True) as index, TestClient(web, base_url="http://127.0.0.1:8000") as http:
        for text, pattern in QUERIES.items():
            hits = index.search(text, k=K)
            names = [name_of(hit) for hit in hits]
            expected = [hit.id for hit in hits]
            over_http = http.post("/v1/search", json={"text": text, "k": K}).json()["hits"]
            as_page = http.post("/v1/search", json={"text": text, "k": 24}).json()["hits"]  # no target, 24 results
            ways = {
                "http": [hit["id"] for hit in over_http] == expected,
                "page": [hit["id"] for hit in as_page][:K] == expected,
            }
            if len(rows) % given.every == 0:
                ways["command line"] = by_command_line(given.index, text) == expected
            rows.append({"query": text, "expected": pattern, "answered": answered(pattern, names), "found": names, "equal": ways})
    body = {
        "command": "python -m lab.everyday " + shlex.join(sys.argv[1:]),
        "commit": current_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "processor_seconds": round(time.process_time() - began, 1),
        "items": len(Index.open(given.index, read_only=True)),
        "queries": len(rows),
        "seed": None,
        "answered": sum(row["answered"] for row in rows),
        "answered_within": WITHIN,
        "equal": {way: sum(row["equal"].get(way, False) for row in rows) for way in WAYS},
        "compared": {way: sum(way in row["equal"] for row in rows) for way in WAYS},
        "rows": rows,
    }
    given.output.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{body['answered']} of {len(rows)} answered; equal first tens: {body['equal']} of {body['compared']}")
    for row in rows:
        if not row["answered"]:
            print(f"  not answered: {row['query']}: {', '.join(row['found'][:WITHIN])}")


if __name__ == "__main__":
    main()
