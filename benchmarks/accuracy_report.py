"""results.json of `accuracy.py` -> the Markdown tables of docs/results/accuracy.md, on standard output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(lines: list[dict[str, Any]]) -> list[str]:
    rows = ["| search | hit@5 by task | share of dense, mean | worst task [95 %] | re-ranked | queries/s |", "|" + "---|" * 6]
    for line in lines:
        worst = min(line["tasks"].values(), key=lambda task: task["share"])
        low, high = worst["interval"]
        touched = "" if line["touched"] is None else f"{line['touched']:,.0f}"
        speed = "" if line["queries_per_second"] is None else f"{line['queries_per_second']:,.0f}"
        five = " ".join(f"{task['hit@5']:.1f}" for task in line["tasks"].values())
        share, least = f"{line['share']:.3f}", f"{line['worst']:.3f} [{low:.2f}, {high:.2f}]"
        rows.append(f"| {line['mode']} | {five} | {share} | {least} | {touched} | {speed} |")
    return rows


def main() -> None:
    for path in sys.argv[1:]:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
        print(f"{results['device']}, torch {results['torch']}, {results['seconds']:.0f} s\n")
        for name in dict.fromkeys(line["name"] for line in results["lines"]):
            lines = [line for line in results["lines"] if line["name"] == name]
            queries = [task["queries"] for task in lines[0]["tasks"].values()]
            print(f"**{name}** ({', '.join(lines[0]['tasks'])}; {min(queries)} - {max(queries)} queries a task)\n")
            print("\n".join(table(lines)) + "\n")


if __name__ == "__main__":
    main()
