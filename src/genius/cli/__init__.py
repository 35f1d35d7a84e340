"""The command line. `main` is the program `genius`; `app` holds the commands (`genius.cli.commands`).

Nothing heavy is imported here, so that Ctrl-C is one line from the start.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genius.cli.commands import app as app

INTERRUPTED = 130  # exit status after Ctrl-C
BROKEN_PIPE = 1  # after the reader of our output has gone, as in `genius ... | head`


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Ctrl-C. During an import the process ends at once: libraries turn a KeyboardInterrupt there into other errors.

    What is on disk stays whole: every write is safe against a kill.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"genius: interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> None:
    """Run the command that the arguments of the process name, and exit with its status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    # Waiting OpenMP threads should sleep soon: spinning slows every other busy process. Read when torch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    status: object = 0
    try:
        from genius.cli.commands import app_for

        try:
            app_for(sys.argv[1:])(sys.argv[1:])
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("genius: interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at the end: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE
    sys.exit(status)  # type: ignore[arg-type]


def __getattr__(name: str) -> Any:
    if name == "app":
        from genius.cli.commands import register

        return register()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
