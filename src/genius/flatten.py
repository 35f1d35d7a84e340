"""Projects vectors to a plane with UMAP. Needs the extra `map`.

UMAP compiles itself when it starts and leaves threads in a state that slows torch down, so it runs in a process of its own
(`python -m genius.flatten`, an array in, an array out), which can be stopped at any time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from genius.errors import GeniusError

NEIGHBOURS = 15
FEWEST = 2 * NEIGHBOURS  # points that UMAP needs


def available() -> bool:
    """Whether UMAP is installed."""
    return importlib.util.find_spec("umap") is not None


class Flattening:
    """One run of UMAP: `result` waits for it, `stop` ends it."""

    def __init__(self, points: np.ndarray[Any, Any]) -> None:
        if not available():
            raise GeniusError("a map by UMAP needs umap-learn: pip install 'genius-search[map]'")
        with tempfile.TemporaryFile() as given:
            np.save(given, np.ascontiguousarray(points, np.float32))
            given.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "genius.flatten"], stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )

    def result(self) -> np.ndarray[Any, Any]:
        """Wait for the (n, 2) positions."""
        out, errors = self._process.communicate()
        if self._process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it was stopped"]
            raise GeniusError(f"UMAP failed: {last[0][:200]}")
        flat: np.ndarray[Any, Any] = np.load(io.BytesIO(out))
        return flat

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()


def flattened(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Project points (n, D) to (n, 2); deterministic."""
    return Flattening(points).result()


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(10)  # searches come first
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    import umap

    points = np.load(io.BytesIO(sys.stdin.buffer.read()))
    near = min(NEIGHBOURS, len(points) - 1)
    flat = umap.UMAP(n_neighbors=near, metric="cosine", random_state=0, n_jobs=1).fit_transform(points)
    out = io.BytesIO()
    np.save(out, np.asarray(flat, np.float32))
    sys.stdout.buffer.write(out.getvalue())


if __name__ == "__main__":
    main()
