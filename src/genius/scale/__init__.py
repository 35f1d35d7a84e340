"""Beyond one machine: bulk indexing on Ray (`bulk`), object stores (`objects`), and how a Ray cluster is reached: one that runs
already, or a small one on this machine for as long as a command lasts.

Imported by the command line alone, behind an option: nothing here is needed, or loaded, without it.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from genius.errors import GeniusError

LOCAL = "local"
STARTS = 3  # attempts to start a cluster of this machine
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anyone
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def load_ray() -> Any:
    """Ray, or one line that says how to get it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise GeniusError("--ray needs more packages: pip install 'genius-search[ray]'") from None
    return ray


def _end_what_began(error: Exception) -> None:
    """End the processes of a start that failed half-way. `ray.shutdown` knows nothing of them before a start has succeeded: they
    would stay for as long as this process does, and a second attempt would have to share the machine with them."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        end = getattr(frame.f_locals.get("self"), "kill_all_processes", None)  # that of Ray's Node
        if end is not None:
            with suppress(Exception):
                end(check_alive=False, allow_graceful=False)
            return


@contextmanager
def connected(address: str, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected: to the cluster at `address`, or with "local" to one of this machine that ends with the block.

    A program that is connected already stays so.

    Args:
        address: Of a cluster, or "local" for one on this machine that ends with the block.
        cpus: Processors of a local cluster; None: this machine's.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == LOCAL:
        options |= {"num_cpus": cpus, "include_dashboard": False}
    for left in reversed(range(STARTS if address == LOCAL else 1)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # LanceDB's, of forks: Ray's children become other programs
                ray.init(address=address, **options)
            break
        except Exception as error:  # it has no class of its own for this: a busy machine may take longer than its 30 seconds
            _end_what_began(error)
            ray.shutdown()
            if not left:
                raise GeniusError(f"cannot reach a Ray cluster at {address!r}: {' '.join(str(error).split())[:200]}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
