"""Progress of long commands: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from genius.cli.common import console

EVERY = 10.0  # seconds between lines where there is no terminal


@contextmanager
def kept_if_interrupted() -> Iterator[None]:
    """Tell people who stop a run that it can go on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("what is done is kept: run it again to go on", highlight=False)
        raise


@contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Inside, tell(phase, items done since, items in all or 0)."""
    if console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(20),
            TextColumn("{task.completed:,} items"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            tasks = {}

            def move(phase: str, count: int, total: int) -> None:
                if phase not in tasks:
                    tasks[phase] = progress.add_task(phase, total=total or None)
                progress.update(tasks[phase], advance=count, total=total or None)

            yield move
        return
    done: dict[str, int] = {}
    started: dict[str, float] = {}
    last = time.monotonic()

    def line(phase: str, count: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        begun = started.setdefault(phase, now)
        done[phase] = done.get(phase, 0) + count
        if now - last < EVERY:
            return
        last = now
        speed = done[phase] / max(now - begun, 1e-9)
        left = f", about {(total - done[phase]) / speed:,.0f} s left" if total > done[phase] and now > begun else ""
        console.print(f"{phase}: {done[phase]:,}{f' of {total:,}' if total else ''} items{left}", highlight=False)

    yield line
