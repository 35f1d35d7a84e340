"""What people see of a training run, and metrics.jsonl.

A bar on stderr while a stage runs; at the end a table of the held-out queries, what limits the result and what to do
next. Warnings are printed once and written to metrics.jsonl. TensorBoard if asked. Knows the names of metrics; nothing
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

from genius.errors import GeniusError
from genius.files import write_whole

METRICS = "metrics.jsonl"
ESTIMATE_AFTER = 3  # steps that are timed before the duration of a stage is estimated
EVERY = 20.0  # seconds between lines where there is no terminal
ROWS = {"dense": "dense, exhaustive", "genius": "GENIUS, log p alone", "genius_r": "GENIUS^R"}
AT = (1, 5, 10)  # k of hit@k in the table
MAIN_K = 5  # k of the hit@k that the verdict looks at
POOR = 0.5  # hit@5 of exhaustive search below which the vectors, not the codes, are the limit
KEPT = 0.9  # share of dense below which the decoder is the limit


class Journal:
    """Metrics of all stages in one JSONL file: `{"stage", "step", ...}`. Only the main process writes."""

    def __init__(self, folder: Path, *, quiet: bool = False, tensorboard: bool = False, active: bool = True) -> None:
        self.path = folder / METRICS
        self.quiet = quiet or not active
        self.active = active
        self.console: Any = None
        if not self.quiet:
            from rich.console import Console

            self.console = Console(stderr=True)
        self.board: Any = None
        if active:
            folder.mkdir(parents=True, exist_ok=True)
        if tensorboard and active:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise GeniusError("tensorboard = true needs the package: pip install tensorboard") from None
            self.board = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]

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
        if not self.active:
            return
        self._append({"stage": stage, "step": step, **{name: _finite(value) for name, value in values.items()}})
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(f"{stage}/{name}", value, step)

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

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Bar:
    """The progress of one stage: a bar on a terminal, a line now and then elsewhere, nothing when quiet.

    After the first steps it says how long the stage will take.
    """

    def __init__(self, journal: Journal, stage: str, total: int, done: int) -> None:
        self.progress: Any = None
        self.journal = journal
        self.stage = stage
        self.total = total
        self.first = done
        self.started = time.monotonic()
        self.last_line = self.started
        self.estimated = journal.quiet
        if journal.quiet or not journal.console.is_terminal:
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description:<10}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
        now = TextColumn("{task.fields[now]}")
        self.progress = Progress(*columns, now, console=journal.console, transient=True, refresh_per_second=4)
        self.task = self.progress.add_task(stage, total=total, completed=done, now="")

    def __enter__(self) -> Bar:
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.progress is not None:
            self.progress.stop()

    def update(self, step: int, values: Mapping[str, float] | None = None) -> None:
        if self.journal.quiet:
            return
        shown: dict[str, str] = {}
        if values is not None:
            shown["now"] = "  ".join(f"{name} {value:.3g}" for name, value in list(values.items())[:6])
        if not self.estimated and step - self.first >= ESTIMATE_AFTER:
            self.estimated = True
            self.journal.note(f"{self.stage}: {self.total:,} steps, about {self._left(step)}")
        if self.progress is not None:
            self.progress.update(self.task, completed=step, **shown)
        elif time.monotonic() - self.last_line > EVERY:
            self.last_line = time.monotonic()
            line = f"{self.stage}: step {step:,} of {self.total:,}, about {self._left(step)} left  {shown.get('now', '')}"
            self.journal.note(line.rstrip())

    def _left(self, step: int) -> str:
        seconds_per_step = (time.monotonic() - self.started) / max(step - self.first, 1)
        return duration(seconds_per_step * (self.total - step))


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


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
