"""What a training leaves behind while it runs, and what a person sees of it.

A bar on stderr, then a table of the held-out questions, what limits it and what to do next; metrics.jsonl, TensorBoard if asked;
and checkpoints that appear whole or not at all, with a Ctrl-C that waits for the end of a step. A checkpoint is a folder, written
beside and renamed, so a kill at any moment leaves either the old or the new one. Knows the names of figures; nothing of stages or
of what is in their state.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from genius.errors import GeniusError
from genius.files import write_whole
from genius.torch_file import read_torch_file

METRICS = "metrics.jsonl"
ESTIMATE_AFTER = 3  # steps that are timed before people are told how long a stage takes
EVERY = 20.0  # seconds between lines where there is no terminal
ROWS = {"dense": "dense, exhaustive", "genius": "GENIUS, log p alone", "genius_r": "GENIUS^R"}
AT = (1, 5, 10)
POOR = 0.5  # hit@5 of an exhaustive search below which the vectors, not the codes, are what to work on
KEPT = 0.9  # share of dense below which the decoder is


class Journal:
    """Metrics of all stages in one JSONL file: `{"stage", "step", ...}`. Only the main process writes."""

    def __init__(self, folder: Path, *, quiet: bool = False, tensorboard: bool = False, active: bool = True) -> None:
        self.path, self.quiet, self.active = folder / METRICS, quiet or not active, active
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
        """Forget lines of `stage` after `step`: a resumed run writes them again, so each step has one line."""
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
        write_whole(self.path, lambda path: path.write_text("".join(line + "\n" for line in kept), encoding="utf-8"))

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        if not self.active:
            return
        clean = {name: (value if math.isfinite(value) else None) for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": stage, "step": step, **clean}) + "\n")
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(f"{stage}/{name}", value, step)

    def note(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

    def bar(self, stage: str, total: int, done: int) -> Bar:
        return Bar(self, stage, total, done)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


class Bar:
    """The moving line of one stage on a terminal, a line now and then elsewhere. In both cases, how long it will take is said
    more exactly than before the start once a few steps are done. Quiet, it does nothing."""

    def __init__(self, journal: Journal, stage: str, total: int, done: int) -> None:
        self.progress: Any = None
        self.journal, self.stage, self.total, self.first = journal, stage, total, done
        self.started = self.told = time.monotonic()
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

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.progress is not None:
            self.progress.stop()

    def update(self, step: int, values: Mapping[str, float] | None = None) -> None:
        if self.journal.quiet:
            return
        now = "" if values is None else "  ".join(f"{k} {v:.3g}" for k, v in list(values.items())[:6])
        if not self.estimated and step - self.first >= ESTIMATE_AFTER:
            self.estimated = True
            self.journal.note(f"{self.stage}: {self.total:,} steps, about {self._left(step)}")
        if self.progress is not None:
            self.progress.update(self.task, completed=step, **({} if values is None else {"now": now}))
        elif time.monotonic() - self.told > EVERY:
            self.told = time.monotonic()
            self.journal.note(f"{self.stage}: step {step:,} of {self.total:,}, about {self._left(step)} left  {now}".rstrip())

    def _left(self, step: int) -> str:
        seconds = (time.monotonic() - self.started) / max(step - self.first, 1) * (self.total - step)
        return spoken(seconds)


def spoken(seconds: float) -> str:
    """A time for people."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(values: Mapping[str, float]) -> list[str]:
    """The lines of a table; none where nothing was held out."""
    if not all(f"{row}_hit@{k}" in values for row in ROWS for k in AT):
        return []
    lines = [f"{'held-out questions':<22}{''.join(f'hit@{k}'.rjust(9) for k in AT)}   kept of dense, hit@5"]
    dense = values[f"dense_hit@{AT[1]}"]
    for row, name in ROWS.items():
        rates = [values[f"{row}_hit@{k}"] for k in AT]
        kept = "" if row == "dense" or not dense else f"{rates[1] / dense:11.2f}"
        lines.append(f"{name:<22}{''.join(f'{100 * rate:7.1f} %' for rate in rates)}{kept}")
    return lines


def verdict(values: Mapping[str, float], train: str) -> str | None:
    """What limits the answers, and what helps. `train`: what of the encoder was trained."""
    if not table(values):
        return None
    dense, found = values[f"dense_hit@{AT[1]}"], values[f"genius_r_hit@{AT[1]}"]
    if dense and found / dense < KEPT:
        kept = f"the decoder is the limit: it keeps {found / dense:.0%} of what the vectors find"
        return f"{kept}; try more steps (--set generator.steps=...)"
    if dense < POOR:
        more = {
            "none": "try heads (--set encoder.train=heads), or another encoder",
            "heads": "try towers (--set encoder.train=towers), more pairs, or another encoder",
        }.get(train, "try more pairs, or another encoder")
        return f"the encoder is the limit: even an exhaustive search finds only {dense:.0%} among the first {AT[1]}; {more}"
    return "the codes keep what the vectors find"


def next_command(output: str, has_encoder: bool, data: str) -> str:
    """What people do after a training run."""
    if has_encoder:
        return f"genius index FILES -o my.genius --model {output}"
    return (
        f"genius eval {output} features:{data or 'FEATURES'}   (attach an encoder to index files: genius attach {output} ENCODER)"
    )


PREFIX = "step-"
WEIGHTS, OPTIMIZER, PROGRESS = "weights.safetensors", "optimizer.pt", "progress.json"


def save_checkpoint(
    folder: Path, step: int, weights: dict[str, Tensor], optimizer: dict[str, Any], progress: dict[str, Any]
) -> Path:
    """Write `folder/step-N` and remove older ones. Without room for it the one before stays, and one line says so."""
    target = folder / f"{PREFIX}{step:09d}"
    temporary = folder / f".writing-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS)
        torch.save(_cpu(optimizer), temporary / OPTIMIZER)
        (temporary / PROGRESS).write_text(json.dumps({"step": step, **progress}), encoding="utf-8")
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except (OSError, RuntimeError, SafetensorError) as error:  # torch's writer has its own words for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        kept = "What is done is kept: start again when there is room"
        raise GeniusError(f"cannot write the checkpoint {target}: {reason}. {kept}") from None
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)  # from here on the new one counts
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def _cpu(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {name: _cpu(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_cpu(value) for value in state)
    return state


def latest_checkpoint(folder: Path) -> Path | None:
    found = sorted(folder.glob(f"{PREFIX}*")) if folder.is_dir() else []
    return found[-1] if found else None


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """(weights, optimizer state, progress). The optimizer file is read without running any code from it."""
    try:
        weights = load_file(path / WEIGHTS)
        optimizer = read_torch_file(path / OPTIMIZER)
        progress = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise GeniusError(f"cannot read the checkpoint {path}: {error}; delete it to start the stage again") from None
    return weights, optimizer, progress


class Interrupt:
    """Inside, the first Ctrl-C only sets `asked`; a second one ends the program at once, as it would have."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # only there may signals be handled
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
