"""Fixtures that several folders of tests share; the modules are in `helpers`.

Compiled loops run with their bounds checked, in programs that tests start, too: a loop that leaves its arrays writes over other
memory, and nothing says so. They are kept apart from those without.
"""

import os
import tempfile
from pathlib import Path

os.environ["NUMBA_BOUNDSCHECK"] = "1"
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"genius-checked-loops-{os.getuid()}"))

pytest_plugins = ["small_world"]
