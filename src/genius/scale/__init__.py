"""Beyond one machine: bulk indexing on Ray (`bulk`), object stores (`objects`), and how a Ray cluster is reached: one that runs
already, or a small one on this machine for as long as a command lasts.

Imported by the command line alone, behind an option: nothing here is needed, or loaded, without it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from genius.errors import GeniusError

LOCAL = "local"
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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # LanceDB's, of forks: Ray's children become other programs
            ray.init(address=address, **options)
    except Exception as error:  # it has no class of its own for this
        raise GeniusError(f"cannot reach a Ray cluster at {address!r}: {' '.join(str(error).split())[:200]}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
