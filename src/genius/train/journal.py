"""What people see of a training run, and metrics.jsonl.

A bar on stderr while a stage runs; at the end a table of the held-out queries, what limits the result and what to do
next. Warnings are printed once and written to metrics.jsonl. Knows the names of metrics; nothing
of stages.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from genius.files import write_whole

METRICS = "metrics.jsonl"
EVERY = 20.0  # seconds between lines where there is no terminal
ROWS = {"dense": "dense, exhaustive", "genius": "GENIUS, log p alone", "genius_r": "GENIUS^R"}
AT = (1, 5, 10)  # k of hit@k in the table
MAIN_K = 5  # k of the hit@k that the verdict looks at
POOR = 0.5  # hit@5 of exhaustive search below which the vectors, not the codes, are the limit
KEPT = 0.9  # share of dense below which the decoder is the limit


class Journal:
    """Metrics of all stages in one JSONL file: `{"stage", "step", ...}`. Only the main process writes."""

    def __init__(self, folder: Path, *, quiet: bool = False, active: bool = True) -> None:
        self.path = folder / METRICS
        self.quiet = quiet or not active
        self.active = active
        self.console: Any = None
        if not self.quiet:
            from rich.console import Console

            self.console = Console(stderr=True)
        if active:
            folder.mkdir(parents=True, exist_ok=True)

    def rewind(self, stage: str, step: int) -> None:
        """Remove lines of `stage` after `step`: a resumed run writes them again, so each step has one line."""
        if not self.active or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the last line of a killed run
            if entry.get("stage") != stage or entry.get("step", 0) <= step:
                kept.append(line)
        text = "".join(line + "\n" for line in kept)
        write_whole(self.path, lambda path: path.write_text(text, encoding="utf-8"))

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics of a step."""
        if self.active:
            self._append({"stage": stage, "step": step, **{name: _finite(value) for name, value in values.items()}})

    def warn(self, stage: str, step: int, text: str) -> None:
        """Say that training goes wrong: one line on stderr and in metrics.jsonl."""
        if self.active:
            self._append({"stage": stage, "step": step, "warning": text})
        self.note(f"warning: {stage}, step {step:,}: {text}")

    def _append(self, entry: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def note(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

    def bar(self, stage: str, total: int, done: int) -> Bar:
        return Bar(self, stage, total, done)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Bar:
    """The progress of one stage: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""

    def __init__(self, journal: Journal, stage: str, total: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.journal = journal
        self.last_line = time.monotonic()
        self.lines = not journal.quiet and not journal.console.is_terminal
        columns = (TextColumn("{task.description:<10}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
        now = TextColumn("{task.fields[now]}")
        hidden = journal.quiet or self.lines
        self.progress = Progress(*columns, now, console=journal.console, transient=True, refresh_per_second=4, disable=hidden)
        self.task = self.progress.add_task(stage, total=total, completed=done, now="")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def update(self, step: int, values: Mapping[str, float] | None = None) -> None:
        if values is not None:
            now = "  ".join(f"{name} {value:.3g}" for name, value in list(values.items())[:6])
            self.progress.update(self.task, now=now)
        self.progress.update(self.task, completed=step)
        if self.lines and time.monotonic() - self.last_line > EVERY:
            self.last_line = time.monotonic()
            task = self.progress.tasks[self.task]
            self.journal.note(f"{task.description}: step {step:,} of {task.total:,.0f}  {task.fields['now']}".rstrip())


def hit_rate_table(values: Mapping[str, float]) -> list[str]:
    """The lines of a table of hit rates; none where nothing was held out."""
    if not all(f"{row}_hit@{k}" in values for row in ROWS for k in AT):
        return []
    columns = "".join(f"hit@{k}".rjust(9) for k in AT)
    title = "held-out queries"
    if "held_out_queries" in values:
        title = f"held-out (n = {int(values['held_out_queries']):,})"
    lines = [f"{title:<22}{columns}   share of dense, hit@{MAIN_K}"]
    dense = values[f"dense_hit@{MAIN_K}"]
    for row, name in ROWS.items():
        rates = "".join(f"{100 * values[f'{row}_hit@{k}']:7.1f} %" for k in AT)
        share = ""
        if row != "dense" and dense:
            share = f"{values[f'{row}_hit@{MAIN_K}'] / dense:11.2f}"
        lines.append(f"{name:<22}{rates}{share}")
    return lines


def verdict(values: Mapping[str, float], train: str) -> str | None:
    """What limits the results, and what helps.

    Args:
        values: Metrics of the generator's validation.
        train: What of the encoder was trained: none, heads or towers.
    """
    if not hit_rate_table(values):
        return None
    dense = values[f"dense_hit@{MAIN_K}"]
    reranked = values[f"genius_r_hit@{MAIN_K}"]
    if dense and reranked / dense < KEPT:
        kept = f"the decoder is the limit: it keeps {reranked / dense:.0%} of what the vectors find"
        return f"{kept}; try more steps (--set generator.steps=...)"
    if dense < POOR:
        suggestions = {
            "none": "try heads (--set encoder.train=heads), or another encoder",
            "heads": "try towers (--set encoder.train=towers), more pairs, or another encoder",
        }
        more = suggestions.get(train, "try more pairs, or another encoder")
        return f"the encoder is the limit: exhaustive search finds only {dense:.0%} in the top {MAIN_K}; {more}"
    return "the codes keep what the vectors find"


def next_command(output: str, has_encoder: bool, data: str) -> str:
    """What people do after a training run."""
    if has_encoder:
        return f"genius index FILES -o my.genius --model {output}"
    attach = f"attach an encoder to index files: genius attach {output} ENCODER"
    return f"genius eval {output} features:{data or 'FEATURES'}   ({attach})"
