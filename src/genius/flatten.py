"""Points of many directions on a plane, by UMAP: near things stay near. Needs the extra `map`.

UMAP compiles itself when it starts, and leaves the threads of its process in a state that slows torch down. So it runs in a
process that holds nothing else (`python -m genius.flatten`, an array in, an array out) and can be ended at any time.
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
FEWEST = 2 * NEIGHBOURS  # of fewer points UMAP makes nothing


def available() -> bool:
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
        """(n, 2)"""
        out, said = self._process.communicate()
        if self._process.returncode:
            last = said.decode(errors="replace").strip().splitlines()[-1:] or ["it was ended"]
            raise GeniusError(f"UMAP gave no map: {last[0][:200]}")
        flat: np.ndarray[Any, Any] = np.load(io.BytesIO(out))
        return flat

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()


def flattened(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(n, D) -> (n, 2), always the same for the same points."""
    return Flattening(points).result()


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(10)  # a map is for later: whoever searches now comes first
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
