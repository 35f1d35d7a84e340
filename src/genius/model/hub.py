"""Publish a model on a hub, with a model card that says what the model folder knows of its training.

Knows folders and `huggingface_hub`; reading from a hub is `genius.encoders.resolve` (`hf-hub:OWNER/NAME`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genius.errors import GeniusError, said
from genius.version import __version__

CARD = "README.md"


def push_to_hub(
    model: Any,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    message: str = "Upload a GENIUS model",
    card: Mapping[str, Any] | None = None,
) -> str:
    """Upload a model and its card; the repository is created if it does not exist.

    Args:
        model: A `Genius`, which is saved (`save_pretrained`).
        repo_id: OWNER/NAME.
        private: Whether a new repository is private; None: the account's default.
        token: Access token; None: the one that `hf auth login` stored.
        message: Of the commit.
        card: Fields for the head of the model card, such as `license` and `datasets`.

    Returns:
        The URI by which `Genius.from_pretrained` reads it: hf-hub:OWNER/NAME@COMMIT.

    Raises:
        GeniusError: If `huggingface_hub` is not installed, or the hub refuses.
    """
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise GeniusError(f"a repository is named OWNER/NAME, got {repo_id!r}")
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise GeniusError("a hub needs huggingface_hub: pip install 'genius-search[hub]'") from None
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        (Path(folder) / CARD).write_text(model_card(model, repo_id, card or {}), encoding="utf-8")
        try:
            api = HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
        except Exception as error:  # the hub client raises many types
            raise GeniusError(f"cannot upload to {repo_id}: {said(error)}") from None
    return f"hf-hub:{repo_id}@{done.oid}"


def model_card(model: Any, repo_id: str, fields: Mapping[str, Any]) -> str:
    """A model card: what the model is, what it was fitted or trained on, and how it is used.

    Args:
        model: A `Genius`.
        repo_id: Where it will be.
        fields: For the head of the card.
    """
    config = model.config
    head: dict[str, Any] = {"library_name": "genius-search", "tags": ["multimodal-retrieval", "generative-retrieval"], **fields}
    lines = ["---", *_yaml(head), "---", f"# {repo_id.partition('/')[2]}", ""]
    lines += ["A model for multimodal retrieval by generated IDs (`pip install genius-search`)."]
    levels = " x ".join(str(size) for size in config.quantizer.level_sizes)
    encoder = config.encoder
    if encoder is None and model.encoder is not None:
        encoder = f"in this repository ({type(model.encoder).__name__})"
    rows = {
        "encoder": encoder or "none: it reads features",
        "width": config.width,
        "codes": levels,
        "decoder": f"{config.generator.layers} layers, width {config.generator.d_model}",
        "parameters without encoder": f"{sum(p.numel() for p in model.network.parameters()):,}",
        "fingerprint": model.fingerprint(),
        "saved by": f"genius-search {__version__}",
    }
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    if model.knows is not None:
        lines += ["", "## Training", "", *_training(model.knows)]
    lines += ["", "## Use", "", "```python", "from genius import Genius, Index, Item", ""]
    lines += [f'index = Index("my.genius", Genius.from_pretrained("hf-hub:{repo_id}"))']
    lines += ['index.add([Item("1", text="a red bicycle")])']
    return "\n".join([*lines, 'index.search("bike")', "```", ""])


def _training(known: Any) -> list[str]:
    lines = [f"Codes were fitted to {known.items:,} items: {known.about}."]
    fit = known.fit
    if fit:
        lines += ["", "| measured when it was fitted | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in fit.items()]
    return lines


def _yaml(fields: Mapping[str, Any]) -> list[str]:
    """Flat fields and lists as YAML; JSON is YAML."""
    return [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
