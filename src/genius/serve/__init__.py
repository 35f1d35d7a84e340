"""The HTTP service: `create_app(index)` for servers and tests, `GeniusClient` for programs that call it.

Knows HTTP, queues and keys. Knows nothing of models: everything it asks of an index is in `backend.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genius.serve.app import create_app
    from genius.serve.client import GeniusClient
    from genius.serve.settings import ServeConfig

__all__ = ["GeniusClient", "ServeConfig", "create_app"]


def __getattr__(name: str) -> Any:
    """Import on first use: fastapi and httpx are optional (`pip install 'genius-search[serve]'`)."""
    import importlib

    modules = {"create_app": "app", "GeniusClient": "client", "ServeConfig": "settings"}
    if name not in modules:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"genius.serve.{modules[name]}"), name)
