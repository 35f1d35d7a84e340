"""What an experiment gives: Markdown, the numbers behind it, and pictures. Knows nothing of models."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genius.evaluate import Evaluation
from genius.evaluate.report import main_rows, markdown_table, method_title
from lab import current_commit
from lab.paper.printed import Row, printed_number


@dataclass
class Table:
    """One table or figure, ready to be written."""

    name: str
    title: str
    body: str  # Markdown
    about: dict[str, Any]
    results: list[dict[str, Any]]
    pictures: dict[str, bytes] = field(default_factory=dict)  # name of a file -> PNG

    def markdown(self, command: str = "") -> str:
        call = f"\n```\n{command}\n```\n" if command else ""
        facts = ", ".join(
            f"{key} {value}" for key, value in self.about.items() if key in ("date", "device", "queries", "candidates")
        )
        shown = "".join(f"\n![{name}]({name})\n" for name in self.pictures)
        return f"# {self.title}\n{call}\n{facts}\n\n{self.body}\n{shown}"

    def write(self, directory: Path, command: str = "") -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{self.name}.md").write_text(self.markdown(command), encoding="utf-8")
        (directory / f"{self.name}.json").write_text(json.dumps(self.to_json(command), indent=1) + "\n", encoding="utf-8")
        for name, picture in self.pictures.items():
            (directory / name).write_bytes(picture)
        return directory / f"{self.name}.md"

    def to_json(self, command: str = "") -> dict[str, Any]:
        about = {"date": datetime.date.today().isoformat(), "commit": current_commit(), **self.about}
        if command:
            about["command"] = command
        return {"experiment": self.name, "title": self.title, "about": about, "body": self.body, "results": self.results}


def plots(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes, drawn without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False)
    return figure, axes


def png(figure: Any) -> bytes:
    import matplotlib.pyplot as plt

    out = io.BytesIO()
    figure.tight_layout()
    figure.savefig(out, format="png", dpi=110)
    plt.close(figure)
    return out.getvalue()


def beside_printed(evaluation: Evaluation, pool: str, printed: Mapping[str, Row], misprints: set[tuple[str, str]]) -> str:
    """Our table with the paper's columns after our own."""
    header, rows = main_rows(evaluation, pool)
    keys = [task.key for task in evaluation.tasks]
    for name, theirs in printed.items():
        known = [theirs[key] for key in keys if key in theirs]
        if not known:
            continue
        header.append(f"{method_title(name)} (paper)")
        for key, row in zip(keys, rows, strict=False):
            marked = " (misprint)" if (name, key) in misprints else ""
            row.append(printed_number(theirs[key]) + marked if key in theirs else "–")
        rows[-1].append(f"{sum(known) / len(known):.1f}" if len(known) == len(keys) else "–")
    return markdown_table(header, rows)
